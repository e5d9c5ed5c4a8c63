"""Disturbances of a command and the behaviour required of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .processes import Running
from .same_files import files_of
from .scenarios import Scenario
from .target import InvariantError

_CLOCK = Path(__file__).parent / "clock"
_MOST_SECONDS = 300.0
_LEAVE_SECONDS = 5.0
_PAGE = 4096  # bytes; the size of a tmpfs is a multiple of this
_FUTURE = 4_000_000_000  # seconds since 1970


@dataclass
class DisturbedRun:
    """One disturbed run of a scenario that otherwise takes `seconds` and writes `size` bytes."""

    scenario: Scenario
    inputs: Path
    out: Path
    seconds: float
    size: int
    rng: np.random.Generator
    mounted: bool = False
    started: list[Running] = field(default_factory=list)

    def start(self, environment: Mapping[str, str] = {}) -> Running:
        self.started.append(self.scenario.start(self.inputs, self.out, environment))
        return self.started[-1]

    def moment(self) -> float:
        return float(self.rng.uniform(0, self.seconds))

    def run(self, environment: Mapping[str, str] = {}) -> tuple[int | None, str]:
        """Run the command to its end; return its exit status and output."""
        running = self.start(environment)
        self.scenario.attend(running, _MOST_SECONDS)
        return self.wait_for_exit(running, 10), running.output()

    def wait_for_exit(self, running: Running, patience: float) -> int | None:
        """Return the exit status of a command that must end now and leave no process behind."""
        status = running.end(patience)
        self.scenario.close()
        if status is None:
            raise InvariantError(f"does not end within {patience:.0f} s: {running.output()[-300:]}")
        left = running.leftover_processes(_LEAVE_SECONDS)
        if left:
            raise InvariantError(f"left behind: {left}")
        if "Traceback" in running.output():
            raise InvariantError(f"a traceback: {running.output()[-600:]}")
        return status

    def repeat(self) -> None:
        """Repeat the command without a disturbance."""
        status, message = self.run()
        if status != self.scenario.status:
            raise InvariantError(f"repeated, it ends with status {status}: {message[-600:]}")

    def clean_up(self) -> None:
        self.scenario.close()
        for running in self.started:
            running.remove()
        if self.mounted:
            shutil.copytree(self.out, self.out.with_name(f"{self.out.name}-left"), symlinks=True)
            subprocess.run(["umount", "--lazy", str(self.out)], check=True)


# --- kills --------------------------------------------------------------------------------------


def _kill(number: int, run: DisturbedRun) -> str:
    """Kill the command itself; the repeated command resumes."""
    running = run.start()
    run.scenario.attend(running, run.moment())
    while number == signal.SIGINT and not running.handles_signals() and not running.has_ended:
        time.sleep(0.01)  # Python handles Ctrl-C itself while it starts, and prints a traceback
    running.send(number)
    status = run.wait_for_exit(running, _LEAVE_SECONDS)
    if status == run.scenario.status != 128 + number:  # the command had finished before the signal
        return "was done before"
    if status != 128 + number:
        raise InvariantError(
            f"ended with status {status} after signal {number}: {running.output()[-300:]}"
        )
    run.repeat()
    return "went on"


def _kill_worker(run: DisturbedRun) -> str:
    """Kill one of the worker processes of the command, or its scheduler."""
    running = run.start()
    run.scenario.attend(running, run.moment())
    while not running.has_ended and not (victims := run.scenario.victims(running)):
        run.scenario.attend(running, running.seconds + 0.02)
    if running.has_ended:
        run.wait_for_exit(running, 10)
        return "was done before"
    with suppress(ProcessLookupError):
        os.kill(int(run.rng.choice(victims)), signal.SIGKILL)
    run.scenario.attend(running, _MOST_SECONDS)
    status = run.wait_for_exit(running, 10)
    if status == run.scenario.status:
        return "survived"
    if status != 2:
        raise InvariantError(f"ended with status {status}: {running.output()[-600:]}")
    run.repeat()
    return "went on"


# --- the disk -----------------------------------------------------------------------------------


def _mount(run: DisturbedRun, size: str) -> None:
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(run.out)]
    subprocess.run(["mount", *options], check=True, capture_output=True)
    run.mounted = True


def _remount(run: DisturbedRun, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(run.out)], check=True)


def _full_disk(run: DisturbedRun) -> str:
    """Limit the disk to a random size; then enlarge it and repeat."""
    size = _PAGE * int(np.ceil((run.size / _PAGE) ** run.rng.uniform(0, 1)))
    try:
        _mount(run, str(size))
    except (OSError, subprocess.CalledProcessError):  # mounting needs root
        return "not possible"
    status, message = _finish(run)
    _remount(run, "size=1g")
    if status != run.scenario.status:
        _check_refusal(run, status, message)
    run.repeat()
    return "went on"


def _read_only(run: DisturbedRun) -> str:
    """Make the output folder read-only from a random moment on."""
    try:
        _mount(run, "1g")
    except (OSError, subprocess.CalledProcessError):
        return "not possible"
    running = run.start()
    run.scenario.attend(running, run.moment())
    with suppress(subprocess.CalledProcessError):  # refused while a file is being written
        _remount(run, "ro")
    status, _ = _finish(run, running)
    _remount(run, "rw")
    if status != run.scenario.status:
        _check_refusal(run, status, running.output())
    run.repeat()
    return "went on"


def _finish(run: DisturbedRun, running: Running | None = None) -> tuple[int | None, str]:
    """Let the command end; a server is terminated, as it continues without a writable folder."""
    running = running or run.start()
    run.scenario.attend(running, 20 + 2 * run.seconds if run.scenario.status else _MOST_SECONDS)
    if run.scenario.status:
        running.send(signal.SIGTERM)
    return run.wait_for_exit(running, 10), running.output()


def _check_refusal(run: DisturbedRun, status: int | None, output: str) -> None:
    """Require an exit status of 1 or 2 and a message that names a file."""
    if status not in (1, 2):
        raise InvariantError(f"ended with status {status}: {output[-600:]}")
    if str(run.out) not in output:
        raise InvariantError(f"names no file: {output[-600:]}")


# --- clock, second writer, damaged files --------------------------------------------------------


def _clock_jumps(run: DisturbedRun) -> str:
    """Move the clock by days in a run that is killed and in the next; date the files to 2096."""
    jumps = {
        "PYTHONPATH": os.pathsep.join([str(_CLOCK), *os.environ.get("PYTHONPATH", "").split(":")]),
        "HISTODICT_CHAOS_CLOCK": str(run.rng.integers(1000)),
    }
    running = run.start(jumps)
    run.scenario.attend(running, run.moment())
    running.send(signal.SIGKILL)
    run.wait_for_exit(running, _LEAVE_SECONDS)
    for path in files_of(run.out).values():
        os.utime(path, (_FUTURE, _FUTURE))
    status, message = run.run(jumps)
    if status != run.scenario.status:
        raise InvariantError(f"ended with status {status}: {message[-600:]}")
    return "went on"


def _two_writers(run: DisturbedRun) -> str:
    """Run the same command twice at the same time."""
    others = run.start(), run.start()
    for running in others:
        run.scenario.attend(running, _MOST_SECONDS)
    statuses = [running.end(10) for running in others]
    if statuses != [0, 0]:
        text = [running.output()[-300:] for running in others]
        raise InvariantError(f"two commands at once end with {statuses}: {text}")
    left = [line for running in others for line in running.leftover_processes(_LEAVE_SECONDS)]
    if left:
        raise InvariantError(f"left behind: {left}")
    return "both done"


_ERROR_STATUS = 2  # exit status of a command that reports an error


def _damage(run: DisturbedRun) -> str:
    """Damage one output file of a finished run, except the images that it generated."""
    run.repeat()
    found = {name: path for name, path in files_of(run.out).items() if not _is_generated(name)}
    path = found[str(run.rng.choice(sorted(found)))]
    kind = str(run.rng.choice(list(_DAMAGES)))
    content = path.read_bytes()
    _DAMAGES[kind](path, content, run.rng)
    status, message = run.run()
    if status == _ERROR_STATUS and path.is_dir() and f"{path}: is a folder" in message:
        # Only the requested output file is replaced: a folder may contain files of others.
        path.rmdir()
        run.repeat()
        return "refused"
    if status != run.scenario.status:
        raise InvariantError(f"{path} {kind}: ended with status {status}: {message[-600:]}")
    return "made anew"


def _flip(path: Path, content: bytes, rng: np.random.Generator) -> None:
    damaged = bytearray(content or b"?")
    damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(damaged)


def _is_generated(name: str) -> bool:
    return name.startswith(("data-", "drawn-"))


def _fold(path: Path, content: bytes, rng: np.random.Generator) -> None:
    path.unlink()
    path.mkdir()


_DAMAGES: dict[str, Callable[[Path, bytes, np.random.Generator], object]] = {
    "empty": lambda path, content, rng: path.write_bytes(b""),
    "{}": lambda path, content, rng: path.write_bytes(b"{}"),
    "cut": lambda path, content, rng: path.write_bytes(
        content[: int(rng.integers(len(content) or 1))]
    ),
    "garbage": lambda path, content, rng: path.write_bytes(rng.bytes(len(content))),
    "a flipped bit": _flip,
    "a folder": _fold,
}

KILLS: dict[str, Callable[[DisturbedRun], str]] = {
    "SIGKILL": partial(_kill, signal.SIGKILL),
    "SIGTERM": partial(_kill, signal.SIGTERM),
    "SIGINT": partial(_kill, signal.SIGINT),
    "worker killed": _kill_worker,
}
DISTURBANCES = KILLS | {
    "full disk": _full_disk,
    "read-only": _read_only,
    "clock jumps": _clock_jumps,
    "two writers": _two_writers,
    "damage": _damage,
}
