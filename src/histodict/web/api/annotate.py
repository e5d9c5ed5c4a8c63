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
    change_classes,
    draw,
    import_annotations,
    redo,
    relabel,
    remove,
    undo,
)
from ..annotation.quick_prediction import (
    AnnotatedImage,
    Box,
    InteractiveImage,
    Viewport,
    predict_viewport,
    quick_recipe,
    uses_encoder,
)
from ..annotation.store import (
    AnnotationClass,
    AnnotationStore,
    ImportedAnnotations,
    annotated_images,
    geojson,
    last_change,
    read_classes,
)
from ..annotation.suggestions import colour_descriptor, normalized_margin, suggest, suggest_regions
from ..jobs import IMPORTED
from ..maps import load_prediction
from ..request import DOWNLOADS, EXPLANATIONS, IMAGES, LIVE, ApiRequest, DeferredWork, endpoint
from .model import download as download_as
from .viewer import displayed_map

_MAX_BYTES = 16 * 2**20  # of an annotation file
_STROKE_BYTES = 2**20  # of a stroke; 20,000 points take less than half of it
_MAX_SECONDS = 0.6  # for computing features per request
_MAX_COORDINATE = 1e9  # pixels
_MAX_OTHERS = 8  # further images for fitting quick predictions


# --- shapes ---------------------------------------------------------------------------------------


def list_all(call: ApiRequest) -> dict[str, Any]:
    """Return the classes and all shapes of the data set, with bounding boxes instead of corners."""
    dataset = call.dataset
    names = dataset.listing.names
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


def _shapes_without_corners(store: AnnotationStore) -> list[dict[str, Any]]:
    """Return the shapes with their bounding boxes in place of their corners."""
    return [_with_bounding_box(shape) for shape in map(dict, store.shapes)]


def _with_bounding_box(shape: dict[str, Any]) -> dict[str, Any]:
    corners = [corner for rings in shape.pop("polygons") for corner in rings[0]]
    x, y = zip(*corners, strict=True)
    return shape | {"box": [min(x), min(y), max(x), max(y)]}


def _classes_to_json(classes: list[AnnotationClass]) -> dict[str, Any]:
    return {"classes": [asdict(class_) for class_ in classes]}


def show_annotations(call: ApiRequest) -> dict[str, Any]:
    """Return the annotations of an image."""
    return _annotations_to_json(call, AnnotationStore.read(call.dataset.folder, _image(call)))


def _image(call: ApiRequest) -> str:
    """Return the id of the image, after checking that it is in the data set."""
    assert call.record
    return str(call.parts["image"])


def _annotations_to_json(call: ApiRequest, store: AnnotationStore) -> dict[str, Any]:
    return _classes_to_json(read_classes(call.dataset.folder)) | {
        "shapes": store.shapes,
        "undo": len(store.done),
        "redo": len(store.undone),
    }


def change(call: ApiRequest, *, act: str) -> dict[str, Any] | DeferredWork:
    """Edit the annotations of an image, and return them."""
    _check_unlabelled(call)
    check_choice("act", act, EDITS)
    return EDITS[act](call)


def _check_unlabelled(call: ApiRequest) -> None:
    """Raise ValueError for labelled images, as training ignores their annotations."""
    if call.dataset.is_labelled:
        raise ValueError(
            "these images have labels or masks, which are used for training. To annotate them, "
            "open them without labels"
        )


def _draw(call: ApiRequest) -> DeferredWork:
    stroke, label = BrushStroke.from_request(call.body), call.body.get("label")

    def edit() -> dict[str, Any]:
        size = call.context.tiles.open(call.record).size
        return _annotations_to_json(call, draw(call.dataset, _image(call), size, stroke, label))

    return DeferredWork(IMAGES, edit, call.record.path)


def _shape_edit(
    work: Callable[..., AnnotationStore], *names: str
) -> Callable[[ApiRequest], dict[str, Any]]:
    def edit(call: ApiRequest) -> dict[str, Any]:
        arguments = [call.body.get(name) for name in names]
        return _annotations_to_json(call, work(call.dataset, _image(call), *arguments))

    return edit


EDITS: dict[str, Callable[[ApiRequest], dict[str, Any] | DeferredWork]] = {
    "draw": _draw,
    "relabel": _shape_edit(relabel, "id", "label"),
    "remove": _shape_edit(remove, "id"),
    "undo": _shape_edit(undo),
    "redo": _shape_edit(redo),
}


def classes(call: ApiRequest) -> dict[str, Any]:
    """Create, change or remove a class, and return all classes."""
    _check_unlabelled(call)
    return _classes_to_json(change_classes(call.dataset, call.body))


# --- files ----------------------------------------------------------------------------------------


