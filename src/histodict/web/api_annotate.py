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
from ..images.manifest import Record
from ..images.readers import ImageSource
from ..parameters import check_choice
from .api_model import download as download_as
from .calls import LIVE, PICTURES, Call, Later, endpoint
from .drawing_acts import Stroke, bring_in, change_classes, draw, redo, relabel, remove, undo
from .drawn_files import Brought, geojson
from .drawn_sets import drawn_facts
from .live import Box, Drawn, Screen, Sight, by_network, quick_answer, quick_recipe
from .sheets import DrawnClass, Sheet, images_with_sheets, last_change, read_classes

_MOST_BYTES = 16 * 2**20  # of a file of outlines
_STROKE_BYTES = 2**20  # of a stroke: 20,000 points take less than half of it
_SECONDS = 0.6  # for numbers that are not there yet; what is not done then comes with the next call
_FARTHEST = 1e9  # pixels
_MOST_OTHERS = 8  # images beside the one that is looked at, from which the quick answer learns


# --- shapes --------------------------------------------------------------------------------------


def list_all(call: Call) -> dict[str, Any]:
    """Classes, and every shape of the set without its corners."""
    dataset = call.dataset
    names = dataset.listing.names
    images = [
        {"image": image, "name": names[image], "shapes": _listed(Sheet.read(dataset.folder, image))}
        for image in images_with_sheets(dataset.folder)
        if image in names
    ]
    return _classes(read_classes(dataset.folder)) | {
        "images": [entry for entry in images if entry["shapes"]],
        "drawn": drawn_facts(dataset) if not dataset.is_labelled else None,
    }


def _listed(sheet: Sheet) -> list[dict[str, Any]]:
    """With the box that each lies in."""
    return [_in_list(shape) for shape in map(dict, sheet.shapes)]


def _in_list(shape: dict[str, Any]) -> dict[str, Any]:
    corners = [corner for rings in shape.pop("polygons") for corner in rings[0]]
    x, y = zip(*corners, strict=True)
    return shape | {"box": [min(x), min(y), max(x), max(y)]}


def _classes(classes: list[DrawnClass]) -> dict[str, Any]:
    return {"classes": [asdict(one) for one in classes]}


def show(call: Call) -> dict[str, Any]:
    return _told(call, Sheet.read(call.dataset.folder, _image(call)))


def _image(call: Call) -> str:
    """The id of an image that is in the set."""
    assert call.record
    return str(call.parts["image"])


def _told(call: Call, sheet: Sheet) -> dict[str, Any]:
    return _classes(read_classes(call.dataset.folder)) | {
        "shapes": sheet.shapes,
        "undo": len(sheet.done),
        "redo": len(sheet.undone),
    }


def change(call: Call, *, act: str) -> dict[str, Any] | Later:
    """A stroke, or something done to a shape; the answer is all that is drawn then."""
    _check_bare(call)
    check_choice("act", act, ACTS)
    return ACTS[act](call)


def _check_bare(call: Call) -> None:
    """Of images with labels a training would not look at shapes: better say so than be silent."""
    if call.dataset.is_labelled:
        raise ValueError(
            "these images have labels or masks, and are learnt from by these: open them to be "
            "drawn on, which leaves that aside"
        )


def _draw(call: Call) -> Later:
    stroke, label = Stroke.of(call.body), call.body.get("label")

    def drawn() -> dict[str, Any]:
        size = call.context.tiles.open(call.record).size
        return _told(call, draw(call.dataset, _image(call), size, stroke, label))

    return Later(PICTURES, drawn, call.record.path)


def _of_shape(work: Callable[..., Sheet], *names: str) -> Callable[[Call], dict[str, Any]]:
    def act(call: Call) -> dict[str, Any]:
        given = [call.body.get(name) for name in names]
        return _told(call, work(call.dataset, _image(call), *given))

    return act


ACTS: dict[str, Callable[[Call], dict[str, Any] | Later]] = {
    "draw": _draw,
    "relabel": _of_shape(relabel, "id", "label"),
    "remove": _of_shape(remove, "id"),
    "undo": _of_shape(undo),
    "redo": _of_shape(redo),
}


