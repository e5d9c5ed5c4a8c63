"""What can happen to a command, and what it must do then."""

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
from .target import Find

_CLOCK = Path(__file__).parent / "clock"
_MOST_SECONDS = 300.0
_LEAVE_SECONDS = 5.0
_PAGE = 4096  # bytes, of which a file in memory takes a whole number
_FUTURE = 4_000_000_000  # seconds since 1970


@dataclass
class Trial:
    """One disturbance of a scenario that takes `seconds` and writes `size` bytes by itself."""

    scenario: Scenario
    inputs: Path
    out: Path
    seconds: float
    size: int
    rng: np.random.Generator
    mounted: bool = False
    begun: list[Running] = field(default_factory=list)

    def begin(self, environment: Mapping[str, str] = {}) -> Running:
        self.begun.append(self.scenario.begin(self.inputs, self.out, environment))
        return self.begun[-1]

    def moment(self) -> float:
        return float(self.rng.uniform(0, self.seconds))

    def run(self, environment: Mapping[str, str] = {}) -> tuple[int | None, str]:
        """To the end; its status and what it said."""
        running = self.begin(environment)
        self.scenario.attend(running, _MOST_SECONDS)
        return self.ended(running, 10), running.said()

    def ended(self, running: Running, patience: float) -> int | None:
        """The status of a command that shall end now; nothing of it may be left behind."""
        status = running.end(patience)
        self.scenario.close()
        if status is None:
            raise Find(f"does not end within {patience:.0f} s: {running.said()[-300:]}")
        left = running.left_behind(_LEAVE_SECONDS)
        if left:
            raise Find(f"left behind: {left}")
        if "Traceback" in running.said():
            raise Find(f"a traceback: {running.said()[-600:]}")
        return status

    def again(self) -> None:
        """The same command once more, which nobody disturbs."""
        status, message = self.run()
        if status != self.scenario.status:
            raise Find(f"given again it ends with status {status}: {message[-600:]}")

    def clean_up(self) -> None:
        self.scenario.close()
        for running in self.begun:
            running.remove()
        if self.mounted:
            shutil.copytree(self.out, self.out.with_name(f"{self.out.name}-left"), symlinks=True)
            subprocess.run(["umount", "--lazy", str(self.out)], check=True)


# --- kills --------------------------------------------------------------------------------------


def _kill(number: int, trial: Trial) -> str:
    """The command; the same one goes on."""
    running = trial.begin()
    trial.scenario.attend(running, trial.moment())
    while number == signal.SIGINT and not running.hears_signals() and not running.has_ended:
        time.sleep(0.01)  # Python takes Ctrl-C by itself while it starts, and says where it was
    running.send(number)
    status = trial.ended(running, _LEAVE_SECONDS)
    if status == trial.scenario.status != 128 + number:  # it had done all when the signal came
        return "was done before"
    if status != 128 + number:
        raise Find(f"ended with status {status} after signal {number}: {running.said()[-300:]}")
    trial.again()
    return "went on"


def _kill_worker(trial: Trial) -> str:
    """One of the processes that work for the command, or its scheduler."""
    running = trial.begin()
    trial.scenario.attend(running, trial.moment())
    while not running.has_ended and not (victims := trial.scenario.victims(running)):
        trial.scenario.attend(running, running.seconds + 0.02)
    if running.has_ended:
        trial.ended(running, 10)
        return "was done before"
    with suppress(ProcessLookupError):
        os.kill(int(trial.rng.choice(victims)), signal.SIGKILL)
    trial.scenario.attend(running, _MOST_SECONDS)
    status = trial.ended(running, 10)
    if status == trial.scenario.status:
        return "survived"
    if status != 2:
        raise Find(f"ended with status {status}: {running.said()[-600:]}")
    trial.again()
    return "went on"


# --- the disk -----------------------------------------------------------------------------------


def _mount(trial: Trial, size: str) -> None:
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(trial.out)]
    subprocess.run(["mount", *options], check=True, capture_output=True)
    trial.mounted = True


def _remount(trial: Trial, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(trial.out)], check=True)


def _full_disk(trial: Trial) -> str:
    """Of a random size; then there is space."""
    size = _PAGE * int(np.ceil((trial.size / _PAGE) ** trial.rng.uniform(0, 1)))
    try:
        _mount(trial, str(size))
    except (OSError, subprocess.CalledProcessError):  # for root alone
        return "not possible"
    status, message = _for_a_while(trial)
    _remount(trial, "size=1g")
    if status != trial.scenario.status:
        _refused(trial, status, message)
    trial.again()
    return "went on"


