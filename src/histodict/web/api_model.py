"""The model page: what was learnt, how good it is, where the line is drawn; downloads."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from starlette.responses import Response
from starlette.routing import Route

from ..model_file import Model, load_model, read_header, save_model
from ..pipeline import RegionDetector
from ..pipeline.patch_model import PatchModel
from .calls import Call, endpoint, picture
from .datasets import image_id_of
from .explain import Atoms
from .jobs import find_job
from .model_report import model_card, write_report
from .tiles import encode_jpeg
from .training import request_manifest, train_and_test
from .workspace import read_json

_ATOMS_SHOWN = 40
_SURROUNDINGS = 5  # a patch is shown in a square so many times as wide
_PATCH_SHOWN_PX = 150


def describe(call: Call) -> dict[str, Any]:
    job = call.job()
    model, gallery = call.model()
    path = job.folder / "results.json"
    parent = job.request.get("parent")
    return {
        "id": job.id,
        "data": job.request["data"],
        "name": job.request["name"],
        "classes": model.classes_,
        "is_detector": isinstance(model, RegionDetector),
        "card": model_card(model, read_header(job.folder / "model.histodict"), job.request),
        "results": read_json(path) if path.is_file() else None,
        "atoms": _atoms(model, gallery is not None),
        "has_gallery": gallery is not None,
        "parent": _parent(call, parent) if parent else None,
        "corrections": job.request["corrections"],
        "test_patients": job.request["test_patients"],
    }


def _parent(call: Call, parent_id: str) -> dict[str, Any] | None:
    """The results that this training is compared with."""
    path = find_job(call.user, parent_id).folder / "results.json"
    return {"id": parent_id, "results": read_json(path)} if path.is_file() else None


def _atoms(model: Model, has_gallery: bool) -> list[dict[str, Any]]:
    """Per class the atoms used most: they stand first in a dictionary."""
    atoms = Atoms.of(model.model_) if isinstance(model.model_, PatchModel) else None
    if atoms is None:
        return []
    return [
        {
            "name": name,
            "count": int((atoms.classes == i).sum()),
            "shown": np.flatnonzero(atoms.classes == i)[:_ATOMS_SHOWN].tolist(),
            "pictures": atoms.patch_px is not None or has_gallery,
        }
        for i, name in enumerate(model.classes_)
    ]


def _atoms_of(call: Call) -> Atoms:
    model = call.model()[0].model_
    atoms = Atoms.of(model) if isinstance(model, PatchModel) else None
    if atoms is None or not 0 <= int(call.parts["atom"]) < len(atoms.D):
        raise KeyError("there is no such atom")
    return atoms


def atom_picture(call: Call) -> Response:
    """The atom itself; one that is no picture is shown as the patch that uses it most."""
    atoms, gallery = _atoms_of(call), call.model()[1]
    if atoms.patch_px is not None:
        return picture(atoms.picture(int(call.parts["atom"])), "png")
    found = gallery.users_of(int(call.parts["atom"]), 1) if gallery is not None else []
    if not found:
        raise KeyError("no kept patch uses this atom")
    return picture(encode_jpeg(_training_pixels(call, found[0][0], 1), 90))


def atom_users(call: Call) -> dict[str, Any]:
    """The training patches in which an atom weighs most."""
    _atoms_of(call)
    gallery = call.model()[1]
    if gallery is None:
        raise KeyError("this model kept no training patches")
    found = gallery.users_of(int(call.parts["atom"]))
    return {"patches": [describe_patch(call, n) | {"weight": value} for n, value in found]}


def describe_patch(call: Call, patch: int) -> dict[str, Any]:
    """Where a training patch comes from."""
    gallery = call.model()[1]
    learn, _ = train_and_test(call.job().request)
    if gallery is None or not 0 <= patch < len(gallery.images):
        raise KeyError("there is no such training patch")
    record = learn.records[int(gallery.images[patch])]
    return {
        "patch": patch,
        "name": learn.name(record) if record.path.is_relative_to(learn.root) else "a marked region",
        "label": record.label,
        "patient": record.patient,
    }


def patch_picture(call: Call) -> Response:
    """A training patch in its surroundings, with its outline."""
    pixels = _training_pixels(call, int(call.parts["patch"]), _SURROUNDINGS)
    return picture(encode_jpeg(_framed(pixels), 90))


def _training_pixels(call: Call, patch: int, times: int) -> NDArray[np.uint8]:
    """The square around a training patch, so many times as wide."""
    describe_patch(call, patch)
    gallery = call.model()[1]
    assert gallery is not None
    learn, _ = train_and_test(call.job().request)
    record = learn.records[int(gallery.images[patch])]
    if not record.path.resolve().is_relative_to(call.user.folder):
        call.context.folders.check(record.path)
    side = float(gallery.side[patch])
    wide = round(times * side)
    x, y = (int(at - (wide - side) / 2) for at in gallery.corners[patch])
    return call.context.tiles.cut_out(record.path, record.mpp, (x, y), wide, _PATCH_SHOWN_PX)


def _framed(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The middle fifth outlined, dark within light, to be seen on any tissue."""
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    low, high = (round(drawn.width * share) for share in (0.4, 0.6))
    pen.rectangle((low - 1, low - 1, high + 1, high + 1), outline="white")
    pen.rectangle((low, low, high, high), outline="black")
    return np.asarray(drawn)


