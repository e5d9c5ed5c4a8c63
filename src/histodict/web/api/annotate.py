"""Drawing on images: classes, strokes and the way back, files in and out, the quick answer.

Which image, or which part of one, to label next.
"""

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

_MAX_BYTES = 16 * 2**20  # of a file of outlines
_STROKE_BYTES = 2**20  # of a stroke: 20,000 points take less than half of it
_SECONDS = 0.6  # for numbers that are not there yet; what is not done then comes with the next call
_FARTHEST = 1e9  # pixels
_MAX_OTHERS = 8  # images beside the one that is looked at, from which the quick answer learns


# --- shapes ---------------------------------------------------------------------------------------


def list_all(call: ApiRequest) -> dict[str, Any]:
    """Classes, and every shape of the set without its corners."""
    dataset = call.dataset
    names = dataset.listing.names
    images = [
        {
            "image": image,
            "name": names[image],
            "shapes": _listed(AnnotationStore.read(dataset.folder, image)),
        }
        for image in annotated_images(dataset.folder)
        if image in names
    ]
    return _classes(read_classes(dataset.folder)) | {
        "images": [entry for entry in images if entry["shapes"]],
        "drawn": annotation_summary(dataset) if not dataset.is_labelled else None,
    }


def _listed(sheet: AnnotationStore) -> list[dict[str, Any]]:
    """With the box that each lies in."""
    return [_in_list(shape) for shape in map(dict, sheet.shapes)]


def _in_list(shape: dict[str, Any]) -> dict[str, Any]:
    corners = [corner for rings in shape.pop("polygons") for corner in rings[0]]
    x, y = zip(*corners, strict=True)
    return shape | {"box": [min(x), min(y), max(x), max(y)]}


def _classes(classes: list[AnnotationClass]) -> dict[str, Any]:
    return {"classes": [asdict(one) for one in classes]}


def show_sheet(call: ApiRequest) -> dict[str, Any]:
    return _describe(call, AnnotationStore.read(call.dataset.folder, _image(call)))


def _image(call: ApiRequest) -> str:
    """The id of an image that is in the set."""
    assert call.record
    return str(call.parts["image"])


def _describe(call: ApiRequest, sheet: AnnotationStore) -> dict[str, Any]:
    return _classes(read_classes(call.dataset.folder)) | {
        "shapes": sheet.shapes,
        "undo": len(sheet.done),
        "redo": len(sheet.undone),
    }


def change(call: ApiRequest, *, act: str) -> dict[str, Any] | DeferredWork:
    """A stroke, or something done to a shape; the answer is all that is drawn then."""
    _check_bare(call)
    check_choice("act", act, ACTS)
    return ACTS[act](call)


def _check_bare(call: ApiRequest) -> None:
    """Of images with labels a training would not look at shapes: better say so than be silent."""
    if call.dataset.is_labelled:
        raise ValueError(
            "these images have labels or masks, and are learnt from by these: open them to be "
            "drawn on, which leaves that aside"
        )


def _draw(call: ApiRequest) -> DeferredWork:
    stroke, label = BrushStroke.of(call.body), call.body.get("label")

    def drawn() -> dict[str, Any]:
        size = call.context.tiles.open(call.record).size
        return _describe(call, draw(call.dataset, _image(call), size, stroke, label))

    return DeferredWork(IMAGES, drawn, call.record.path)


def _of_shape(
    work: Callable[..., AnnotationStore], *names: str
) -> Callable[[ApiRequest], dict[str, Any]]:
    def act(call: ApiRequest) -> dict[str, Any]:
        given = [call.body.get(name) for name in names]
        return _describe(call, work(call.dataset, _image(call), *given))

    return act


ACTS: dict[str, Callable[[ApiRequest], dict[str, Any] | DeferredWork]] = {
    "draw": _draw,
    "relabel": _of_shape(relabel, "id", "label"),
    "remove": _of_shape(remove, "id"),
    "undo": _of_shape(undo),
    "redo": _of_shape(redo),
}


def classes(call: ApiRequest) -> dict[str, Any]:
    _check_bare(call)
    return _classes(change_classes(call.dataset, call.body))


# --- files ----------------------------------------------------------------------------------------


