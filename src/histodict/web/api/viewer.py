"""Viewer API: patch maps, explanations, downloads and comparisons of models.

Downloads are outlines for QuPath and tables of patches; the page itself exports images. Imported
models are checked for compatibility with the images, and maps of two models are compared.
"""

from __future__ import annotations

import csv
import io
import json
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from starlette.responses import Response
from starlette.routing import Route

from ...datasets.manifest import ImageRecord
from ...decision.threshold import NOTE, count_tuned_on
from ...export.qupath import geojson_features
from ...images.pixel_size import PixelSize, size_hint, size_warnings
from ...models.predictions import Prediction
from ...patches.patch_map import PatchMap
from ...patches.rendering import encode_png
from ...utils.cache import Key
from ...utils.files import file_key
from ..jobs import DONE, Job, all_jobs, find_job, new_job
from ..maps import (
    MapDifference,
    apply_threshold,
    compute_or_load,
    load_prediction,
    map_image,
    map_version,
    outlines,
    prediction_to_json,
    stored_map,
)
from ..model_compatibility import ModelProfile, differences, import_model, incompatibilities
from ..patch_explanation import explain
from ..request import (
    DOWNLOADS,
    EXPLANATIONS,
    IMAGES,
    PREDICTIONS,
    ApiRequest,
    DeferredWork,
    endpoint,
    image_response,
)
from ..schema import MapWork
from ..workspace import short_id
from .model import describe_patch, download
from .trainings import fraction_done, seconds_left

# Maximum number of pixels of an image that is predicted while the page waits, without a job.
_MAX_IMMEDIATE_PIXELS = 16_000_000
UNASKED = "unasked"
_START_LOCK = threading.Lock()  # serialises starts, or two requests could start the same map


def predict_image(call: ApiRequest) -> dict[str, Any] | DeferredWork:
    """Return the prediction of an image, or the state of its job."""
    record, folder, mpp = call.record, _maps_folder(call), call.dataset.about.mpp
    prediction = load_prediction(folder, record, mpp)
    if prediction is not None:
        return _describe(call, prediction)
    model = call.trained.model

    def predict() -> dict[str, Any] | MapWork | DeferredWork:
        n_pixels = _n_pixels(call)
        if n_pixels > _MAX_IMMEDIATE_PIXELS:
            job = _map_job(call)
            # The job may have ended since the prediction was looked up.
            if job is None and (stored := load_prediction(folder, record, mpp)):
                return _describe(call, stored)
            return _map_work(job, n_pixels)
        return DeferredWork(
            PREDICTIONS, lambda: _describe(call, compute_or_load(model, record, folder, mpp))
        )

    return DeferredWork(IMAGES, predict, record.path)


def _describe(call: ApiRequest, prediction: dict[str, Any]) -> dict[str, Any]:
    """Return a prediction with warnings, at the decision threshold of the query."""
    if "point" in call.query:
        patch_map = _stored_map(call) if prediction["grid"] else None
        at_threshold = apply_threshold(
            call.model_at_threshold(), prediction, patch_map, call.record.path
        )
        prediction = prediction | prediction_to_json(at_threshold)
    model, size = call.trained.model, PixelSize(prediction["mpp"], prediction["mpp_from"])
    size = replace(size, hint=size_hint(call.record.path) if size.is_guessed else "")
    warnings = size_warnings([size], model.model_.mpp_, model.recipe.mpp)
    if count_tuned_on(model.training_info_, [call.record.path]):
        warnings.append(f"this model was {NOTE}")
    return {"state": DONE, "warnings": warnings, **prediction}


def _n_pixels(call: ApiRequest) -> int:
    width, height = call.context.tiles.open(call.record).size
    return width * height


def begin(call: ApiRequest) -> DeferredWork:
    """Start a job that computes the map of a large image."""
    return DeferredWork(IMAGES, lambda: _start_map_job(call, _n_pixels(call)), call.record.path)


def _start_map_job(call: ApiRequest, n_pixels: int) -> MapWork:
    with _START_LOCK:
        job = _map_job(call)
        if job is None:
            job = new_job(call.user, _map_request(call, call.record, call.dataset.about.mpp))
            call.context.queue.add(job)
        else:
            call.context.queue.resume(job)
    return _map_work(job, n_pixels)


def _map_work(job: Job | None, n_pixels: int) -> MapWork:
    """Return the state of the job of a map; `job` is None if it was not started."""
    state = job.state() if job else {"state": UNASKED, "error": ""}
    return {
        "state": state["state"],
        "error": state["error"],
        "job": job.id if job else None,
        "megapixels": n_pixels / 1e6,
        "fraction_done": fraction_done(job) if job else 0.0,
        "seconds_left": seconds_left(job) if job else None,
    }