# --- downloads ----------------------------------------------------------------------------------


def _with_point(call: Call) -> Model:
    """The model, with the operating point of the query if there is one."""
    path = call.job().folder / "model.histodict"
    model = load_model(path)
    text = call.query.get("point")
    if text is None:
        return model
    value = float(text)
    if isinstance(model, RegionDetector):
        if not 1 <= value <= 1000:
            raise ValueError("a region has at least one patch")
        model.least_patches_ = round(value)
        return model
    if not np.isfinite(value):
        raise ValueError("the operating point must be a number")
    return model.with_threshold(value)


def download_model(call: Call) -> Response:
    model = _with_point(call)
    with tempfile.TemporaryDirectory() as folder:
        data = save_model(model, Path(folder) / "model.histodict").read_bytes()
    return _download(data, f"{call.job().request['name']}.histodict", "application/octet-stream")


def download_report(call: Call) -> Response:
    job = call.job()
    path = job.folder / "results.json"
    if not path.is_file():
        raise KeyError("this training has no results yet")
    model = _with_point(call)
    results = _answers_at_point(model, read_json(path))
    manifest = request_manifest(job.request)
    records = {image_id_of(manifest.name(record)): record for record in manifest.records}
    card = model_card(model, read_header(job.folder / "model.histodict"), job.request)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(page, model, card, results, records, job.folder / "maps")
        data = page.read_bytes()
    return _download(data, f"{job.request['name']}-report.html", "text/html; charset=utf-8")


def _answers_at_point(model: Model, results: dict[str, Any]) -> dict[str, Any]:
    """The results as the model with its operating point would give them."""
    point = results["operating_point"]
    if point is None or point["kind"] == "score":
        return results
    if isinstance(model, RegionDetector):
        value = float(model.least_patches_)
    else:
        assert model.threshold is not None
        value = model.threshold
    rows = [
        row | {"answer": model.classes_[int(_is_positive(row["value"], value, point))]}
        if row["answer"] is not None
        else row
        for row in results["images"]
    ]
    return results | {"images": rows, "operating_point": point | {"value": value}}


def _is_positive(value: float, threshold: float, point: dict[str, Any]) -> bool:
    if point["kind"] == "patches":
        return value >= threshold
    return value > threshold if point["rises"] else value < threshold


def _download(data: bytes, name: str, kind: str) -> Response:
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    headers = {"Content-Disposition": f'attachment; filename="{plain}"'}
    return Response(io.BytesIO(data).getvalue(), media_type=kind, headers=headers)


ROUTES = [
    Route("/api/jobs/{job}/model", endpoint(describe)),
    Route("/api/jobs/{job}/atoms/{atom:int}.png", endpoint(atom_picture)),
    Route("/api/jobs/{job}/atoms/{atom:int}", endpoint(atom_users)),
    Route("/api/jobs/{job}/patches/{patch:int}.jpg", endpoint(patch_picture)),
    Route("/api/jobs/{job}/model.histodict", endpoint(download_model)),
    Route("/api/jobs/{job}/report.html", endpoint(download_report)),
]
