"""Benchmark the kernels against other libraries in one run on the same data.

    python -m benchmarks.kernels [--size full|small] [--repeats N] [--train] [--output FILE.json]

Real tissue is used if HISTODICT_DATA is set. Calls of histodict and SPAMS alternate, so that
changes of the machine's load affect both. Each library runs in its own process (see `worker`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array, load_npz

from . import report
from .machine import describe_machine
from .peers import OTHERS, OURS, SPAMS, Peer
from .problem import SIZES, Problem, Size, build_problem
from .quality import Quality, lasso_quality, omp_quality
from .report import CaseResult, Row
from .training import measure_training
from .worker import PeerError, Worker

# So few rows that compilation dominates the first call.
_FEW_ROWS = 64
_SLOW_REPEATS = 2
_QUALITY: dict[str, Callable[[Problem, csr_array], Quality]] = {
    "omp": omp_quality,
    "lasso": lasso_quality,
}
# Cases that alternate with SPAMS; ratios are relative to the first.
_OUR_CASES = {
    "omp": ("omp", "omp, correlation", "omp product"),
    "lasso": ("lasso", "lasso product"),
    "dfdl": ("dfdl", "dfdl update", "omp product"),
}


class Bench:
    """Files and processes of one run."""

    def __init__(self, folder: Path, problem: Problem, repeats: int) -> None:
        self.folder = folder
        self.path = folder / "problem.npz"
        self.problem = problem
        self.repeats = repeats
        self.cache = {"NUMBA_CACHE_DIR": str(folder / "compiled")}
        problem.save(self.path)

    def compile_times(self) -> dict[str, dict[str, float]]:
        """Time first calls on a few rows: without compiled kernels, then from the cache on disk."""
        times = {}
        for name in ("compile", "load from cache"):
            with self._start(OURS, rows=_FEW_ROWS) as worker:
                times[name] = {case: worker.call(case)["seconds"] for case in _OUR_CASES}
        return times

    def measure(self, case: str) -> CaseResult:
        """Time alternating calls of histodict and SPAMS, then other libraries with this case."""
        rows = self._take_turns(case)
        for peer in OTHERS:
            if case in peer.covers:
                rows.append(self._measure_alone(peer, case))
        report.compare(rows)
        self._add_our_quality(rows, case)
        return CaseResult(case, rows)

    def _take_turns(self, case: str) -> list[Row]:
        with ExitStack() as stack:
            ours = stack.enter_context(self._start(OURS))
            main, *more = ((ours, self._first_call(ours, name)) for name in _OUR_CASES[case])
            peers = (self._join(stack, peer, case) for peer in SPAMS if case in peer.covers)
            turns = [main, *peers, *more]
            for repeat in range(self.repeats):
                for worker, row in turns if repeat % 2 == 0 else reversed(turns):
                    _repeat(worker, row)
        return [row for _, row in turns]

    def _measure_alone(self, peer: Peer, case: str) -> Row:
        with ExitStack() as stack:
            worker, row = self._join(stack, peer, case)
            for _ in range(min(self.repeats, _SLOW_REPEATS)):
                _repeat(worker, row)
        return row

    def _join(self, stack: ExitStack, peer: Peer, case: str) -> tuple[Worker | None, Row]:
        """Start the process of a library; if it cannot run the case, its row states the reason."""
        try:
            worker = stack.enter_context(self._start(peer))
            return worker, self._first_call(worker, case)
        except PeerError as error:
            return None, Row(peer.title, case, error=str(error))

    def _start(self, peer: Peer, rows: int | None = None) -> Worker:
        return Worker(peer, self.path, rows=rows, environment=self.cache)

    def _first_call(self, worker: Worker, case: str) -> Row:
        """Return a row with time, warnings and codes of the first call, which is no repeat."""
        measure = _QUALITY.get(case.partition(",")[0])
        codes = self.folder / f"{worker.peer.title} {case}.npz" if measure else None
        prediction = worker.call(case, codes)
        n_rows = len(self.problem.head(worker.rows).Y)
        row = Row(worker.peer.title, case, version=worker.version, note=worker.peer.note)
        row.n_rows, row.scale = n_rows, len(self.problem.Y) / n_rows
        row.first = prediction["seconds"] * row.scale
        row.n_warnings, row.warning = prediction["n_warnings"], prediction["warning"]
        if measure and codes:
            row.quality = measure(self.problem.head(n_rows), csr_array(load_npz(codes)))
        return row

    def _add_our_quality(self, rows: list[Row], case: str) -> None:
        """Add the loss of histodict on the same rows, for a library that coded some rows only."""
        if case in _QUALITY:
            S = csr_array(load_npz(self.folder / f"{OURS.title} {case}.npz"))
            for n_rows in {row.n_rows for row in rows if row.n_rows}:
                quality = _QUALITY[case](self.problem.head(n_rows), S[:n_rows])
                for row in rows:
                    if row.n_rows == n_rows:
                        row.our_loss = quality.loss


def _repeat(worker: Worker | None, row: Row) -> None:
    """Time one more call; a library that has failed is not called again."""
    if worker and not row.error:
        try:
            row.seconds.append(worker.call(row.case)["seconds"] * row.scale)
        except PeerError as error:
            row.error = str(error)


def run(size: Size, repeats: int, with_training: bool) -> dict[str, Any]:
    """Measure and print everything; return the same as JSON values."""
    machine = describe_machine()
    report.print_machine(machine)
    problem, source = build_problem(size)
    report.print_problem(size, problem, source)
    result: dict[str, Any] = {"machine": machine, "data": source, "size": asdict(size)}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), problem, repeats)
        result["first_calls"] = bench.compile_times()
        report.print_first_calls(result["first_calls"])
        result["cases"] = {}
        for case in _OUR_CASES:
            measured = bench.measure(case)
            report.print_case(measured)
            result["cases"][case] = asdict(measured)
        if with_training:
            result["training"] = []
            for n_nonzero in (size.n_nonzero, "auto"):
                trained = measure_training(bench.path, size.n_iter, n_nonzero)
                report.print_training(trained)
                result["training"].append(trained)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.kernels", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", choices=SIZES, default="full", help="small: for a test run")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of histodict and SPAMS")
    parser.add_argument("--train", action="store_true", help="also time a complete DFDL training")
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    result = run(SIZES[arguments.size], max(1, arguments.repeats), arguments.train)
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
