"""Training page API: options of trainings; start, progress and management of jobs."""

from __future__ import annotations

import inspect
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from starlette.routing import Route

from ...datasets.survey import common_pixel_size, with_pixel_size
from ...methods.registry import METHODS, get_method
from ...models import Plan
from ...models.recipe import default_region_preset
from ...patches.vectors import PATCH_FEATURES
from ...preprocessing.stain import NORMALIZERS
from ...utils.progress import Progress
from ..dataset_checks import (
    exclude_unreadable_images,
    excluded_image_names,
    excludes_unreadable_images,
    read_unreadable_images,
    unreadable_images_message,
)
from ..datasets import Dataset, find_dataset, relabelled_manifest
from ..jobs import ACTIVE, DONE, IMPORTED, MAP, RUNNING, Job, find_job, load_jobs, new_job
from ..request import ApiRequest, endpoint
from ..schema import Json, MapJob
from ..training import (
    PRESET_LABELS,
    TrainingSettings,
    classes_from_request,
    make_preset_plan,
    make_training_request,
)

_START_LOCK = threading.Lock()  # serialises starts, or two requests could start the same training
_MAX_SETTING_VALUE = 1e9  # larger values would exceed the memory


def list_choices(
    request: ApiRequest, *, preset: str = "default", method: str = "dfdl", regions: str = ""
) -> Json:
    """Return the possible options of a training, and the settings of a preset for a method.

    Parameters
    ----------
    request : API request
    preset : name of the preset
    method : name of the method
    regions : class whose regions are detected; empty to classify images
    """
    plan = make_preset_plan(preset, method, finds_regions=bool(regions))
    for_regions, reason = default_region_preset({}, [method])
    parameters = inspect.signature(get_method(method).load_class()).parameters
    method_parameters = {
        name: plan.recipe.method_parameters.get(name, parameter.default)
        for name, parameter in parameters.items()
        if name not in ("random_state", "n_jobs", "backend", "warm_start")
    }
    fields = plan.to_dict()
    del fields["method"], fields["method_parameters"]
    return {
        "presets": PRESET_LABELS,
        "for_regions": {"preset": for_regions, "why": reason},
        "methods": {name: entry.summary for name, entry in METHODS.items()},
        "stains": sorted(NORMALIZERS),
        "features": sorted({*PATCH_FEATURES, plan.recipe.features}),
        "recipe": fields,
        "parameters": method_parameters,
    }


def start_training(
    request: ApiRequest,
    *,
    data: str,
    parent: str | None = None,
    skip_bad: bool = False,
    method: str = "dfdl",
    preset: str | None = None,
    regions: str | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    test_folds: int = 4,
    test_patients: list[str] | None = None,
) -> Json:
    """Start a training and return its id.

    If an active training has the same request, none is started, and the id of the active one is
    returned.

    Parameters
    ----------
    request : API request
    data : id of the data set
    parent : id of a training whose plan and test patients are used; None to use the options from
        `method` on
    skip_bad : whether unreadable images are excluded
    method : name of the method
    preset : name of the preset; None for the default
    regions : class whose regions are detected; None to classify images
    settings : settings of the preset that are changed, with their new values
    seed, test_folds, test_patients : see `TrainingSettings`
    """
    dataset = find_dataset(request.user, request.context.indexes, data)
    earlier = find_job(request.user, parent) if parent else None
    if earlier and earlier.request["data"] != dataset.id:
        raise ValueError(
            f"the model was trained on other images ({earlier.name}). Train on "
            f"{dataset.source.name} separately, on the training page"
        )
    if earlier:
        training = TrainingSettings.from_request(earlier.request)
        skip_bad = skip_bad or excludes_unreadable_images(earlier)
    else:
        plan = _chosen_plan(preset, method, bool(regions), settings or {})
        training = TrainingSettings(plan, regions or None, seed, test_folds, test_patients)
    job_request = make_training_request(dataset, training) | {"parent": parent}
    _check_images(request, dataset, training, skip_bad)
    with _START_LOCK:
        job = _active_job(request, job_request)
        if job is None:
            job = new_job(request.user, job_request)
            if skip_bad:
                exclude_unreadable_images(job)
            request.context.queue.add(job)
    return {"id": job.id}