def _read_only(trial: Trial) -> str:
    """The folder of the results, from a random moment on."""
    try:
        _mount(trial, "1g")
    except (OSError, subprocess.CalledProcessError):
        return "not possible"
    running = trial.begin()
    trial.scenario.attend(running, trial.moment())
    with suppress(subprocess.CalledProcessError):  # while a file is being written it cannot be
        _remount(trial, "ro")
    status, _ = _for_a_while(trial, running)
    _remount(trial, "rw")
    if status != trial.scenario.status:
        _refused(trial, status, running.said())
    trial.again()
    return "went on"


def _for_a_while(trial: Trial, running: Running | None = None) -> tuple[int | None, str]:
    """To the end; a server does not end by itself where nothing can be done."""
    running = running or trial.begin()
    trial.scenario.attend(
        running, 20 + 2 * trial.seconds if trial.scenario.status else _MOST_SECONDS
    )
    if trial.scenario.status:
        running.send(signal.SIGTERM)
    return trial.ended(running, 10), running.said()


def _refused(trial: Trial, status: int | None, said: str) -> None:
    """One line that names a file, and the status of what was not done."""
    if status not in (1, 2):
        raise Find(f"ended with status {status}: {said[-600:]}")
    if str(trial.out) not in said:
        raise Find(f"names no file: {said[-600:]}")


# --- time, others, damage -----------------------------------------------------------------------


def _clock_jumps(trial: Trial) -> str:
    """By days, back and forth, in a run that is killed and in the next; its files are of 2096."""
    jumps = {
        "PYTHONPATH": os.pathsep.join([str(_CLOCK), *os.environ.get("PYTHONPATH", "").split(":")]),
        "HISTODICT_CHAOS_CLOCK": str(trial.rng.integers(1000)),
    }
    running = trial.begin(jumps)
    trial.scenario.attend(running, trial.moment())
    running.send(signal.SIGKILL)
    trial.ended(running, _LEAVE_SECONDS)
    for path in files_of(trial.out).values():
        os.utime(path, (_FUTURE, _FUTURE))
    status, message = trial.run(jumps)
    if status != trial.scenario.status:
        raise Find(f"ended with status {status}: {message[-600:]}")
    return "went on"


def _two_writers(trial: Trial) -> str:
    """The same command twice at once."""
    others = trial.begin(), trial.begin()
    for running in others:
        trial.scenario.attend(running, _MOST_SECONDS)
    statuses = [running.end(10) for running in others]
    if statuses != [0, 0]:
        text = [running.said()[-300:] for running in others]
        raise Find(f"two at once end with {statuses}: {text}")
    left = [line for running in others for line in running.left_behind(_LEAVE_SECONDS)]
    if left:
        raise Find(f"left behind: {left}")
    return "both done"


_REFUSED = 2  # the status of a command that names what is wrong


def _damage(trial: Trial) -> str:
    """Of a finished run, one file; not of the images that it drew to learn from."""
    trial.again()
    found = {name: path for name, path in files_of(trial.out).items() if not _is_drawn(name)}
    path = found[str(trial.rng.choice(sorted(found)))]
    kind = str(trial.rng.choice(list(_DAMAGES)))
    whole = path.read_bytes()
    _DAMAGES[kind](path, whole, trial.rng)
    status, message = trial.run()
    if status == _REFUSED and path.is_dir() and f"{path}: is a folder" in message:
        # The file that it was told to write: a folder there may be somebody's.
        path.rmdir()
        trial.again()
        return "refused"
    if status != trial.scenario.status:
        raise Find(f"{path} {kind}: ended with status {status}: {message[-600:]}")
    return "made anew"


def _flip(path: Path, whole: bytes, rng: np.random.Generator) -> None:
    spoilt = bytearray(whole or b"?")
    spoilt[int(rng.integers(len(spoilt)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(spoilt)


def _is_drawn(name: str) -> bool:
    return name.startswith(("data-", "drawn-"))


def _fold(path: Path, whole: bytes, rng: np.random.Generator) -> None:
    path.unlink()
    path.mkdir()


_DAMAGES: dict[str, Callable[[Path, bytes, np.random.Generator], object]] = {
    "empty": lambda path, whole, rng: path.write_bytes(b""),
    "{}": lambda path, whole, rng: path.write_bytes(b"{}"),
    "cut": lambda path, whole, rng: path.write_bytes(whole[: int(rng.integers(len(whole) or 1))]),
    "garbage": lambda path, whole, rng: path.write_bytes(rng.bytes(len(whole))),
    "a flipped bit": _flip,
    "a folder": _fold,
}

KILLS: dict[str, Callable[[Trial], str]] = {
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
