"""Interrupt every command at random moments and compare its output files: `make chaos`.

    python -m attacks.chaos --kills 200 --seed 1 --jobs 2
    python -m attacks.chaos predict serve --seconds 300

Each run suffers one disturbance: the command or one of its worker processes is killed, the disk is
full, the output folder becomes read-only, the clock jumps, a second command writes to the same
folder, or an output file is damaged. The command is then repeated. The output files must equal
those of an undisturbed run except for timestamps, no process may be left five seconds after the
command has ended, and the exit status must fit. The same seed gives the same disturbances.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .disturbances import DISTURBANCES, KILLS, DisturbedRun
from .processes import enable_sigint
from .same_files import differences
from .scenarios import SCENARIOS, Scenario, write_inputs
from .target import InvariantError

_MOST_SECONDS = 300.0  # for an undisturbed command
_KILLS_PER_OTHER = 4


@dataclass(frozen=True)
class Reference:
    """Output folder and duration of an undisturbed run."""

    out: Path
    seconds: float


class Chaos:
    """Runs of scenarios with disturbances; `counts` by scenario, disturbance and outcome."""

    def __init__(self, folder: Path, names: list[str], seed: int) -> None:
        self.folder = folder
        self.names = names
        self.seed = seed
        self.inputs = write_inputs(folder / "inputs", names)
        self.references: dict[str, Reference] = {}
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def reference(self, name: str) -> Reference:
        """Return the reference of a scenario; the first call compares the files of two runs."""
        with self._lock:
            if name not in self.references:
                self.references[name] = self._undisturbed(name)
            return self.references[name]

    def _undisturbed(self, name: str) -> Reference:
        outs, seconds = [], []
        for place in ("one", "two"):
            scenario = replace(SCENARIOS[name])
            outs.append(self._new_folder(name, place))
            running = scenario.start(self.inputs, outs[-1])
            scenario.attend(running, _MOST_SECONDS)
            seconds.append(running.seconds)
            scenario.close()
            status = running.end(10)
            running.remove()
            assert status == scenario.status, f"{name}: status {status}, {running.output()}"
        unlike = differences(*outs, SCENARIOS[name].timed)
        assert not unlike, f"{name}: two runs that nobody disturbed differ in {unlike}"
        return Reference(outs[0], min(seconds))

    def _new_folder(self, *parts: str) -> Path:
        place = self.folder.joinpath("-".join(parts).replace(" ", "-"))
        place.mkdir()
        return place

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield (scenario, disturbance) pairs without end; each kill once before a repetition."""
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

    def run_disturbed(self, number: int, name: str, kind: str) -> None:
        rng = np.random.default_rng([self.seed, number])
        reference = self.reference(name)
        out = self._new_folder(str(number), name)
        size = sum(path.stat().st_size for path in reference.out.rglob("*") if path.is_file())
        run = DisturbedRun(replace(SCENARIOS[name]), self.inputs, out, reference.seconds, size, rng)
        try:
            outcome = DISTURBANCES[kind](run)
            unlike = differences(reference.out, out, run.scenario.timed)
            if unlike:
                raise InvariantError(f"unequal: {', '.join(unlike[:5])}")
        except InvariantError as error:
            outcome = "FAILURE"
            names = shlex.join(self.names)
            repeat = f"python -m attacks.chaos --seed {self.seed} --run {number} {names}"
            self.failures.append(f"{name}, {kind}: {error}\n    {repeat}\n    {out}")
            print(self.failures[-1], flush=True)
        finally:
            run.clean_up()
        with self._lock:
            self.counts[name, kind][outcome] += 1
        print(f"{number:4d}  {name}, {kind}: {outcome}", flush=True)

    def table(self) -> str:
        """Return a table with a row per command and disturbance and a column per outcome."""
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
    """Return whether the disturbance applies: servers never write together, nor resume finished
    runs."""
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
    """Run disturbances 0, 1, … up to a number of kills or seconds; with `only`, this one alone."""
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
            bench.run_disturbed(number, *pair)

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(work) for _ in range(jobs)]):
            done.result()  # raises the first error; later ones may be consequences
    if not bench.failures:
        shutil.rmtree(bench.folder, ignore_errors=True)
    return bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.chaos", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=", ".join(SCENARIOS))
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--kills", type=int, help="so many kills; every fifth disturbance is another kind"
    )
    amount.add_argument("--seconds", type=float, help="so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs")
    parser.add_argument("--run", type=int, help="number of the only run")
    specified = parser.parse_args()
    unknown = [name for name in specified.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown}; there are {', '.join(SCENARIOS)}")
    enable_sigint()
    bench = chaos(
        specified.scenarios or list(SCENARIOS),
        kills=specified.kills,
        seconds=specified.seconds or (None if specified.kills else 600.0),
        seed=specified.seed,
        jobs=specified.jobs,
        only=specified.run,
    )
    for name, reference in sorted(bench.references.items()):
        print(f"{name}: {reference.seconds:.1f} s undisturbed")
    print(bench.table())
    print(*bench.failures, sep="\n")
    print(f"{len(bench.failures)} failures")
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
