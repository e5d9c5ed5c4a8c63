"""Long work in processes of its own, told of in files: it outlives a closed tab.

It ends with the server, however that ends, and waits in its folder for the next one to go on.

A job's folder holds
    job.json         what was asked for; never changed
    state.json       {"state", "run", "at", "error"}
    progress.jsonl   one line per step of the present run
    alive            the worker's process number, written anew every second
    cancel           there if the work shall stop
    log.txt          what the worker printed
and what the worker makes. One job runs at a time, in the order in which they were asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .workspace import User, is_id, new_id, read_if_whole, read_json, write_json

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, CANCELLED, INTERRUPTED = "failed", "cancelled", "interrupted"
_ACTIVE = (WAITING, RUNNING)
_STATE = {"state", "run", "at", "error"}
_SILENCE = 15.0  # seconds without a sign of life after which a worker counts as dead
_PAUSE = 0.3
_LOG_LINES = 6


@dataclass(frozen=True)
class Job:
    """One job on disk."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def model_file(self) -> Path:
        return self.folder / "model.histodict"

    @property
    def gallery_file(self) -> Path:
        return self.folder / "gallery.npz"

    @cached_property
    def request(self) -> dict[str, Any]:
        """What was asked for; with thousands of images it takes a while to read."""
        found = read_json(self.folder / "job.json")
        if not isinstance(found, dict) or not {"kind", "made"} <= found.keys():
            raise ValueError(f"{self.folder / 'job.json'}: is damaged: remove its folder")
        return found

    def results(self) -> dict[str, Any] | None:
        """Answers for the images kept for testing; None if there are none yet."""
        found: dict[str, Any] | None = read_if_whole(self.folder / "results.json", dict)
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] | None = read_if_whole(self.folder / "state.json", dict)
        if found is None or not found.keys() >= _STATE:
            return {"state": INTERRUPTED, "run": 0, "at": 0.0, "error": "Its state was lost."}
        return found

    def set_state(self, state: str, run: int, error: str = "") -> None:
        content = {"state": state, "run": run, "at": time.time(), "error": error}
        write_json(self.folder / "state.json", content)

    def progress(self) -> list[dict[str, Any]]:
        """The steps so far; a line that is being written just now is left out."""
        path = self.folder / "progress.jsonl"
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8", errors="replace")
        steps = []
        for line in text.split("\n")[:-1]:
            with contextlib.suppress(ValueError):  # of a file that was damaged
                steps.append(json.loads(line))
        return steps

    def sign_of_life(self) -> tuple[int, int]:
        """Another one than before if the worker has been at work since, whatever clocks say."""
        times = (self.folder / name for name in ("state.json", "alive"))
        alive, state = (path.stat().st_mtime_ns if path.is_file() else 0 for path in times)
        return alive, state

    def wait_for_the_next_server(self, run: int) -> None:
        """The work of this run has ended with the server; it goes on by itself with the next."""
        if self.state()["state"] == RUNNING and self.state()["run"] == run:
            self.set_state(WAITING, run)

    def last_words(self) -> str:
        path = self.folder / "log.txt"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return "\n".join(text.strip().splitlines()[-_LOG_LINES:])


def new_job(user: User, request: dict[str, Any]) -> Job:
    job = Job(user.folder / "jobs" / new_id())
    write_json(job.folder / "job.json", request | {"made": time.time()})
    job.set_state(WAITING, 0)
    return job


def find_job(user: User, job_id: str) -> Job:
    job = Job(user.folder / "jobs" / job_id)
    if not is_id(job_id) or not (job.folder / "job.json").is_file():
        raise KeyError("there is no such training")
    return job


def all_jobs(user: User) -> list[Job]:
    """Newest first."""
    found = [Job(path.parent) for path in (user.folder / "jobs").glob("*/job.json")]
    return sorted(filter(_is_whole, found), key=lambda job: job.request["made"], reverse=True)


def _is_whole(job: Job) -> bool:
    try:
        return bool(job.request)
    except ValueError as error:
        warnings.warn(f"{error}; the job is left out", stacklevel=3)
        return False


