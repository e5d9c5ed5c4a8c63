"""Feed damaged input of every kind to histodict: `make fuzz`.

    python -m attacks.fuzz images --cases 20000 --seed 1

The run ends after a number of cases or a time. The same seed gives the same cases in the same
order. A case that fails is minimised and stored in tests/fuzz_failures/, and
tests/attacks/test_smoke.py runs it again.
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

from .case_runner import CaseResult, Worker
from .minimise import minimise
from .target import Case
from .targets import TARGETS, load_target

FAILURES = Path(__file__).parents[1] / "tests" / "fuzz_failures"
_BATCH = 50
_MAX_PER_SIGNATURE = 2  # stored cases per signature


@dataclass
class Tally:
    """Counts of outcomes by kind, and the failures."""

    name: str
    per_attempt: int = 1
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[CaseResult] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: CaseResult) -> None:
        self.counts[result.case.kind][result.outcome] += self.per_attempt
        if result.signature is not None:
            self.failures.append(result)

    @property
    def total(self) -> int:
        return sum(count.total() for count in self.counts.values())

    def table(self) -> str:
        """Return a table with a row per kind and a column per outcome."""
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
    """Run cases 0, 1, … of a target up to a number of cases or seconds."""
    tally = Tally(name, load_target(name).per_attempt)
    most = None if cases is None else -(-cases // tally.per_attempt)
    starts = itertools.count(step=_BATCH) if most is None else range(0, most, _BATCH)
    batches = (range(at, at + _BATCH if most is None else min(most, at + _BATCH)) for at in starts)
    lock = Lock()

    def work() -> None:
        worker = Worker(name)
        started = time.monotonic()  # without the setup
        try:
            while seconds is None or time.monotonic() - started < seconds:
                with lock:
                    numbers = next(batches, None)
                if numbers is None:
                    return
                for result in worker.run_seeds(seed, list(numbers)):
                    with lock:
                        tally.add(result)
        finally:
            worker.close()
            tally.seconds = max(tally.seconds, time.monotonic() - started)

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()
    return tally


def minimised_failures(tally: Tally) -> list[CaseResult]:
    """Return a few minimised failures per signature."""
    by_signature: dict[str, list[CaseResult]] = defaultdict(list)
    for failure in tally.failures:
        by_signature[failure.signature or ""].append(failure)
    small = []
    worker = Worker(tally.name)
    for same in by_signature.values():
        # A hang that is not reproduced is attributed to the machine; any other failure counts even
        # if it is not reproduced.
        for failure in same[:_MAX_PER_SIGNATURE]:
            again = minimise(worker, failure)
            if again is not None or failure.signature != "hang":
                small.append(again or failure)
    worker.close()
    return small


def store_case(name: str, failure: CaseResult) -> Path:
    """Store the input of a failure among the tests."""
    data = failure.data or _built(name, failure.case)
    path = FAILURES / name / f"{hashlib.sha256(data).hexdigest()[:8]}-{failure.case.base}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _built(name: str, case: Case) -> bytes:
    """Build the input of a case whose process died before it could send the input."""
    target = load_target(name)
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
    n_failures = 0
    sys.stdout.reconfigure(errors="backslashreplace")  # messages may contain lone surrogates
    for name in specified.targets or TARGETS:
        tally = fuzz(
            name, cases=specified.cases, seconds=seconds, seed=specified.seed, jobs=specified.jobs
        )
        print(tally.table(), flush=True)
        for failure in minimised_failures(tally) if tally.failures else []:
            n_failures += 1
            print(f"\n{failure.signature} ({failure.case.kind})\n{failure.message}")
            print(f"edits: {failure.case.edits}\nkept as {store_case(name, failure)}", flush=True)
    print(f"{n_failures} failures")
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())
