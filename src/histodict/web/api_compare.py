"""Models beside each other: from files, whether they fit the images, how their maps differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from ..execution.files import file_key
from ..patches.pictures import encode_png
from .api_look import displayed_map, version_of_map
from .calls import DOWNLOADS, ApiRequest, endpoint, image_response
from .jobs import find_job
from .maps import MapDifference
from .misfits import ModelProfile, differences, import_model, incompatibilities
from .workspace import short_id


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
        "version": short_id(repr((_key(call), _key(other)))),
    }


def draw(call: ApiRequest, *, with_: str) -> Response:
    other, colours = _other(call, with_), call.dataset.colours

    def drawn() -> bytes:
        return encode_png(
            MapDifference.of(displayed_map(call), displayed_map(other)).image(colours)
        )

    key = ("difference", *_key(call), *_key(other), repr(colours))
    return image_response(call.rendered(key, drawn), "png")


def _key(call: ApiRequest) -> tuple[Any, ...]:
    return (*map(str, file_key(call.job.model_file)), *version_of_map(call))


_PLACE = "/api/jobs/{job}/look/{data}/{image}"
ROUTES = [
    Route("/api/models", endpoint(open_, DOWNLOADS), methods=["POST"]),
    Route("/api/jobs/{job}/fits/{data}", endpoint(fits)),
    Route(f"{_PLACE}/difference", endpoint(compare)),
    Route(f"{_PLACE}/difference.png", endpoint(draw)),
]
