"""Run a library in its own process, connected by a pipe with one JSON object per line.

Separate processes, because libraries bring their own BLAS and threads (SPAMS and PyTorch in one
process crash on arm64). They stay alive between calls, so that calls of two libraries can
alternate.

Request: {"case": name, "save": file for the codes or null}. Response: {"seconds": …, "cpu_seconds":
…, "n_warnings": …, "warning": the first one}, or {"error": …}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array, save_npz

from .peers import BY_TITLE, Cases, Peer
from .problem import load_problem

# Threads of OpenBLAS and OpenMP spin for a while after their work: wait until they sleep before the
# next measurement.
_PAUSE_S = 0.5


class PeerError(Exception):
    """The library is not installed, failed or crashed; the message is one line."""


class Worker:
    """Parent side; a context manager that starts and ends the process."""

    def __init__(
        self,
        peer: Peer,
        problem: Path,
        *,
        rows: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.peer = peer
        self.rows = rows or peer.rows
        self._log = problem.with_name(f"{peer.title}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, peer.title, str(problem), str(self.rows or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **peer.environment, **(environment or {})},
            cwd=Path(__file__).resolve().parents[1],
        )

    def __enter__(self) -> Worker:
        try:
            self.version = self._receive()["version"]
        except PeerError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        self._log.close()

    def call(self, case: str, save: Path | None = None) -> dict[str, Any]:
        """Run a case once, after a pause."""
        time.sleep(_PAUSE_S)
        assert self._process.stdin is not None
        request = {"case": case, "save": str(save) if save else None}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(self._death()) from error
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._death())
        prediction: dict[str, Any] = json.loads(line)
        if "error" in prediction:
            raise PeerError(prediction["error"])
        return prediction

    def _death(self) -> str:
        self._log.seek(0)
        last = self._log.read().strip().rpartition("\n")[2]
        return f"its process ended with status {self._process.wait()}: {last or 'no message'}"


def serve(title: str, problem: Path, rows: int | None) -> None:
    """Child side: prepare the cases of a library, then run those requested."""
    # Libraries may print: their output goes to the log, not to the pipe.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(response: dict[str, Any]) -> None:
        pipe.write(json.dumps(response) + "\n")
        pipe.flush()

    peer = BY_TITLE[title]
    try:
        cases = peer.cases(load_problem(problem).head(rows))
        send({"version": version(peer.distribution)})
    except (ImportError, OSError, PackageNotFoundError) as error:
        send({"error": f"not installed: {_one_line(error)}"})
        return
    for line in sys.stdin:
        try:
            send(_run(cases, **json.loads(line)))
        except Exception as error:  # any exception is a result
            send({"error": _one_line(error)})


def _run(cases: Cases, case: str, save: str | None) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start, cpu_start = time.perf_counter(), time.process_time()
        codes = cases[case]()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    if save:
        save_npz(save, csr_array(codes))
    first = str(caught[0].message) if caught else ""
    spent = {"seconds": seconds, "cpu_seconds": cpu}
    return {**spent, "n_warnings": len(caught), "warning": first}


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3] else None)
