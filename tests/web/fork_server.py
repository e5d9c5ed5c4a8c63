"""Processes forked from one process that has imported the web app and run a training.

A new Python process needs seconds of computing time to import the package and to load its compiled
kernels. Tests that start many servers and workers fork them instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from histodict.utils import parallel
from histodict.web import jobs, worker


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["histodict.web.server", "tests.web.warm_start"])
    return context


class ForkedProcess:
    """Forked process with the methods of `subprocess.Popen` that the job queue uses."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._process = _context().Process(
            target=_run, args=(function, parallel.available_cores(), *arguments)
        )
        self._process.start()
        self.pid: int = self._process.pid
        self.kill = self._process.kill
        self.terminate = self._process.terminate
        atexit.register(self.kill)  # or Python would wait for it

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self.returncode


def _run(function: Callable[..., object], n_cores: int, *arguments: Any) -> None:
    os.setpgid(0, 0)
    # Fork from the same process, which is not a child of this one.
    forkserver._forkserver.ensure_running = lambda: None
    parallel.available_cores = lambda: n_cores  # see tests/conftest.py
    function(*arguments)


def run_source(source: str) -> None:
    """Run Python code in a process whose job queue forks its workers."""
    jobs.subprocess = SimpleNamespace(Popen=start_worker, DEVNULL=subprocess.DEVNULL)
    exec(source, {})


def start_worker(command: Sequence[str], *, stdout: IO[bytes], **_: Any) -> ForkedProcess:
    """Fork the worker process of a command of the job queue."""
    *_, folder, run, _ = command
    return ForkedProcess(_run_worker, folder, int(run), stdout.name)


def _run_worker(folder: str, run: int, log: str) -> None:
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    worker.set_hint_interface("web")
    sys.exit(worker.main(Path(folder), run, os.getppid()))
