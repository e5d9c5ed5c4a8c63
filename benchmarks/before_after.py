"""Compare the kernels of two versions of this repository: speed, and equality of every bit.

    git worktree add ../before v1
    python -m benchmarks.before_after ../before [--size full|small] [--repeats N]

Calls of both versions alternate on the same data. A ratio above 1 means that this version is
faster. On a busy machine, CPU time is more reliable than wall time, and the median over pairs of
adjacent calls is more reliable than the median of each version.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import load_npz

from . import report
from .machine import describe_machine
from .peers import OURS
from .problem import SIZES, build_problem
from .worker import Worker

_CASES = ("omp", "omp, correlation", "lasso", "dfdl", "dfdl update")
_CODES = ("omp", "omp, correlation", "lasso")


def start(tree: Path, folder: Path) -> Worker:
    """Start a process that imports histodict from a tree, and everything else from this one."""
    source = str(tree.resolve() / "src")
    environment = {"PYTHONPATH": source, "NUMBA_CACHE_DIR": str(folder / "compiled")}
    return Worker(OURS, folder / "problem.npz", environment=environment)


def same_bits(folders: list[Path], case: str) -> bool:
    one, two = (load_npz(folder / f"{case}.npz") for folder in folders)
    parts = ("indptr", "indices", "data")
    return all(np.array_equal(getattr(one, part), getattr(two, part)) for part in parts)


def measure(workers: list[Worker], case: str, repeats: int) -> NDArray[np.float64]:
    """Return wall and CPU seconds of alternating calls, (2, 2, repeats): by clock, by worker."""
    seconds = np.empty((2, 2, repeats))
    for repeat in range(repeats):
        for place in (0, 1) if repeat % 2 == 0 else (1, 0):
            prediction = workers[place].call(case)
            seconds[:, place, repeat] = prediction["seconds"], prediction["cpu_seconds"]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.before_after", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("before", type=Path, help="checkout of the other version")
    parser.add_argument("--size", choices=SIZES, default="full", help="small: for a test run")
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of each version")
    specified = parser.parse_args()
    report.print_machine(describe_machine())
    size = SIZES[specified.size]
    problem, source = build_problem(size)
    report.print_problem(size, problem, source)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folders = [Path(temporary) / name for name in ("before", "after")]
        for folder in folders:
            folder.mkdir()
            problem.save(folder / "problem.npz")
        trees = specified.before, Path(__file__).parents[1]
        started = map(start, trees, folders)
        workers = [stack.enter_context(worker) for worker in started]
        print("least seconds; before/after: least by clock and processor, median of pairs by both")
        for case in _CASES:
            for worker, folder in zip(workers, folders, strict=True):
                worker.call(case, folder / f"{case}.npz" if case in _CODES else None)
            seconds = measure(workers, case, specified.repeats)
            bits = ""
            if case in _CODES:
                bits = "same" if same_bits(folders, case) else "OTHER"
            least = seconds.min(axis=2)
            pairs = np.median(seconds[:, 0] / seconds[:, 1], axis=1)
            figures = [*least[0], *(least[:, 0] / least[:, 1]), *pairs]
            print(f"{case:20s}" + "".join(f"{x:9.3f}" for x in figures), bits, flush=True)


if __name__ == "__main__":
    main()
