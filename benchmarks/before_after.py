"""The kernels of two trees of this repository in turns on the same data: speed, and equal bits.

    git worktree add ../before v1
    python -m benchmarks.before_after ../before [--size full|small] [--repeats N]

A ratio above 1: this tree is faster. On a busy machine the ratio of the fastest calls tells more.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
from scipy.sparse import load_npz

from . import report
from .machine import machine_facts
from .peers import OURS
from .problem import SIZES, build_problem
from .worker import Worker

_CASES = ("omp", "omp, correlation", "lasso", "dfdl", "dfdl update")
_CODES = ("omp", "omp, correlation", "lasso")


def start(tree: Path, folder: Path) -> Worker:
    """A process that imports histodict from a tree; all else is from this one."""
    source = str(tree.resolve() / "src")
    environment = {"PYTHONPATH": source, "NUMBA_CACHE_DIR": str(folder / "compiled")}
    return Worker(OURS, folder / "problem.npz", environment=environment)


def same_bits(folders: list[Path], case: str) -> bool:
    one, two = (load_npz(folder / f"{case}.npz") for folder in folders)
    parts = ("indptr", "indices", "data")
    return all(np.array_equal(getattr(one, part), getattr(two, part)) for part in parts)


def measure(workers: list[Worker], case: str, repeats: int) -> list[list[float]]:
    """Seconds of each worker's calls, in turns that begin with either."""
    seconds: list[list[float]] = [[], []]
    for repeat in range(repeats):
        for place in (0, 1) if repeat % 2 == 0 else (1, 0):
            seconds[place].append(workers[place].call(case)["seconds"])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.before_after", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("before", type=Path, help="the other tree")
    parser.add_argument("--size", choices=SIZES, default="full", help="small is for trying out")
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of each tree")
    given = parser.parse_args()
    report.print_facts(machine_facts())
    size = SIZES[given.size]
    problem, source = build_problem(size)
    report.print_problem(size, problem, source)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folders = [Path(temporary) / name for name in ("before", "after")]
        for folder in folders:
            folder.mkdir()
            problem.save(folder / "problem.npz")
        trees = given.before, Path(__file__).parents[1]
        started = map(start, trees, folders)
        workers = [stack.enter_context(worker) for worker in started]
        print(f"{'case':20s}{'before':>10s}{'after':>10s}{'median':>10s}{'fastest':>10s}  bits")
        for case in _CASES:
            for worker, folder in zip(workers, folders, strict=True):
                worker.call(case, folder / f"{case}.npz" if case in _CODES else None)
            before, after = measure(workers, case, given.repeats)
            bits = ""
            if case in _CODES:
                bits = "same" if same_bits(folders, case) else "OTHER"
            ratios = median(before) / median(after), min(before) / min(after)
            print(
                f"{case:20s}{min(before):10.3f}{min(after):10.3f}{ratios[0]:10.3f}{ratios[1]:10.3f}"
                f"  {bits}",
                flush=True,
            )


if __name__ == "__main__":
    main()
