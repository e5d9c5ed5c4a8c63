"""What does DFDL's discriminative term (ρ) contribute, and do later ideas add something?

    python -m benchmarks.discriminative_term DATA --output OUT [--processes 16] [--minutes 5]
    python -m benchmarks.discriminative_term DATA --output OUT --report    # tables of what is there

DATA holds the class sets `ucsb-breast` and `glas-colon`. Two folds by patient per repeat; every
variant sees the same patches and starts from the same dictionaries, so differences are paired. One
process per task with one thread each. Results are appended to OUT/results.jsonl as they come, the
most telling blocks first; a further run goes on where the last one ended. `--quick` tries it out.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .discriminative_data import N_FOLDS, SETS, Place, missing_vectors, write_vectors
from .discriminative_report import print_report
from .discriminative_tasks import TERM, VARIANTS, Task, run_task

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Block:
    """Tasks that belong together: the same sizes and variants, some repeats."""

    name: str
    n_atoms: int
    n_per_class: int
    repeats: range
    variants: tuple[str, ...]

    def tasks(self, sets: list[str], kinds: list[str]) -> Iterator[Task]:
        """Repeat by repeat, and variant by variant for all splits: what variants share is made
        by the first of them."""
        for repeat in self.repeats:
            for variant in self.variants:
                for fold in range(N_FOLDS):
                    for name in sets:
                        for kind in kinds:
                            size = (self.n_atoms, self.n_per_class)
                            yield Task(name, kind, repeat, fold, *size, variant)


SIZES = ("published 0", "published 0.001", "tangent 0.1", "tangent 0.3")
BLOCKS = (
    Block("rho", 200, 2000, range(0, 2), TERM),
    Block("variants", 200, 2000, range(0, 2), tuple(VARIANTS)),
    Block("rho-more", 200, 2000, range(2, 5), TERM),
    Block("few-atoms", 50, 2000, range(0, 5), SIZES),
    Block("few-patches", 200, 500, range(0, 5), SIZES),
)
QUICK = (Block("quick", 40, 150, range(0, 1), (*TERM, *VARIANTS)),)


def todo(blocks: list[Block], options: argparse.Namespace, results: Path) -> list[Task]:
    """The tasks without a result yet, in order."""
    done = {_key(row) for row in read_results(results)}
    tasks = [task for block in blocks for task in block.tasks(options.sets, options.kinds)]
    return [task for task in tasks if _key(vars(task)) not in done]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in Task.__dataclass_fields__)


def read_results(file: Path) -> list[dict[str, Any]]:
    """All complete lines; a run that was cut off may leave half a line."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}}")]


def work(pool: ProcessPoolExecutor, place: Place, options: argparse.Namespace) -> int:
    """Vectors that are missing, then the tasks; the number of tasks that failed."""
    started = time.monotonic()
    vectors = [
        pool.submit(write_vectors, place, *which)
        for which in missing_vectors(place, options.sets, options.kinds)
    ]
    for made in as_completed(vectors):
        made.result()
    print(f"{len(vectors)} files of vectors, {time.monotonic() - started:.0f} s", flush=True)
    results = options.output / "results.jsonl"
    tasks = todo(options.blocks, options, results)
    n_failed = 0
    with results.open("a", encoding="utf-8") as stream:
        stream.write("\n")  # ends the half line of a run that was cut off
        for n_done, (task, future) in enumerate(_finished(pool, place, tasks, options, started), 1):
            error = future.exception()
            if error:
                n_failed += 1
                print(f"{task}: {error}", flush=True)
                continue
            stream.write("".join(json.dumps(row) + "\n" for row in future.result()))
            stream.flush()
            if n_done % 20 == 0:
                passed = time.monotonic() - started
                print(f"{n_done} of {len(tasks)} tasks, {passed:.0f} s", flush=True)
    left = len(todo(options.blocks, options, results))
    print(f"{time.monotonic() - started:.0f} s; {left} tasks left, {n_failed} failed", flush=True)
    return n_failed


def _finished(
    pool: ProcessPoolExecutor,
    place: Place,
    tasks: list[Task],
    options: argparse.Namespace,
    started: float,
) -> Iterator[tuple[Task, Future[Any]]]:
    """Tasks as they end. None begins after the time is up; those under way are waited for."""
    waiting = iter(tasks)
    running: dict[Future[Any], Task] = {}
    while True:
        while len(running) < options.processes:
            in_time = time.monotonic() - started < 60 * options.minutes
            task = next(waiting, None) if in_time else None
            if task is None:
                break
            running[pool.submit(run_task, place, task, options.output / "starts")] = task
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with ucsb-breast and glas-colon")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, help="folder of vectors; OUT/vectors by default")
    parser.add_argument("--cache", type=Path, help="feature cache of histodict, for the cells")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no task after so many")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--kinds", nargs="+", choices=["pixels", "cells"], default=None)
    parser.add_argument("--blocks", nargs="+", choices=[block.name for block in BLOCKS])
    parser.add_argument("--judged", type=int, default=200, help="patches judged per image, at most")
    parser.add_argument("--quick", action="store_true", help="one tiny repeat of everything")
    parser.add_argument("--report", action="store_true", help="print the tables of OUT")
    options = parser.parse_args()
    options.kinds = options.kinds or ["pixels", "cells"]
    chosen = options.blocks or [block.name for block in BLOCKS]
    options.blocks = QUICK if options.quick else [b for b in BLOCKS if b.name in chosen]
    return options


def main() -> None:
    options = _options()
    if options.report:
        print_report(read_results(options.output / "results.jsonl"))
        return
    # Before the processes start: they inherit it, and numpy reads it when they import it.
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    vectors = options.vectors or options.output / "vectors"
    place = Place(options.data, vectors, options.cache, options.judged)
    options.output.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        n_failed = work(pool, place, options)
    raise SystemExit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
