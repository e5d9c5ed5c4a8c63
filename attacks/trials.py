"""Runs cases in a worker that may die or hang, and replaces it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .target import Case
from .worker import work

MOST_SECONDS = 10.0
_SETUP_SECONDS = 300.0


@dataclass(frozen=True)
class Trial:
    """What came of a case; `signature` tells finds apart and is None where nothing was found."""

    case: Case
    outcome: str
    signature: str | None = None
    words: str = ""
    data: bytes = b""


class Worker:
    """One process at a time, made anew when a case has ended it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-")
        self._start()

    def try_seeds(self, seed: int, numbers: list[int]) -> Iterator[Trial]:
        """The cases of these numbers, in order, whatever becomes of the process."""
        left = list(numbers)
        while left:
            for train_test in self._order("seeds", seed, left):
                left = left[1:]
                yield train_test

    def try_case(self, case: Case) -> Trial:
        (train_test,) = self._order("case", case)
        return train_test

    def try_kept(self, path: Path) -> Trial:
        """A find as `keep` wrote it."""
        base = path.name.partition("-")[2]
        (train_test,) = self._order("kept", Case("kept", base, ()), path.read_bytes())
        return train_test

    def _order(self, *words: object) -> Iterator[Trial]:
        self._connection.send(words)
        while (case := self._connection.recv()) != "done":
            train_test = self._await(case)
            yield train_test
            if not self._process.is_alive():
                self._start()
                return

    def _await(self, case: Case) -> Trial:
        started = time.monotonic()
        try:
            if self._connection.poll(MOST_SECONDS):
                return Trial(case, *self._connection.recv())
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return Trial(case, "find", f"crash: {how}", f"the process died: {how}")
        self.close()
        spent = time.monotonic() - started
        return Trial(case, "find", "hang", f"no answer after {spent:.0f} s")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (self._name, self._folder.name, theirs)
        self._process = context.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(_SETUP_SECONDS) or self._connection.recv() != "ready":
            raise RuntimeError(f"the target {self._name} could not be set up")

    def close(self) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
