"""Edits of an image's annotations and of annotation classes, and manifests of annotated images.

A new shape is subtracted from shapes of other classes that it overlaps, so that no patch has two
classes. Shapes of imported files are added as they are.

Annotated images are used for training by their annotations alone, as with `train --annotations`.
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
from ..schema import Json
from ..workspace import new_id
from .store import (
    AnnotationClass,
    AnnotationStore,
    ImportedAnnotations,
    Polygon,
    Shape,
    Size,
    add_class,
    annotated_images,
    buffer_path,
    class_colours,
    compute_area,
    find_class,
    has_name,
    polygonize,
    read_classes,
    shape_polygons,
    snapshot_annotations,
    subtract,
    to_geojson,
    update_class,
)
from .store import write_classes as _write_classes

_WRITE_LOCK = threading.Lock()  # serialises changes
_MAX_POINTS = 20_000  # of a stroke; ten times as many as the page sends
_MAX_COORDINATE = 1e7  # pixels


@dataclass(frozen=True)
class BrushStroke:
    """Stroke of a drawing tool on an image.

    Attributes
    ----------
    tool : name of the tool, a key of `TOOLS`
    path : points (n, 2) as x, y in level-0 pixels
    radius : radius of the brush in level-0 pixels; other tools ignore it
    """

    tool: str
    path: NDArray[np.float64]
    radius: float

    @classmethod
    def from_request(cls, body: Mapping[str, Any]) -> BrushStroke:
        """Return the stroke of a request body; raise ValueError if it is invalid."""
        tool, points = body.get("tool"), body.get("points")
        if not isinstance(tool, str) or tool not in TOOLS:
            raise ValueError(f"the tool must be one of {', '.join(sorted(TOOLS))}")
        if not isinstance(points, list) or not 0 < len(points) <= _MAX_POINTS:
            raise ValueError(f"a stroke must have 1 to {_MAX_POINTS} points")
        if not all(
            isinstance(p, list) and len(p) == 2 and all(map(_is_finite_number, p)) for p in points
        ):
            raise ValueError("a point must be two numbers, x and y")
        radius = body.get("radius", 1.0)
        if not _is_finite_number(radius) or not 0.5 <= radius <= 1e5:
            raise ValueError("the radius must be between 0.5 and 100000 pixels")
        return cls(str(tool), np.array(points, float), float(radius))

    def polygons(self, size: Size) -> list[Polygon]:
        """Return the polygons that the stroke covers in an image of this (width, height)."""
        return TOOLS[self.tool](self, size)


def _is_finite_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MAX_COORDINATE


def _brush_polygons(stroke: BrushStroke, size: Size) -> list[Polygon]:
    return buffer_path(stroke.path, stroke.radius, size)


def _enclosed_polygons(stroke: BrushStroke, size: Size) -> list[Polygon]:
    return polygonize([stroke.path], size)


def _box_polygons(stroke: BrushStroke, size: Size) -> list[Polygon]:
    (left, top), (right, bottom) = stroke.path.min(axis=0), stroke.path.max(axis=0)
    corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
    return polygonize([np.array(corners)], size)


ERASER = "eraser"
# Function of each tool that returns the polygons of a stroke; "patch" annotates a square patch.
TOOLS: dict[str, Callable[[BrushStroke, Size], list[Polygon]]] = {
    "brush": _brush_polygons,
    ERASER: _brush_polygons,
    "polygon": _enclosed_polygons,
    "rectangle": _box_polygons,
    "patch": _box_polygons,
}


def new_shape(label: str, tool: str, polygons: Sequence[Polygon]) -> Shape:
    """Return a shape with a new id; `label` is the id of its class, `tool` the drawing tool."""
    corners = [[ring.tolist() for ring in rings] for rings in polygons]
    return Shape(id=new_id(), label=label, tool=tool, area=compute_area(polygons), polygons=corners)


# --- edits of an image: all return its new annotations --------------------------------------------


def apply_stroke(
    dataset: Dataset, image: str, size: Size, stroke: BrushStroke, label: object
) -> AnnotationStore:
    """Apply a stroke to the annotations of an image, and return the changed annotations.

    The eraser subtracts the area of the stroke from existing shapes; other tools add a shape.

    Parameters
    ----------
    dataset : data set
    image : id of the image
    size : (width, height) of the image in pixels
    stroke : stroke of a drawing tool
    label : id of the class of the new shape; ignored with the eraser
    """
    polygons = stroke.polygons(size)
    if not polygons:
        raise ValueError("the shape lies outside the image or has no area: draw it larger")

    def change(store: AnnotationStore) -> AnnotationStore:
        erases = stroke.tool == ERASER
        class_id = None if erases else find_class(read_classes(dataset.folder), label).id
        others = [s for s in store.shapes if s["label"] != class_id]
        removed, added = _subtract(others, polygons)
        if not erases:
            added.append(new_shape(str(class_id), stroke.tool, polygons))
        elif not removed:
            raise ValueError("there is nothing to erase here")
        return store.with_change(removed, added)

    return _edit_store(dataset, image, change)


def _subtract(
    shapes: Sequence[Shape], subtracted: Sequence[Polygon]
) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes that overlap `subtracted`, and new shapes for their remaining area."""
    removed, added = [], []
    for shape in shapes:
        remainder = subtract(shape_polygons(shape), subtracted)
        if remainder is None:
            continue
        removed.append(shape)
        if remainder:
            added.append(new_shape(shape["label"], shape["tool"], remainder))
    return removed, added