def upload(call: ApiRequest, *, name: str = "") -> DeferredWork:
    """Import outlines from a file; the file itself is not stored."""
    _check_unlabelled(call)

    def load() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        imported = _read_upload(call, name, source)
        store = import_annotations(call.dataset, _image(call), source.size, imported)
        return _annotations_to_json(call, store) | {"notes": imported.notes}

    return DeferredWork(IMAGES, load, call.record.path)


def _read_upload(call: ApiRequest, name: str, source: ImageSource) -> ImportedAnnotations:
    try:
        return ImportedAnnotations.read(name, call.sent, source)
    except ValueError as error:  # replace the path by the name shown on the page
        raise ValueError(str(error).replace(str(source.path), call.record.path.name)) from error


def download(call: ApiRequest) -> Response:
    """Return the annotations as GeoJSON, with the file name that `--annotations` requires."""
    folder = call.dataset.folder
    data = geojson(AnnotationStore.read(folder, _image(call)).shapes, read_classes(folder))
    name = f"{Path(call.record.path.name).stem}.geojson"
    return download_as(name, "application/geo+json", data)


# --- quick predictions ----------------------------------------------------------------------------


def quick(call: ApiRequest, *, box: list[float]) -> DeferredWork:
    """Predict the visible part of an image from the current annotations."""
    if len(box) != 4 or not all(abs(x) < _MAX_COORDINATE for x in box):
        raise ValueError("box must be four numbers: left, top, right, bottom")
    left, top, right, bottom = map(float, box)

    def predict() -> dict[str, Any]:
        started = time.monotonic()
        with_encoder = uses_encoder()
        viewport = _viewport(call, (left, top, right, bottom), with_encoder, started + _MAX_SECONDS)
        prediction = predict_viewport(viewport, call.context.numbers)
        seconds = round(time.monotonic() - started, 3)
        return prediction | {"by_network": with_encoder, "seconds": seconds}

    # Not limited per image, as tiles of the image would have to wait.
    return DeferredWork(LIVE, predict)


def _viewport(call: ApiRequest, box: Box, with_encoder: bool, deadline: float) -> Viewport:
    dataset, image_id = call.dataset, _image(call)
    interactive_image = _interactive_image(call, call.record, with_encoder)
    others = [
        other
        for other in _ids_by_last_change(dataset.folder)
        if other != image_id and other in dataset.listing.by_id
    ]
    annotated = [
        AnnotatedImage(interactive_image, AnnotationStore.read(dataset.folder, image_id).shapes)
    ]
    for image in others[:_MAX_OTHERS]:
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        if shapes:
            annotated.append(
                AnnotatedImage(_interactive_image(call, dataset.image(image), with_encoder), shapes)
            )
    return Viewport(interactive_image, box, annotated, read_classes(dataset.folder), deadline)


def _ids_by_last_change(folder: Path) -> list[str]:
    """Return the ids of annotated images, the latest change first."""
    return sorted(annotated_images(folder), key=lambda image: -last_change(folder, image))


def _interactive_image(
    call: ApiRequest, record: ImageRecord, with_encoder: bool
) -> InteractiveImage:
    size, image = call.dataset.size_of(record), file_key(record.path)
    recipe = quick_recipe(size.mpp, with_encoder)

    def open_cached() -> tuple[InteractiveImage, int]:
        source = call.context.tiles.open(replace(record, mpp=size.user_mpp))
        return InteractiveImage(source, recipe, image), source.memory_bytes

    return call.context.interactive_images.get((repr(image), size, with_encoder), open_cached)


_DATA = "/api/data/{data}"
_IMAGE = f"{_DATA}/images/{{image}}"
_UPLOAD = endpoint(upload, max_bytes=_MAX_BYTES, is_json=False)
ROUTES = [
    Route(f"{_DATA}/drawn", endpoint(list_all)),
    Route(f"{_DATA}/classes", endpoint(classes), methods=["POST"]),
    Route(f"{_IMAGE}/drawn", endpoint(show_annotations)),
    Route(f"{_IMAGE}/drawn", endpoint(change, max_bytes=_STROKE_BYTES), methods=["POST"]),
    Route(f"{_IMAGE}/drawn.geojson", endpoint(download)),
    Route(f"{_IMAGE}/drawn/file", _UPLOAD, methods=["POST"]),
    Route(f"{_IMAGE}/quick", endpoint(quick), methods=["POST"]),
]


_MAX_COMPARED = 300  # images to compare; evenly spaced ones of a larger set
_N_IMAGES = 6
_N_REGIONS = 3
_N_NEXT = 8  # images to predict next
_CACHE_BYTES = 14 * 8 + 300

Item = TypeVar("Item")


