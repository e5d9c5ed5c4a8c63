"""What a user does on an image: paint, rub out, relabel, remove, take back, bring in from a file.

What is painted last counts: it takes away from shapes of other classes that lie below it, so that
no patch is learnt from as two classes. What comes from a file is taken as it is.

Images to learn from by what was drawn on them alone, as `train --annotations` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...annotations.annotation_file import AnnotationFile
from ...annotations.outlines import IGNORED
from ...datasets.annotated import split_by_annotation
from ...datasets.manifest import ImageRecord, Manifest
from ...utils.text_io import pluralize
from ..datasets import Dataset
from ..workspace import new_id
from .store import (
    AnnotationClass,
    AnnotationStore,
    ImportedAnnotations,
    Polygon,
    Shape,
    Size,
    annotated_images,
    area,
    buffer_path,
    changed_class,
    class_colours,
    class_named,
    geojson,
    is_called,
    polygonize,
    polygons_of,
    read_classes,
    snapshot_annotations,
    subtract,
    with_class,
)
from .store import write_classes as _write_classes

_CHANGING = threading.Lock()  # one change after another
_MAX_POINTS = 20_000  # the page thins what a hand has drawn to a tenth of it
_FARTHEST = 1e7  # pixels


@dataclass(frozen=True)
class BrushStroke:
    """A tool, the path of the hand (n, 2) in level-0 pixels, and how wide it is, if it is."""

    tool: str
    path: NDArray[np.float64]
    radius: float

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> BrushStroke:
        """From a request; refuses what nobody can draw."""
        tool, points = body.get("tool"), body.get("points")
        if not isinstance(tool, str) or tool not in TOOLS:
            raise ValueError(f"a tool is one of {', '.join(sorted(TOOLS))}")
        if not isinstance(points, list) or not 0 < len(points) <= _MAX_POINTS:
            raise ValueError(f"a stroke has from 1 to {_MAX_POINTS} points")
        if not all(isinstance(p, list) and len(p) == 2 and all(map(_finite, p)) for p in points):
            raise ValueError("a point is two numbers, x and y")
        radius = body.get("radius", 1.0)
        if not _finite(radius) or not 0.5 <= radius <= 1e5:
            raise ValueError("a radius is a number of pixels from 0.5 to 100000")
        return cls(str(tool), np.array(points, float), float(radius))

    def polygons(self, size: Size) -> list[Polygon]:
        return TOOLS[self.tool](self, size)


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _FARTHEST


def _brushed(stroke: BrushStroke, size: Size) -> list[Polygon]:
    return buffer_path(stroke.path, stroke.radius, size)


def _enclosed(stroke: BrushStroke, size: Size) -> list[Polygon]:
    return polygonize([stroke.path], size)


def _box(stroke: BrushStroke, size: Size) -> list[Polygon]:
    (left, top), (right, bottom) = stroke.path.min(axis=0), stroke.path.max(axis=0)
    corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
    return polygonize([np.array(corners)], size)


ERASER = "eraser"
# What each makes of a stroke; a patch is marked in the panel that explains it.
TOOLS: dict[str, Callable[[BrushStroke, Size], list[Polygon]]] = {
    "brush": _brushed,
    ERASER: _brushed,
    "polygon": _enclosed,
    "rectangle": _box,
    "patch": _box,
}


def shape_of(label: str, tool: str, polygons: Sequence[Polygon]) -> Shape:
    corners = [[ring.tolist() for ring in rings] for rings in polygons]
    return Shape(id=new_id(), label=label, tool=tool, area=area(polygons), polygons=corners)


# --- on an image ---------------------------------------------------------------------------------


def draw(
    dataset: Dataset, image: str, size: Size, stroke: BrushStroke, label: object
) -> AnnotationStore:
    """Paint or, with the eraser, take away from whatever lies below."""
    polygons = stroke.polygons(size)
    if not polygons:
        raise ValueError("nothing of this lies on the image, or it has no area: draw it larger")

    def change(sheet: AnnotationStore) -> AnnotationStore:
        erases = stroke.tool == ERASER
        own = None if erases else class_named(read_classes(dataset.folder), label).id
        below = [s for s in sheet.shapes if s["label"] != own]
        removed, added = _cut(below, polygons)
        if not erases:
            added.append(shape_of(str(own), stroke.tool, polygons))
        elif not removed:
            raise ValueError("there is nothing to rub out here")
        return sheet.changed(removed, added)

    return _changed(dataset, image, change)


def _cut(shapes: Sequence[Shape], taken: Sequence[Polygon]) -> tuple[list[Shape], list[Shape]]:
    """The shapes that something is taken from, and what is left of them."""
    removed, added = [], []
    for shape in shapes:
        left = subtract(polygons_of(shape), taken)
        if left is None:
            continue
        removed.append(shape)
        if left:
            added.append(shape_of(shape["label"], shape["tool"], left))
    return removed, added


def relabel(dataset: Dataset, image: str, shape_id: object, label: object) -> AnnotationStore:
    def change(sheet: AnnotationStore) -> AnnotationStore:
        old = sheet.find(shape_id)
        own = class_named(read_classes(dataset.folder), label).id
        new = old.copy()
        new["id"], new["label"] = new_id(), own
        return sheet.changed([old], [new])

    return _changed(dataset, image, change)


def remove(dataset: Dataset, image: str, shape_id: object) -> AnnotationStore:
    return _changed(dataset, image, lambda sheet: sheet.changed([sheet.find(shape_id)], []))


def undo(dataset: Dataset, image: str) -> AnnotationStore:
    return _changed(dataset, image, AnnotationStore.undo)


def redo(dataset: Dataset, image: str) -> AnnotationStore:
    return _changed(dataset, image, AnnotationStore.redo)


def import_annotations(
    dataset: Dataset, image: str, size: Size, brought: ImportedAnnotations
) -> AnnotationStore:
    """What a file holds; classes that are not there yet are made, in its colours."""
    with _CHANGING:
        classes = read_classes(dataset.folder)
        for name in brought.names:
            if not any(is_called(one, name) for one in classes):
                classes = with_class(classes, name, brought.colours.get(name))
        ids = {name: next(c.id for c in classes if is_called(c, name)) for name in brought.names}
        shapes = [shape_of(ids[name], "file", polygons) for name, polygons in brought.shapes(size)]
        if not shapes:
            raise ValueError("the file holds no outline that has an area on this image")
        sheet = AnnotationStore.read(dataset.folder, image).changed([], shapes)
        _write_classes(dataset.folder, classes)  # first: shapes name them
        sheet.write(dataset.folder, image)
    return sheet


def _changed(
    dataset: Dataset, image: str, change: Callable[[AnnotationStore], AnnotationStore]
) -> AnnotationStore:
    with _CHANGING:
        sheet = change(AnnotationStore.read(dataset.folder, image))
        sheet.write(dataset.folder, image)
    return sheet


# --- classes -------------------------------------------------------------------------------------


def change_classes(dataset: Dataset, body: Mapping[str, Any]) -> list[AnnotationClass]:
    """A new class, another name or colour of one, or one less; of which nothing may be drawn."""
    with _CHANGING:
        classes, own = read_classes(dataset.folder), body.get("id")
        if own is None:
            classes = with_class(classes, body.get("name"), body.get("colour"))
        elif body.get("remove") is True:
            classes = _less(dataset, classes, class_named(classes, own))
        else:
            classes = changed_class(classes, own, body)
        _write_classes(dataset.folder, classes)
    return classes


def _less(
    dataset: Dataset, classes: Sequence[AnnotationClass], gone: AnnotationClass
) -> list[AnnotationClass]:
    images = annotated_images(dataset.folder)
    sheets = {image: AnnotationStore.read(dataset.folder, image) for image in images}
    n_shapes = sum(shape["label"] == gone.id for own in sheets.values() for shape in own.shapes)
    if n_shapes:
        raise ValueError(f"{pluralize(n_shapes, 'shape')} of {gone.name!r}: remove these first")
    for image, sheet in sheets.items():
        if gone.id in sheet.labels:
            _forget(dataset, image, sheet)
    return [one for one in classes if one is not gone]


def _forget(dataset: Dataset, image: str, sheet: AnnotationStore) -> None:
    """The way back leads through a class that is no more: it is given up."""
    AnnotationStore(sheet.shapes, [], []).write(dataset.folder, image)


TOO_FEW = (
    "nothing to learn from yet: draw something of two classes at least, such as the tissue you "
    "look for and any other"
)


def known_labels_manifest(dataset: Dataset) -> Manifest:
    """The images with the classes they are known by: their own labels or, where they have none,
    one record for every class that is drawn on one.
    """
    if dataset.is_labelled:
        return dataset.manifest
    names = {one.id: one.name for one in read_classes(dataset.folder)}
    records = []
    for image, record in _annotated(dataset):
        there = {shape["label"] for shape in AnnotationStore.read(dataset.folder, image).shapes}
        records += [replace(record, label=names[own]) for own in names if own in there]
    kept = tuple(record for record in records if record.label != IGNORED)
    return replace(dataset.manifest, records=kept)


def annotated_manifest(dataset: Dataset) -> Manifest:
    """The parts of images that are drawn as each class, in files that stay as they are."""
    classes = read_classes(dataset.folder)
    records = []
    for image, record in _annotated(dataset):
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        if shapes:
            path = snapshot_annotations(dataset.folder, image, geojson(shapes, classes))
            records.append(replace(record, annotations=AnnotationFile(path)))
    names = known_labels_manifest(dataset).classes
    if len(names) < 2:
        raise ValueError(TOO_FEW)
    return split_by_annotation(replace(dataset.manifest, records=tuple(records)), names)


def n_shapes(dataset: Dataset) -> int:
    return sum(
        len(AnnotationStore.read(dataset.folder, image).shapes) for image, _ in _annotated(dataset)
    )


def annotation_summary(dataset: Dataset) -> dict[str, Any]:
    """What the page says of them before anybody trains."""
    known = known_labels_manifest(dataset)
    return {
        "classes": known.classes,
        "patients": sorted(set(known.patients)),
        "n_images": known.n_images,
        "colours": class_colours(dataset.folder),
    }


def _annotated(dataset: Dataset) -> list[tuple[str, ImageRecord]]:
    """Images that are still there, by id; their true place is checked."""
    known = dataset.listing.by_id
    return [(i, dataset.image(i)) for i in annotated_images(dataset.folder) if i in known]