def upload(call: ApiRequest, *, name: str = "") -> DeferredWork:
    """Outlines from a file, onto an image; nothing of the file itself is kept."""
    _check_bare(call)

    def brought() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        found = _imported(call, name, source)
        sheet = import_annotations(call.dataset, _image(call), source.size, found)
        return _describe(call, sheet) | {"notes": found.notes}

    return DeferredWork(IMAGES, brought, call.record.path)


def _imported(call: ApiRequest, name: str, source: ImageSource) -> ImportedAnnotations:
    try:
        return ImportedAnnotations.read(name, call.sent, source)
    except ValueError as error:  # the page knows the image by its name
        raise ValueError(str(error).replace(str(source.path), call.record.path.name)) from error


def download(call: ApiRequest) -> Response:
    """Called like the image, as `--annotations` wants it."""
    folder = call.dataset.folder
    data = geojson(AnnotationStore.read(folder, _image(call)).shapes, read_classes(folder))
    name = f"{Path(call.record.path.name).stem}.geojson"
    return download_as(name, "application/geo+json", data)


# --- the quick answer -----------------------------------------------------------------------------


def quick(call: ApiRequest, *, box: list[float]) -> DeferredWork:
    """What is on the screen, from what was drawn so far."""
    if len(box) != 4 or not all(abs(x) < _FARTHEST for x in box):
        raise ValueError("box must be four numbers: left, top, right, bottom")
    left, top, right, bottom = map(float, box)

    def answered() -> dict[str, Any]:
        begun = time.monotonic()
        network = uses_encoder()
        screen = _screen(call, (left, top, right, bottom), network, begun + _SECONDS)
        found = predict_viewport(screen, call.context.numbers)
        taken = round(time.monotonic() - begun, 3)
        return found | {"by_network": network, "seconds": taken}

    # Not as one of those that read this image: its tiles would wait for it.
    return DeferredWork(LIVE, answered)


def _screen(call: ApiRequest, box: Box, network: bool, until: float) -> Viewport:
    dataset, own = call.dataset, _image(call)
    sight = _interactive_image(call, call.record, network)
    others = [i for i in _newest(dataset.folder) if i != own and i in dataset.listing.by_id]
    drawn = [AnnotatedImage(sight, AnnotationStore.read(dataset.folder, own).shapes)]
    for image in others[:_MAX_OTHERS]:
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        if shapes:
            drawn.append(
                AnnotatedImage(_interactive_image(call, dataset.image(image), network), shapes)
            )
    return Viewport(sight, box, drawn, read_classes(dataset.folder), until)


def _newest(folder: Path) -> list[str]:
    """Images by when something was drawn on them last."""
    return sorted(annotated_images(folder), key=lambda image: -last_change(folder, image))


def _interactive_image(call: ApiRequest, record: ImageRecord, network: bool) -> InteractiveImage:
    size, image = call.dataset.size_of(record), file_key(record.path)
    recipe = quick_recipe(size.mpp, network)

    def opened() -> tuple[InteractiveImage, int]:
        source = call.context.tiles.open(replace(record, mpp=size.is_user_given))
        return InteractiveImage(source, recipe, image), source.memory_bytes

    return call.context.interactive_images.get((repr(image), size, network), opened)


_DATA = "/api/data/{data}"
_IMAGE = f"{_DATA}/images/{{image}}"
_UPLOAD = endpoint(upload, most_bytes=_MAX_BYTES, is_json=False)
ROUTES = [
    Route(f"{_DATA}/drawn", endpoint(list_all)),
    Route(f"{_DATA}/classes", endpoint(classes), methods=["POST"]),
    Route(f"{_IMAGE}/drawn", endpoint(show_sheet)),
    Route(f"{_IMAGE}/drawn", endpoint(change, most_bytes=_STROKE_BYTES), methods=["POST"]),
    Route(f"{_IMAGE}/drawn.geojson", endpoint(download)),
    Route(f"{_IMAGE}/drawn/file", _UPLOAD, methods=["POST"]),
    Route(f"{_IMAGE}/quick", endpoint(quick), methods=["POST"]),
]


_MAX = 300  # images that are compared; of more, so many from all over the set
_N_IMAGES = 6
_N_FIELDS = 3
_N_NEXT = 8  # images whose answers are asked for next
_CACHE_BYTES = 14 * 8 + 300

Item = TypeVar("Item")


