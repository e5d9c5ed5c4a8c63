"""Long work in processes of its own, told of in files: it outlives a closed tab.

It ends with the server, however that ends, and waits in its folder for the next one to go on.

A job's folder holds
    job.json         what was asked for; never changed
    state.json       {"state", "run", "at", "error"}; not there before it is begun or given up
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
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..execution.files import file_state
from ..execution.sealed import write_sealed
from .workspace import (
    DamagedFileError,
    User,
    is_id,
    new_id,
    read_fields,
    say_once,
)

WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, CANCELLED, INTERRUPTED = "failed", "cancelled", "interrupted"
_ACTIVE = (WAITING, RUNNING)
_SILENCE = 15.0  # seconds without a sign of life after which a worker counts as dead
_PAUSE = 0.3
_WORKER = "histodict.web.worker"
_LOG_LINES = 6
_STATE: dict[str, Any] = {"state": str, "run": int, "at": (int, float), "error": str}
_REQUEST: dict[str, Any] = {
    "kind": str,
    "made": (int, float),
    "name": str,
    "data": str,
    "root": str,
    "records": list,
}
# What a request of this kind has beside that.
_REQUESTS: dict[str, dict[str, Any]] = {
    "train": {
        "recipe": dict,
        "seed": int,
        "n_images": int,
        "test_patients": list,
        "corrections": list,
        "regions": (str, type(None)),
    },
    "map": {"model": str, "folder": str},
}
_RESULTS: dict[str, Any] = {"classes": list, "images": list, "operating_point": object}


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
        path = self.folder / "job.json"
        kind = read_fields(path, _REQUEST)["kind"]
        return read_fields(path, _REQUEST | _REQUESTS.get(kind, {}))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What lists of jobs need of the request, which a server reads once."""
        path = self.folder / "job.json"
        return _summary(path, *file_state(path))

    def results(self) -> dict[str, Any] | None:
        """Answers for the images kept for testing; None if there are none yet."""
        path = self.folder / "results.json"
        return read_fields(path, _RESULTS) if path.exists() else None

    def state(self) -> dict[str, Any]:
        """How it stands; where that cannot be read, it failed and can be taken up again."""
        path = self.folder / "state.json"
        try:
            return dict(_state(path, *file_state(path)))
        except FileNotFoundError:
            if self.model_file.exists():  # it had begun long ago
                lost = "what was known of its progress is gone: take it up again"
                return {"state": FAILED, "run": 0, "at": 0.0, "error": lost}
            return {"state": WAITING, "run": 0, "at": 0.0, "error": ""}
        except (OSError, DamagedFileError) as error:
            say_once(str(error))
            return {"state": FAILED, "run": 0, "at": 0.0, "error": f"{error}, or take it up again"}

    def set_state(self, state: str, run: int, error: str = "") -> None:
        content = {"state": state, "run": run, "at": time.time(), "error": error}
        write_sealed(self.folder / "state.json", content)

    def progress(self) -> list[dict[str, Any]]:
        """The steps so far; a line that is being written just now, or is none, is left out."""
        path = self.folder / "progress.jsonl"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        found = []
        for line in text.split("\n")[:-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                step = json.loads(line)
                known = {name: step[name] for name in ("stage", "done", "total", "objective")}
                work = step.get("work")
                times = {"work": work and float(work), "seconds": float(step["seconds"])}
                found.append(known | times)
        return found

    def sign_of_life(self) -> tuple[int, int]:
        """Another one than before if the worker has been at work since, whatever clocks say."""
        times = (self.folder / name for name in ("alive", "state.json"))
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


@lru_cache(maxsize=10_000)
def _state(path: Path, *version: int) -> dict[str, Any]:
    return read_fields(path, _STATE)


@lru_cache(maxsize=10_000)
def _summary(path: Path, *version: int) -> dict[str, Any]:
    request = Job(path.parent).request
    plain = ("kind", "name", "data", "parent", "made", "regions", "model", "mpp")
    return {name: request.get(name) for name in plain} | {
        "method": request.get("recipe", {}).get("method"),
        "n_corrections": len(request.get("corrections", ())),
        "image": request["records"][0].get("path") if request["kind"] == "map" else None,
    }


def new_job(user: User, request: dict[str, Any]) -> Job:
    job = Job(user.folder / "jobs" / new_id())
    try:
        write_sealed(job.folder / "job.json", request | {"made": time.time()})
    except OSError:  # a full disk: nobody would look at what was written of it
        shutil.rmtree(job.folder, ignore_errors=True)
        raise
    return job


def find_job(user: User, job_id: str) -> Job:
    job = Job(user.folder / "jobs" / job_id)
    if not is_id(job_id) or not (job.folder / "job.json").is_file():
        raise KeyError("there is no such training")
    return job


def all_jobs(user: User) -> list[Job]:
    """Newest first; those whose request is damaged are told of and left out."""
    found = []
    folder = user.folder / "jobs"
    for name in filter(is_id, os.listdir(folder) if folder.is_dir() else ()):
        job = Job(folder / name)
        try:
            found.append((job.summary["made"], name, job))
        except FileNotFoundError:  # it is being made, or was given up
            continue
        except (OSError, DamagedFileError) as error:
            say_once(str(error))
    return [job for *_, job in sorted(found, key=lambda entry: entry[:2], reverse=True)]


class JobQueue:
    """Starts waiting jobs one after another, and notices workers that died."""

    def __init__(self) -> None:
        self._active: list[Job] = []
        self._added: deque[Job] = deque()  # taken in at the next look around
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._heard: dict[str, tuple[tuple[int, int], float]] = {}  # signs of life, and when
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="jobs")

    def start(self, users: list[User]) -> None:
        """Take up what an earlier server left: waiting jobs, and workers that still end."""
        left = (job for user in users for job in all_jobs(user) if job.state()["state"] in _ACTIVE)
        self._active = sorted(left, key=lambda job: job.summary["made"])
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and the work; the next server goes on with it."""
        self._stop.set()
        with self._lock:
            for job in list(self._active):
                if job.id in self._processes:
                    _end(self._processes[job.id])
                    job.wait_for_the_next_server(job.state()["run"])
                    self._forget(job)

    def add(self, job: Job) -> None:
        """Without the lock, as `n_ahead`: nobody waits until a worker has been started."""
        self._added.append(job)

    def n_ahead(self, job: Job) -> int:
        ids = [other.id for other in (*self._active, *self._added)]
        return ids.index(job.id) if job.id in ids else 0

    def cancel(self, job: Job) -> None:
        with self._lock:
            state = job.state()
            if state["state"] not in _ACTIVE:
                return
            (job.folder / "cancel").touch()
            process = self._processes.get(job.id)
            if process is None:
                # A worker of an earlier server sees the file within a second and ends by itself.
                self._forget(job)
            else:
                _kill(process)  # on busy cores it takes a while to go; nobody waits for it here
            job.set_state(CANCELLED, state["run"])

    def resume(self, job: Job) -> None:
        """Once more, with what is there already: a finished model is not trained again."""
        with self._lock:
            state = job.state()
            if state["state"] in (*_ACTIVE, DONE):
                return
            (job.folder / "cancel").unlink(missing_ok=True)
            job.set_state(WAITING, state["run"])
            if job not in (*self._active, *self._added):  # else its last worker is just going
                self.add(job)

    def _watch(self) -> None:
        while not self._stop.wait(_PAUSE):
            try:
                self._look_around()
            except OSError as error:  # a full disk, for example: the next time may be better
                say_once(f"the trainings cannot be looked after: {error}")

    def _look_around(self) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            while self._added:
                self._active.append(self._added.popleft())
            for job in list(self._active):
                self._look_after(job)
            states = [job.state()["state"] for job in self._active]
            if WAITING in states and RUNNING not in states and not self._processes:
                self._launch(self._active[states.index(WAITING)])

    def _look_after(self, job: Job) -> None:
        process = self._processes.get(job.id)
        is_dead = self._is_silent(job) if process is None else process.poll() is not None
        state = job.state()  # after asking whether it lives: a worker says its last word, then ends
        if state["state"] == RUNNING and is_dead:
            code = process.returncode if process is not None else None
            job.set_state(FAILED if process else INTERRUPTED, state["run"], _why(job, code))
        if process is not None and is_dead:
            del self._processes[job.id]
        if job.state()["state"] not in _ACTIVE and job.id not in self._processes:
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
        server = str(os.getpid())
        command = [sys.executable, "-m", "histodict.execution.child", server, _WORKER]
        command += [str(job.folder), str(run), server]
        with (job.folder / "log.txt").open("wb") as log:
            self._processes[job.id] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl+C is for the server alone, which then ends the worker. But it gets no session
                # of its own: Linux shares the cores out among sessions, whatever `nice` says.
                process_group=0,
            )

    def _forget(self, job: Job) -> None:
        self._active = [other for other in self._active if other.id != job.id]
        self._processes.pop(job.id, None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and what it started, and wait until they have."""
    _kill(process)
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """A worker and what it started, at once: its files are whole or not there."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _why(job: Job, code: int | None) -> str:
    if code is None:
        return "The work was interrupted: the computer or the process was stopped."
    words = "The worker process ended unexpectedly"
    if code < 0:
        words += f" (signal {-code}; 9 often means that memory ran out)"
    return f"{words}. Nothing else was lost.\n{job.last_words()}".strip()
