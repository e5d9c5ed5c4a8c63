"""The process that does a job: `python -m histodict.web.worker FOLDER RUN`.

It writes its progress, its state and what it makes into the job's folder, and ends when it is
cancelled or when another run has taken over.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..execution.progress import Progress
from ..images.manifest import Manifest, Record
from ..images.masks import RegionMask
from ..images.readers import open_image
from ..model_file import Model, ModelFileError, load_model, save_model
from ..pipeline import RegionDetector, TissueClassifier
from ..pipeline.gallery import Gallery
from ..pipeline.patch_model import PatchModel
from ..recipes import Recipe
from .datasets import image_id_of
from .jobs import CANCELLED, DONE, FAILED, RUNNING, Job
from .maps import answer_image, stored_answer
from .training import make_model, request_manifest, train_and_test
from .workspace import read_json, write_json

_BEAT = 1.0
MODEL_NAME = "model.histodict"


class Diary:
    """Progress, a line per step, with the seconds since the start."""

    def __init__(self, job: Job) -> None:
        self._file = (job.folder / "progress.jsonl").open("a", encoding="utf-8")
        self._started = time.perf_counter()

    def tell(self, progress: Progress) -> None:
        line = {
            "stage": progress.stage,
            "done": progress.done,
            "total": progress.total,
            "objective": [None if x != x else float(x) for x in progress.objective],
            "seconds": round(time.perf_counter() - self._started, 2),
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main(folder: Path, run: int) -> int:
    job = Job(folder)
    _stay_in_touch(job, run)
    if hasattr(os, "nice"):
        os.nice(5)  # the page comes first
    try:
        WORK[job.request["kind"]](job, Diary(job))
    except (ValueError, OSError, MemoryError) as error:
        job.set_state(FAILED, run, str(error) or type(error).__name__)
        return 1
    except Exception as error:
        traceback.print_exc()
        job.set_state(FAILED, run, f"{type(error).__name__}: {error}")
        return 1
    job.set_state(DONE, run)
    return 0


def _stay_in_touch(job: Job, run: int) -> None:
    """Show that we live; end at once if cancelled, or if a later run has begun."""

    def beat() -> None:
        while True:
            (job.folder / "alive").write_text(str(os.getpid()))
            state = job.state()
            if (job.folder / "cancel").exists():
                job.set_state(CANCELLED, run)
                os._exit(0)
            if state["run"] != run:
                os._exit(0)
            time.sleep(_BEAT)

    threading.Thread(target=beat, daemon=True, name="beat").start()


# --- training -----------------------------------------------------------------------------------


def train(job: Job, diary: Diary) -> None:
    request = job.request
    learn, test = train_and_test(request)
    path = job.folder / MODEL_NAME
    if path.is_file():  # an earlier run got so far
        model = load_model(path)
    else:
        recipe = Recipe.from_dict(request["recipe"])
        cache = job.folder.parents[1] / "cache"  # the user's; a second training is quicker
        model = make_model(recipe, request["regions"], request["seed"], cache)
        model.fit(learn, callback=diary.tell, start_from=_parent(job, model, learn))
        save_model(model, path)
    if isinstance(model.model_, PatchModel) and not (job.folder / "gallery.npz").is_file():
        gallery = Gallery.of(model.model_, learn.records, request["seed"], diary.tell)
        gallery.save(job.folder / "gallery.npz")
    rows = _answers(model, test, job.folder / "maps", diary)
    write_json(job.folder / "results.json", _results(model, rows))


def _parent(job: Job, model: Model, learn: Manifest) -> Any:
    """The model that was corrected, to go on from; None where this one has to start afresh.

    It learnt from the same patients: those kept for testing are kept from it too.
    """
    parent_id = job.request.get("parent")
    path = job.folder.parent / str(parent_id) / MODEL_NAME
    if not parent_id or not path.is_file():
        return None
    try:
        parent = load_model(path)
    except ModelFileError:  # of an earlier version
        return None
    same = parent.recipe == model.recipe and not model.recipe.panel
    if isinstance(parent, TissueClassifier):
        same = same and parent.classes_ == list(learn.classes)
    method = parent.model_.method_
    return parent if same and "warm_start" in method.get_params() else None


def _answers(model: Model, test: Manifest, folder: Path, diary: Diary) -> list[dict[str, Any]]:
    """A row per image of the patients kept for testing; one that cannot be read says why."""
    rows = []
    for record in test.records:
        facts: dict[str, Any]
        try:
            facts = stored_answer(folder, record.path) or answer_image(model, record, folder)
        except (ValueError, OSError) as error:
            facts = {"answer": None, "score": None, "value": None, "failure": str(error)}
        name = test.name(record)
        rows.append(
            {
                "image": image_id_of(name),
                "name": name,
                "label": _truth(model, record),
                "patient": record.patient,
                **facts,
            }
        )
        diary.tell(Progress("answer", len(rows), len(test.records)))
    return rows


def _truth(model: Model, record: Record) -> str:
    """The image's class; for regions, whether its mask or, without one, its label shows any."""
    if not isinstance(model, RegionDetector):
        return record.label
    if record.mask is None:
        return model.classes_[int(record.label == model.classes_[1])]
    with open_image(record.path, record.mpp) as source:
        mask = RegionMask.read(record.mask, source.size)
    return model.classes_[int(mask.region.any())]


def _results(model: Model, rows: list[dict[str, Any]]) -> dict[str, Any]:
    point: dict[str, Any] | None = None
    if isinstance(model, RegionDetector):
        point = {"kind": "patches", "value": model.least_patches_}
    elif model.rule_ is not None and model.threshold is not None:
        rises = bool(model.rule_.weights[0, 0] > 0)
        point = {"kind": model.rule_.name, "value": model.threshold, "rises": rises}
    elif len(model.classes_) == 2:
        point = {"kind": "score", "value": 0.0}
    return {"classes": model.classes_, "operating_point": point, "images": rows}


# --- the map of one large image -----------------------------------------------------------------


def draw_map(job: Job, diary: Diary) -> None:
    request = job.request
    folder = Path(request["folder"])
    record = request_manifest(request).records[0]
    diary.tell(Progress("map", 0, 1))
    answer_image(load_model(Path(request["model"])), record, folder)
    diary.tell(Progress("map", 1, 1))


WORK: dict[str, Callable[[Job, Diary], None]] = {"train": train, "map": draw_map}


if __name__ == "__main__":
    given = Path(sys.argv[1]), int(sys.argv[2])
    assert read_json(given[0] / "state.json")["state"] == RUNNING
    sys.exit(main(*given))