def images(call: ApiRequest) -> dict[str, Any]:
    """Images to label next, of those that the model has judged; and which it should judge next."""
    known = _labelled(call)
    found = {i: r for i, r in call.dataset.listing.by_id.items() if r.path not in known}
    asked = _spread(list(found), _MAX)
    seen = {i: look for i in asked if (look := _cached_predictions(call, found[i])) is not None}
    ids, n_unread = list(seen), len(asked) - len(seen)
    told: dict[str, Any] = {"of": len(found), "compared": len(ids), "unread": n_unread, "judged": 0}
    if not ids:
        return told | {"next": [], "suggested": []}
    learnt = [_cached_predictions(call, record) for record in _spread(list(known.values()), _MAX)]
    looks = np.stack(list(seen.values()))
    past = np.array([look for look in learnt if look is not None]).reshape(-1, looks.shape[1])
    leads = [_margin(call, found[i]) for i in ids]
    judged = [place for place, one in enumerate(leads) if one is not None]
    open_ = [place for place, one in enumerate(leads) if one is None]
    first = suggest(np.zeros(len(open_)), looks[open_], past, _N_NEXT) if open_ else []
    best = suggest(
        np.array([leads[place] for place in judged], float), looks[judged], past, _N_IMAGES
    )
    names = call.dataset.listing.names
    return told | {
        "judged": len(judged),
        "next": [ids[open_[one.position]] for one in first],
        "suggested": [
            {
                "image": (image := ids[judged[one.position]]),
                "name": names[image],
                "doubt": one.uncertainty,
                "novelty": one.novelty,
            }
            for one in best
        ],
    }


def _labelled(call: ApiRequest) -> dict[Any, ImageRecord]:
    """By path, the images that the model was taught or tested with, or on which the user has said
    what is what: by a label, a rectangle or a stroke.
    """
    records, folder = call.dataset.listing.by_id, call.dataset.folder
    said = [c["image"] for c in call.dataset.corrections()]
    said += [
        image for image in annotated_images(folder) if AnnotationStore.read(folder, image).shapes
    ]
    known = [records[image] for image in said if image in records]
    if call.job.summary["kind"] != IMPORTED and call.job.summary["data"] == call.dataset.id:
        learn, test = call.learn_and_test()
        inside = {record.path for record in records.values()}  # a cut-out is no image of the set
        known += [r for r in (*learn.records, *test.records) if r.path in inside]
    return {record.path: record for record in known}


def _spread(items: list[Item], most: int) -> list[Item]:
    """At most so many of them, from all over."""
    if len(items) <= most:
        return items
    return [items[place] for place in np.linspace(0, len(items) - 1, most).astype(int)]


def _cached_predictions(call: ApiRequest, record: ImageRecord) -> NDArray[np.float64] | None:
    """None: the image cannot be read; the others can."""
    context = call.context

    def seen() -> tuple[NDArray[np.float64], int]:
        with Image.open(context.tiles.thumbnail(record)) as picture:
            return colour_descriptor(np.asarray(picture.convert("RGB"))), _CACHE_BYTES

    try:
        record = context.sources.check(record)
        return context.suggestion_cache.get((repr(file_key(record.path)),), seen)
    except (ValueError, OSError, MemoryError):
        return None


def _margin(call: ApiRequest, record: ImageRecord) -> float | None:
    """None: the model has not judged it, or there is no tissue."""
    facts = load_prediction(call.job.folder / "maps", record, call.dataset.about.mpp)
    return None if facts is None else normalized_margin(facts)


def fields(call: ApiRequest) -> DeferredWork:
    """Parts of an image to label next."""
    dataset, image = call.dataset, str(call.parts["image"])
    marked: Sequence[Any] = [
        tuple(c["box"]) for c in dataset.corrections() if c["image"] == image and c["box"]
    ]

    def found() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        drawn = AnnotationStore.read(dataset.folder, image).shapes
        best = suggest_regions(displayed_map(call), source, list(marked), _N_FIELDS, drawn)
        return {
            "fields": [
                {"box": box, "doubt": one.uncertainty, "novelty": one.novelty} for box, one in best
            ]
        }

    return DeferredWork(EXPLANATIONS, found, call.record.path)


SUGGEST_ROUTES = [
    Route("/api/jobs/{job}/suggest/{data}", endpoint(images, DOWNLOADS)),
    Route("/api/jobs/{job}/look/{data}/{image}/fields", endpoint(fields)),
]