def classes(call: Call) -> dict[str, Any]:
    _check_bare(call)
    return _classes(change_classes(call.dataset, call.body))


# --- files ---------------------------------------------------------------------------------------


def upload(call: Call, *, name: str = "") -> Later:
    """Outlines from a file, onto an image; nothing of the file itself is kept."""
    _check_bare(call)

    def brought() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        found = _brought(call, name, source)
        sheet = bring_in(call.dataset, _image(call), source.size, found)
        return _told(call, sheet) | {"notes": found.notes}

    return Later(PICTURES, brought, call.record.path)


def _brought(call: Call, name: str, source: ImageSource) -> Brought:
    try:
        return Brought.read(name, call.sent, source)
    except ValueError as error:  # the page knows the image by its name
        raise ValueError(str(error).replace(str(source.path), call.record.path.name)) from error


def download(call: Call) -> Response:
    """Called like the image, as `--annotations` wants it."""
    folder = call.dataset.folder
    data = geojson(Sheet.read(folder, _image(call)).shapes, read_classes(folder))
    name = f"{Path(call.record.path.name).stem}.geojson"
    return download_as(name, "application/geo+json", data)


# --- the quick answer ----------------------------------------------------------------------------


def quick(call: Call, *, box: list[float]) -> Later:
    """What is on the screen, from what was drawn so far."""
    if len(box) != 4 or not all(abs(x) < _FARTHEST for x in box):
        raise ValueError("box must be four numbers: left, top, right, bottom")
    left, top, right, bottom = map(float, box)

    def answered() -> dict[str, Any]:
        begun = time.monotonic()
        network = by_network()
        screen = _screen(call, (left, top, right, bottom), network, begun + _SECONDS)
        found = quick_answer(screen, call.context.numbers)
        taken = round(time.monotonic() - begun, 3)
        return found | {"by_network": network, "seconds": taken}

    # Not as one of those that read this image: its tiles would wait for it.
    return Later(LIVE, answered)


def _screen(call: Call, box: Box, network: bool, until: float) -> Screen:
    dataset, own = call.dataset, _image(call)
    sight = _sight(call, call.record, network)
    others = [i for i in _newest(dataset.folder) if i != own and i in dataset.listing.by_id]
    drawn = [Drawn(sight, Sheet.read(dataset.folder, own).shapes)]
    for image in others[:_MOST_OTHERS]:
        shapes = Sheet.read(dataset.folder, image).shapes
        if shapes:
            drawn.append(Drawn(_sight(call, dataset.image(image), network), shapes))
    return Screen(sight, box, drawn, read_classes(dataset.folder), until)


def _newest(folder: Path) -> list[str]:
    """Images by when something was drawn on them last."""
    return sorted(images_with_sheets(folder), key=lambda image: -last_change(folder, image))


def _sight(call: Call, record: Record, network: bool) -> Sight:
    size, image = call.dataset.size_of(record), file_key(record.path)
    recipe = quick_recipe(size.mpp, network)

    def opened() -> tuple[Sight, int]:
        source = call.context.tiles.open(replace(record, mpp=size.from_outside))
        return Sight(source, recipe, image), source.held_bytes

    return call.context.sights.get((repr(image), size, network), opened)


_DATA = "/api/data/{data}"
_IMAGE = f"{_DATA}/images/{{image}}"
_UPLOAD = endpoint(upload, most_bytes=_MOST_BYTES, is_json=False)
ROUTES = [
    Route(f"{_DATA}/drawn", endpoint(list_all)),
    Route(f"{_DATA}/classes", endpoint(classes), methods=["POST"]),
    Route(f"{_IMAGE}/drawn", endpoint(show)),
    Route(f"{_IMAGE}/drawn", endpoint(change, most_bytes=_STROKE_BYTES), methods=["POST"]),
    Route(f"{_IMAGE}/drawn.geojson", endpoint(download)),
    Route(f"{_IMAGE}/drawn/file", _UPLOAD, methods=["POST"]),
    Route(f"{_IMAGE}/quick", endpoint(quick), methods=["POST"]),
]
