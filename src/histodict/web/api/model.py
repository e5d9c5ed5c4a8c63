"""Model page API: scores, decision threshold, atoms, training patches and downloads."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.routing import Route

from ...datasets.manifest import ImageRecord, Manifest
from ...explain.patch_sample import PatchSample
from ...models import Model, save_model
from ...models.image_pipeline import AtomTable
from ...patches.rendering import encode_jpeg, encode_png, render_vector
from ...reports.html import draw_outline, square_around
from ...utils.cache import Key
from ...utils.files import file_key, key_of_files
from ..annotation.store import class_colours
from ..jobs import IMPORTED, count_comparable_trainings, find_job
from ..model_report import (
    StoredPredictions,
    applied_corrections,
    compare_with_parent,
    model_card,
    pixel_size_warnings,
    score_summary,
    selection_summary,
    top_atom_patches,
    training_name,
    write_report,
)
from ..request import DOWNLOADS, ApiRequest, endpoint, image_response
from ..schema import PreviousModel, ScoreSummary
from ..workspace import short_id

_MAX_ATOMS = 40
_CONTEXT_FACTOR = 5  # ratio of the displayed square's width to that of the patch
_PATCH_DISPLAY_PX = 150


def describe(call: ApiRequest) -> dict[str, Any]:
    """Return the description of a model with its results."""
    job = call.job
    trained = call.trained
    model = trained.model
    results = job.results()
    return {
        "id": job.id,
        "name": job.name,
        "opened": job.summary["kind"] == IMPORTED,
        "data": job.request["data"],
        "classes": model.class_names_,
        "colours": class_colours(call.user.folder / "data" / job.request["data"]),
        "is_detector": model.finds_regions,
        "card": model_card(model, trained.header, job.request, results),
        "results": results,
        "warnings": pixel_size_warnings(model, results["images"] if results else []),
        "atoms": _atoms(model, trained.gallery is not None),
        "before": _comparison(call, results),
        "figures": _figures_at_point(model, results) if results else None,
        "selection": selection_summary(count_comparable_trainings(call.user, job))
        if results
        else "",
        "corrections": applied_corrections(job.request),
        "test_patients": job.request["test_patients"],
    }


def _comparison(call: ApiRequest, results: dict[str, Any] | None) -> PreviousModel | None:
    """Return the comparison with the parent; None if the parent does not exist."""
    try:
        parent = find_job(call.user, str(call.job.request.get("parent")))
    except KeyError:
        return None
    return compare_with_parent(call.job, results, parent)


def figures_at_point(call: ApiRequest) -> dict[str, Any]:
    """Return scores with intervals at the operating point of the query."""
    results = _results(call)
    return dict(_figures_at_point(call.model_at_threshold(), results))


def _figures_at_point(model: Model, results: dict[str, Any]) -> ScoreSummary:
    rows = _rows_with_prediction(_predictions_at_threshold(model, results))
    point = model.decision_threshold
    return score_summary(
        model.class_names_, rows, point.value if model.finds_regions and point else None
    )


def _rows_with_prediction(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in results["images"] if row["answer"] is not None]


def _results(call: ApiRequest) -> dict[str, Any]:
    results = call.job.results()
    if results is None:
        raise KeyError("the training has no results yet")
    return results


def _atoms(model: Model, has_gallery: bool) -> list[dict[str, Any]]:
    """Return the most used atoms of each class, the first of its dictionary."""
    atoms = model.model_.atoms()
    if atoms is None:
        return []
    return [
        {
            "name": name,
            "count": int((atoms.classes == i).sum()),
            "shown": np.flatnonzero(atoms.classes == i)[:_MAX_ATOMS].tolist(),
            "pictures": atoms.patch_px is not None or has_gallery,
        }
        for i, name in enumerate(model.class_names_)
    ]


def _atoms_of(call: ApiRequest, atom: int) -> AtomTable:
    atoms = call.trained.model.model_.atoms()
    if atoms is None or not atom < len(atoms.D):
        raise KeyError("the atom does not exist")
    return atoms


def atom_image(call: ApiRequest, *, atom: int) -> Response:
    """Return an image of an atom or, if its features are not pixels, of its top patch."""
    atoms, gallery = _atoms_of(call, atom), call.trained.gallery
    side = atoms.patch_px
    if side is not None:
        key = ("atom", *file_key(call.job.model_file), atom)
        data = call.rendered(key, lambda: encode_png(render_vector(atoms.D[atom], side)))
        return image_response(data, "png")
    patches = gallery.top_patches(atom, 1) if gallery is not None else []
    if not patches:
        raise KeyError("no stored patch uses this atom")
    return image_response(encode_jpeg(_training_pixels(call, patches[0][0], 1), 90))


def patches_of_atom(call: ApiRequest, *, atom: int) -> dict[str, Any]:
    """Return the training patches with the largest weights of an atom."""
    _atoms_of(call, atom)
    gallery, learn = gallery_and_images(call)
    patches = gallery.top_patches(atom)
    return {
        "patches": [
            describe_patch(gallery, learn, patch) | {"weight": weight} for patch, weight in patches
        ]
    }


def gallery_and_images(call: ApiRequest) -> tuple[PatchSample, Manifest]:
    """Return the stored training patches and the training images."""
    gallery = call.trained.gallery
    if gallery is None:
        raise KeyError("this method uses whole images and has no training patches")
    return gallery, call.training_and_test_images()[0]


def describe_patch(gallery: PatchSample, training_images: Manifest, patch: int) -> dict[str, Any]:
    """Return the origin of a training patch."""
    record = training_images.records[int(gallery.images[patch])]
    name = training_name(training_images, record)
    return {"patch": patch, "name": name, "label": record.label, "patient": record.patient}


def patch_image(call: ApiRequest, *, patch: int) -> Response:
    """Return a training patch in its surroundings, with its outline."""
    pixels = _training_pixels(call, patch, _CONTEXT_FACTOR)
    return image_response(encode_jpeg(draw_outline(pixels, _CONTEXT_FACTOR), 90))


def _training_pixels(call: ApiRequest, patch: int, scale: int) -> NDArray[np.uint8]:
    """Return the pixels of a square around a training patch, `scale` as wide as the patch."""
    gallery, learn = gallery_and_images(call)
    if not 0 <= patch < len(gallery.images):
        raise KeyError("the training patch does not exist")
    record = learn.records[int(gallery.images[patch])]
    _check_path(call, record)
    corner, width = square_around(gallery, patch, scale)
    source = call.context.tiles.open(record)
    return source.read(*corner, width, width, max(1.0, width / _PATCH_DISPLAY_PX))


def _check_path(call: ApiRequest, record: ImageRecord) -> None:
    """Raise an error for images outside the data folders, except crops in the workspace."""
    if not record.path.resolve().is_relative_to(call.user.folder):
        call.context.folders.check(record.path)


# --- downloads ------------------------------------------------------------------------------------


def download_model(call: ApiRequest) -> Response:
    """Return the model file, with the threshold of the query."""
    data = _file_content(partial(save_model, _tuned_model(call)))
    return download(call.job.name + ".histodict", "application/octet-stream", data)


def _tuned_model(call: ApiRequest) -> Model:
    """Return the model for download.

    If the operating point was changed, the test images are recorded in the model as used for
    tuning, because the page shows their results.
    """
    model, results = call.model_at_threshold(), call.job.results()
    if not _has_changed_threshold(model, results):
        return call.trained.model
    test = call.training_and_test_images()[1]
    for record in test.records:
        _check_path(call, record)
    return model.tuned_on([record.path for record in test.records if record.path.exists()])


def _has_changed_threshold(model: Model, results: dict[str, Any] | None) -> bool:
    """Return whether the operating point differs from the trained one."""
    point, trained = model.decision_threshold, (results or {}).get("operating_point")
    return point is not None and trained is not None and not isclose(point.value, trained["value"])


def download_report(call: ApiRequest) -> Response:
    """Return the HTML report of a model, cached because it takes a second."""
    learn, test = call.training_and_test_images()
    for record in (*learn.records, *test.records):
        _check_path(call, record)

    def render() -> tuple[bytes, int]:
        data = _file_content(lambda path: _write_report(path, call, learn, test))
        return data, len(data)

    data = call.context.reports.get(_report_key(call, learn, test), render)
    return download(call.job.name + "-report.html", "text/html; charset=utf-8", data)


def _report_key(call: ApiRequest, training_images: Manifest, test: Manifest) -> Key:
    """Return the cache key of a report, from the state of all its inputs before they are read.

    These are the request with labels, pixel sizes and corrections; the model, its training patches
    and its results; the image files; excluded images; the decision threshold; and the number of
    models tested on the same patients. Maps depend on the model and the images.
    """
    job = call.job
    files = job.folder / "job.json", job.folder / "results.json", job.model_file, job.gallery_file
    images = [path for r in (*training_images.records, *test.records) for path in r.files]
    n_models = count_comparable_trainings(call.user, job)
    content = repr(
        (key_of_files((*files, *images)), training_images, test, call.query.get("point"), n_models)
    )
    return (hashlib.sha256(content.encode()).hexdigest(),)


def _write_report(path: Path, call: ApiRequest, training_images: Manifest, test: Manifest) -> None:
    job, results = call.job, _results(call)
    trained, model = call.trained, _tuned_model(call)
    records = {short_id(test.name(record)): record for record in test.records}
    card = model_card(model, trained.header, job.request, results)
    users = top_atom_patches(model, trained.gallery, training_images)
    stored = StoredPredictions(records, job.folder / "maps", job.request.get("mpp"), trained.model)
    untuned = results if _has_changed_threshold(model, results) else None
    results_at_threshold = _predictions_at_threshold(model, results)
    selection = selection_summary(count_comparable_trainings(call.user, job))
    write_report(
        path, model, card, results_at_threshold, stored, users, untuned=untuned, selection=selection
    )


def _predictions_at_threshold(model: Model, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results at the model's decision threshold."""
    point = model.decision_threshold
    if point is None:
        return results
    rows = [
        row | {"answer": model.class_names_[int(point.is_positive(row["value"]))]}
        if row["answer"] is not None
        else row
        for row in results["images"]
    ]
    return results | {"images": rows, "operating_point": point.to_dict()}


def _file_content(write: Callable[[Path], object]) -> bytes:
    """Return the bytes that the function `write` writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


def download(name: str, kind: str, data: bytes) -> Response:
    """Return a response that the browser saves under this file name."""
    file_name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    return Response(data, media_type=kind, headers=headers)


ROUTES = [
    Route("/api/jobs/{job}/model", endpoint(describe)),
    Route("/api/jobs/{job}/figures", endpoint(figures_at_point)),
    Route("/api/jobs/{job}/atoms/{atom}.png", endpoint(atom_image)),
    Route("/api/jobs/{job}/atoms/{atom}", endpoint(patches_of_atom)),
    Route("/api/jobs/{job}/patches/{patch}.jpg", endpoint(patch_image)),
    Route("/api/jobs/{job}/model.histodict", endpoint(download_model, DOWNLOADS)),
    Route("/api/jobs/{job}/report.html", endpoint(download_report, DOWNLOADS)),
]
