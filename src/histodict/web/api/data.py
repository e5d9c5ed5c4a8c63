"""Data page API: folders, data sets, settings, checks, image tiles and corrections."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from ..annotation.edits import annotation_summary, known_labels_manifest
from ..dataset_checks import manifest_warnings
from ..datasets import (
    NO_LABELS_NOTE,
    add_correction,
    dataset_name,
    describe_positive_class,
    find_source,
    make_dataset_id,
    open_dataset,
    relabelled_manifest,
    remove_correction,
    source_names,
    update_settings,
)
from ..maps import TILE_SIDE, mask_rings, n_levels
from ..request import IMAGES, ApiRequest, DeferredWork, endpoint, image_response
from .trainings import jobs


def session(call: ApiRequest) -> dict[str, Any]:
    """Return the state of the front page: data folders, data sets opened before, jobs."""
    folders = call.context.folders
    return {
        "user": call.user.name,
        "demo": call.context.demo,
        "folders": [folder.name or str(folder) for folder in folders.folders],
        "data": [
            {
                "id": data_id,
                "name": dataset_name(source, data_id == make_dataset_id(source, True)),
                "relative_path": folders.locate(source)[1],
            }
            for data_id, source in source_names(call.user, folders).items()
        ],
        **jobs(call),
    }


def listing(call: ApiRequest, *, folder_index: int = 0, relative_path: str = "") -> dict[str, Any]:
    """Return the contents of a data folder."""
    return call.context.folders.listing(folder_index, relative_path)


def open_(
    call: ApiRequest, *, folder_index: int = 0, relative_path: str = "", bare: bool = False
) -> dict[str, Any]:
    """Open a folder or table, given by the index of its data folder, and return its id."""
    source = call.context.folders.find(folder_index, relative_path)
    return {"id": open_dataset(call.user, call.context.sources, source, ignores_labels=bare).id}


def describe(call: ApiRequest) -> Response:
    """Return the settings and images of a data set."""
    settings = json.dumps(_settings(call), allow_nan=False, separators=(",", ":")).encode("ascii")
    data = b'%b,"images":%b}' % (settings.removesuffix(b"}"), call.dataset.listing.described)
    return Response(data, media_type="application/json")


def _settings(call: ApiRequest) -> dict[str, Any]:
    dataset = call.dataset
    manifest = dataset.manifest
    annotated = None if dataset.is_labelled else annotation_summary(dataset)
    classes = annotated["classes"] if annotated else manifest.classes
    warnings = manifest_warnings(manifest)
    notes = [text for text in warnings if text.endswith(NO_LABELS_NOTE)]
    folder_index, path = call.context.folders.locate(dataset.source)
    return {
        "id": dataset.id,
        "name": dataset.name,
        "folder_index": folder_index,
        "relative_path": path,
        "labelled": dataset.is_labelled,
        "classes": manifest.classes,
        "drawn": annotated,
        "learn_classes": classes,
        "positive": describe_positive_class(classes, dataset.about.positive),
        "mpp": dataset.about.mpp,
        "learn_from": dataset.about.learn_from,
        "set_classes": dataset.correction_classes,
        "notes": notes,
        "warnings": [text for text in warnings if text not in notes],
        "corrections": dataset.corrections(),
    }


def checks(call: ApiRequest, *, check: str = "") -> dict[str, Any]:
    """Return the current results of the background checks of all images."""
    source = find_source(call.user, call.context.folders, str(call.parts["data"]))
    running = call.context.checks.follow(check, source)
    if running is not None:
        return running
    tiles, sources, dataset = call.context.tiles, call.context.sources, call.dataset
    return call.context.checks.request(
        relabelled_manifest(dataset), lambda r: tiles.thumbnail(sources.check(r)), dataset.about.mpp
    )


def update_settings_of(call: ApiRequest) -> Response:
    """Change settings such as the positive class or the pixel size; return the data set."""
    update_settings(call.dataset, call.body, known_labels_manifest(call.dataset))
    return describe(replace(call))  # a copy does not cache the data set


# --- pixels ---------------------------------------------------------------------------------------


def thumbnail(call: ApiRequest) -> Response | DeferredWork:
    """Return the thumbnail of an image."""
    tiles, record = call.context.tiles, call.record
    file = tiles.thumbnail_file(record)
    if file.is_file():
        return image_response(file.read_bytes())
    return DeferredWork(
        IMAGES, lambda: image_response(tiles.thumbnail(record).read_bytes()), record.path
    )


def image(call: ApiRequest) -> DeferredWork:
    """Return size, pixel size and tile geometry of an image."""
    record, tiles, dataset = call.record, call.context.tiles, call.dataset

    def describe() -> dict[str, Any]:
        source, size = tiles.open(record), dataset.size_of(record)
        return {
            "width": source.size[0],
            "height": source.size[1],
            "mpp": size.mpp,
            "mpp_from": size.origin,
            "tile": TILE_SIDE,
            "levels": n_levels(source.size),
        }

    return DeferredWork(IMAGES, describe, record.path)


def tile(call: ApiRequest, *, level: int, column: int, row: int) -> Response | DeferredWork:
    """Return a tile of an image."""
    tiles, record = call.context.tiles, call.record
    position = level, column, row
    cached = tiles.cached_tile(record, *position)
    if cached is not None:
        return image_response(cached)
    return DeferredWork(IMAGES, lambda: image_response(tiles.tile(record, *position)), record.path)


def true_labels(call: ApiRequest) -> DeferredWork:
    """Return the outlines of an image's mask."""
    record, tiles = call.record, call.context.tiles
    if record.mask is None:
        raise KeyError("this image has no mask")
    return DeferredWork(
        IMAGES, lambda: {"rings": mask_rings(record, tiles.open(record).size)}, record.path
    )


# --- corrections ----------------------------------------------------------------------------------


def correct(
    call: ApiRequest, *, image: str, label: str | None = "", box: list[int] | None = None
) -> dict[str, Any]:
    """Correct a label; without label and box, exclude the image."""
    if box is not None and len(box) != 4:
        raise ValueError("box must be four whole numbers: left, top, right, bottom")
    dataset = call.dataset
    add_correction(dataset, image, label, box)
    return {"corrections": dataset.corrections()}


def undo(call: ApiRequest, *, id: str) -> dict[str, Any]:
    """Remove a correction and return the remaining ones."""
    dataset = call.dataset
    remove_correction(dataset, id)
    return {"corrections": dataset.corrections()}


_IMAGE = "/api/data/{data}/images/{image}"
ROUTES = [
    Route("/api/session", endpoint(session)),
    Route("/api/folders", endpoint(listing)),
    Route("/api/data", endpoint(open_), methods=["POST"]),
    Route("/api/data/{data}", endpoint(describe)),
    Route("/api/data/{data}/checks", endpoint(checks)),
    Route("/api/data/{data}/about", endpoint(update_settings_of), methods=["POST"]),
    Route("/api/data/{data}/correct", endpoint(correct), methods=["POST"]),
    Route("/api/data/{data}/undo", endpoint(undo), methods=["POST"]),
    Route(_IMAGE, endpoint(image)),
    Route(f"{_IMAGE}/thumbnail.jpg", endpoint(thumbnail)),
    Route(f"{_IMAGE}/truth", endpoint(true_labels)),
    Route(f"{_IMAGE}/tiles/{{level}}/{{column}}/{{row}}.jpg", endpoint(tile)),
]