def _active_job(request: ApiRequest, job_request: Json) -> Job | None:
    """Return the active job with the same request; None if there is none."""
    wanted = json.loads(json.dumps(job_request, default=os.fspath))
    for job in load_jobs(request.user):
        may_match = job.state()["state"] in ACTIVE and job.summary["data"] == wanted["data"]
        if may_match and {k: v for k, v in job.request.items() if k != "made"} == wanted:
            return job
    return None


def _check_images(
    request: ApiRequest, dataset: Dataset, training: TrainingSettings, skip_bad: bool
) -> None:
    """Raise ValueError if the check of the data set has found errors, or unreadable images.

    Unreadable images are accepted if `skip_bad`. If the check is not complete, no error is raised;
    the worker then checks the images.
    """
    if not dataset.is_labelled:
        return  # most images have no annotations
    manifest, mpp = relabelled_manifest(dataset), dataset.settings.mpp
    report = request.context.checks.complete_report(manifest, mpp)
    if report is None:
        return
    bad = {entry["name"] for entry in report.unreadable_images(manifest)}
    if bad and not skip_bad:
        raise ValueError(unreadable_images_message(len(bad), len(manifest.records)))
    if report.errors:
        raise ValueError(report.errors[0])
    readable = [i for i, record in enumerate(manifest.records) if manifest.name(record) not in bad]
    common_pixel_size(
        with_pixel_size(manifest.select(readable), mpp).records, training.plan.recipe.mpp
    )


def _chosen_plan(preset: str | None, method: str, finds_regions: bool, settings: Json) -> Plan:
    default = default_region_preset({}, [method])[0] if finds_regions else "default"
    as_text = {name: str(value) for name, value in settings.items()}
    for name, text in as_text.items():
        _check_setting(name, text)
    return make_preset_plan(preset or default, method, finds_regions=finds_regions).parse_settings(
        as_text
    )


def _check_setting(name: str, text: str) -> None:
    try:
        is_too_large = abs(float(text)) > _MAX_SETTING_VALUE
    except ValueError:
        return  # not a number
    if is_too_large:
        raise ValueError(f"{name}={text[:40]}: the value is too large")


def get_job(request: ApiRequest) -> Json:
    """Return the summary of a job with its progress, classes and unreadable images."""
    job = request.job
    return summarize_job(request, job) | {
        "progress": _progress_to_json(job),
        "classes": classes_from_request(job.request),
        "words": _describe_training(job),
        "bad": read_unreadable_images(job),
        "goes_on": excludes_unreadable_images(job),
    }


def _describe_training(job: Job) -> str:
    """Return a description of a training in one line; empty for other jobs."""
    request = job.request
    if request["kind"] != "train":
        return ""
    recipe = request["recipe"]
    parts = [recipe["method"]]
    if get_method(recipe["method"]).is_patch_level:
        parts += [f"{recipe['patch_px']} pixel patches", f"{recipe['patches_per_class']} per class"]
    parts += [f"{name} {value}" for name, value in recipe["method_parameters"].items()]
    n_tested = len(request["test_patients"])
    tested = f"{n_tested} patient{'' if n_tested == 1 else 's'} in the test set"
    excluded = excluded_image_names(job)
    return ", ".join(
        [*parts, tested, *([f"{len(excluded)} unreadable excluded"] if excluded else [])]
    )


def list_jobs(request: ApiRequest) -> Json:
    """Return trainings, imported models, and unfinished maps of large images."""
    user_jobs = load_jobs(request.user)
    maps = (job for job in user_jobs if job.summary["kind"] == MAP and job.state()["state"] != DONE)
    return {
        "jobs": [summarize_job(request, job) for job in user_jobs if job.is_training],
        "opened": [summarize_job(request, j) for j in user_jobs if j.summary["kind"] == IMPORTED],
        "maps": [_map_job_to_json(job) for job in maps],
    }


