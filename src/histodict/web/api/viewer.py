"""The viewer: patch map and outlines of an image by a model, the explanation of a patch, downloads.

The downloads are outlines for QuPath and a table of patches; the page makes pictures by itself.

Models beside each other: from files, whether they fit the images, how their maps differ.
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
from ...decision.threshold import NOTE, n_tuned_on
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

# Up to so many pixels an image is judged while the page waits; a larger one is a job.
_AT_ONCE = 16_000_000
UNASKED = "unasked"
_BEGINNING = threading.Lock()  # one after another, or two would begin the same


def predict_image(call: ApiRequest) -> dict[str, Any] | DeferredWork:
    """The answer for an image, or how far it is."""
    record, folder, mpp = call.record, _maps(call), call.dataset.about.mpp
    facts = load_prediction(folder, record, mpp)
    if facts is not None:
        return _describe(call, facts)
    model = call.trained.model

    def judge() -> dict[str, Any] | MapWork | DeferredWork:
        n_pixels = _n_pixels(call)
        if n_pixels > _AT_ONCE:
            job = _map_job(call)
            if job is None and (told := load_prediction(folder, record, mpp)):  # it has just ended
                return _describe(call, told)
            return _map_work(job, n_pixels)
        return DeferredWork(
            PREDICTIONS, lambda: _describe(call, compute_or_load(model, record, folder, mpp))
        )

    return DeferredWork(IMAGES, judge, record.path)


def _describe(call: ApiRequest, facts: dict[str, Any]) -> dict[str, Any]:
    """An answer, with the line where the query says."""
    if "point" in call.query:
        patch_map = _stored(call) if facts["grid"] else None
        moved = apply_threshold(call.model_at_threshold(), facts, patch_map, call.record.path)
        facts = facts | prediction_to_json(moved)
    model, size = call.trained.model, PixelSize(facts["mpp"], facts["mpp_from"])
    size = replace(size, hint=size_hint(call.record.path) if size.is_guessed else "")
    found = size_warnings([size], model.model_.mpp_, model.recipe.mpp)
    if n_tuned_on(model.training_info_, [call.record.path]):
        found.append(f"this model was {NOTE}")
    return {"state": DONE, "warnings": found, **facts}


def _n_pixels(call: ApiRequest) -> int:
    width, height = call.context.tiles.open(call.record).size
    return width * height


def begin(call: ApiRequest) -> DeferredWork:
    """Make the map of a large image, which takes a while: only if somebody asks for it."""
    return DeferredWork(IMAGES, lambda: _start(call, _n_pixels(call)), call.record.path)


def _start(call: ApiRequest, n_pixels: int) -> MapWork:
    with _BEGINNING:
        job = _map_job(call)
        if job is None:
            job = new_job(call.user, _request(call, call.record, call.dataset.about.mpp))
            call.context.queue.add(job)
        else:
            call.context.queue.resume(job)
    return _map_work(job, n_pixels)


def _map_work(job: Job | None, n_pixels: int) -> MapWork:
    """How far it is; there may be none."""
    state = job.state() if job else {"state": UNASKED, "error": ""}
    return {
        "state": state["state"],
        "error": state["error"],
        "job": job.id if job else None,
        "megapixels": n_pixels / 1e6,
        "share": fraction_done(job) if job else 0.0,
        "seconds_left": seconds_left(job) if job else None,
    }


def _request(call: ApiRequest, record: ImageRecord, mpp: float | None) -> dict[str, Any]:
    return {
        "kind": "map",
        "name": record.path.name,
        "data": call.parts["data"],
        "image_id": call.parts["image"],
        "root": record.path.parent,
        "records": [asdict(record)],
        "model": call.job.model_file,
        "folder": _maps(call),
        "mpp": mpp,
    }


def _map_job(call: ApiRequest) -> Job | None:
    """Return the unfinished or failed job for this map; the map of a finished job is stored."""
    wanted = "map", str(call.job.model_file), str(call.record.path), call.dataset.about.mpp
    for job in all_jobs(call.user):
        found = tuple(job.summary[name] for name in ("kind", "model", "image", "mpp"))
        if found == wanted and job.state()["state"] != DONE:
            return job
    return None


def _maps(call: ApiRequest) -> Path:
    return call.job.folder / "maps"


def _stored(call: ApiRequest) -> PatchMap:
    return stored_map(_maps(call), call.record, call.dataset.about.mpp)


def displayed_map(call: ApiRequest) -> PatchMap:
    """The map, with the line where the query says."""
    found = _stored(call) if "point" not in call.query else displayed_prediction(call).patch_map
    assert found is not None
    return found


def displayed_prediction(call: ApiRequest) -> Prediction:
    """The answer with its map, with the line where the query says."""
    patch_map, record = _stored(call), call.record
    facts = load_prediction(_maps(call), record, call.dataset.about.mpp)
    assert facts is not None  # or there would be no map
    return apply_threshold(call.model_at_threshold(), facts, patch_map, record.path)


def version_of_map(call: ApiRequest) -> Key:
    """Another one whenever `displayed_map` would give another map."""
    return _key(call, "shown")


def draw(call: ApiRequest, *, only: int = -1) -> Response:
    """The map, one pixel per patch; `only`: a class's place."""

    def drawn() -> bytes:
        patch_map = displayed_map(call)
        if only >= patch_map.n_classes:
            raise KeyError("there is no such class")
        return encode_png(map_image(patch_map, only if only >= 0 else None, colours))

    colours = call.dataset.colours
    return image_response(call.rendered(_key(call, "map", only, repr(colours)), drawn), "png")


