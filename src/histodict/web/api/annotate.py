"""Annotation API: classes, shapes, files, quick predictions and labelling suggestions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.responses import Response
from starlette.routing import Route

from ...datasets.manifest import ImageRecord
from ...images.source import ImageSource
from ...utils.files import file_key
from ...utils.validation import check_choice
from ..annotation.edits import (
    BrushStroke,
    annotation_summary,
    apply_stroke,
    change_classes,
    import_annotations,
    redo_change,
    relabel_shape,
    remove_shape,
    undo_change,
)
from ..annotation.quick_prediction import (
    AnnotatedImage,
    Box,
    InteractiveImage,
    Viewport,
    is_encoder_installed,
    make_quick_recipe,
    predict_viewport,
)
from ..annotation.store import (
    AnnotationClass,
    AnnotationStore,
    ImportedAnnotations,
    annotated_images,
    last_change_time,
    read_classes,
    to_geojson,
)
from ..annotation.suggestions import colour_descriptor, prediction_margin, suggest, suggest_regions
from ..jobs import IMPORTED
from ..maps import load_prediction
from ..request import DOWNLOADS, EXPLANATIONS, IMAGES, LIVE, ApiRequest, SlowResponse, endpoint
from ..schema import Json
from .model import file_response
from .viewer import displayed_map

_MAX_FILE_BYTES = 16 * 2**20  # of an annotation file
_MAX_STROKE_BYTES = 2**20  # of a stroke; 20,000 points take less than half of it
_MAX_FEATURE_SECONDS = 0.6  # for computing features per request
_MAX_COORDINATE = 1e9  # pixels
_MAX_OTHER_IMAGES = 8  # further images for fitting quick predictions


# --- shapes ---------------------------------------------------------------------------------------


def list_annotations(request: ApiRequest) -> Json:
    """Return classes and all shapes of the data set, with bounding boxes in place of corners."""
    dataset = request.dataset
    names = dataset.index.names
    images = [
        {
            "image": image,
            "name": names[image],
            "shapes": _shapes_without_corners(AnnotationStore.read(dataset.folder, image)),
        }
        for image in annotated_images(dataset.folder)
        if image in names
    ]
    return _classes_to_json(read_classes(dataset.folder)) | {
        "images": [entry for entry in images if entry["shapes"]],
        "drawn": annotation_summary(dataset) if not dataset.is_labelled else None,
    }


def _shapes_without_corners(store: AnnotationStore) -> list[Json]:
    """Return the shapes with their bounding boxes in place of their corners."""
    return [_with_bounding_box(shape) for shape in map(dict, store.shapes)]


def _with_bounding_box(shape: Json) -> Json:
    corners = [corner for rings in shape.pop("polygons") for corner in rings[0]]
    x, y = zip(*corners, strict=True)
    return shape | {"box": [min(x), min(y), max(x), max(y)]}


def _classes_to_json(classes: list[AnnotationClass]) -> Json:
    return {"classes": [asdict(class_) for class_ in classes]}


def get_annotations(request: ApiRequest) -> Json:
    """Return classes, shapes of an image, and the numbers of changes to undo and redo."""
    return _annotations_to_json(
        request, AnnotationStore.read(request.dataset.folder, request.image_id)
    )


def _annotations_to_json(request: ApiRequest, store: AnnotationStore) -> Json:
    return _classes_to_json(read_classes(request.dataset.folder)) | {
        "shapes": store.shapes,
        "undo": len(store.undo_stack),
        "redo": len(store.redo_stack),
    }


def edit_annotations(request: ApiRequest, *, act: str) -> Json | SlowResponse:
    """Edit the annotations of an image, and return them; `act` is a key of `EDITS`."""
    _check_unlabelled(request)
    check_choice("act", act, EDITS)
    return EDITS[act](request)


def _check_unlabelled(request: ApiRequest) -> None:
    """Raise ValueError if the data set has labels, as training then ignores annotations."""
    if request.dataset.is_labelled:
        raise ValueError(
            "these images have labels or masks, which are used for training. To annotate them, "
            "open them without labels"
        )


def _draw_shape(request: ApiRequest) -> SlowResponse:
    stroke, label = BrushStroke.from_request(request.body), request.body.get("label")

    def edit() -> Json:
        size = request.context.tiles.open(request.record).size
        store = apply_stroke(request.dataset, request.image_id, size, stroke, label)
        return _annotations_to_json(request, store)

    return SlowResponse(IMAGES, edit, request.record.path)


def _make_edit(
    edit_store: Callable[..., AnnotationStore], *fields: str
) -> Callable[[ApiRequest], Json]:
    """Return a handler that calls `edit_store` with these fields of the request body."""

    def edit(request: ApiRequest) -> Json:
        arguments = [request.body.get(name) for name in fields]
        store = edit_store(request.dataset, request.image_id, *arguments)
        return _annotations_to_json(request, store)

    return edit


# Handler of each edit, by name.
EDITS: dict[str, Callable[[ApiRequest], Json | SlowResponse]] = {
    "draw": _draw_shape,
    "relabel": _make_edit(relabel_shape, "id", "label"),
    "remove": _make_edit(remove_shape, "id"),
    "undo": _make_edit(undo_change),
    "redo": _make_edit(redo_change),
}


def edit_classes(request: ApiRequest) -> Json:
    """Create, change or remove an annotation class, and return all classes."""
    _check_unlabelled(request)
    return _classes_to_json(change_classes(request.dataset, request.body))


# --- files ----------------------------------------------------------------------------------------


def import_file(request: ApiRequest, *, name: str = "") -> SlowResponse:
    """Import outlines from the body, a GeoJSON file called `name`; return all annotations."""
    _check_unlabelled(request)

    def load() -> Json:
        source = request.context.tiles.open(request.record)
        imported = _read_upload(request, name, source)
        store = import_annotations(request.dataset, request.image_id, source.size, imported)
        return _annotations_to_json(request, store) | {"notes": imported.notes}

    return SlowResponse(IMAGES, load, request.record.path)


def _read_upload(request: ApiRequest, name: str, source: ImageSource) -> ImportedAnnotations:
    try:
        return ImportedAnnotations.read(name, request.raw_body, source)
    except ValueError as error:  # replace the path by the name shown on the page
        raise ValueError(str(error).replace(str(source.path), request.record.path.name)) from error


def download_annotations(request: ApiRequest) -> Response:
    """Return the annotations of an image as a GeoJSON file, named as `--annotations` requires."""
    folder = request.dataset.folder
    data = to_geojson(AnnotationStore.read(folder, request.image_id).shapes, read_classes(folder))
    name = f"{Path(request.record.path.name).stem}.geojson"
    return file_response(name, "application/geo+json", data)


# --- quick predictions ----------------------------------------------------------------------------


def predict_box(request: ApiRequest, *, box: list[float]) -> SlowResponse:
    """Return the quick prediction for a box, (left, top, right, bottom) in level-0 pixels.

    The classifier is fitted to the current annotations of the data set; see `predict_viewport`.
    """
    if len(box) != 4 or not all(abs(x) < _MAX_COORDINATE for x in box):
        raise ValueError("box must be four numbers: left, top, right, bottom")
    left, top, right, bottom = map(float, box)

    def predict() -> Json:
        started = time.monotonic()
        with_encoder = is_encoder_installed()
        deadline = started + _MAX_FEATURE_SECONDS
        viewport = _viewport(request, (left, top, right, bottom), with_encoder, deadline)
        prediction = predict_viewport(viewport, request.context.patch_features)
        seconds = round(time.monotonic() - started, 3)
        return prediction | {"by_network": with_encoder, "seconds": seconds}

    # Not limited per image, as tiles of the image would have to wait.
    return SlowResponse(LIVE, predict)


def _viewport(request: ApiRequest, box: Box, with_encoder: bool, deadline: float) -> Viewport:
    dataset, image_id = request.dataset, request.image_id
    interactive_image = _interactive_image(request, request.record, with_encoder)
    ids = _ids_by_last_change(dataset.folder)
    others = [each for each in ids if each != image_id and each in dataset.index.by_id]
    annotated = [
        AnnotatedImage(interactive_image, AnnotationStore.read(dataset.folder, image_id).shapes)
    ]
    for image in others[:_MAX_OTHER_IMAGES]:
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        if shapes:
            other = _interactive_image(request, dataset.find_image(image), with_encoder)
            annotated.append(AnnotatedImage(other, shapes))
    return Viewport(interactive_image, box, annotated, read_classes(dataset.folder), deadline)


def _ids_by_last_change(folder: Path) -> list[str]:
    """Return the ids of annotated images, the latest change first."""
    return sorted(annotated_images(folder), key=lambda image: -last_change_time(folder, image))


def _interactive_image(
    request: ApiRequest, record: ImageRecord, with_encoder: bool
) -> InteractiveImage:
    size, image = request.dataset.pixel_size(record), file_key(record.path)
    recipe = make_quick_recipe(size.mpp, with_encoder)

    def open_cached() -> tuple[InteractiveImage, int]:
        source = request.context.tiles.open(replace(record, mpp=size.user_mpp))
        return InteractiveImage(source, recipe, image), source.memory_bytes

    return request.context.interactive_images.get((repr(image), size, with_encoder), open_cached)


_DATA = "/api/data/{data}"
_IMAGE = f"{_DATA}/images/{{image}}"
_EDIT = endpoint(edit_annotations, max_bytes=_MAX_STROKE_BYTES)
_UPLOAD = endpoint(import_file, max_bytes=_MAX_FILE_BYTES, is_json=False)
ROUTES = [
    Route(f"{_DATA}/drawn", endpoint(list_annotations)),
    Route(f"{_DATA}/classes", endpoint(edit_classes), methods=["POST"]),
    Route(f"{_IMAGE}/drawn", endpoint(get_annotations)),
    Route(f"{_IMAGE}/drawn", _EDIT, methods=["POST"]),
    Route(f"{_IMAGE}/drawn.geojson", endpoint(download_annotations)),
    Route(f"{_IMAGE}/drawn/file", _UPLOAD, methods=["POST"]),
    Route(f"{_IMAGE}/quick", endpoint(predict_box), methods=["POST"]),
]


_MAX_COMPARED = 300  # images to compare; evenly spaced ones of a larger set
_N_SUGGESTED_IMAGES = 6
_N_SUGGESTED_REGIONS = 3
_N_IMAGES_TO_PREDICT = 8  # suggested to be predicted next
_DESCRIPTOR_BYTES = 14 * 8 + 300  # approximate memory of a cached descriptor

Item = TypeVar("Item")


def suggest_images(request: ApiRequest) -> Json:
    """Return suggestions of predicted images to label next, and of other images to predict next."""
    labelled = _labelled_images(request)
    unlabelled = {
        image_id: r for image_id, r in request.dataset.index.by_id.items() if r.path not in labelled
    }
    sampled = _evenly_spaced(list(unlabelled), _MAX_COMPARED)
    descriptor_of = {
        image_id: descriptor
        for image_id in sampled
        if (descriptor := _cached_descriptor(request, unlabelled[image_id])) is not None
    }
    ids, n_unread = list(descriptor_of), len(sampled) - len(descriptor_of)
    counts: Json = {"of": len(unlabelled), "compared": len(ids), "unread": n_unread, "judged": 0}
    if not ids:
        return counts | {"next": [], "suggested": []}
    descriptors = np.stack(list(descriptor_of.values()))
    known = _labelled_descriptors(request, list(labelled.values()), descriptors.shape[1])
    margins = [_stored_margin(request, unlabelled[image_id]) for image_id in ids]
    predicted = [index for index, margin in enumerate(margins) if margin is not None]
    unpredicted = [index for index, margin in enumerate(margins) if margin is None]
    to_predict = (
        suggest(np.zeros(len(unpredicted)), descriptors[unpredicted], known, _N_IMAGES_TO_PREDICT)
        if unpredicted
        else []
    )
    suggestions = suggest(
        np.array([margins[index] for index in predicted], float),
        descriptors[predicted],
        known,
        _N_SUGGESTED_IMAGES,
    )
    names = request.dataset.index.names
    return counts | {
        "judged": len(predicted),
        "next": [ids[unpredicted[suggestion.candidate]] for suggestion in to_predict],
        "suggested": [
            {
                "image": (image := ids[predicted[suggestion.candidate]]),
                "name": names[image],
                "doubt": suggestion.uncertainty,
                "novelty": suggestion.novelty,
            }
            for suggestion in suggestions
        ],
    }


def _labelled_images(request: ApiRequest) -> dict[Any, ImageRecord]:
    """Return the training, test, corrected and annotated images of the data set, by path."""
    records, folder = request.dataset.index.by_id, request.dataset.folder
    annotated = [c["image"] for c in request.dataset.corrections()]
    annotated += [i for i in annotated_images(folder) if AnnotationStore.read(folder, i).shapes]
    labelled = [records[image] for image in annotated if image in records]
    job = request.job.summary
    if job["kind"] != IMPORTED and job["data"] == request.dataset.id:
        training, test = request.training_and_test_images()
        inside = {record.path for record in records.values()}  # crops are not images of the set
        labelled += [r for r in (*training.records, *test.records) if r.path in inside]
    return {record.path: record for record in labelled}


def _evenly_spaced(items: list[Item], n_max: int) -> list[Item]:
    """Return at most `n_max` items, evenly spaced in the list."""
    if len(items) <= n_max:
        return items
    return [items[index] for index in np.linspace(0, len(items) - 1, n_max).astype(int)]


def _labelled_descriptors(
    request: ApiRequest, labelled: list[ImageRecord], n_features: int
) -> NDArray[np.float64]:
    """Return the colour descriptors (n, n_features) of at most `_MAX_COMPARED` labelled images."""
    descriptors = [
        _cached_descriptor(request, record) for record in _evenly_spaced(labelled, _MAX_COMPARED)
    ]
    return np.array([each for each in descriptors if each is not None]).reshape(-1, n_features)


def _cached_descriptor(request: ApiRequest, record: ImageRecord) -> NDArray[np.float64] | None:
    """Return the colour descriptor of an image; None if it cannot be read."""
    context = request.context

    def compute() -> tuple[NDArray[np.float64], int]:
        with Image.open(context.tiles.ensure_thumbnail_file(record)) as thumbnail:
            return colour_descriptor(np.asarray(thumbnail.convert("RGB"))), _DESCRIPTOR_BYTES

    try:
        record = context.indexes.check_record(record)
        return context.suggestion_cache.get((repr(file_key(record.path)),), compute)
    except (ValueError, OSError, MemoryError):
        return None


def _stored_margin(request: ApiRequest, record: ImageRecord) -> float | None:
    """Return the margin of the stored prediction of an image; None if it has none."""
    prediction = load_prediction(request.job.folder / "maps", record, request.dataset.settings.mpp)
    return None if prediction is None else prediction_margin(prediction)


def suggest_regions_of_image(request: ApiRequest) -> SlowResponse:
    """Return suggestions of regions of an image to label next."""
    dataset, image = request.dataset, str(request.path_parameters["image"])
    labelled_boxes: Sequence[Any] = [
        tuple(c["box"]) for c in dataset.corrections() if c["image"] == image and c["box"]
    ]

    def compute_suggestions() -> Json:
        source = request.context.tiles.open(request.record)
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        suggestions = suggest_regions(
            displayed_map(request), source, list(labelled_boxes), _N_SUGGESTED_REGIONS, shapes
        )
        return {
            "fields": [
                {"box": box, "doubt": suggestion.uncertainty, "novelty": suggestion.novelty}
                for box, suggestion in suggestions
            ]
        }

    return SlowResponse(EXPLANATIONS, compute_suggestions, request.record.path)


SUGGEST_ROUTES = [
    Route("/api/jobs/{job}/suggest/{data}", endpoint(suggest_images, DOWNLOADS)),
    Route("/api/jobs/{job}/look/{data}/{image}/fields", endpoint(suggest_regions_of_image)),
]