def _map_job_to_json(job: Job) -> MapJob:
    state = job.state()
    return {
        "id": job.id,
        "name": job.name,
        "data": job.summary["data"],
        "image": job.summary["image_id"],
        "model": Path(job.summary["model"]).parent.name,
        "state": state["state"],
        "error": state["error"],
        "fraction_done": fraction_done(job),
    }


def fraction_done(job: Job) -> float:
    """Return the completed fraction of a job that computes a map, from 0 to 1."""
    steps = job.progress()
    if not steps:
        return 0.0
    last = steps[-1]
    return Progress(last["stage"], last["done"], last["total"], work=last["work"]).fraction


def summarize_job(request: ApiRequest, job: Job) -> Json:
    """Return the state and main properties of a job, for lists of jobs."""
    fields = ("data", "parent", "made", "regions", "method", "n_corrections")
    state = job.state()
    return {name: job.summary[name] for name in fields} | {
        "id": job.id,
        "name": job.name,
        "state": state["state"],
        "error": state["error"],
        "ahead": request.context.queue.count_ahead(job),
        "has_model": job.model_file.is_file(),
    }


def _progress_to_json(job: Job) -> Json:
    """Return the progress of a job as JSON.

    It has the numbers (done, total) of each stage, the objectives of all steps, and the seconds
    left.
    """
    steps = job.progress()
    stages = {step["stage"]: (step["done"], step["total"]) for step in steps}
    return {
        "stages": stages,
        "objective": [
            step["objective"] for step in steps if step["stage"] == "train" and step["objective"]
        ],
        "seconds_left": seconds_left(job),
    }


def seconds_left(job: Job) -> float | None:
    """Return the remaining seconds of a running job; None if unknown or not running.

    The time is the latest estimate of the worker minus the time since the estimate.
    """
    state = job.state()
    estimates = [step for step in job.progress() if step["seconds_left"] is not None]
    if state["state"] != RUNNING or not estimates:
        return None
    elapsed, last = time.time() - state["at"], estimates[-1]
    return max(0.0, float(last["seconds"] + last["seconds_left"] - elapsed))


def cancel_job(request: ApiRequest) -> Json:
    """Cancel a job and return its summary."""
    job = _job_with_worker(request)
    request.context.queue.cancel(job)
    return summarize_job(request, job)


def _job_with_worker(request: ApiRequest) -> Job:
    """Return the job of the request; raise ValueError if it is an imported model."""
    if request.job.summary["kind"] == IMPORTED:
        raise ValueError("a model from a file cannot be resumed here")
    return request.job


def resume_job(request: ApiRequest, *, skip_bad: bool = False) -> Json:
    """Resume a failed or cancelled job and return its summary.

    If `skip_bad`, unreadable images are excluded.
    """
    job = _job_with_worker(request)
    if skip_bad:
        exclude_unreadable_images(job)
    request.context.queue.resume(job)
    return summarize_job(request, job)


def rename_job(request: ApiRequest, *, name: str) -> Json:
    """Rename a job and return its summary."""
    request.job.rename(name)
    return summarize_job(request, request.job)


def delete_job(request: ApiRequest) -> Json:
    """Delete a training with its results and the jobs that use its model; return all jobs."""
    job = request.job
    if job.state()["state"] in ACTIVE:
        raise ValueError("the training is running: cancel it first")
    maps = (
        other for other in load_jobs(request.user) if other.summary["model"] == str(job.model_file)
    )
    for other in [*maps, job]:
        request.context.queue.remove(other)
        other.delete()
    return list_jobs(request)


ROUTES = [
    Route("/api/choices", endpoint(list_choices)),
    Route("/api/jobs", endpoint(list_jobs)),
    Route("/api/jobs", endpoint(start_training), methods=["POST"]),
    Route("/api/jobs/{job}", endpoint(get_job)),
    Route("/api/jobs/{job}/cancel", endpoint(cancel_job), methods=["POST"]),
    Route("/api/jobs/{job}/resume", endpoint(resume_job), methods=["POST"]),
    Route("/api/jobs/{job}/rename", endpoint(rename_job), methods=["POST"]),
    Route("/api/jobs/{job}/delete", endpoint(delete_job), methods=["POST"]),
]