def rings(call: ApiRequest, *, class_: int = 1, least: int = 1) -> Response:
    least = max(1, least)

    def drawn() -> bytes:
        patch_map = displayed_map(call)
        if not 0 <= class_ < patch_map.n_classes:
            raise KeyError("there is no such class")
        return json.dumps({"rings": outlines(patch_map, class_, least)}).encode()

    data = call.rendered(_key(call, "outlines", class_, least), drawn)
    return Response(data, media_type="application/json")


def _key(call: ApiRequest, *what: str | int) -> Key:
    """Of something drawn from a map: another one whenever the map is, or the line's place."""
    version = map_version(_maps(call), call.record, call.dataset.about.mpp)
    return (*what, *version, call.query.get("point"))


def explain_image(call: ApiRequest, *, row: int, column: int) -> DeferredWork:
    """What made a patch what it was called; on a drive that has hung, none but its image waits."""

    def explained() -> dict[str, Any]:
        gallery = call.trained.gallery
        facts = explain(
            call.trained.model, call.prepared_image(), displayed_map(call), gallery, row, column
        )
        if gallery is not None:
            learn = call.learn_and_test()[0]
            for entry in facts.get("similar", []):
                entry |= describe_patch(gallery, learn, entry["patch"])
        return facts

    return DeferredWork(EXPLANATIONS, explained, call.record.path)


# --- downloads ------------------------------------------------------------------------------------


def _class_at(place: int, classes: tuple[str, ...]) -> str | None:
    """The class that alone is shown, if one is."""
    if place >= len(classes):
        raise KeyError("there is no such class")
    return classes[place] if place >= 0 else None


def download_outlines(call: ApiRequest, *, only: int = -1) -> Response:
    """Areas of neighbouring patches, or the regions that were found, as QuPath reads them."""
    answer, model = displayed_prediction(call), call.trained.model
    shown = _class_at(only, tuple(model.classes_))
    found = [json.loads(text) for text in geojson_features(answer, of_regions=model.finds_regions)]
    wanted = [one for one in found if shown in (None, one["properties"]["classification"]["name"])]
    data = json.dumps({"type": "FeatureCollection", "features": wanted}).encode()
    return download(_name(call, ".geojson"), "application/geo+json", data)


def download_patches(call: ApiRequest, *, only: int = -1) -> Response:
    """A line for each patch on tissue."""
    patch_map = displayed_map(call)
    shown = _class_at(only, patch_map.classes)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", "column", "x", "y", "side", "class", *_margins(patch_map.classes)])
    table.writerows(_rows(patch_map, shown))
    return download(_name(call, ".csv"), "text/csv; charset=utf-8", text.getvalue().encode())


