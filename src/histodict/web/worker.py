"""Process that runs a job: `python -m histodict.web.worker FOLDER RUN SERVER`.

FOLDER is the folder of the job, RUN the number of its run, and SERVER the process id of the server.
The process writes progress, state and results into the folder, and exits with the server.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..datasets.manifest import Manifest
from ..datasets.survey import check_duplicates_by_content, with_pixel_size
from ..explain.patch_sample import PatchSample
from ..methods.registry import get_method
from ..models import Model, Plan, load_model, save_model
from ..models.model_file import ModelFileError
from ..utils.child_process import exit_with_parent
from ..utils.progress import IMAGE_STAGES, PATCH_STAGES, Callback, Progress, TimeEstimator
from ..utils.text_io import failure_reason, write_checked_json
from ..utils.validation import set_hint_interface
from .dataset_checks import check_training_images, excluded_image_names
from .jobs import DONE, FAILED, RUNNING, WAITING, Job
from .maps import compute_prediction, count_overlap, load_map, load_or_compute
from .schema import Json
from .training import manifest_from_request, split_training_and_test
from .workspace import short_id

_POLL_INTERVAL = 0.1  # seconds
_UNKNOWN_LABEL = "not known"  # true label of an image whose mask has become unreadable
_NICENESS = 10  # about a tenth of a core while the server needs it, all of it otherwise


def make_progress_callback(job: Job) -> Callback:
    """Return a callback that appends each step to progress.jsonl, with its times in seconds."""
    file = (job.folder / "progress.jsonl").open("a", encoding="utf-8")
    started, estimator = time.perf_counter(), TimeEstimator(_stage_durations(job))

    def callback(progress: Progress) -> None:
        estimator.update(progress)
        entry = asdict(progress) | {
            "objective": [None if x != x else float(x) for x in progress.objective],
            "seconds": round(time.perf_counter() - started, 2),
            "seconds_left": estimator.seconds_left(),
        }
        file.write(json.dumps(entry) + "\n")
        file.flush()

    return callback


def _stage_durations(job: Job) -> dict[str, int]:
    """Return the typical relative duration of each stage of the job, by name."""
    if not job.is_training:
        return {"slide": 1}
    on_patches = get_method(job.request["recipe"]["method"]).is_patch_level
    return PATCH_STAGES if on_patches else IMAGE_STAGES


def main(folder: Path, run_number: int, server_pid: int) -> int:
    """Run a job and return the exit status of the process.

    Parameters
    ----------
    folder : folder of the job
    run_number : number of this run of the job
    server_pid : process id of the server; when the server ends, this process exits
    """
    job = Job(folder)
    exit_with_parent(server_pid, partial(job.end_run, run_number, WAITING))
    with _exclusive_job_lock(job):
        return _run_job(job, run_number)


@contextmanager
def _exclusive_job_lock(job: Job) -> Iterator[None]:
    """Lock the job, after waiting for a worker of an earlier server to end."""
    while True:
        with job.try_lock() as is_free:
            if is_free:
                job.lock_file.write_text(str(os.getpid()), "utf-8")
                yield
                return
        time.sleep(_POLL_INTERVAL)


def _run_job(job: Job, run_number: int) -> int:
    state = job.state()
    if (state["state"], state["run"]) != (RUNNING, run_number):
        return 0  # it was cancelled in the meantime
    if hasattr(os, "nice"):
        os.nice(_NICENESS)  # the server has priority
    try:
        JOB_FUNCTIONS[job.request["kind"]](job, make_progress_callback(job))
    except (ValueError, OSError, MemoryError) as error:
        job.end_run(run_number, FAILED, str(error) or type(error).__name__)
        return 1
    except Exception as error:
        traceback.print_exc()
        job.end_run(run_number, FAILED, f"{type(error).__name__}: {error}")
        return 1
    job.end_run(run_number, DONE)
    return 0


# --- training -------------------------------------------------------------------------------------


def train(job: Job, callback: Callback) -> None:
    """Train the model of a job, unless an earlier run has done so, and predict the test images."""
    model = _load_saved_model(job)
    if model is None:
        shutil.rmtree(job.folder / "maps", ignore_errors=True)  # of an earlier model
        check_training_images(job, manifest_from_request(job.request), callback)
    training, test = split_training_and_test(job.request, excluded_image_names(job))
    if model is None:
        check_duplicates_by_content(replace(training, records=training.records + test.records))
        model = _train_model(job, training, callback)
        save_model(model, job.model_file)
    if model.recipe.is_patch_level and PatchSample.read_or_none(job.gallery_file) is None:
        gallery = PatchSample.from_records(
            model.model_, training.records, job.request["seed"], callback
        )
        gallery.save(job.gallery_file)
    rows = _predict_test_images(job, model, test, callback)
    point = model.decision_threshold and model.decision_threshold.to_dict()
    results = {"classes": model.class_names_, "operating_point": point, "images": rows}
    write_checked_json(job.folder / "results.json", results)


def _load_saved_model(job: Job) -> Model | None:
    """Load the model that an earlier run saved; return None if there is none or it is damaged."""
    if not job.model_file.is_file():
        return None
    try:
        return load_model(job.model_file)
    except ModelFileError as error:
        warnings.warn(f"{error}. The model is trained again", stacklevel=2)
        return None


def _train_model(job: Job, training_images: Manifest, callback: Callback) -> Model:
    request = job.request
    plan = Plan.from_dict(request["recipe"])
    cache = job.folder.parents[1] / "cache"  # shared by the user's trainings
    model = plan.build_model(region=request["regions"], random_state=request["seed"], cache=cache)
    training_images = with_pixel_size(training_images, request.get("mpp"))
    return model.fit(
        training_images, callback=callback, start_from=_load_parent(job, model, training_images)
    )


def _load_parent(job: Job, model: Model, training_images: Manifest) -> Any:
    """Return the parent model, from which the training of a job starts.

    It is None if the job has no parent, if its file is missing or unreadable, or if its recipe or
    classes differ from those of `model`. The parent was not trained on the test patients of this
    job.
    """
    parent_id = job.request.get("parent")
    path = Job(job.folder.parent / str(parent_id)).model_file
    if not parent_id or not path.is_file():
        return None
    try:
        parent = load_model(path)
    except ModelFileError as error:
        warnings.warn(f"{error}; the training does not continue from it", stacklevel=2)
        return None
    is_same = parent.kind == model.kind and model.recipes == [parent.recipe]
    is_same = is_same and (parent.finds_regions or parent.class_names_ == training_images.classes)
    return parent if is_same and "warm_start" in parent.model_.classifier_.get_params() else None


def _predict_test_images(job: Job, model: Model, test: Manifest, callback: Callback) -> list[Json]:
    """Return the prediction of each test image, or an error message, as rows of the results."""
    rows = []
    folder, mpp = job.folder / "maps", job.request.get("mpp")
    callback(Progress("predict", 0, len(test.records)))
    for record in test.records:
        prediction: Json
        label = _UNKNOWN_LABEL
        try:
            label = model.true_label(record)
            prediction = load_or_compute(model, record, folder, mpp)
            if model.finds_regions and prediction["grid"] is not None:
                prediction |= {"overlap": count_overlap(record, load_map(folder, record, mpp))}
        except Exception as error:
            reason = failure_reason(error)
            failure = reason.removeprefix(f"{record.path}: ")
            prediction = {"answer": None, "score": None, "value": None, "failure": failure}
        name = test.name(record)
        identity = {
            "image": short_id(name),
            "name": name,
            "label": label,
            "patient": record.patient,
        }
        # The viewer shows the whole image, also if only a part of it was tested.
        identity["look"] = short_id(test.name(replace(record, region_of_interest=None)))
        rows.append(identity | prediction)
        callback(Progress("predict", len(rows), len(test.records)))
    return rows


# --- map of a large image -------------------------------------------------------------------------


def compute_map(job: Job, callback: Callback) -> None:
    """Compute and store the prediction and patch map of the large image of a job."""
    record = manifest_from_request(job.request).records[0]
    model, folder = load_model(job.request["model"]), Path(job.request["folder"])
    compute_prediction(model, record, folder, job.request.get("mpp"), callback)


JOB_FUNCTIONS: dict[str, Callable[[Job, Callback], None]] = {"train": train, "map": compute_map}


if __name__ == "__main__":
    set_hint_interface("web")
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
