"""Drawing on images: classes, strokes and the way back, files in and out, the quick answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from ..execution.files import file_key
from ..images.manifest import ImageRecord
from ..images.readers import ImageSource
from ..parameters import check_choice
from .api_model import download as download_as
from .calls import IMAGES, LIVE, ApiRequest, DeferredWork, endpoint
from .drawing_acts import (
    BrushStroke,
    change_classes,
    draw,
    import_annotations,
    redo,
    relabel,
    remove,
    undo,
)
from .drawn_files import ImportedAnnotations, geojson
from .drawn_sets import annotation_summary
from .live import (
    AnnotatedImage,
    Box,
    InteractiveImage,
    Viewport,
    predict_viewport,
    quick_recipe,
    uses_encoder,
)
from .sheets import AnnotationClass, AnnotationStore, annotated_images, last_change, read_classes

_MAX_BYTES = 16 * 2**20  # of a file of outlines
_STROKE_BYTES = 2**20  # of a stroke: 20,000 points take less than half of it
_SECONDS = 0.6  # for numbers that are not there yet; what is not done then comes with the next call
_FARTHEST = 1e9  # pixels
_MAX_OTHERS = 8  # images beside the one that is looked at, from which the quick answer learns


# --- shapes --------------------------------------------------------------------------------------


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


# --- files ---------------------------------------------------------------------------------------


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


# --- the quick answer ----------------------------------------------------------------------------


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