def relabel_shape(dataset: Dataset, image: str, shape_id: object, label: object) -> AnnotationStore:
    """Set the class of a shape to the class with id `label`; return the changed annotations."""

    def change(store: AnnotationStore) -> AnnotationStore:
        old = store.find(shape_id)
        class_id = find_class(read_classes(dataset.folder), label).id
        new = old.copy()
        new["id"], new["label"] = new_id(), class_id
        return store.with_change([old], [new])

    return _edit_store(dataset, image, change)


def remove_shape(dataset: Dataset, image: str, shape_id: object) -> AnnotationStore:
    """Remove a shape from an image, and return the changed annotations."""
    return _edit_store(dataset, image, lambda s: s.with_change([s.find(shape_id)], []))


def undo_change(dataset: Dataset, image: str) -> AnnotationStore:
    """Undo the last change of an image's annotations; return the changed annotations."""
    return _edit_store(dataset, image, AnnotationStore.undo)


def redo_change(dataset: Dataset, image: str) -> AnnotationStore:
    """Redo the last undone change of an image's annotations; return the changed annotations."""
    return _edit_store(dataset, image, AnnotationStore.redo)


def import_annotations(
    dataset: Dataset, image: str, size: Size, imported: ImportedAnnotations
) -> AnnotationStore:
    """Add the shapes of a file to an image, and return the changed annotations.

    Classes that the data set does not have are added to it.
    """
    with _WRITE_LOCK:
        classes = read_classes(dataset.folder)
        for name in imported.names:
            if not any(has_name(class_, name) for class_ in classes):
                classes = add_class(classes, name, imported.colours.get(name))
        ids = {name: next(c.id for c in classes if has_name(c, name)) for name in imported.names}
        shapes = [new_shape(ids[name], "file", rings) for name, rings in imported.shapes(size)]
        if not shapes:
            raise ValueError("the file has no outline with an area on this image")
        store = AnnotationStore.read(dataset.folder, image).with_change([], shapes)
        _write_classes(dataset.folder, classes)  # before the shapes, which refer to them
        store.write(dataset.folder, image)
    return store


def _edit_store(
    dataset: Dataset, image: str, change: Callable[[AnnotationStore], AnnotationStore]
) -> AnnotationStore:
    """Apply the function `change` to the annotations of an image; write and return the result."""
    with _WRITE_LOCK:
        store = change(AnnotationStore.read(dataset.folder, image))
        store.write(dataset.folder, image)
    return store


# --- classes --------------------------------------------------------------------------------------


