"""Training sets: tables and folders, or lists of images with labels as in scikit-learn.

Images in memory are written to temporary files without loss, so that they are processed exactly
like files.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.manifest import (
    ImageRecord,
    Manifest,
    check_slides,
    multiple_splits_warning,
    read_manifest,
)
from ..datasets.record import guess_positive_class, is_dataframe
from ..images.memory_image import MemoryImage
from ..utils.files import temporary_folder
from ..utils.text_io import pluralize, relative_name
from .class_labels import TEXT, NamedLabels, groups_to_patients
from .inputs import TrainingImages, as_image_like, is_image_list, resolve_labelled


@dataclass(frozen=True)
class TrainingSet:
    """Labelled images for training.

    Attributes
    ----------
    manifest : records of the images; the path of an image in memory is a name
    label_type : type of the labels `y`: "str" or a key of `LABEL_TYPES`
    has_patients : whether the patients are known; False for a list of images without groups
    in_memory : images in memory by index of the record
    """

    manifest: Manifest
    label_type: str = TEXT
    has_patients: bool = True
    in_memory: dict[int, MemoryImage] = field(default_factory=dict)

    @contextmanager
    def write_files(self) -> Iterator[Manifest]:
        """Write images in memory to temporary PNG files and yield the manifest of all files."""
        if not self.in_memory:
            yield self.manifest
            return
        with temporary_folder("histodict-images-") as folder:
            records = list(self.manifest.records)
            for index, image in self.in_memory.items():
                path = folder / f"image {index}.png"
                pixels = image.decoded.region(0, 0, *image.decoded.size)
                pixels.save(path, compress_level=1)
                records[index] = replace(records[index], path=path)
            yield replace(self.manifest, records=tuple(records), root=folder)

    @property
    def training_info(self) -> dict[str, Any]:
        """Return entries for the training record: label type, and whether patients are known."""
        label_type = {} if self.label_type == TEXT else {"label_type": self.label_type}
        return label_type | ({} if self.has_patients else {"has_patients": False})


def resolve_training_set(
    X: TrainingImages,
    y: Any = None,
    groups: Any = None,
    *,
    positive: str | None = None,
    option: str = "",
) -> TrainingSet:
    """Return the images for training; warn about problems of a table or folder.

    Parameters
    ----------
    X : folder, CSV file, DataFrame or `Manifest`; or a list of paths, arrays, Pillow images or
        records
    y : label of each image; required for a list, unless its records have labels
    groups : patient of each image; None uses the patients of a table or of records
    positive : which of two classes has positive scores; None uses the positive class of the
        manifest
    option : argument that sets the positive class, as named in the warning that the class names do
        not determine it; empty for no warning

    Notes
    -----
    A column of splits is removed after a warning, so that the estimators of an ensemble do not
    repeat the warning.
    """
    if y is None and groups is None and not is_image_list(X):
        training = TrainingSet(resolve_labelled(X, stacklevel=4))
    else:
        training = _resolve_list(X, y, groups)
        for message in training.manifest.warnings:
            warnings.warn(message, stacklevel=3)  # attributed to the caller of fit
    manifest = training.manifest
    message = multiple_splits_warning(manifest.root, manifest.records)
    if message:
        warnings.warn(message, stacklevel=3)  # attributed to the caller of fit
        manifest = manifest.without_splits()
    if positive is not None:
        if y is not None:
            raise ValueError(
                "positive=… applies to tables, records and folders only. With y, classes are "
                "sorted as in scikit-learn, and the last one has positive scores"
            )
        manifest = manifest.with_positive(positive)
    elif option and y is None and not isinstance(X, Manifest):
        _warn_unclear_positive_class(manifest.classes, option)
    return replace(training, manifest=manifest)


def _warn_unclear_positive_class(classes: list[str], option: str) -> None:
    """Warn if the names of two classes do not determine which one is positive."""
    if len(classes) == 2 and not guess_positive_class(classes):
        warnings.warn(
            f"the positive class cannot be guessed from the names {classes[0]!r} and "
            f"{classes[1]!r}: {classes[1]!r} is used. Set it with {option}=…",
            stacklevel=4,
        )


def _resolve_list(X: Any, y: Any, groups: Any) -> TrainingSet:
    """Return the images of a list, or of a table, with labels `y` and patients `groups`."""
    if isinstance(X, str | os.PathLike):
        raise TypeError(
            f"{X}: y and groups need a list of images, not a single path. Give a list of paths, "
            "or a folder or CSV file with labels and patients without y and groups"
        )
    if isinstance(X, np.ndarray) and X.ndim == 3:
        raise ValueError(
            "X is a single image: give a list of images, or an array of four dimensions"
        )
    manifest, in_memory, has_patients = _make_records(X)
    records, label_type, order = list(manifest.records), TEXT, manifest.class_order
    if y is not None:
        labels = NamedLabels.from_labels(y)
        _check_length("y", labels.names, records)
        records = [replace(r, label=n) for r, n in zip(records, labels.names, strict=True)]
        label_type, order = labels.label_type, labels.classes
    elif not all(record.label or record.has_regions for record in records):
        raise ValueError(
            "y is missing: a list of images needs one label per image. Folders with one "
            "sub-folder per class, tables and Manifests contain the labels"
        )
    if groups is not None:
        patients = groups_to_patients(groups)
        _check_length("groups", patients, records)
        records = [replace(r, patient=name) for r, name in zip(records, patients, strict=True)]
        manifest = replace(manifest, warnings=())  # of a table without patients
    return TrainingSet(
        replace(manifest, records=tuple(records), class_order=order),
        label_type,
        has_patients or groups is not None,
        in_memory,
    )


def _check_length(name: str, values: Sequence[str], records: Sequence[ImageRecord]) -> None:
    if len(values) != len(records):
        raise ValueError(f"X has {pluralize(len(records), 'image')}, and {name} {len(values)}")


def _make_records(X: Any) -> tuple[Manifest, dict[int, MemoryImage], bool]:
    """Return the manifest, images in memory by record index, and whether patients are known."""
    if isinstance(X, Manifest):
        return replace(X, warnings=()), {}, True  # they were shown when it was read
    if is_dataframe(X):
        return read_manifest(X, labelled=False), {}, True  # unknown patients give a warning
    items = list(X)
    if items and all(isinstance(item, ImageRecord) for item in items):
        return Manifest(tuple(items)), {}, True
    records, in_memory = [], {}
    for index, item in enumerate(items):
        image = as_image_like(item, f"image {index}")
        if isinstance(image, MemoryImage):
            in_memory[index] = image
            name = f"image {index}"
            records.append(ImageRecord(Path(name), "", name, mpp=image.mpp))
        else:
            records.append(ImageRecord(image, "", relative_name(Path(), image)))
    _check_paths([r for index, r in enumerate(records) if index not in in_memory])
    return Manifest(tuple(records)), in_memory, False


def _check_paths(records: Sequence[ImageRecord]) -> None:
    """Raise ValueError if two paths are the same, or belong to the same slide."""
    paths = [record.path for record in records]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise ValueError(f"X contains {path} twice")
    check_slides(Path("X"), [""] * len(records), records)
