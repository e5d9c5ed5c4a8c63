"""The training page: choose how to learn, start, watch, cancel, go on."""

from __future__ import annotations

import inspect
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from starlette.routing import Route

from ...datasets.survey import common_size, with_pixel_size
from ...methods.registry import METHODS, get_method
from ...models import Plan
from ...models.recipe import default_region_preset
from ...patches.vectors import PATCH_FEATURES
from ...preprocessing.stain import NORMALISERS
from ...utils.progress import Progress
from ..dataset_checks import (
    bad_images,
    exclude_images,
    excluded_image_names,
    excludes_images,
    refusal,
)
from ..datasets import Dataset, find_dataset, relabelled_manifest
from ..jobs import ACTIVE, DONE, IMPORTED, MAP, RUNNING, Job, all_jobs, find_job, new_job
from ..request import ApiRequest, endpoint
from ..schema import MapJob
from ..training import (
    PRESET_LABELS,
    TrainingRequest,
    offered_plan,
    request_classes,
    training_request,
)

_STARTING = threading.Lock()  # one after another, or two would start the same
_LARGEST = 1e9  # of a setting: beyond it nothing fits into any memory


def choices(
    call: ApiRequest, *, preset: str = "default", method: str = "dfdl", regions: str = ""
) -> dict[str, Any]:
    """What can be chosen, and what a preset means for a method; `regions`: to find them."""
    plan = offered_plan(preset, method, regions=bool(regions))
    for_regions, why = default_region_preset({}, [method])
    parameters = inspect.signature(get_method(method).load()).parameters
    own = {
        name: plan.recipe.method_parameters.get(name, parameter.default)
        for name, parameter in parameters.items()
        if name not in ("random_state", "n_jobs", "backend", "warm_start")
    }
    fields = plan.to_dict()
    del fields["method"], fields["method_parameters"]
    return {
        "presets": PRESET_LABELS,
        "for_regions": {"preset": for_regions, "why": why},
        "methods": {name: entry.summary for name, entry in METHODS.items()},
        "stains": sorted(NORMALISERS),
        "features": sorted({*PATCH_FEATURES, plan.recipe.features}),
        "recipe": fields,
        "parameters": own,
    }


def start(
    call: ApiRequest,
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
) -> dict[str, Any]:
    """A new training of a data set; with a parent, its recipe and test patients are kept."""
    dataset = find_dataset(call.user, call.context.sources, data)
    before = find_job(call.user, parent) if parent else None
    if before and before.request["data"] != dataset.id:
        raise ValueError(
            f"that model was trained on other images ({before.name}): train {dataset.source.name} "
            "by itself, on the training page"
        )
    if before:
        wish = TrainingRequest.from_request(before.request)
        skip_bad = skip_bad or excludes_images(before)
    else:
        plan = _chosen_plan(preset, method, bool(regions), settings or {})
        wish = TrainingRequest(plan, regions or None, seed, test_folds, test_patients)
    request = training_request(dataset, wish) | {"parent": parent}
    _check_images(call, dataset, wish, skip_bad)
    with _STARTING:
        job = _under_way(call, request)
        if job is None:
            job = new_job(call.user, request)
            if skip_bad:
                exclude_images(job)
            call.context.queue.add(job)
    return {"id": job.id}


def _under_way(call: ApiRequest, request: dict[str, Any]) -> Job | None:
    """The same training, asked for before and not done yet: a second click starts no second one."""
    wanted = json.loads(json.dumps(request, default=os.fspath))
    for job in all_jobs(call.user):
        is_near = job.state()["state"] in ACTIVE and job.summary["data"] == wanted["data"]
        if is_near and {k: v for k, v in job.request.items() if k != "made"} == wanted:
            return job
    return None


def _check_images(
    call: ApiRequest, dataset: Dataset, wish: TrainingRequest, skip_bad: bool
) -> None:
    """Refuses what the data page has found to be wrong; what it has not looked at, the worker does.

    What was read there is known: to ask again takes no time.
    """
    if not dataset.is_labelled:
        return  # most of its images are not learnt from
    manifest, mpp = relabelled_manifest(dataset), dataset.about.mpp
    found = call.context.checks.done(manifest, mpp)
    if found is None:
        return
    bad = {entry["name"] for entry in found.bad(manifest)}
    if bad and not skip_bad:
        raise ValueError(refusal(len(bad), len(manifest.records)))
    if found.refused:
        raise ValueError(found.refused[0])
    good = [i for i, record in enumerate(manifest.records) if manifest.name(record) not in bad]
    common_size(with_pixel_size(manifest.select(good), mpp).records, wish.plan.recipe.mpp)


def _chosen_plan(offer: str | None, method: str, regions: bool, settings: dict[str, Any]) -> Plan:
    usual = default_region_preset({}, [method])[0] if regions else "default"
    texts = {name: str(value) for name, value in settings.items()}
    for name, text in texts.items():
        _check_size(name, text)
    return offered_plan(offer or usual, method, regions=regions).parse_settings(texts)


def _check_size(name: str, text: str) -> None:
    try:
        is_absurd = abs(float(text)) > _LARGEST
    except ValueError:
        return  # it is no number
    if is_absurd:
        raise ValueError(f"{name}={text[:40]}: that is too large")


