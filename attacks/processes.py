"""Run commands as processes, and find their descendants by an inherited environment variable."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MARKER = "HISTODICT_CHAOS_MARK"
COMMAND = ("-m", "histodict.cli")


def enable_sigint() -> None:
    """Handle SIGINT, so that child processes do, even if a shell started this one in the
    background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@dataclass
class Running:
    """A Python command that runs in `folder`; `log` is the file of its output."""

    arguments: Sequence[str]
    log: Path
    folder: Path
    program: Sequence[str] = COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.marker = secrets.token_hex(8)
        self.started = time.monotonic()
        with self.log.open("wb") as message:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *self.arguments],
                cwd=self.folder,
                env=os.environ | dict(self.environment) | {_MARKER: self.marker},
                stdin=subprocess.DEVNULL,
                stdout=message,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def others(self) -> list[int]:
        """Return the running processes that the command started."""
        return [pid for pid in processes_with_marker(self.marker) if pid != self.process.pid]

    def workers(self) -> list[int]:
        """Return those descendants that do part of the work."""
        kinds = ("popen_loky", "spawn_main", "histodict.web.worker")
        return [pid for pid in self.others() if any(kind in line_of(pid) for kind in kinds)]

    def handles_signals(self) -> bool:
        """Whether the command has started far enough to handle signals itself."""
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
            return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)
        return False

    def send(self, number: int) -> None:
        """Send a signal to the command alone; Ctrl-C reaches all processes of the terminal."""
        if self.has_ended:  # another process may have its number by now
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGINT:
                os.killpg(self.process.pid, number)
            else:
                os.kill(self.process.pid, number)

    def end(self, timeout: float) -> int | None:
        """Return the exit status as in a shell; None if the command does not end in time."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def leftover_processes(self, patience: float = 30.0) -> list[str]:
        """Return what still runs so many seconds after the command has ended."""
        deadline = time.monotonic() + patience
        while (left := self.others()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [line_of(pid) for pid in left]

    def remove(self) -> None:
        """Kill all processes that are left."""
        for pid in processes_with_marker(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def processes_with_marker(marker: str) -> list[int]:
    """Return the processes that inherited this marker, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if f"{_MARKER}={marker}".encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(int(entry.name))
    return found


def line_of(pid: int) -> str:
    """Return the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
