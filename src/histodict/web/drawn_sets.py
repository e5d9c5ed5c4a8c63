"""Images to learn from by what was drawn on them alone, as `train --annotations` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..images.annotations.drawing import AnnotationFile
from ..images.annotations.matching import split_by_annotation
from ..images.annotations.outlines import IGNORED
from ..images.manifest import ImageRecord, Manifest
from .datasets import Dataset
from .drawn_files import geojson, snapshot_annotations
from .sheets import AnnotationStore, annotated_images, class_colours, read_classes

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
