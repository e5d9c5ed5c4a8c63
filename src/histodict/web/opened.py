"""Models from files, opened beside those that were trained here.

A copy of the file becomes a job that is done from the beginning: what looks at a trained model
looks at this one, too. The same file has the same copy; one that was changed is another model.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

from ..execution.files import file_key, written_whole
from ..execution.sealed import write_sealed
from ..execution.texts import one_line
from ..model_file import SUFFIX
from ..pipeline import Model, load_model
from .folders import DataFolders
from .jobs import DONE, OPENED, Job
from .workspace import User, short_id

_MOST_BYTES = 512 * 2**20
_OPENING = threading.Lock()  # one after another, or two would write the same


def open_model(user: User, folders: DataFolders, place: int, inside: str) -> Job:
    """The model of a file that lies in the data folders."""
    path = folders.find(place, inside)
    if path.suffix.lower() != SUFFIX or not path.is_file():
        raise ValueError(f"{path.name}: is no model; files of models end in {SUFFIX}")
    if path.stat().st_size > _MOST_BYTES:
        most = _MOST_BYTES // 2**20
        raise ValueError(f"{path.name}: is larger than {most} MB, more than the page opens")
    job = Job(user.folder / "jobs" / short_id(repr(file_key(path))))
    with _OPENING:
        if not (job.folder / "job.json").is_file():
            try:
                _take(job, path)
            except BaseException:
                shutil.rmtree(job.folder, ignore_errors=True)
                raise
    return job


def _take(job: Job, path: Path) -> None:
    """The request comes last: until it is there, so is nothing."""
    with written_whole(job.model_file) as partial:
        shutil.copyfile(path, partial)
    model = _loaded(job.model_file, path.name)
    job.set_state(DONE, 0)
    write_sealed(job.folder / "job.json", _request(path, model))


def _loaded(copy: Path, name: str) -> Model:
    try:
        return load_model(copy)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        words = one_line(error).replace(str(copy), name)
        raise ValueError(words if name in words else f"{name}: {words}") from error


def _request(path: Path, model: Model) -> dict[str, Any]:
    """As of a training of which nothing is known but its outcome."""
    return {
        "kind": OPENED,
        "made": time.time(),
        "name": path.name,
        "data": "",
        "root": str(path.parent),
        "records": [],
        "n_images": 0,
        "test_patients": [],
        "corrections": [],
        "recipe": {"method": model.recipe.method},
        "regions": model.classes_[1] if model.finds_regions else None,
        "parent": None,
        "n_shapes": 0,
    }
