"""Every command disturbed at every moment, and what it leaves compared: `make chaos`.

    python -m attacks.chaos --kills 200 --seed 1 --jobs 2
    python -m attacks.chaos predict serve --seconds 300

A command, or a process that works for it, is killed at a random moment; its disk is full, its
folder read-only, its clock jumps, another one writes to the same folder, a file is damaged. Then
the same command is given again. Its files must be those of a run that nobody disturbed, but for
the time of day; five seconds after a command has ended nothing of it runs; and its exit status says
what happened. The same seed gives the same disturbances.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .disturbances import DISTURBANCES, KILLS, Trial
from .processes import hear_signals
from .same_files import differences
from .scenarios import SCENARIOS, Scenario, write_inputs
from .target import Find

_MOST_SECONDS = 300.0  # of a command that nobody disturbs
_KILLS_PER_OTHER = 4


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed: its files, and how long it took."""

    out: Path
    seconds: float


class Chaos:
    """Trials of scenarios in a folder; `counts` by scenario, disturbance and outcome."""

    def __init__(self, folder: Path, names: list[str], seed: int) -> None:
        self.folder = folder
        self.names = names
        self.seed = seed
        self.inputs = write_inputs(folder / "inputs", names)
        self.references: dict[str, Reference] = {}
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.finds: list[str] = []
        self._lock = threading.Lock()

    def reference(self, name: str) -> Reference:
        """Made once: two runs, of which the files are compared."""
        with self._lock:
            if name not in self.references:
                self.references[name] = self._undisturbed(name)
            return self.references[name]

    def _undisturbed(self, name: str) -> Reference:
        outs, seconds = [], []
        for place in ("one", "two"):
            scenario = replace(SCENARIOS[name])
            outs.append(self._new_folder(name, place))
            running = scenario.begin(self.inputs, outs[-1])
            scenario.attend(running, _MOST_SECONDS)
            seconds.append(running.seconds)
            scenario.close()
            status = running.end(10)
            running.remove()
            assert status == scenario.status, f"{name}: status {status}, {running.said()}"
        unlike = differences(*outs, SCENARIOS[name].timed)
        assert not unlike, f"{name}: two runs that nobody disturbed differ in {unlike}"
        return Reference(outs[0], min(seconds))

    def _new_folder(self, *parts: str) -> Path:
        place = self.folder.joinpath("-".join(parts).replace(" ", "-"))
        place.mkdir()
        return place

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Scenarios and disturbances, for ever: all kills before any comes again, so the others."""
        rng = np.random.default_rng(self.seed)
        scenarios = [SCENARIOS[name] for name in self.names]
        kills = _shuffled(rng, [(s.name, k) for s in scenarios for k in KILLS if _fits(s, k)])
        others = [
            (s.name, k) for s in scenarios for k in DISTURBANCES if k not in KILLS and _fits(s, k)
        ]
        others = _shuffled(rng, others)
        while True:
            yield from itertools.islice(kills, _KILLS_PER_OTHER)
            yield next(others)

    def trial(self, number: int, name: str, kind: str) -> None:
        rng = np.random.default_rng([self.seed, number])
        known = self.reference(name)
        out = self._new_folder(str(number), name)
        size = sum(path.stat().st_size for path in known.out.rglob("*") if path.is_file())
        trial = Trial(replace(SCENARIOS[name]), self.inputs, out, known.seconds, size, rng)
        try:
            outcome = DISTURBANCES[kind](trial)
            unlike = differences(known.out, out, trial.scenario.timed)
            if unlike:
                raise Find(f"unequal: {', '.join(unlike[:5])}")
        except Find as find:
            outcome = "FIND"
            names = shlex.join(self.names)
            again = f"python -m attacks.chaos --seed {self.seed} --trial {number} {names}"
            self.finds.append(f"{name}, {kind}: {find}\n    {again}\n    {out}")
            print(self.finds[-1], flush=True)
        finally:
            trial.clean_up()
        with self._lock:
            self.counts[name, kind][outcome] += 1
        print(f"{number:4d}  {name}, {kind}: {outcome}", flush=True)

    def table(self) -> str:
        """A line for each command and disturbance, a column for each outcome."""
        outcomes = sorted({outcome for count in self.counts.values() for outcome in count})
        width = max(len(f"{name}, {kind}") for name, kind in self.counts)
        lines = [" " * width + "".join(f"{outcome:>16s}" for outcome in outcomes)]
        for (name, kind), count in sorted(self.counts.items()):
            row = "".join(f"{count[outcome] or '':>16}" for outcome in outcomes)
            lines.append(f"{f'{name}, {kind}':{width}s}{row}")
        total = sum(self.counts.values(), Counter())
        lines.append(f"{'all':{width}s}" + "".join(f"{total[o]:>16}" for o in outcomes))
        return "\n".join(lines)


def _fits(scenario: Scenario, kind: str) -> bool:
    """Two servers take two ports, and a training that is done is not looked at again."""
    if kind in ("two writers", "damage"):
        return not scenario.status
    return scenario.has_workers or kind != "worker killed"


def _shuffled(rng: np.random.Generator, pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    while True:
        yield from (pairs[place] for place in rng.permutation(len(pairs)))


def chaos(
    names: list[str],
    *,
    kills: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    only: int | None = None,
) -> Chaos:
    """Trials 0, 1, … until so many were kills, or the time is over; `only` one of them."""
    bench = Chaos(Path(tempfile.mkdtemp(prefix="histodict-chaos-")), names, seed)
    numbered = enumerate(bench.pairs())
    if only is not None:
        numbered = itertools.islice(numbered, only, only + 1)
    started, killed, lock = time.monotonic(), itertools.count(1), threading.Lock()

    def work() -> None:
        while seconds is None or time.monotonic() - started < seconds:
            with lock:
                number, pair = next(numbered, (0, None))
                if pair is None or (kills and pair[1] in KILLS and next(killed) > kills):
                    return
            bench.trial(number, *pair)

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()
    if not bench.finds:
        shutil.rmtree(bench.folder, ignore_errors=True)
    return bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.chaos", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=", ".join(SCENARIOS))
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--kills", type=int, help="so many kills; every fifth trial is another one")
    amount.add_argument("--seconds", type=float, help="so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    parser.add_argument("--trial", type=int, help="this one alone")
    specified = parser.parse_args()
    unknown = [name for name in specified.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown}; there are {', '.join(SCENARIOS)}")
    hear_signals()
    bench = chaos(
        specified.scenarios or list(SCENARIOS),
        kills=specified.kills,
        seconds=specified.seconds or (None if specified.kills else 600.0),
        seed=specified.seed,
        jobs=specified.jobs,
        only=specified.trial,
    )
    for name, known in sorted(bench.references.items()):
        print(f"{name}: {known.seconds:.1f} s if nobody disturbs it")
    print(bench.table())
    print(*bench.finds, sep="\n")
    print(f"{len(bench.finds)} finds")
    return 1 if bench.finds else 0


if __name__ == "__main__":
    sys.exit(main())