def change_classes(dataset: Dataset, body: Mapping[str, Any]) -> list[AnnotationClass]:
    """Create, change or remove a class, and return all classes.

    `body` has the "id" of the class (absent for a new class), and "name", "colour" or "remove":
    true. A class that has shapes cannot be removed.
    """
    with _WRITE_LOCK:
        classes, class_id = read_classes(dataset.folder), body.get("id")
        if class_id is None:
            classes = add_class(classes, body.get("name"), body.get("colour"))
        elif body.get("remove") is True:
            classes = _remove_class(dataset, classes, find_class(classes, class_id))
        else:
            classes = update_class(classes, class_id, body)
        _write_classes(dataset.folder, classes)
    return classes


def _remove_class(
    dataset: Dataset, classes: Sequence[AnnotationClass], removed: AnnotationClass
) -> list[AnnotationClass]:
    images = annotated_images(dataset.folder)
    stores = {image: AnnotationStore.read(dataset.folder, image) for image in images}
    n_shapes = sum(
        shape["label"] == removed.id
        for image_store in stores.values()
        for shape in image_store.shapes
    )
    if n_shapes:
        raise ValueError(
            f"{pluralize(n_shapes, 'shape')} of {removed.name!r}: remove its shapes first"
        )
    for image, store in stores.items():
        if removed.id in store.class_ids:
            _clear_history(dataset, image, store)
    return [class_ for class_ in classes if class_ is not removed]


def _clear_history(dataset: Dataset, image: str, store: AnnotationStore) -> None:
    """Delete the undo history of an image, because it refers to a removed class."""
    AnnotationStore(store.shapes, [], []).write(dataset.folder, image)


_TOO_FEW_CLASSES = (
    "no training data yet: annotate at least two classes, for example tumour and other tissue"
)


def known_labels_manifest(dataset: Dataset) -> Manifest:
    """Return the images with known labels.

    In an unlabelled data set, an image has one record for each class of its annotations.
    """
    if dataset.is_labelled:
        return dataset.manifest
    names = {class_.id: class_.name for class_ in read_classes(dataset.folder)}
    records = []
    for image, record in _annotated_records(dataset):
        class_ids = {shape["label"] for shape in AnnotationStore.read(dataset.folder, image).shapes}
        records += [replace(record, label=names[id_]) for id_ in names if id_ in class_ids]
    included = tuple(record for record in records if record.label != IGNORED)
    return replace(dataset.manifest, records=included)


def annotated_manifest(dataset: Dataset) -> Manifest:
    """Return the images of an unlabelled set with copies of their annotations, for training.

    An image has one record for each class of its annotations. ValueError is raised if the
    annotations of the set have fewer than two classes.
    """
    classes = read_classes(dataset.folder)
    records = []
    for image, record in _annotated_records(dataset):
        shapes = AnnotationStore.read(dataset.folder, image).shapes
        if shapes:
            path = snapshot_annotations(dataset.folder, image, to_geojson(shapes, classes))
            records.append(replace(record, annotations=AnnotationFile(path)))
    names = known_labels_manifest(dataset).classes
    if len(names) < 2:
        raise ValueError(_TOO_FEW_CLASSES)
    return split_by_annotation(replace(dataset.manifest, records=tuple(records)), names)


def count_shapes(dataset: Dataset) -> int:
    """Return the number of shapes on all images of a data set."""
    return sum(
        len(AnnotationStore.read(dataset.folder, image).shapes)
        for image, _ in _annotated_records(dataset)
    )


def annotation_summary(dataset: Dataset) -> Json:
    """Return classes, colours, patients and number of the images with known labels, as JSON."""
    manifest = known_labels_manifest(dataset)
    return {
        "classes": manifest.classes,
        "patients": sorted(set(manifest.patients)),
        "n_images": manifest.n_images,
        "colours": class_colours(dataset.folder),
    }


def _annotated_records(dataset: Dataset) -> list[tuple[str, ImageRecord]]:
    """Return (id, record) of annotated images that still exist, after checking their paths."""
    records = dataset.index.by_id
    return [
        (image, dataset.find_image(image))
        for image in annotated_images(dataset.folder)
        if image in records
    ]
