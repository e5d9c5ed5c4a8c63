"""Model page API: scores, decision threshold, atoms, training patches and downloads."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from functools import partial
from math import isclose
from pathlib import Path

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
from ...utils.files import file_key, files_key
from ..annotation.store import class_colours
from ..jobs import IMPORTED, count_comparable_trainings, find_job
from ..model_report import (
    StoredPredictions,
    applied_corrections,
    compare_with_parent,
    model_card,
    pixel_size_warnings,
    rows_with_prediction,
    selection_warning,
    summarize_scores,
    top_atom_patches,
    training_image_name,
    write_report,
)
from ..request import DOWNLOADS, ApiRequest, endpoint, image_response
from ..schema import Json, ParentComparison, ScoreSummary
from ..workspace import short_id

_MAX_SHOWN_ATOMS = 40  # per class
_CONTEXT_SCALE = 5  # width of the displayed square in patch widths
_PATCH_DISPLAY_PX = 150


def get_model(request: ApiRequest) -> Json:
    """Return the content of the model page: model card, results, scores and atoms."""
    job = request.job
    trained = request.loaded_model
    model = trained.model
    results = job.results()
    return {
        "id": job.id,
        "name": job.name,
        "opened": job.summary["kind"] == IMPORTED,
        "data": job.request["data"],
        "classes": model.class_names_,
        "colours": class_colours(request.user.folder / "data" / job.request["data"]),
        "is_detector": model.finds_regions,
        "card": model_card(model, trained.header, job.request, results),
        "results": results,
        "warnings": pixel_size_warnings(model, results["images"] if results else []),
        "atoms": _atoms_to_json(model, trained.gallery is not None),
        "before": _compare_with_parent(request, results),
        "figures": _scores_at_threshold(model, results) if results else None,
        "selection": selection_warning(count_comparable_trainings(request.user, job))
        if results
        else "",
        "corrections": applied_corrections(job.request),
        "test_patients": job.request["test_patients"],
    }


def _compare_with_parent(request: ApiRequest, results: Json | None) -> ParentComparison | None:
    """Return the comparison of a model with its parent; None if there is no parent."""
    try:
        parent = find_job(request.user, str(request.job.request.get("parent")))
    except KeyError:
        return None
    return compare_with_parent(request.job, results, parent)


def scores_at_threshold(request: ApiRequest) -> Json:
    """Return scores with intervals at the decision threshold in the query ("point")."""
    results = _results(request)
    return dict(_scores_at_threshold(request.model_at_threshold(), results))


def _scores_at_threshold(model: Model, results: Json) -> ScoreSummary:
    """Return the scores of the test images at the decision threshold of the model."""
    rows = rows_with_prediction(_results_at_threshold(model, results))
    threshold = model.decision_threshold
    return summarize_scores(
        model.class_names_, rows, threshold.value if model.finds_regions and threshold else None
    )


def _results(request: ApiRequest) -> Json:
    results = request.job.results()
    if results is None:
        raise KeyError("the training has no results yet")
    return results


def _atoms_to_json(model: Model, has_gallery: bool) -> list[Json]:
    """Return the most used atoms of each class as JSON.

    They are the first atoms of the dictionary of the class, which is sorted by usage.
    """
    atoms = model.model_.atoms()
    if atoms is None:
        return []
    return [
        {
            "name": name,
            "count": int((atoms.classes == i).sum()),
            "shown": np.flatnonzero(atoms.classes == i)[:_MAX_SHOWN_ATOMS].tolist(),
            "pictures": atoms.patch_px is not None or has_gallery,
        }
        for i, name in enumerate(model.class_names_)
    ]


def _atoms_containing(request: ApiRequest, atom: int) -> AtomTable:
    """Return the atoms of the model; raise KeyError if it has no atom with this index."""
    atoms = request.loaded_model.model.model_.atoms()
    if atoms is None or not atom < len(atoms.D):
        raise KeyError("the atom does not exist")
    return atoms


def draw_atom(request: ApiRequest, *, atom: int) -> Response:
    """Return an image of an atom.

    For atoms that are not images, it shows the training patch in which the atom has the largest
    weight.
    """
    atoms, gallery = _atoms_containing(request, atom), request.loaded_model.gallery
    side = atoms.patch_px
    if side is not None:
        key = ("atom", *file_key(request.job.model_file), atom)
        data = request.render_cached(key, lambda: encode_png(render_vector(atoms.D[atom], side)))
        return image_response(data, "png")
    patches = gallery.top_patches(atom, 1) if gallery is not None else []
    if not patches:
        raise KeyError("no stored patch uses this atom")
    return image_response(encode_jpeg(_training_pixels(request, patches[0][0], 1), 90))


def list_atom_patches(request: ApiRequest, *, atom: int) -> Json:
    """Return the training patches in which the weight of an atom is largest."""
    _atoms_containing(request, atom)
    gallery, training = gallery_and_images(request)
    patches = gallery.top_patches(atom)
    return {
        "patches": [
            patch_origin(gallery, training, n) | {"weight": weight} for n, weight in patches
        ]
    }


def gallery_and_images(request: ApiRequest) -> tuple[PatchSample, Manifest]:
    """Return the stored training patches of a model, and its training images."""
    gallery = request.loaded_model.gallery
    if gallery is None:
        raise KeyError("this method uses whole images and has no training patches")
    return gallery, request.training_and_test_images()[0]


def patch_origin(gallery: PatchSample, training_images: Manifest, patch: int) -> Json:
    """Return index, image name, label and patient of the training patch with index `patch`."""
    record = training_images.records[int(gallery.images[patch])]
    name = training_image_name(training_images, record)
    return {"patch": patch, "name": name, "label": record.label, "patient": record.patient}


def draw_patch(request: ApiRequest, *, patch: int) -> Response:
    """Return a JPEG of a training patch with its surroundings, with the patch outlined."""
    pixels = _training_pixels(request, patch, _CONTEXT_SCALE)
    return image_response(encode_jpeg(draw_outline(pixels, _CONTEXT_SCALE), 90))


def _training_pixels(request: ApiRequest, patch: int, scale: int) -> NDArray[np.uint8]:
    """Return the pixels of a square around a training patch, `scale` times as wide as it."""
    gallery, training = gallery_and_images(request)
    if not 0 <= patch < len(gallery.images):
        raise KeyError("the training patch does not exist")
    record = training.records[int(gallery.images[patch])]
    _check_path(request, record)
    corner, width = square_around(gallery, patch, scale)
    source = request.context.tiles.open(record)
    return source.read(*corner, width, width, max(1.0, width / _PATCH_DISPLAY_PX))


def _check_path(request: ApiRequest, record: ImageRecord) -> None:
    """Raise ForbiddenFileError for an image outside the data folders and the user's workspace."""
    if not record.path.resolve().is_relative_to(request.user.folder):
        request.context.folders.resolve(record.path)