def images(call: ApiRequest) -> dict[str, Any]:
    """Suggest predicted images to label next, and further images to predict next."""
    labelled = _labelled(call)
    unlabelled = {
        image_id: r for image_id, r in call.dataset.listing.by_id.items() if r.path not in labelled
    }
    sampled = _evenly_spaced(list(unlabelled), _MAX_COMPARED)
    descriptor_of = {
        image_id: descriptor
        for image_id in sampled
        if (descriptor := _cached_descriptor(call, unlabelled[image_id])) is not None
    }
    ids, n_unread = list(descriptor_of), len(sampled) - len(descriptor_of)
    counts: dict[str, Any] = {
        "of": len(unlabelled),
        "compared": len(ids),
        "unread": n_unread,
        "judged": 0,
    }
    if not ids:
        return counts | {"next": [], "suggested": []}
    descriptors = np.stack(list(descriptor_of.values()))
    known = _labelled_descriptors(call, list(labelled.values()), descriptors.shape[1])
    margins = [_margin(call, unlabelled[image_id]) for image_id in ids]
    predicted = [index for index, item in enumerate(margins) if item is not None]
    unpredicted = [index for index, item in enumerate(margins) if item is None]
    to_predict = (
        suggest(np.zeros(len(unpredicted)), descriptors[unpredicted], known, _N_NEXT)
        if unpredicted
        else []
    )
    suggestions = suggest(
        np.array([margins[index] for index in predicted], float),
        descriptors[predicted],
        known,
        _N_IMAGES,
    )
    names = call.dataset.listing.names
    return counts | {
        "judged": len(predicted),
        "next": [ids[unpredicted[item.position]] for item in to_predict],
        "suggested": [
            {
                "image": (image := ids[predicted[item.position]]),
                "name": names[image],
                "doubt": item.uncertainty,
                "novelty": item.novelty,
            }
            for item in suggestions
        ],
    }


def _labelled(call: ApiRequest) -> dict[Any, ImageRecord]:
    """Return training, test, corrected and annotated images as a dictionary by path."""
    records, folder = call.dataset.listing.by_id, call.dataset.folder
    annotated = [c["image"] for c in call.dataset.corrections()]
    annotated += [
        image for image in annotated_images(folder) if AnnotationStore.read(folder, image).shapes
    ]
    labelled = [records[image] for image in annotated if image in records]
    if call.job.summary["kind"] != IMPORTED and call.job.summary["data"] == call.dataset.id:
        learn, test = call.training_and_test_images()
        inside = {record.path for record in records.values()}  # crops are not images of the set
        labelled += [r for r in (*learn.records, *test.records) if r.path in inside]
    return {record.path: record for record in labelled}


def _evenly_spaced(items: list[Item], n_max: int) -> list[Item]:
    """Return at most `n_max` evenly spaced items."""
    if len(items) <= n_max:
        return items
    return [items[index] for index in np.linspace(0, len(items) - 1, n_max).astype(int)]


def _labelled_descriptors(
    call: ApiRequest, labelled: list[ImageRecord], n_features: int
) -> NDArray[np.float64]:
    """Return the descriptors of at most `_MAX_COMPARED` labelled images: (n, n_features)."""
    descriptors = [
        _cached_descriptor(call, record) for record in _evenly_spaced(labelled, _MAX_COMPARED)
    ]
    return np.array([each for each in descriptors if each is not None]).reshape(-1, n_features)


def _cached_descriptor(call: ApiRequest, record: ImageRecord) -> NDArray[np.float64] | None:
    """Return the colour descriptor of an image; None if it cannot be read."""
    context = call.context

    def compute() -> tuple[NDArray[np.float64], int]:
        with Image.open(context.tiles.thumbnail(record)) as thumbnail:
            return colour_descriptor(np.asarray(thumbnail.convert("RGB"))), _CACHE_BYTES

    try:
        record = context.sources.check(record)
        return context.suggestion_cache.get((repr(file_key(record.path)),), compute)
    except (ValueError, OSError, MemoryError):
        return None


def _margin(call: ApiRequest, record: ImageRecord) -> float | None:
    """Return the margin of an image's prediction; None without prediction or tissue."""
    prediction = load_prediction(call.job.folder / "maps", record, call.dataset.about.mpp)
    return None if prediction is None else normalized_margin(prediction)


def fields(call: ApiRequest) -> DeferredWork:
    """Suggest regions of an image to label next."""
    dataset, image = call.dataset, str(call.parts["image"])
    labelled_boxes: Sequence[Any] = [
        tuple(c["box"]) for c in dataset.corrections() if c["image"] == image and c["box"]
    ]

    def compute_suggestions() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        suggestions = suggest_regions(
            displayed_map(call), source, list(labelled_boxes), _N_REGIONS, shapes
        )
        return {
            "fields": [
                {"box": box, "doubt": suggestion.uncertainty, "novelty": suggestion.novelty}
                for box, suggestion in suggestions
            ]
        }

    return DeferredWork(EXPLANATIONS, compute_suggestions, call.record.path)


SUGGEST_ROUTES = [
    Route("/api/jobs/{job}/suggest/{data}", endpoint(images, DOWNLOADS)),
    Route("/api/jobs/{job}/look/{data}/{image}/fields", endpoint(fields)),
]
