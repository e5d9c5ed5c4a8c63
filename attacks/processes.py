"""Commands as processes of their own, and all that they start, found by a mark they inherit."""

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

_MARK = "HISTODICT_CHAOS_MARK"
COMMAND = ("-m", "histodict.cli")


def hear_signals() -> None:
    """So that commands started from here do, also where a shell runs us in the background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@dataclass
class Running:
    """A command of Python's in `folder`; `words` gets all that it says."""

    arguments: Sequence[str]
    words: Path
    folder: Path
    program: Sequence[str] = COMMAND
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.started = time.monotonic()
        with self.words.open("wb") as message:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *self.arguments],
                cwd=self.folder,
                env=os.environ | dict(self.environment) | {_MARK: self.mark},
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
        """The processes that it started, and that still run."""
        return [pid for pid in marked(self.mark) if pid != self.process.pid]

    def workers(self) -> list[int]:
        """Those of them that do a part of the work."""
        kinds = ("popen_loky", "spawn_main", "histodict.web.worker")
        return [pid for pid in self.others() if any(kind in line_of(pid) for kind in kinds)]

    def hears_signals(self) -> bool:
        """Whether the command has come so far that it takes signals in its own hands."""
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
            return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)
        return False

    def send(self, number: int) -> None:
        """To the command alone; Ctrl-C reaches all processes of the terminal."""
        if self.has_ended:  # another one may have its number by now
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGINT:
                os.killpg(self.process.pid, number)
            else:
                os.kill(self.process.pid, number)

    def end(self, timeout: float) -> int | None:
        """The exit status as a shell gives it; None if it does not end in time."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def left_behind(self, patience: float = 5.0) -> list[str]:
        """What still runs so many seconds after the command has ended."""
        deadline = time.monotonic() + patience
        while (left := self.others()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [line_of(pid) for pid in left]

    def remove(self) -> None:
        """End all that is left of it."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return self.words.read_text(encoding="utf-8", errors="replace")


def marked(mark: str) -> list[int]:
    """The processes that inherited this mark; one that is dead and not yet buried does not run."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(int(entry.name))
    return found


def line_of(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