class JobQueue:
    """Starts waiting jobs one after another, and notices workers that died."""

    def __init__(self) -> None:
        self._active: list[Job] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._heard: dict[str, tuple[tuple[int, int], float]] = {}  # signs of life, and when
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="jobs")

    def start(self, users: list[User]) -> None:
        """Take up what an earlier server left: waiting jobs, and workers that still end."""
        left = (job for user in users for job in all_jobs(user) if job.state()["state"] in _ACTIVE)
        self._active = sorted(left, key=lambda job: job.request["made"])
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and the work; the next server goes on with it."""
        self._stop.set()
        with self._lock:
            for job in self._active:
                if job.id in self._processes:
                    _end(self._processes[job.id])
                    job.wait_for_the_next_server(job.state()["run"])

    def add(self, job: Job) -> None:
        with self._lock:
            self._active.append(job)

    def n_ahead(self, job: Job) -> int:
        with self._lock:
            ids = [other.id for other in self._active]
        return ids.index(job.id) if job.id in ids else 0

    def cancel(self, job: Job) -> None:
        with self._lock:
            state = job.state()
            if state["state"] not in _ACTIVE:
                return
            (job.folder / "cancel").touch()
            process = self._processes.get(job.id)
            if process is not None:
                _end(process)
            # A worker of an earlier server sees the file within a second and ends by itself.
            job.set_state(CANCELLED, state["run"])
            self._forget(job)

    def resume(self, job: Job) -> None:
        """Once more, with what is there already: a finished model is not trained again."""
        with self._lock:
            state = job.state()
            if state["state"] in (*_ACTIVE, DONE):
                return
            (job.folder / "cancel").unlink(missing_ok=True)
            job.set_state(WAITING, state["run"])
            self.add(job)

    def _watch(self) -> None:
        while not self._stop.wait(_PAUSE):
            with self._lock:
                for job in list(self._active):
                    self._look_after(job)
                states = [job.state()["state"] for job in self._active]
                if WAITING in states and RUNNING not in states:
                    self._launch(self._active[states.index(WAITING)])

    def _look_after(self, job: Job) -> None:
        process = self._processes.get(job.id)
        is_dead = self._is_silent(job) if process is None else process.poll() is not None
        state = job.state()  # after asking whether it lives: a worker says its last word, then ends
        if state["state"] == RUNNING and is_dead:
            code = process.returncode if process is not None else None
            job.set_state(FAILED if process else INTERRUPTED, state["run"], _why(job, code))
        if job.state()["state"] not in _ACTIVE and (is_dead or process is None):
            self._forget(job)

    def _is_silent(self, job: Job) -> bool:
        """Whether the worker of an earlier server has not been heard of for a while."""
        sign, now = job.sign_of_life(), time.monotonic()
        last_sign, heard = self._heard.get(job.id, (None, now))
        if sign != last_sign:
            self._heard[job.id] = sign, now
        return sign == last_sign and now - heard > _SILENCE

    def _launch(self, job: Job) -> None:
        run = job.state()["run"] + 1
        (job.folder / "progress.jsonl").unlink(missing_ok=True)
        job.set_state(RUNNING, run)
        numbers = str(run), str(os.getpid())
        command = [sys.executable, "-m", "histodict.web.worker", str(job.folder), *numbers]
        with (job.folder / "log.txt").open("wb") as log:
            self._processes[job.id] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the server alone, which decides
            )

    def _forget(self, job: Job) -> None:
        self._active = [other for other in self._active if other.id != job.id]
        self._processes.pop(job.id, None)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    process.kill()
    process.wait()


def _why(job: Job, code: int | None) -> str:
    if code is None:
        return "The work was interrupted: the computer or the process was stopped."
    words = "The worker process ended unexpectedly"
    if code < 0:
        words += f" (signal {-code}; 9 often means that memory ran out)"
    return f"{words}. Nothing else was lost.\n{job.last_words()}".strip()