def watch(call: ApiRequest) -> dict[str, Any]:
    """State and progress of a job."""
    job = call.job
    return summary(call, job) | {
        "progress": _progress(job),
        "classes": request_classes(job.request),
        "words": _text(job),
        "bad": bad_images(job),
        "goes_on": excludes_images(job),
    }


def _text(job: Job) -> str:
    """How it learns, in a line."""
    request = job.request
    if request["kind"] != "train":
        return ""
    recipe = request["recipe"]
    parts = [recipe["method"]]
    if get_method(recipe["method"]).is_patch_level:
        parts += [f"{recipe['patch_px']} pixel patches", f"{recipe['patches_per_class']} per class"]
    parts += [f"{name} {value}" for name, value in recipe["method_parameters"].items()]
    n_tested = len(request["test_patients"])
    kept = f"{n_tested} patient{'' if n_tested == 1 else 's'} kept for testing"
    missing = excluded_image_names(job)
    return ", ".join([*parts, kept, *([f"{len(missing)} unreadable left out"] if missing else [])])


def jobs(call: ApiRequest) -> dict[str, Any]:
    """Trainings, models from files, and the maps of large images that are not done."""
    found = all_jobs(call.user)
    maps = (job for job in found if job.summary["kind"] == MAP and job.state()["state"] != DONE)
    return {
        "jobs": [summary(call, job) for job in found if job.is_training],
        "opened": [summary(call, job) for job in found if job.summary["kind"] == IMPORTED],
        "maps": [_map_job(job) for job in maps],
    }


def _map_job(job: Job) -> MapJob:
    state = job.state()
    return {
        "id": job.id,
        "name": job.name,
        "data": job.summary["data"],
        "image": job.summary["image_id"],
        "model": Path(job.summary["model"]).parent.name,
        "state": state["state"],
        "error": state["error"],
        "share": fraction_done(job),
    }


def fraction_done(job: Job) -> float:
    """Of the map of a large image, from 0 to 1."""
    lines = job.progress()
    if not lines:
        return 0.0
    last = lines[-1]
    return Progress(last["stage"], last["done"], last["total"], work=last["work"]).fraction


def summary(call: ApiRequest, job: Job) -> dict[str, Any]:
    asked = ("data", "parent", "made", "regions", "method", "n_corrections")
    state = job.state()
    return {name: job.summary[name] for name in asked} | {
        "id": job.id,
        "name": job.name,
        "state": state["state"],
        "error": state["error"],
        "ahead": call.context.queue.n_ahead(job),
        "has_model": job.model_file.is_file(),
    }


def _progress(job: Job) -> dict[str, Any]:
    """Per stage how far it is, the objective per class at every step, and the time left."""
    lines = job.progress()
    stages = {line["stage"]: (line["done"], line["total"]) for line in lines}
    return {
        "stages": stages,
        "objective": [
            line["objective"] for line in lines if line["stage"] == "train" and line["objective"]
        ],
        "seconds_left": seconds_left(job),
    }


def seconds_left(job: Job) -> float | None:
    """Return the remaining time of a running job; None if it is not known yet.

    It is the latest estimate of the worker, less the time since then.
    """
    state = job.state()
    known = [line for line in job.progress() if line["seconds_left"] is not None]
    if state["state"] != RUNNING or not known:
        return None
    elapsed, last = time.time() - state["at"], known[-1]
    return max(0.0, float(last["seconds"] + last["seconds_left"] - elapsed))


def cancel(call: ApiRequest) -> dict[str, Any]:
    job = _work(call)
    call.context.queue.cancel(job)
    return summary(call, job)


def _work(call: ApiRequest) -> Job:
    """The job asked for, if there is anything to be done for it."""
    if call.job.summary["kind"] == IMPORTED:
        raise ValueError("a model from a file is not trained here")
    return call.job


def resume(call: ApiRequest, *, skip_bad: bool = False) -> dict[str, Any]:
    job = _work(call)
    if skip_bad:
        exclude_images(job)
    call.context.queue.resume(job)
    return summary(call, job)


def rename(call: ApiRequest, *, name: str) -> dict[str, Any]:
    call.job.rename(name)
    return summary(call, call.job)


def delete(call: ApiRequest) -> dict[str, Any]:
    """A training with all that was made by it, also the maps that wait for its model."""
    job = call.job
    if job.state()["state"] in ACTIVE:
        raise ValueError("it is still at work: cancel it first")
    maps = (other for other in all_jobs(call.user) if other.summary["model"] == str(job.model_file))
    for other in [*maps, job]:
        call.context.queue.drop(other)
        other.delete()
    return jobs(call)


ROUTES = [
    Route("/api/choices", endpoint(choices)),
    Route("/api/jobs", endpoint(jobs)),
    Route("/api/jobs", endpoint(start), methods=["POST"]),
    Route("/api/jobs/{job}", endpoint(watch)),
    Route("/api/jobs/{job}/cancel", endpoint(cancel), methods=["POST"]),
    Route("/api/jobs/{job}/resume", endpoint(resume), methods=["POST"]),
    Route("/api/jobs/{job}/rename", endpoint(rename), methods=["POST"]),
    Route("/api/jobs/{job}/delete", endpoint(delete), methods=["POST"]),
]
