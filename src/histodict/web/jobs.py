"""Jobs: their files, and the queue that runs them in worker processes, one at a time.

A job's folder holds
    job.json         the request: what to compute, for which images; never changed
    name.json        the name given by the user, if any
    state.json       {"state", "run", "at", "error"}; absent until the job is started or cancelled
    progress.jsonl   one line per step of the current run
    worker.lock      locked by the worker while it runs; contains its process number
    log.txt          output of the worker
and the files that the worker writes.

Trainings have priority over maps of slides: a training stops a running map, which is restarted
later. Workers exit when the server ends or crashes; the next server continues their jobs.
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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ..utils.files import lock_descriptor, stat_signature
from ..utils.text_io import write_checked_json
from .schema import Json
from .workspace import (
    DamagedFileError,
    JsonType,
    UserWorkspace,
    is_id,
    new_id,
    read_fields,
    short_id,
    warn_once,
)

TRAIN, MAP = "train", "map"  # kinds of jobs
IMPORTED = "opened"  # kind of a model from a file, which is done from the start
WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, CANCELLED, INTERRUPTED = "failed", "cancelled", "interrupted"
ACTIVE = (WAITING, RUNNING)
_POLL_INTERVAL = 0.3  # seconds
_WORKER_MODULE = "histodict.web.worker"
_N_LOG_LINES = 6
_MAX_NAME_LENGTH = 80
_FILE_FIELDS: dict[str, dict[str, JsonType]] = {
    "name.json": {"name": str},
    "state.json": {"state": str, "run": int, "at": (int, float), "error": str},
}
_REQUEST_FIELDS: dict[str, JsonType] = {
    "kind": str,
    "made": (int, float),
    "name": str,
    "data": str,
    "root": str,
    "records": list,
}
# Further fields of requests by kind.
_REQUEST_FIELDS_BY_KIND: dict[str, dict[str, JsonType]] = {
    TRAIN: {
        "recipe": dict,
        "seed": int,
        "n_images": int,
        "test_patients": list,
        "corrections": list,
        "n_shapes": int,
        "regions": (str, type(None)),
    },
    MAP: {"model": str, "folder": str},
}
_RESULT_FIELDS: dict[str, JsonType] = {"classes": list, "images": list, "operating_point": object}


@dataclass(frozen=True)
class Job:
    """Job stored in a folder: a training, the map of a slide, or an imported model."""

    folder: Path

    @property
    def id(self) -> str:
        """Id of the job, the name of its folder."""
        return self.folder.name

    @property
    def name(self) -> str:
        """Name chosen by the user, or else the name in the request."""
        try:
            return str(_read_job_file(self.folder / "name.json")["name"])
        except FileNotFoundError:
            pass
        except (OSError, DamagedFileError) as error:
            warn_once(str(error))
        return str(self.summary["name"])

    def rename(self, name: str) -> None:
        """Set the name of the job."""
        name = " ".join(name.split())
        if not 0 < len(name) <= _MAX_NAME_LENGTH:
            raise ValueError(f"the name must have 1 to {_MAX_NAME_LENGTH} characters")
        write_checked_json(self.folder / "name.json", {"name": name})

    def delete(self) -> None:
        """Delete the folder of the job, after renaming it so that no incomplete job remains."""
        renamed = self.folder.with_name(f".gone-{self.id}")
        self.folder.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)

    @property
    def is_training(self) -> bool:
        """Whether the job trains a model."""
        return bool(self.summary["kind"] == TRAIN)

    @property
    def model_file(self) -> Path:
        """Path of the model file."""
        return self.folder / "model.histodict"

    @property
    def gallery_file(self) -> Path:
        """Path of the stored training patches."""
        return self.folder / "gallery.npz"

    @property
    def lock_file(self) -> Path:
        """Path of the worker's lock file."""
        return self.folder / "worker.lock"

    @cached_property
    def request(self) -> Json:
        """Request of the job, validated; reading it is slow if it lists thousands of images."""
        path = self.folder / "job.json"
        kind = read_fields(path, _REQUEST_FIELDS)["kind"]
        return read_fields(path, _REQUEST_FIELDS | _REQUEST_FIELDS_BY_KIND.get(kind, {}))

    @cached_property
    def summary(self) -> Json:
        """Fields of the request that are shown in lists of jobs; cached."""
        path = self.folder / "job.json"
        return _read_summary(path, *stat_signature(path))

    def results(self) -> Json | None:
        """Return the results as JSON, with a row per test image in "images"; None if missing."""
        path = self.folder / "results.json"
        return read_fields(path, _RESULT_FIELDS) if path.exists() else None

    def state(self) -> Json:
        """Return the fields of state.json.

        Without this file, the state is "waiting", or "failed" if a model was already trained. If
        the file is unreadable, the state is "failed".
        """
        try:
            return dict(_read_job_file(self.folder / "state.json"))
        except FileNotFoundError:
            if self.model_file.exists():  # the state was lost after the job had started
                lost = "the record of the progress is lost: resume the training"
                return {"state": FAILED, "run": 0, "at": 0.0, "error": lost}
            return {"state": WAITING, "run": 0, "at": 0.0, "error": ""}
        except (OSError, DamagedFileError) as error:
            warn_once(str(error))
            return {
                "state": FAILED,
                "run": 0,
                "at": 0.0,
                "error": f"{error}, or resume the training",
            }

    def end_run(self, run_number: int, state: str, error: str = "") -> None:
        """Set the state after a run, unless the job was cancelled or restarted in the meantime."""
        now = self.state()
        if (now["state"], now["run"]) == (RUNNING, run_number):
            self.set_state(state, run_number, error)

    def set_state(self, state: str, run_number: int, error: str = "") -> None:
        """Write the state of the job, with the number of its run and the current time."""
        content = {"state": state, "run": run_number, "at": time.time(), "error": error}
        write_checked_json(self.folder / "state.json", content)

    def progress(self) -> list[Json]:
        """Return the progress steps of the current run, without incomplete or damaged lines."""
        path = self.folder / "progress.jsonl"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        steps = []
        for line in text.split("\n")[:-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                step = json.loads(line)
                values = {name: step[name] for name in ("stage", "done", "total", "objective")}
                work = step.get("work")
                seconds_left = step["seconds_left"]
                times = {"work": work and float(work), "seconds": float(step["seconds"])}
                times["seconds_left"] = None if seconds_left is None else float(seconds_left)
                steps.append(values | times)
        return steps

    @contextlib.contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Lock the worker's lock file; yield False if another process has locked it.

        On a file system without locks, yield True.
        """
        with self.lock_file.open("ab") as file:
            is_free = True
            try:
                lock_descriptor(file.fileno())
            except BlockingIOError:
                is_free = False
            except OSError as error:
                warn_once(f"{self.folder}: this file system cannot lock files ({error})")
            yield is_free

    def log_tail(self) -> str:
        """Return the last lines of the worker's output."""
        path = self.folder / "log.txt"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return "\n".join(text.strip().splitlines()[-_N_LOG_LINES:])


def _read_job_file(path: Path) -> Json:
    """Read a JSON file of a job; the content is cached until the file changes."""
    return _read_fields_cached(path, *stat_signature(path))


@lru_cache(maxsize=20_000)
def _read_fields_cached(path: Path, *signature: int) -> Json:
    return read_fields(path, _FILE_FIELDS[path.name])


@lru_cache(maxsize=10_000)
def _read_summary(path: Path, *signature: int) -> Json:
    request = Job(path.parent).request
    copied = ("kind", "name", "data", "parent", "made", "regions", "model", "mpp")
    return {name: request.get(name) for name in copied} | {
        "method": request.get("recipe", {}).get("method"),
        "tested_on": short_id(repr(sorted(request.get("test_patients", ())))),
        "n_corrections": len(request.get("corrections", ())),
        "image": request["records"][0].get("path") if request["kind"] == "map" else None,
        "image_id": request.get("image_id"),
    }


def new_job(user: UserWorkspace, request: Json) -> Job:
    """Create a job with this request, without queueing it, and return it."""
    job = Job(user.folder / "jobs" / new_id())
    try:
        write_checked_json(job.folder / "job.json", request | {"made": time.time()})
    except OSError:  # for example a full disk
        shutil.rmtree(job.folder, ignore_errors=True)
        raise
    return job


def find_job(user: UserWorkspace, job_id: str) -> Job:
    """Return the job with this id; raise KeyError if there is none."""
    job = Job(user.folder / "jobs" / job_id)
    if not is_id(job_id) or not (job.folder / "job.json").is_file():
        raise KeyError("the training does not exist")
    return job


def count_comparable_trainings(user: UserWorkspace, job: Job) -> int:
    """Count `job` and the finished trainings with the same data and test patients."""
    wanted = [job.summary[name] for name in ("kind", "data", "tested_on")]
    comparable = (
        other
        for other in load_jobs(user)
        if [other.summary[name] for name in ("kind", "data", "tested_on")] == wanted
    )
    return sum(other.id == job.id or other.state()["state"] == DONE for other in comparable)


def load_jobs(user: UserWorkspace) -> list[Job]:
    """Return the user's jobs, newest first, except those with an unreadable request."""
    found = []
    folder = user.folder / "jobs"
    for name in filter(is_id, os.listdir(folder) if folder.is_dir() else ()):
        job = Job(folder / name)
        try:
            found.append((job.summary["made"], name, job))
        except FileNotFoundError:  # it is being created or deleted
            continue
        except (OSError, DamagedFileError) as error:
            warn_once(str(error))
    return [job for *_, job in sorted(found, key=lambda entry: entry[:2], reverse=True)]


# --- queue ----------------------------------------------------------------------------------------


class JobQueue:
    """Queue that runs jobs one after another in worker processes, and detects dead workers."""

    def __init__(self) -> None:
        # Jobs by id, in order. Changes are atomic: `add` and `count_ahead` need no lock.
        self._active: dict[str, Job] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_queue, daemon=True, name="jobs")

    def start(self, users: list[UserWorkspace]) -> None:
        """Queue the waiting and running jobs of an earlier server, and start the queue thread."""
        active = (j for user in users for j in load_jobs(user) if j.state()["state"] in ACTIVE)
        for job in sorted(active, key=lambda job: job.summary["made"]):
            self.add(job)
        self._thread.start()

    def close(self) -> None:
        """Stop the queue thread and the running job, which the next server continues."""
        self._stop.set()
        with self._lock:
            for job in self._jobs():
                if job.id in self._processes:
                    _kill_and_wait(self._processes[job.id])
                    job.end_run(job.state()["run"], WAITING)
                    self._discard(job)

    def _jobs(self) -> list[Job]:
        return list(self._active.values())

    def add(self, job: Job) -> None:
        """Add a job to the queue."""
        self._active.setdefault(job.id, job)

    def count_ahead(self, job: Job) -> int:
        """Return the number of jobs that run before `job`."""
        if job.id not in self._active:  # lists of finished jobs are long, and priorities read files
            return 0
        ids = [other.id for other in sorted(self._jobs(), key=_priority)]
        return ids.index(job.id) if job.id in ids else 0

    def cancel(self, job: Job) -> None:
        """Cancel an active job."""
        with self._lock:
            state = job.state()
            if state["state"] not in ACTIVE:
                return
            process = self._processes.get(job.id)
            if process is None:  # a worker of an earlier server ends by itself
                self._discard(job)
            else:
                _kill(process)  # do not wait: ending may take a while on busy cores
            job.set_state(CANCELLED, state["run"])

    def remove(self, job: Job) -> None:
        """Cancel a job, wait until its worker has ended, and remove it from the queue."""
        self.cancel(job)
        with self._lock:
            if job.id in self._processes:
                _kill_and_wait(self._processes[job.id])
            self._discard(job)

    def resume(self, job: Job) -> None:
        """Queue a failed, cancelled or interrupted job again; reuse its model if it is trained."""
        with self._lock:
            state = job.state()
            if state["state"] in (*ACTIVE, DONE):
                return
            job.set_state(WAITING, state["run"])
            self.add(job)

    def _run_queue(self) -> None:
        while not self._stop.wait(_POLL_INTERVAL):
            try:
                self._update_jobs()
            except OSError as error:  # for example a full disk; try again
                warn_once(f"the state of the trainings cannot be checked: {error}")

    def _update_jobs(self) -> None:
        """Update the states of all jobs; start the next one, or stop a map if a training waits."""
        with self._lock:
            if self._stop.is_set():
                return
            for job in self._jobs():
                self._update_state(job)
            turns = sorted(self._jobs(), key=_priority)
            waiting = [job for job in turns if job.state()["state"] == WAITING]
            is_free = not self._processes and len(waiting) == len(turns)
            if waiting and is_free:
                self._launch(waiting[0])
            elif waiting and waiting[0].is_training:
                for job in turns:
                    self._preempt_map(job)

    def _preempt_map(self, job: Job) -> None:
        """Stop `job` if it computes a map, and queue it again; do nothing for a training."""
        process = self._processes.get(job.id)
        if process is not None and not job.is_training:
            _kill(process)
            job.end_run(job.state()["run"], WAITING)

    def _update_state(self, job: Job) -> None:
        """Store the failure of a job whose worker has died; remove an ended job from the queue."""
        process = self._processes.get(job.id)
        is_dead = process.poll() is not None if process else _is_orphaned(job)
        state = job.state()  # read after the check: a worker writes its last state, then ends
        if state["state"] == RUNNING and is_dead:
            code = process.returncode if process is not None else None
            job.set_state(
                FAILED if process else INTERRUPTED, state["run"], _failure_reason(job, code)
            )
        if process is not None and is_dead:
            del self._processes[job.id]
        if job.state()["state"] not in ACTIVE and job.id not in self._processes:
            self._discard(job)

    def _launch(self, job: Job) -> None:
        run = job.state()["run"] + 1
        (job.folder / "progress.jsonl").unlink(missing_ok=True)
        job.set_state(RUNNING, run)
        server = str(os.getpid())
        command = [sys.executable, "-m", "histodict.utils.child_process", server, _WORKER_MODULE]
        command += [str(job.folder), str(run), server]
        with (job.folder / "log.txt").open("wb") as log:
            self._processes[job.id] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl+C must reach the server only, which then ends the worker. A new session
                # would prevent it, too, but Linux divides the cores among sessions despite `nice`.
                process_group=0,
            )

    def _discard(self, job: Job) -> None:
        self._active.pop(job.id, None)
        self._processes.pop(job.id, None)


def _is_orphaned(job: Job) -> bool:
    """Return whether the job's state is running, but its worker has ended."""
    if job.state()["state"] != RUNNING:
        return False
    with job.try_lock() as is_free:
        return is_free


def _priority(job: Job) -> tuple[bool, bool]:
    """Return the sort key of a job in the queue: running jobs, then trainings, then maps."""
    return job.state()["state"] != RUNNING, not job.is_training


def _kill_and_wait(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with its children, and wait until it has ended."""
    _kill(process)
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with its children, without waiting."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _failure_reason(job: Job, exit_code: int | None) -> str:
    if exit_code is None:
        return "The work was interrupted: the computer or the process was stopped."
    message = "The worker process ended unexpectedly"
    if exit_code < 0:
        message += f" (signal {-exit_code}; 9 often means that memory ran out)"
    return f"{message}. All finished steps are stored.\n{job.log_tail()}".strip()
