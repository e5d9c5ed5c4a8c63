"""Run cases in a worker process that may die or hang, and replace it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .target import Case
from .worker import work

MOST_SECONDS = 10.0
_SETUP_SECONDS = 300.0


@dataclass(frozen=True)
class CaseResult:
    """Result of a case; `signature` identifies a failure and is None without one."""

    case: Case
    outcome: str
    signature: str | None = None
    message: str = ""
    data: bytes = b""


class Worker:
    """One worker process, replaced after a case has ended it.

    Parameters
    ----------
    name : name of the target, see `load_target`
    start_method : how `multiprocessing` starts the process
    """

    def __init__(self, name: str, start_method: str = "spawn") -> None:
        self.name = name
        self._context: Any = multiprocessing.get_context(start_method)
        self._folder = tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-")
        self._start()

    def run_seeds(self, seed: int, numbers: list[int]) -> Iterator[CaseResult]:
        """Yield the results of these case numbers in order, even if processes die."""
        left = list(numbers)
        while left:
            for result in self._request("seeds", seed, left):
                left = left[1:]
                yield result

    def run_case(self, case: Case) -> CaseResult:
        (result,) = self._request("case", case)
        return result

    def run_stored(self, path: Path) -> CaseResult:
        """Run a stored case, as written by `fuzz.store_case`."""
        base = path.name.partition("-")[2]
        (result,) = self._request("kept", Case("kept", base, ()), path.read_bytes())
        return result

    def _request(self, *arguments: object) -> Iterator[CaseResult]:
        self._connection.send(arguments)
        while (case := self._connection.recv()) != "done":
            result = self._await(case)
            yield result
            if not self._process.is_alive():
                self._start()
                return

    def _await(self, case: Case) -> CaseResult:
        started = time.monotonic()
        try:
            if self._connection.poll(MOST_SECONDS):
                return CaseResult(case, *self._connection.recv())
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return CaseResult(case, "failure", f"crash: {how}", f"the process died: {how}")
        self.close()
        spent = time.monotonic() - started
        return CaseResult(case, "failure", "hang", f"no response after {spent:.0f} s")

    def _start(self) -> None:
        self._connection, theirs = self._context.Pipe()
        arguments = (self.name, self._folder.name, theirs)
        self._process = self._context.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(_SETUP_SECONDS) or self._connection.recv() != "ready":
            raise RuntimeError(f"the target {self.name} could not be set up")

    def close(self) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
