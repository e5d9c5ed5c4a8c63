"""Viewer API: patch maps, explanations, downloads and comparisons of models.

Downloads are outlines for QuPath and tables of patches; images are exported by the page itself.
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

from ...decision.threshold import TUNED_IMAGES_NOTE, count_tuning_images
from ...export.qupath import geojson_features
from ...images.pixel_size import PixelSize, pixel_size_hint, size_warnings
from ...models.predictions import Prediction
from ...patches.patch_map import PatchMap
from ...patches.rendering import encode_png
from ...utils.cache import Key
from ...utils.files import file_key
from ..jobs import DONE, Job, find_job, load_jobs, new_job
from ..maps import (
    MapDifference,
    apply_threshold,
    load_map,
    load_or_compute,
    load_prediction,
    map_cache_key,
    prediction_to_json,
    region_outlines,
    render_map,
)
from ..model_compatibility import (
    ModelProfile,
    compatibility_warnings,
    import_model,
    model_differences,
)
from ..patch_explanation import explain
from ..request import (
    DOWNLOADS,
    EXPLANATIONS,
    IMAGES,
    PREDICTIONS,
    ApiRequest,
    SlowResponse,
    endpoint,
    image_response,
)
from ..schema import Json, MapState
from ..workspace import short_id
from .model import file_response, patch_origin
from .trainings import fraction_done, seconds_left

# Maximum number of pixels of an image that is predicted while the page waits, without a job.
_MAX_IMMEDIATE_PIXELS = 16_000_000
NOT_REQUESTED = "not_requested"
_START_LOCK = threading.Lock()  # serialises starts, or two requests could start the same map


def predict_image(request: ApiRequest) -> Json | SlowResponse:
    """Return the prediction of an image as JSON.

    If a large image has no stored prediction, return the state of the job that computes it.
    """
    record, folder, mpp = request.record, _maps_folder(request), request.dataset.settings.mpp
    prediction = load_prediction(folder, record, mpp)
    if prediction is not None:
        return _prediction_to_json(request, prediction)
    model = request.loaded_model.model

    def predict() -> Json | MapState | SlowResponse:
        n_pixels = _count_pixels(request)
        if n_pixels > _MAX_IMMEDIATE_PIXELS:
            job = _find_map_job(request)
            # The job may have ended since the prediction was looked up.
            if job is None and (stored := load_prediction(folder, record, mpp)):
                return _prediction_to_json(request, stored)
            return _map_state_to_json(job, n_pixels)
        return SlowResponse(
            PREDICTIONS,
            lambda: _prediction_to_json(request, load_or_compute(model, record, folder, mpp)),
        )

    return SlowResponse(IMAGES, predict, record.path)


def _prediction_to_json(request: ApiRequest, prediction: Json) -> Json:
    """Return a stored prediction with warnings, at the decision threshold in the query."""
    if "point" in request.query:
        patch_map = _load_map(request) if prediction["grid"] else None
        at_threshold = apply_threshold(
            request.model_at_threshold(), prediction, patch_map, request.record.path
        )
        prediction = prediction | prediction_to_json(at_threshold)
    model, size = request.loaded_model.model, PixelSize(prediction["mpp"], prediction["mpp_from"])
    size = replace(size, hint=pixel_size_hint(request.record.path) if size.is_guessed else "")
    warnings = size_warnings([size], model.model_.mpp_, model.recipe.mpp)
    if count_tuning_images(model.training_info_, [request.record.path]):
        warnings.append(f"this model was {TUNED_IMAGES_NOTE}")
    return {"state": DONE, "warnings": warnings, **prediction}


def _count_pixels(request: ApiRequest) -> int:
    width, height = request.context.tiles.open(request.record).size
    return width * height


def start_map(request: ApiRequest) -> SlowResponse:
    """Start or resume the job that computes the map of a large image; return its state."""
    return SlowResponse(
        IMAGES, lambda: _start_map_job(request, _count_pixels(request)), request.record.path
    )


def _start_map_job(request: ApiRequest, n_pixels: int) -> MapState:
    with _START_LOCK:
        job = _find_map_job(request)
        if job is None:
            job = new_job(request.user, _map_request(request))
            request.context.queue.add(job)
        else:
            request.context.queue.resume(job)
    return _map_state_to_json(job, n_pixels)


def _map_state_to_json(job: Job | None, n_pixels: int) -> MapState:
    """Return the state of the job that computes a map; `job` is None if it was not started."""
    state = job.state() if job else {"state": NOT_REQUESTED, "error": ""}
    return {
        "state": state["state"],
        "error": state["error"],
        "job": job.id if job else None,
        "megapixels": n_pixels / 1e6,
        "fraction_done": fraction_done(job) if job else 0.0,
        "seconds_left": seconds_left(job) if job else None,
    }


def _map_request(request: ApiRequest) -> Json:
    record = request.record
    return {
        "kind": "map",
        "name": record.path.name,
        "data": request.path_parameters["data"],
        "image_id": request.path_parameters["image"],
        "root": record.path.parent,
        "records": [asdict(record)],
        "model": request.job.model_file,
        "folder": _maps_folder(request),
        "mpp": request.dataset.settings.mpp,
    }


def _find_map_job(request: ApiRequest) -> Job | None:
    """Return the unfinished or failed job for the map of the request; None if there is none."""
    model_file, mpp = request.job.model_file, request.dataset.settings.mpp
    wanted = "map", str(model_file), str(request.record.path), mpp
    for job in load_jobs(request.user):
        properties = tuple(job.summary[name] for name in ("kind", "model", "image", "mpp"))
        if properties == wanted and job.state()["state"] != DONE:
            return job
    return None


def _maps_folder(request: ApiRequest) -> Path:
    return request.job.folder / "maps"


def _load_map(request: ApiRequest) -> PatchMap:
    return load_map(_maps_folder(request), request.record, request.dataset.settings.mpp)


def displayed_map(request: ApiRequest) -> PatchMap:
    """Return the patch map at the decision threshold in the query (default: as trained)."""
    has_threshold = "point" in request.query
    patch_map = displayed_prediction(request).patch_map if has_threshold else _load_map(request)
    assert patch_map is not None
    return patch_map


def displayed_prediction(request: ApiRequest) -> Prediction:
    """Return the prediction with its map, at the decision threshold in the query."""
    patch_map, record = _load_map(request), request.record
    prediction = load_prediction(_maps_folder(request), record, request.dataset.settings.mpp)
    assert prediction is not None  # a stored map has a prediction
    return apply_threshold(request.model_at_threshold(), prediction, patch_map, record.path)


def _displayed_map_key(request: ApiRequest) -> Key:
    """Return a cache key of the map that `displayed_map` returns."""
    return _map_key(request, "shown")


def draw_map(request: ApiRequest, *, only: int = -1) -> Response:
    """Return the map as a PNG, one pixel per patch; `only` is the index of a class, -1 for all."""

    def render() -> bytes:
        patch_map = displayed_map(request)
        if only >= patch_map.n_classes:
            raise KeyError("the class does not exist")
        return encode_png(render_map(patch_map, only if only >= 0 else None, colours))

    colours = request.dataset.class_colours
    key = _map_key(request, "map", only, repr(colours))
    return image_response(request.render_cached(key, render), "png")


def get_outlines(request: ApiRequest, *, class_: int = 1, least: int = 1) -> Response:
    """Return the outlines of the regions of a class (index) of at least `least` patches."""
    least = max(1, least)

    def render() -> bytes:
        patch_map = displayed_map(request)
        if not 0 <= class_ < patch_map.n_classes:
            raise KeyError("the class does not exist")
        return json.dumps({"rings": region_outlines(patch_map, class_, least)}).encode()

    data = request.render_cached(_map_key(request, "outlines", class_, least), render)
    return Response(data, media_type="application/json")


def _map_key(request: ApiRequest, *parts: str | int) -> Key:
    """Return the cache key of data derived from the displayed map; `parts` identify the data."""
    version = map_cache_key(_maps_folder(request), request.record, request.dataset.settings.mpp)
    return (*parts, *version, request.query.get("point"))


def explain_patch(request: ApiRequest, *, row: int, column: int) -> SlowResponse:
    """Return the explanation of the prediction of the patch at this row and column of the map."""

    def compute_explanation() -> Json:
        model, gallery = request.loaded_model.model, request.loaded_model.gallery
        explanation = explain(
            model, request.prepared_image(), displayed_map(request), gallery, row, column
        )
        if gallery is not None:
            training = request.training_and_test_images()[0]
            for entry in explanation.get("similar", []):
                entry |= patch_origin(gallery, training, entry["patch"])
        return explanation

    return SlowResponse(EXPLANATIONS, compute_explanation, request.record.path)


# --- downloads ------------------------------------------------------------------------------------


def _selected_class(index: int, classes: tuple[str, ...]) -> str | None:
    """Return the name of the class with this index; None for -1, all classes."""
    if index >= len(classes):
        raise KeyError("the class does not exist")
    return classes[index] if index >= 0 else None


def download_outlines(request: ApiRequest, *, only: int = -1) -> Response:
    """Return outlines as GeoJSON for QuPath; `only` is the index of a class, -1 for all."""
    prediction, model = displayed_prediction(request), request.loaded_model.model
    class_name = _selected_class(only, tuple(model.class_names_))
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
    return file_response(_file_name(request, ".geojson"), "application/geo+json", data)


def download_patches(request: ApiRequest, *, only: int = -1) -> Response:
    """Return a CSV file with a row per tissue patch; `only` is the index of a class, -1 for all."""
    patch_map = displayed_map(request)
    class_name = _selected_class(only, patch_map.classes)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        ["row", "column", "x", "y", "side", "class", *_margin_columns(patch_map.classes)]
    )
    table.writerows(_patch_rows(patch_map, class_name))
    data = text.getvalue().encode()
    return file_response(_file_name(request, ".csv"), "text/csv; charset=utf-8", data)


def _margin_columns(classes: tuple[str, ...]) -> list[str]:
    return [f"margin_{name}" for name in classes]


def _patch_rows(patch_map: PatchMap, class_name: str | None) -> list[list[Any]]:
    x, y = patch_map.corners()
    predicted, side = patch_map.predicted_classes, patch_map.grid.patch_side
    selected = patch_map.tissue
    if class_name is not None:
        selected = predicted == patch_map.classes.index(class_name)
    return [
        [
            *(row, column, x[row, column], y[row, column], side),
            patch_map.classes[predicted[row, column]],
            *(f"{margin:.5g}" for margin in patch_map.margins[row, column]),
        ]
        for row, column in np.argwhere(selected).tolist()
    ]


def _file_name(request: ApiRequest, ending: str) -> str:
    return f"{Path(request.record.path).stem}-{request.job.name}{ending}"


_IMAGE = "/api/jobs/{job}/look/{data}/{image}"
ROUTES = [
    Route(_IMAGE, endpoint(predict_image)),
    Route(_IMAGE, endpoint(start_map), methods=["POST"]),
    Route(f"{_IMAGE}/map.png", endpoint(draw_map)),
    Route(f"{_IMAGE}/outlines", endpoint(get_outlines)),
    Route(f"{_IMAGE}/why", endpoint(explain_patch)),
    Route(f"{_IMAGE}/map.geojson", endpoint(download_outlines, DOWNLOADS)),
    Route(f"{_IMAGE}/map.csv", endpoint(download_patches, DOWNLOADS)),
]


def open_model(request: ApiRequest, *, folder_index: int = 0, relative_path: str = "") -> Json:
    """Import a model file from the data folders, and return the id of its job."""
    folders = request.context.folders
    return {"id": import_model(request.user, folders, folder_index, relative_path).id}


def check_compatibility(request: ApiRequest) -> Json:
    """Return warnings about using the model on a data set."""
    profile = ModelProfile.from_job(request.job, request.loaded_model.model)
    return {"warnings": compatibility_warnings(profile, request.dataset)}


def _request_for_job(request: ApiRequest, job: str) -> ApiRequest:
    """Return a copy of the request for the job with id `job`.

    The decision threshold of the copy is the query parameter `with_point` of the request.
    """
    find_job(request.user, job)
    threshold = request.query.get("with_point")
    query = {} if threshold is None else {"point": threshold}
    return replace(request, path_parameters=request.path_parameters | {"job": job}, query=query)


def compare_models(request: ApiRequest, *, with_: str) -> Json:
    """Return differences between this model and the model of the job with id `with_`, as JSON.

    If both have the same classes, their patch maps of the image are also compared.
    """
    other = _request_for_job(request, with_)
    profiles = [ModelProfile.from_job(r.job, r.loaded_model.model) for r in (request, other)]
    comparison: Json = {"warnings": model_differences(*profiles), "counts": None}
    if set(profiles[0].classes) != set(profiles[1].classes):
        return comparison
    difference = MapDifference.from_maps(displayed_map(request), displayed_map(other))
    return comparison | {
        "classes": difference.classes,
        "counts": difference.count_changes(),
        "n_different": difference.n_tissue_mismatches,
        "version": short_id(repr((_difference_key(request), _difference_key(other)))),
    }


def draw_difference(request: ApiRequest, *, with_: str) -> Response:
    """Return the differences of the map from that of the job with id `with_`, as a PNG."""
    other, colours = _request_for_job(request, with_), request.dataset.class_colours

    def render() -> bytes:
        return encode_png(
            MapDifference.from_maps(displayed_map(request), displayed_map(other)).render(colours)
        )

    key = ("difference", *_difference_key(request), *_difference_key(other), repr(colours))
    return image_response(request.render_cached(key, render), "png")


def _difference_key(request: ApiRequest) -> tuple[Any, ...]:
    return (*map(str, file_key(request.job.model_file)), *_displayed_map_key(request))


COMPARE_ROUTES = [
    Route("/api/models", endpoint(open_model, DOWNLOADS), methods=["POST"]),
    Route("/api/jobs/{job}/fits/{data}", endpoint(check_compatibility)),
    Route(f"{_IMAGE}/difference", endpoint(compare_models)),
    Route(f"{_IMAGE}/difference.png", endpoint(draw_difference)),
]
