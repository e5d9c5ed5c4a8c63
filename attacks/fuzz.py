"""Damaged input of every kind, until a number of cases or a time is reached: `make fuzz`.

    python -m attacks.fuzz images --cases 20000 --seed 1

The same seed gives the same cases in the same order. What breaks a promise is made as small as it
gets and kept in tests/finds/, where tests/test_finds.py tries it again for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from .minimise import minimised
from .target import Case
from .targets import TARGETS, target_named
from .trials import Trial, Worker

FINDS = Path(__file__).parents[1] / "tests" / "finds"
_BATCH = 50
_KEPT_EACH = 2  # finds of one signature


@dataclass
class Tally:
    """Counts of outcomes by kind, and what was found."""

    name: str
    per_attempt: int = 1
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    finds: list[Trial] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, trial: Trial) -> None:
        self.counts[trial.case.kind][trial.outcome] += self.per_attempt
        if trial.signature is not None:
            self.finds.append(trial)

    @property
    def total(self) -> int:
        return sum(count.total() for count in self.counts.values())

    def table(self) -> str:
        """A line for each kind, a column for each outcome."""
        outcomes = sorted({outcome for count in self.counts.values() for outcome in count})
        lines = [f"{self.name}: {self.total} cases in {self.seconds:.0f} s"]
        width = max((len(kind) for kind in self.counts), default=0)
        spans = {outcome: max(10, len(outcome) + 2) for outcome in outcomes}
        header = "".join(f"{outcome:>{span}s}" for outcome, span in spans.items())
        lines.append(" " * (width + 4) + header)
        for kind, count in sorted(self.counts.items()):
            row = "".join(f"{count[outcome]:{span}d}" for outcome, span in spans.items())
            lines.append(f"    {kind:{width}s}{row}")
        return "\n".join(lines)


def fuzz(
    name: str, *, cases: int | None = None, seconds: float | None = None, seed: int, jobs: int = 1
) -> Tally:
    """Try cases 0, 1, … of a target until there were so many, or the time is over."""
    tally = Tally(name, target_named(name).per_attempt)
    most = None if cases is None else -(-cases // tally.per_attempt)
    starts = itertools.count(step=_BATCH) if most is None else range(0, most, _BATCH)
    batches = (range(at, at + _BATCH if most is None else min(most, at + _BATCH)) for at in starts)
    lock = Lock()

    def work() -> None:
        worker = Worker(name)
        started = time.monotonic()  # to set it up takes its own time
        try:
            while seconds is None or time.monotonic() - started < seconds:
                with lock:
                    numbers = next(batches, None)
                if numbers is None:
                    return
                for train_test in worker.try_seeds(seed, list(numbers)):
                    with lock:
                        tally.add(train_test)
        finally:
            worker.close()
            tally.seconds = max(tally.seconds, time.monotonic() - started)

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()
    return tally


def distinct(tally: Tally) -> list[Trial]:
    """A few finds of each signature, as small as they get."""
    by_signature: dict[str, list[Trial]] = defaultdict(list)
    for found in tally.finds:
        by_signature[found.signature or ""].append(found)
    small = []
    worker = Worker(tally.name)
    for same in by_signature.values():
        # A hang that does not come again was the machine's; all else counts, also without
        # coming again.
        for found in same[:_KEPT_EACH]:
            again = minimised(worker, found)
            if again is not None or found.signature != "hang":
                small.append(again or found)
    worker.close()
    return small


def keep(name: str, found: Trial) -> Path:
    """The input of a find among the tests."""
    data = found.data or _built(name, found.case)
    path = FINDS / name / f"{hashlib.sha256(data).hexdigest()[:8]}-{found.case.base}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _built(name: str, case: Case) -> bytes:
    """Of a case that ended its process, which could not send it."""
    target = target_named(name)
    with tempfile.TemporaryDirectory() as folder:
        target.setup(Path(folder))
        return target.build(case)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--cases", type=int, help="of each target")
    parser.add_argument("--seconds", type=float, help="for each target; 60 without --cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    specified = parser.parse_args()
    if unknown := set(specified.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    seconds = 60.0 if specified.seconds is None and specified.cases is None else specified.seconds
    n_finds = 0
    for name in specified.targets or TARGETS:
        tally = fuzz(
            name, cases=specified.cases, seconds=seconds, seed=specified.seed, jobs=specified.jobs
        )
        print(tally.table(), flush=True)
        for found in distinct(tally) if tally.finds else []:
            n_finds += 1
            print(f"\n{found.signature} ({found.case.kind})\n{found.words}")
            print(f"edits: {found.case.edits}\nkept as {keep(name, found)}", flush=True)
    print(f"{n_finds} finds")
    return 1 if n_finds else 0


if __name__ == "__main__":
    sys.exit(main())
