"""Data page API: folders, data sets, settings, checks, image tiles and corrections."""

from __future__ import annotations

import json
from dataclasses import replace

from starlette.responses import Response
from starlette.routing import Route

from ..annotation.edits import annotation_summary, known_labels_manifest
from ..dataset_checks import manifest_warnings
from ..datasets import (
    NO_LABELS_NOTE,
    add_correction,
    dataset_name,
    find_source,
    make_dataset_id,
    open_dataset,
    opened_sources,
    positive_class_to_json,
    relabelled_manifest,
    remove_correction,
    update_settings,
)
from ..maps import TILE_PX, count_levels, mask_outlines
from ..request import IMAGES, ApiRequest, SlowResponse, endpoint, image_response
from ..schema import Json
from .trainings import list_jobs


def get_session(request: ApiRequest) -> Json:
    """Return the content of the front page: user, data folders, opened data sets and jobs."""
    folders = request.context.folders
    return {
        "user": request.user.name,
        "demo": request.context.demo_id,
        "folders": [folder.name or str(folder) for folder in folders.folders],
        "data": [
            {
                "id": data_id,
                "name": dataset_name(source, data_id == make_dataset_id(source, True)),
                "relative_path": folders.locate(source)[1],
            }
            for data_id, source in opened_sources(request.user, folders).items()
        ],
        **list_jobs(request),
    }


def list_folder(request: ApiRequest, *, folder_index: int = 0, relative_path: str = "") -> Json:
    """Return the contents of a folder in the data folder with this index."""
    return request.context.folders.list_folder(folder_index, relative_path)


def open_data(
    request: ApiRequest, *, folder_index: int = 0, relative_path: str = "", bare: bool = False
) -> Json:
    """Open a folder or table as a data set and return its id; if `bare`, ignore its labels."""
    source = request.context.folders.find(folder_index, relative_path)
    indexes = request.context.indexes
    return {"id": open_dataset(request.user, indexes, source, ignores_labels=bare).id}


def get_dataset(request: ApiRequest) -> Response:
    """Return the settings, warnings and images of a data set."""
    settings = json.dumps(_settings_to_json(request), allow_nan=False, separators=(",", ":"))
    data = b'%b,"images":%b}' % (
        settings.encode("ascii").removesuffix(b"}"),
        request.dataset.index.images_json,
    )
    return Response(data, media_type="application/json")


def _settings_to_json(request: ApiRequest) -> Json:
    dataset = request.dataset
    manifest = dataset.manifest
    annotated = None if dataset.is_labelled else annotation_summary(dataset)
    classes = annotated["classes"] if annotated else manifest.classes
    warnings = manifest_warnings(manifest)
    notes = [text for text in warnings if text.endswith(NO_LABELS_NOTE)]
    folder_index, path = request.context.folders.locate(dataset.source)
    return {
        "id": dataset.id,
        "name": dataset.name,
        "folder_index": folder_index,
        "relative_path": path,
        "labelled": dataset.is_labelled,
        "classes": manifest.classes,
        "drawn": annotated,
        "learn_classes": classes,
        "positive": positive_class_to_json(classes, dataset.settings.positive),
        "mpp": dataset.settings.mpp,
        "learn_from": dataset.settings.learn_from,
        "set_classes": dataset.correction_classes,
        "notes": notes,
        "warnings": [text for text in warnings if text not in notes],
        "corrections": dataset.corrections(),
    }


def check_images(request: ApiRequest, *, check: str = "") -> Json:
    """Return the state of the background check; `check` is its key in an earlier response."""
    context, dataset_id = request.context, str(request.path_parameters["data"])
    source = find_source(request.user, context.folders, dataset_id)
    running = context.checks.running_state(check, source)
    if running is not None:
        return running
    manifest, mpp = relabelled_manifest(request.dataset), request.dataset.settings.mpp
    check_record, thumbnail = context.indexes.check_record, context.tiles.ensure_thumbnail_file
    return context.checks.request_check(manifest, lambda r: thumbnail(check_record(r)), mpp)


