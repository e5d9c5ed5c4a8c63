"""Long work as it is told of in files: it outlives a closed tab, and the server.

A job's folder holds
    job.json         what was asked for; never changed
    name.json        what the user calls it, if not by its images
    state.json       {"state", "run", "at", "error"}; not there before it is begun or given up
    progress.jsonl   one line per step of the present run
    alive            the worker's process number, written anew every second
    cancel           there if the work shall stop
    log.txt          what the worker printed
and what the worker makes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
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
    short_id,
)

TRAIN, MAP = "train", "map"  # kinds of jobs
OPENED = "opened"  # a model from a file: done from the beginning
WAITING, RUNNING, DONE = "waiting", "running", "done"
FAILED, CANCELLED, INTERRUPTED = "failed", "cancelled", "interrupted"
ACTIVE = (WAITING, RUNNING)
_LOG_LINES = 6
_LONGEST_NAME = 80
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
_RESULTS: dict[str, Any] = {"classes": list, "images": list, "operating_point": object}


@dataclass(frozen=True)
class Job:
    """One job on disk."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def name(self) -> str:
        """As the user calls it."""
        path = self.folder / "name.json"
        try:
            return _name(path, *file_state(path))
        except FileNotFoundError:
            return str(self.summary["name"])
        except (OSError, DamagedFileError) as error:
            say_once(str(error))
            return str(self.summary["name"])

    def rename(self, name: str) -> None:
        name = " ".join(name.split())
        if not 0 < len(name) <= _LONGEST_NAME:
            raise ValueError(f"a name has from 1 to {_LONGEST_NAME} letters")
        write_sealed(self.folder / "name.json", {"name": name})

    def delete(self) -> None:
        """With its model and results: first it is out of the way, then it goes."""
        gone = self.folder.with_name(f".gone-{self.id}")
        self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @property
    def is_training(self) -> bool:
        return bool(self.summary["kind"] == TRAIN)

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
                left = step["seconds_left"]
                times = {"work": work and float(work), "seconds": float(step["seconds"])}
                times["seconds_left"] = None if left is None else float(left)
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
def _name(path: Path, *version: int) -> str:
    return str(read_fields(path, {"name": str})["name"])


@lru_cache(maxsize=10_000)
def _state(path: Path, *version: int) -> dict[str, Any]:
    return read_fields(path, _STATE)


@lru_cache(maxsize=10_000)
def _summary(path: Path, *version: int) -> dict[str, Any]:
    request = Job(path.parent).request
    plain = ("kind", "name", "data", "parent", "made", "regions", "model", "mpp")
    return {name: request.get(name) for name in plain} | {
        "method": request.get("recipe", {}).get("method"),
        "tested_on": short_id(repr(sorted(request.get("test_patients", ())))),
        "n_corrections": len(request.get("corrections", ())),
        "image": request["records"][0].get("path") if request["kind"] == "map" else None,
        "image_id": request.get("image_id"),
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


def n_tested_alike(user: User, job: Job) -> int:
    """Return the number of finished trainings with the same data and test patients as this one."""
    wanted = [job.summary[name] for name in ("kind", "data", "tested_on")]
    alike = (
        other
        for other in all_jobs(user)
        if [other.summary[name] for name in ("kind", "data", "tested_on")] == wanted
    )
    return sum(other.id == job.id or other.state()["state"] == DONE for other in alike)


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