def _map_request(call: ApiRequest, record: ImageRecord, mpp: float | None) -> dict[str, Any]:
    return {
        "kind": "map",
        "name": record.path.name,
        "data": call.parts["data"],
        "image_id": call.parts["image"],
        "root": record.path.parent,
        "records": [asdict(record)],
        "model": call.job.model_file,
        "folder": _maps_folder(call),
        "mpp": mpp,
    }


def _map_job(call: ApiRequest) -> Job | None:
    """Return the unfinished or failed job for the map of the request; None if there is none."""
    wanted = "map", str(call.job.model_file), str(call.record.path), call.dataset.about.mpp
    for job in all_jobs(call.user):
        properties = tuple(job.summary[name] for name in ("kind", "model", "image", "mpp"))
        if properties == wanted and job.state()["state"] != DONE:
            return job
    return None


def _maps_folder(call: ApiRequest) -> Path:
    return call.job.folder / "maps"


def _stored_map(call: ApiRequest) -> PatchMap:
    return stored_map(_maps_folder(call), call.record, call.dataset.about.mpp)


def displayed_map(call: ApiRequest) -> PatchMap:
    """Return the patch map at the decision threshold of the query."""
    patch_map = (
        _stored_map(call) if "point" not in call.query else displayed_prediction(call).patch_map
    )
    assert patch_map is not None
    return patch_map


def displayed_prediction(call: ApiRequest) -> Prediction:
    """Return the prediction with its map, at the decision threshold of the query."""
    patch_map, record = _stored_map(call), call.record
    prediction = load_prediction(_maps_folder(call), record, call.dataset.about.mpp)
    assert prediction is not None  # a stored map has a prediction
    return apply_threshold(call.model_at_threshold(), prediction, patch_map, record.path)


def version_of_map(call: ApiRequest) -> Key:
    """Return a cache key of the map that `displayed_map` returns."""
    return _map_key(call, "shown")


def draw(call: ApiRequest, *, only: int = -1) -> Response:
    """Return the map as an image, one pixel per patch; `only` is the index of a single class."""

    def render() -> bytes:
        patch_map = displayed_map(call)
        if only >= patch_map.n_classes:
            raise KeyError("the class does not exist")
        return encode_png(map_image(patch_map, only if only >= 0 else None, colours))

    colours = call.dataset.colours
    return image_response(call.rendered(_map_key(call, "map", only, repr(colours)), render), "png")


def rings(call: ApiRequest, *, class_: int = 1, least: int = 1) -> Response:
    """Return the outlines of a class's regions of at least `least` patches."""
    least = max(1, least)

    def render() -> bytes:
        patch_map = displayed_map(call)
        if not 0 <= class_ < patch_map.n_classes:
            raise KeyError("the class does not exist")
        return json.dumps({"rings": outlines(patch_map, class_, least)}).encode()

    data = call.rendered(_map_key(call, "outlines", class_, least), render)
    return Response(data, media_type="application/json")


def _map_key(call: ApiRequest, *parts: str | int) -> Key:
    """Return the cache key of data derived from the displayed map."""
    version = map_version(_maps_folder(call), call.record, call.dataset.about.mpp)
    return (*parts, *version, call.query.get("point"))


def explain_image(call: ApiRequest, *, row: int, column: int) -> DeferredWork:
    """Return the explanation of the prediction of a patch."""

    def compute_explanation() -> dict[str, Any]:
        gallery = call.trained.gallery
        explanation = explain(
            call.trained.model, call.prepared_image(), displayed_map(call), gallery, row, column
        )
        if gallery is not None:
            learn = call.training_and_test_images()[0]
            for entry in explanation.get("similar", []):
                entry |= describe_patch(gallery, learn, entry["patch"])
        return explanation

    return DeferredWork(EXPLANATIONS, compute_explanation, call.record.path)


# --- downloads ------------------------------------------------------------------------------------


def _class_name(index: int, classes: tuple[str, ...]) -> str | None:
    """Return the name of the only class to show; None for all classes."""
    if index >= len(classes):
        raise KeyError("the class does not exist")
    return classes[index] if index >= 0 else None


def download_outlines(call: ApiRequest, *, only: int = -1) -> Response:
    """Return areas of neighbouring patches, or detected regions, as GeoJSON for QuPath."""
    prediction, model = displayed_prediction(call), call.trained.model
    class_name = _class_name(only, tuple(model.class_names_))
    features = [
        json.loads(text)
        for text in geojson_features(prediction, outline_regions=model.finds_regions)
    ]
    selected = [
        feature
        for feature in features
        if class_name in (None, feature["properties"]["classification"]["name"])
    ]
    data = json.dumps({"type": "FeatureCollection", "features": selected}).encode()
    return download(_file_name(call, ".geojson"), "application/geo+json", data)