def change_settings(request: ApiRequest) -> Response:
    """Change settings of a data set, such as the positive class, and return the data set."""
    update_settings(request.dataset, request.body, known_labels_manifest(request.dataset))
    return get_dataset(replace(request))  # a copy does not cache the data set


# --- pixels ---------------------------------------------------------------------------------------


def get_thumbnail(request: ApiRequest) -> Response | SlowResponse:
    """Return the thumbnail of an image as JPEG."""
    tiles, record = request.context.tiles, request.record
    file = tiles.thumbnail_file(record)
    if file.is_file():
        return image_response(file.read_bytes())
    return SlowResponse(
        IMAGES,
        lambda: image_response(tiles.ensure_thumbnail_file(record).read_bytes()),
        record.path,
    )


def get_image(request: ApiRequest) -> SlowResponse:
    """Return size, pixel size and tile geometry of an image."""
    record, tiles, dataset = request.record, request.context.tiles, request.dataset

    def describe() -> Json:
        source, size = tiles.open(record), dataset.pixel_size(record)
        return {
            "width": source.size[0],
            "height": source.size[1],
            "mpp": size.mpp,
            "mpp_from": size.origin,
            "tile": TILE_PX,
            "levels": count_levels(source.size),
        }

    return SlowResponse(IMAGES, describe, record.path)


def get_tile(request: ApiRequest, *, level: int, column: int, row: int) -> Response | SlowResponse:
    """Return a tile of the pyramid of an image as JPEG."""
    tiles, record = request.context.tiles, request.record
    position = level, column, row
    cached = tiles.cached_tile(record, *position)
    if cached is not None:
        return image_response(cached)
    return SlowResponse(IMAGES, lambda: image_response(tiles.tile(record, *position)), record.path)


def get_mask_outlines(request: ApiRequest) -> SlowResponse:
    """Return the outlines of the regions in the mask of an image."""
    record, tiles = request.record, request.context.tiles
    if record.mask is None:
        raise KeyError("this image has no mask")
    return SlowResponse(
        IMAGES, lambda: {"rings": mask_outlines(record, tiles.open(record).size)}, record.path
    )


# --- corrections ----------------------------------------------------------------------------------


def correct_label(
    request: ApiRequest, *, image: str, label: str | None = "", box: list[int] | None = None
) -> Json:
    """Store a correction as in `add_correction`, and return all corrections of the data set."""
    if box is not None and len(box) != 4:
        raise ValueError("box must be four whole numbers: left, top, right, bottom")
    dataset = request.dataset
    add_correction(dataset, image, label, box)
    return {"corrections": dataset.corrections()}


def undo_correction(request: ApiRequest, *, id: str) -> Json:
    """Remove the correction with this id, and return the remaining ones."""
    dataset = request.dataset
    remove_correction(dataset, id)
    return {"corrections": dataset.corrections()}


_IMAGE = "/api/data/{data}/images/{image}"
ROUTES = [
    Route("/api/session", endpoint(get_session)),
    Route("/api/folders", endpoint(list_folder)),
    Route("/api/data", endpoint(open_data), methods=["POST"]),
    Route("/api/data/{data}", endpoint(get_dataset)),
    Route("/api/data/{data}/checks", endpoint(check_images)),
    Route("/api/data/{data}/about", endpoint(change_settings), methods=["POST"]),
    Route("/api/data/{data}/correct", endpoint(correct_label), methods=["POST"]),
    Route("/api/data/{data}/undo", endpoint(undo_correction), methods=["POST"]),
    Route(_IMAGE, endpoint(get_image)),
    Route(f"{_IMAGE}/thumbnail.jpg", endpoint(get_thumbnail)),
    Route(f"{_IMAGE}/truth", endpoint(get_mask_outlines)),
    Route(f"{_IMAGE}/tiles/{{level}}/{{column}}/{{row}}.jpg", endpoint(get_tile)),
]