# --- downloads ------------------------------------------------------------------------------------


def download_model(request: ApiRequest) -> Response:
    """Return the model as a file, with the decision threshold in the query ("point")."""
    data = _file_content(partial(save_model, _tuned_model(request)))
    return file_response(request.job.name + ".histodict", "application/octet-stream", data)


def _tuned_model(request: ApiRequest) -> Model:
    """Return the model for download.

    If the decision threshold was changed, the model lists the test images as used for tuning,
    because the threshold was chosen while the page showed their results.
    """
    model, results = request.model_at_threshold(), request.job.results()
    if not _is_threshold_changed(model, results):
        return request.loaded_model.model
    test = request.training_and_test_images()[1]
    for record in test.records:
        _check_path(request, record)
    return model.with_tuning_images(
        [record.path for record in test.records if record.path.exists()]
    )


def _is_threshold_changed(model: Model, results: Json | None) -> bool:
    """Return whether the threshold of a model differs from the threshold in the stored results."""
    threshold, stored = model.decision_threshold, (results or {}).get("operating_point")
    if threshold is None or stored is None:
        return False
    return not isclose(threshold.value, stored["value"])


def download_report(request: ApiRequest) -> Response:
    """Return the HTML report of a model as a file, cached because rendering takes a second."""
    training, test = request.training_and_test_images()
    for record in (*training.records, *test.records):
        _check_path(request, record)

    def render() -> tuple[bytes, int]:
        data = _file_content(lambda path: _write_report(path, request, training, test))
        return data, len(data)

    data = request.context.reports.get(_report_key(request, training, test), render)
    return file_response(request.job.name + "-report.html", "text/html; charset=utf-8", data)


def _report_key(request: ApiRequest, training_images: Manifest, test: Manifest) -> Key:
    """Return the cache key of a report, from the state of all its inputs before they are read.

    Inputs are the files of the job and of the images, the manifests, the decision threshold and the
    number of models tested on the same patients. Maps depend on the model and the images.
    """
    job = request.job
    files = job.folder / "job.json", job.folder / "results.json", job.model_file, job.gallery_file
    images = [path for r in (*training_images.records, *test.records) for path in r.files]
    n_models = count_comparable_trainings(request.user, job)
    manifests, threshold = (training_images, test), request.query.get("point")
    content = repr((files_key((*files, *images)), *manifests, threshold, n_models))
    return (hashlib.sha256(content.encode()).hexdigest(),)


def _write_report(
    path: Path, request: ApiRequest, training_images: Manifest, test: Manifest
) -> None:
    job, results = request.job, _results(request)
    trained, model = request.loaded_model, _tuned_model(request)
    records = {short_id(test.name(record)): record for record in test.records}
    card = model_card(model, trained.header, job.request, results)
    atom_patches = top_atom_patches(model, trained.gallery, training_images)
    stored = StoredPredictions(records, job.folder / "maps", job.request.get("mpp"), trained.model)
    write_report(
        path,
        model,
        card,
        _results_at_threshold(model, results),
        stored,
        atom_patches,
        untuned_results=results if _is_threshold_changed(model, results) else None,
        selection_note=selection_warning(count_comparable_trainings(request.user, job)),
    )


def _results_at_threshold(model: Model, results: Json) -> Json:
    """Return the results of a job with labels predicted at the threshold of `model`."""
    threshold = model.decision_threshold
    if threshold is None:
        return results
    rows = [
        row | {"answer": model.class_names_[int(threshold.is_positive(row["value"]))]}
        if row["answer"] is not None
        else row
        for row in results["images"]
    ]
    return results | {"images": rows, "operating_point": threshold.to_dict()}


def _file_content(write: Callable[[Path], object]) -> bytes:
    """Return the bytes that the function `write` writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


def file_response(name: str, media_type: str, data: bytes) -> Response:
    """Return a response of this MIME type that the browser saves with this file name."""
    file_name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    return Response(data, media_type=media_type, headers=headers)


ROUTES = [
    Route("/api/jobs/{job}/model", endpoint(get_model)),
    Route("/api/jobs/{job}/figures", endpoint(scores_at_threshold)),
    Route("/api/jobs/{job}/atoms/{atom}.png", endpoint(draw_atom)),
    Route("/api/jobs/{job}/atoms/{atom}", endpoint(list_atom_patches)),
    Route("/api/jobs/{job}/patches/{patch}.jpg", endpoint(draw_patch)),
    Route("/api/jobs/{job}/model.histodict", endpoint(download_model, DOWNLOADS)),
    Route("/api/jobs/{job}/report.html", endpoint(download_report, DOWNLOADS)),
]