def download_patches(call: ApiRequest, *, only: int = -1) -> Response:
    """Return a CSV table with a row for each tissue patch."""
    patch_map = displayed_map(call)
    class_name = _class_name(only, patch_map.classes)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        ["row", "column", "x", "y", "side", "class", *_margin_columns(patch_map.classes)]
    )
    table.writerows(_rows(patch_map, class_name))
    return download(_file_name(call, ".csv"), "text/csv; charset=utf-8", text.getvalue().encode())


def _margin_columns(classes: tuple[str, ...]) -> list[str]:
    return [f"margin_{name}" for name in classes]


def _rows(patch_map: PatchMap, only: str | None) -> list[list[Any]]:
    x, y = patch_map.corners()
    predicted, side = patch_map.predicted_classes, patch_map.grid.patch_side
    selected = patch_map.tissue if only is None else predicted == patch_map.classes.index(only)
    return [
        [
            *(row, column, x[row, column], y[row, column], side),
            patch_map.classes[predicted[row, column]],
            *(f"{margin:.5g}" for margin in patch_map.margins[row, column]),
        ]
        for row, column in np.argwhere(selected).tolist()
    ]


def _file_name(call: ApiRequest, ending: str) -> str:
    return f"{Path(call.record.path).stem}-{call.job.name}{ending}"


_IMAGE = "/api/jobs/{job}/look/{data}/{image}"
ROUTES = [
    Route(_IMAGE, endpoint(predict_image)),
    Route(_IMAGE, endpoint(begin), methods=["POST"]),
    Route(f"{_IMAGE}/map.png", endpoint(draw)),
    Route(f"{_IMAGE}/outlines", endpoint(rings)),
    Route(f"{_IMAGE}/why", endpoint(explain_image)),
    Route(f"{_IMAGE}/map.geojson", endpoint(download_outlines, DOWNLOADS)),
    Route(f"{_IMAGE}/map.csv", endpoint(download_patches, DOWNLOADS)),
]


def open_(call: ApiRequest, *, folder_index: int = 0, relative_path: str = "") -> dict[str, Any]:
    """Import a model file from the data folders, and return the id of its job."""
    return {"id": import_model(call.user, call.context.folders, folder_index, relative_path).id}


def check_compatibility(call: ApiRequest) -> dict[str, Any]:
    """Return warnings about using the model on a data set."""
    profile = ModelProfile.from_job(call.job, call.trained.model)
    return {"warnings": incompatibilities(profile, call.dataset)}


def _for_other_job(call: ApiRequest, job: str) -> ApiRequest:
    """Return the same request for another job, at the threshold `with_point` of the query."""
    find_job(call.user, job)
    threshold = call.query.get("with_point")
    query = {} if threshold is None else {"point": threshold}
    return replace(call, parts=call.parts | {"job": job}, query=query)


def compare(call: ApiRequest, *, with_: str) -> dict[str, Any]:
    """Return differences between two models and their maps."""
    other = _for_other_job(call, with_)
    profiles = [
        ModelProfile.from_job(request.job, request.trained.model) for request in (call, other)
    ]
    comparison: dict[str, Any] = {"warnings": differences(*profiles), "counts": None}
    if set(profiles[0].classes) != set(profiles[1].classes):
        return comparison
    difference = MapDifference.from_maps(displayed_map(call), displayed_map(other))
    return comparison | {
        "classes": difference.classes,
        "counts": difference.counts(),
        "n_different": difference.n_different,
        "version": short_id(repr((_difference_key(call), _difference_key(other)))),
    }


def draw_difference(call: ApiRequest, *, with_: str) -> Response:
    """Return the difference of two maps as an image."""
    other, colours = _for_other_job(call, with_), call.dataset.colours

    def render() -> bytes:
        return encode_png(
            MapDifference.from_maps(displayed_map(call), displayed_map(other)).image(colours)
        )

    key = ("difference", *_difference_key(call), *_difference_key(other), repr(colours))
    return image_response(call.rendered(key, render), "png")


def _difference_key(call: ApiRequest) -> tuple[Any, ...]:
    return (*map(str, file_key(call.job.model_file)), *version_of_map(call))


COMPARE_ROUTES = [
    Route("/api/models", endpoint(open_, DOWNLOADS), methods=["POST"]),
    Route("/api/jobs/{job}/fits/{data}", endpoint(check_compatibility)),
    Route(f"{_IMAGE}/difference", endpoint(compare)),
    Route(f"{_IMAGE}/difference.png", endpoint(draw_difference)),
]