def _margins(classes: tuple[str, ...]) -> list[str]:
    return [f"margin_{name}" for name in classes]


def _rows(patch_map: PatchMap, only: str | None) -> list[list[Any]]:
    x, y = patch_map.corners()
    winners, side = patch_map.predicted_classes, patch_map.grid.patch_side
    wanted = patch_map.tissue if only is None else winners == patch_map.classes.index(only)
    return [
        [
            *(row, column, x[row, column], y[row, column], side),
            patch_map.classes[winners[row, column]],
            *(f"{margin:.5g}" for margin in patch_map.margins[row, column]),
        ]
        for row, column in np.argwhere(wanted).tolist()
    ]


def _name(call: ApiRequest, ending: str) -> str:
    return f"{Path(call.record.path).stem}-{call.job.name}{ending}"


_PLACE = "/api/jobs/{job}/look/{data}/{image}"
ROUTES = [
    Route(_PLACE, endpoint(predict_image)),
    Route(_PLACE, endpoint(begin), methods=["POST"]),
    Route(f"{_PLACE}/map.png", endpoint(draw)),
    Route(f"{_PLACE}/outlines", endpoint(rings)),
    Route(f"{_PLACE}/why", endpoint(explain_image)),
    Route(f"{_PLACE}/map.geojson", endpoint(download_outlines, DOWNLOADS)),
    Route(f"{_PLACE}/map.csv", endpoint(download_patches, DOWNLOADS)),
]


def open_(call: ApiRequest, *, place: int = 0, inside: str = "") -> dict[str, Any]:
    """A model's file in the data folders, by its place."""
    return {"id": import_model(call.user, call.context.folders, place, inside).id}


def fits(call: ApiRequest) -> dict[str, Any]:
    """What is to be known before the model is asked about these images."""
    kind = ModelProfile.of(call.job, call.trained.model)
    return {"warnings": incompatibilities(kind, call.dataset)}


def _other(call: ApiRequest, job: str) -> ApiRequest:
    """The same image by the model of another job, its line where the query says."""
    find_job(call.user, job)
    moved = call.query.get("with_point")
    query = {} if moved is None else {"point": moved}
    return replace(call, parts=call.parts | {"job": job}, query=query)


def compare(call: ApiRequest, *, with_: str) -> dict[str, Any]:
    """In what the two models differ, and how many patches they call otherwise."""
    other = _other(call, with_)
    kinds = [ModelProfile.of(each.job, each.trained.model) for each in (call, other)]
    told: dict[str, Any] = {"warnings": differences(*kinds), "counts": None}
    if set(kinds[0].classes) != set(kinds[1].classes):
        return told
    found = MapDifference.of(displayed_map(call), displayed_map(other))
    return told | {
        "classes": found.classes,
        "counts": found.counts(),
        "n_different": found.n_different,
        "version": short_id(repr((_difference_key(call), _difference_key(other)))),
    }


def draw_difference(call: ApiRequest, *, with_: str) -> Response:
    other, colours = _other(call, with_), call.dataset.colours

    def drawn() -> bytes:
        return encode_png(
            MapDifference.of(displayed_map(call), displayed_map(other)).image(colours)
        )

    key = ("difference", *_difference_key(call), *_difference_key(other), repr(colours))
    return image_response(call.rendered(key, drawn), "png")


def _difference_key(call: ApiRequest) -> tuple[Any, ...]:
    return (*map(str, file_key(call.job.model_file)), *version_of_map(call))


COMPARE_ROUTES = [
    Route("/api/models", endpoint(open_, DOWNLOADS), methods=["POST"]),
    Route("/api/jobs/{job}/fits/{data}", endpoint(fits)),
    Route(f"{_PLACE}/difference", endpoint(compare)),
    Route(f"{_PLACE}/difference.png", endpoint(draw_difference)),
]
