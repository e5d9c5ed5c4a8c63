"""The viewer: an image's patch map and outlines by a model, and the why of a patch."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from ..images.manifest import Record
from ..patches.patch_map import PatchMap
from ..reports.pictures import encode_png
from .api_model import describe_patch, gallery_and_images
from .calls import Call, endpoint, picture
from .explain import explain
from .jobs import DONE, Job, all_jobs, new_job
from .maps import answer_image, map_picture, outlines, stored_answer, stored_map
from .training import plain_record

# Up to so many pixels an image is judged while the page waits; a larger one is a job.
_AT_ONCE = 16_000_000
_ONE_AT_A_TIME = Lock()


def look(call: Call) -> dict[str, Any]:
    """The answer for an image, or how far it is."""
    record, folder = call.record(), _maps(call)
    facts = stored_answer(folder, record.path)
    if facts is not None:
        return {"state": DONE, **facts}
    model, _ = call.model()
    source = call.context.tiles.open(record.path, record.mpp)
    if source.size[0] * source.size[1] <= _AT_ONCE:
        with _ONE_AT_A_TIME:
            facts = stored_answer(folder, record.path)
            return {"state": DONE, **(facts or answer_image(model, record, folder))}
    return _in_background(call, record, folder)


def _in_background(call: Call, record: Record, folder: Path) -> dict[str, Any]:
    job = _map_job(call, record)
    if job is not None and job.state()["state"] == DONE:
        facts = stored_answer(folder, record.path)
        if facts is not None:  # it has ended just now
            return {"state": DONE, **facts}
        job = None  # its answer is of an earlier version, or was lost
    if job is None:
        request = {
            "kind": "map",
            "name": record.path.name,
            "data": str(call.parts["data"]),
            "root": str(record.path.parent),
            "records": [plain_record(record)],
            "model": str(call.job().folder / "model.histodict"),
            "folder": str(folder),
        }
        job = new_job(call.user, request)
        call.context.queue.add(job)
    state = job.state()
    return {"state": state["state"], "error": state["error"], "job": job.id}


def _map_job(call: Call, record: Record) -> Job | None:
    model = str(call.job().folder / "model.histodict")
    for job in all_jobs(call.user):
        request = job.request
        wanted = request["kind"] == "map" and request["model"] == model
        if wanted and request["records"][0]["path"] == str(record.path):
            return job
    return None


def _maps(call: Call) -> Path:
    return call.job().folder / "maps"


def _map(call: Call) -> PatchMap:
    return stored_map(_maps(call), call.record().path)


def draw(call: Call) -> Response:
    """The map, one pixel per patch; `only`: a class's place."""
    only = call.number("only", -1)
    return picture(encode_png(map_picture(_map(call), only if only >= 0 else None)), "png")


def rings(call: Call) -> dict[str, Any]:
    patch_map = _map(call)
    place = call.number("class", 1)
    if not 0 <= place < patch_map.n_classes:
        raise KeyError("there is no such class")
    return {"rings": outlines(patch_map, place, max(1, call.number("least", 1)))}


def why(call: Call) -> dict[str, Any]:
    """What made a patch what it was called."""
    gallery, learn = gallery_and_images(call)
    record = call.record()
    patch_map = stored_map(_maps(call), record.path)
    where = call.number("row"), call.number("column")
    facts = explain(call.model()[0], record, patch_map, gallery, *where)
    for entry in facts.get("similar", []):
        entry |= describe_patch(gallery, learn, entry["patch"])
    return facts


_PLACE = "/api/jobs/{job}/look/{data}/{image}"
ROUTES = [
    Route(_PLACE, endpoint(look)),
    Route(f"{_PLACE}/map.png", endpoint(draw)),
    Route(f"{_PLACE}/outlines", endpoint(rings)),
    Route(f"{_PLACE}/why", endpoint(why)),
]
