"""Which outlines belong to which image: files called like the images.

Masks: which part of an image is the region of interest, by a picture or by outlines.

A mask is a picture of the image's proportions, of its size or smaller. Everything but 0 is region;
in a JPEG, whose values blur, everything from the middle of the range.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import FORMATS, PIXELS, AnnotationFile, ImageGeometry, image_stem
from ..images.file_types import ImageError
from ..images.memory_image import ImageLike, MemoryImage
from ..images.raster import (
    check_memory,
    check_readable_file,
    decoded_bytes,
    iter_strips,
    open_pillow,
)
from ..precomputed.feature_file import check_has_patch_size, is_feature_file
from ..utils.text_io import pluralize, relative_name, truncated_list
from .feature_folder import FeatureFolder
from .folder_layout import find_images
from .manifest import MANIFEST_NAME, Manifest, no_patients, read_manifest, unused_labels
from .record import ImageRecord, ManifestError, annotation_stems, normalize_unicode

_PATIENTS = "List the images in a CSV with a column 'patient'"


def match_annotations(
    images: Sequence[ImageLike], given: AnnotationFile | Path | str
) -> list[AnnotationFile]:
    """The outlines of each image; one file is for one image.

    An image without a file in the folder gets the name that it lacks: whoever reads it is told.
    """
    drawing = given if isinstance(given, AnnotationFile) else AnnotationFile(Path(given))
    if not drawing.path.exists():
        raise ManifestError(f"{drawing.path}: there is no such file or folder")
    if not drawing.path.is_dir():
        if len(images) > 1:
            raise ManifestError(
                f"{drawing.path}: is one file of outlines, and there are {len(images)} images: "
                "give a folder of files called like the images"
            )
        return [drawing] * len(images)
    found = _named_like(images, files_in(drawing.path))
    if not any(found):
        raise ManifestError(
            f"{drawing.path}: no file of outlines is called like an image, such as {images[0]}"
        )
    return [
        replace(drawing, path=_only(i, own) if own else drawing.path / f"{_stem(i)}.geojson")
        for i, own in zip(images, found, strict=True)
    ]


def _stem(image: ImageLike) -> str:
    return Path(str(image)).stem


def files_in(folder: Path) -> list[Path]:
    """Return the files of outlines below a folder, including unreadable ones."""
    found = (path for path in sorted(folder.rglob("*")) if not path.name.startswith("."))
    return [path for path in found if image_stem(path) and not os.path.isdir(path)]


def _named_like(images: Sequence[ImageLike], files: Sequence[Path]) -> list[list[Path]]:
    """Per image its files: slide.geojson or slide.svs.geojson, for slide.svs.

    Two images of one name, and one file for them, are refused: nobody knows for which.
    """
    by_name: dict[str, list[Path]] = {}
    for file in files:
        by_name.setdefault(normalize_unicode(image_stem(file)), []).append(file)
    found, takers = [], dict[Path, ImageLike]()
    for image in images:
        names = [] if isinstance(image, MemoryImage) else annotation_stems(image)
        own = [file for name in names for file in by_name.get(name, [])]
        for file in own:
            other = takers.setdefault(file, image)
            if other != image:
                raise ManifestError(
                    f"{file}: would be the outlines of {other} and of {image}, as outlines are "
                    "told apart by the names of files: call the images and the outlines differently"
                )
        found.append(own)
    return found


def _only(image: Path | MemoryImage, files: list[Path]) -> Path:
    if len(files) > 1:
        names = truncated_list([str(file) for file in files])
        raise ManifestError(f"{image}: has more than one file of outlines: {names}; leave one")
    return files[0]


def read_images(
    source: Path | str,
    columns: dict[str, str] | None = None,
    *,
    features: Path | None = None,
) -> Manifest:
    """Images of which outlines will say what is where: of a CSV, or all below a folder.

    `features`: folder of feature files that stand for them.
    """
    source = Path(source)
    if not source.is_dir() or (source / MANIFEST_NAME).is_file():
        return read_manifest(source, columns, labelled=False, features=features)
    if columns:
        raise ManifestError(f"{source}: columns are named, but the folder has no {MANIFEST_NAME}")
    paths, _ = find_images(source)
    if not paths:
        raise ManifestError(f"{source}: there is no image in this folder")
    records = tuple(ImageRecord(path, "", relative_name(source, path)) for path in paths)
    if features is not None:
        records = FeatureFolder(features).feature_file_for(records)
    return Manifest(records, (no_patients(source, len(records), _PATIENTS),), source)


def with_annotations(
    images: Manifest | Path | str,
    annotations: Path | str,
    *,
    coordinates: str = PIXELS,
    keep_all: bool = False,
) -> Manifest:
    """Images with outlines that say what is where in them.

    Parameters
    ----------
    images : a folder of images, a CSV file (labels are not needed), or a `Manifest`
    annotations : a folder of files called like the images (slide.geojson or slide.svs.geojson for
        slide.svs), or one file where there is one image
    coordinates : "pixels", as the program that writes the format counts them; "slide", pixels from
        the slide's corner; "um", µm from the first pixel
    keep_all : also images of which nothing is known

    Images without a file stay if they have a label or a mask, and are left out by name if not.
    Files that are called like no image are named, too.
    """
    manifest = images if isinstance(images, Manifest) else read_images(images)
    folder = Path(annotations)
    if not folder.exists():
        raise ManifestError(f"{folder}: there is no such file or folder")
    files = files_in(folder) if folder.is_dir() else [folder]
    if not files:
        raise ManifestError(
            f"{folder}: there is no file of outlines in this folder; they end in "
            f"{', '.join(FORMATS)}, also packed (.gz)"
        )
    one = len(manifest.records) == 1 and not folder.is_dir()
    found = [files] if one else _named_like([r.path for r in manifest.records], files)
    records = [
        _annotated(record, own, coordinates) if own else record
        for record, own in zip(manifest.records, found, strict=True)
    ]
    kept = tuple(record for record in records if record.is_mapped or record.label or keep_all)
    _check_any(folder, files, manifest, records)
    words = _describe(manifest, records, kept, files)
    return replace(manifest, records=kept, warnings=(*manifest.warnings, *words))


def _annotated(record: ImageRecord, files: list[Path], coordinates: str) -> ImageRecord:
    drawing = AnnotationFile(_only(record.path, files), (), coordinates, record.image)
    return replace(record, mask=None, annotations=drawing)


def _check_any(
    folder: Path, files: Sequence[Path], manifest: Manifest, records: Sequence[ImageRecord]
) -> None:
    if not any(record.annotations for record in records):
        raise ManifestError(
            f"{folder}: none of its {pluralize(len(files), 'file')} of outlines is called like an "
            f"image: there is {files[0].name}, and an image is {manifest.records[0].path.name}"
        )


def _describe(
    manifest: Manifest,
    records: Sequence[ImageRecord],
    kept: Sequence[ImageRecord],
    files: Sequence[Path],
) -> list[str]:
    used = {record.annotations.path for record in records if record.annotations}
    unused = [file.name for file in files if file not in used]
    bare = [manifest.name(record) for record in records if record not in kept]
    lines = [f"outlines that are called like no image: {truncated_list(unused)}"] if unused else []
    if bare:
        lines.append(
            f"{pluralize(len(bare), 'image')} left out, without outlines: {truncated_list(bare)}"
        )
    for record in kept:
        lines += record.annotations.read().notes() if record.annotations else []
    return lines


def check_classes(manifest: Manifest, names: Sequence[str]) -> None:
    """Every class has an outline, or an image that is all of it, somewhere."""
    drawings = [record.annotations for record in manifest.records if record.annotations]
    there = sum((drawing.read().names for drawing in drawings), Counter[str]())
    labels = {record.label for record in manifest.records}
    missing = [repr(name) for name in names if name not in there and name not in labels]
    if missing:
        known = ", ".join(f"{name!r} ({n})" for name, n in sorted(there.items()))
        raise ManifestError(
            f"no outline is called {' or '.join(missing)}; there are {known}. Names are told apart "
            "by capitals, too"
        )


def split_by_annotation(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """For each image and each of these classes, the part of the image that is outlined as it.

    Each part is labelled by its class and stays with its patient. What is not outlined is no part.
    An image without outlines is all of its label.
    """
    check_classes(manifest, names)
    parts: list[ImageRecord] = []
    others: list[str] = []
    for record in manifest.records:
        own = _parts(record, names)
        parts += own
        others += [] if own else [manifest.name(record)]
    words = unused_labels(parts, "outlines", "outlined image")
    if others:
        words += [f"left out, as nothing in them is {' or '.join(names)}: {truncated_list(others)}"]
    return replace(manifest, records=tuple(parts), warnings=(*manifest.warnings, *words))


def _parts(record: ImageRecord, names: Sequence[str]) -> list[ImageRecord]:
    if record.annotations is None:
        return [record] if record.label in names and record.mask is None else []
    there = record.annotations.read().names
    return [
        replace(
            record, label=name, annotations=None, region_of_interest=record.annotations.of(name)
        )
        for name in names
        if name in there
    ]


_LOSSY = (".jpg", ".jpeg")
_COLOURS = {2: 1, 3: 3, 4: 3}  # bands of colour, by the number of all
_MAX_PIXELS = 200_000_000
_FORMATS = ("PNG", "TIFF", "BMP", "GIF", "JPEG", "PPM", "TGA")


class RegionCoverage(Protocol):
    """A part of an image; rectangles are level-0 pixels."""

    def coverage(
        self, x: NDArray[np.float64], y: NDArray[np.float64], side: float
    ) -> NDArray[np.float64]:
        """Of the squares with these upper left corners, the share that is region."""

    def any(self) -> bool: ...

    def all(self) -> bool: ...

    @property
    def box(self) -> tuple[int, int, int, int] | None:
        """(left, top, right, bottom) of what is region; None where it is not known."""


def load_region(record: ImageRecord, image: ImageGeometry, *names: str) -> RegionCoverage:
    """What the record's mask, or its outlines of these classes, cover of its image."""
    if record.annotations is not None:
        return record.annotations.of(*names).region(image, may_lack=True)
    assert record.mask is not None
    if is_feature_file(record.path):
        check_has_patch_size(record.path)
    return RegionMask.read(record.mask, image.size)


class RegionMask:
    """The share of region in any rectangle of the image, from sums over the mask.

    Rectangles are level-0 pixels of an image of `size` (width, height).
    """

    box: tuple[int, int, int, int] | None = None

    def __init__(self, region: NDArray[np.bool_], size: tuple[int, int]) -> None:
        self.region = region
        self._scale = region.shape[1] / size[0], region.shape[0] / size[1]

    @cached_property
    def _sums(self) -> NDArray[np.int32]:
        """Region above and to the left of each corner of a pixel."""
        height, width = self.region.shape
        sums = np.zeros((height + 1, width + 1), np.int32)
        for row in range(height):  # one by one: a sum over all would take more memory than this
            np.cumsum(self.region[row], dtype=np.int32, out=sums[row + 1, 1:])
            sums[row + 1] += sums[row]
        return sums

    @classmethod
    def read(cls, path: Path, size: tuple[int, int]) -> RegionMask:
        """The mask of an image of this size."""
        check_readable_file(path)
        least = 128 if path.suffix.lower() in _LOSSY else 1
        with open_pillow(path, _FORMATS) as file:
            if file.width * file.height > _MAX_PIXELS:
                raise ImageError(
                    f"{path}: a mask of {file.width} x {file.height} pixels is too large; "
                    "save it reduced: a mask may be smaller than its image"
                )
            check_memory(path, file.size, decoded_bytes(file) + 5 * file.width * file.height)
            region = np.empty((file.height, file.width), bool)
            for rows, strip in iter_strips(file):
                # The last of two or four bands is opacity, and says nothing of what is where.
                pixels = strip if strip.ndim == 2 else strip[..., : _COLOURS[strip.shape[2]]].max(2)
                np.greater_equal(pixels, least, out=region[rows])
        height, width = region.shape
        if abs(width * size[1] - height * size[0]) > 0.02 * width * size[1]:
            raise ImageError(
                f"{path}: the mask has {width} x {height} pixels, the image {size[0]} x {size[1]}: "
                "their proportions differ"
            )
        return cls(region, size)

    def any(self) -> bool:
        return bool(self.region.any())

    def all(self) -> bool:
        return bool(self.region.all())

    def coverage(
        self, x: NDArray[np.float64], y: NDArray[np.float64], side: float
    ) -> NDArray[np.float64]:
        """Of the squares with these upper left corners, the share that is region."""
        height, width = self.region.shape
        left, right = (np.clip(np.rint((x + d) * self._scale[0]), 0, width) for d in (0, side))
        top, bottom = (np.clip(np.rint((y + d) * self._scale[1]), 0, height) for d in (0, side))
        left, top = np.minimum(left, width - 1), np.minimum(top, height - 1)
        right, bottom = np.maximum(right, left + 1), np.maximum(bottom, top + 1)
        rows, columns = (top.astype(int), bottom.astype(int)), (left.astype(int), right.astype(int))
        sums = self._sums
        inside = (
            sums[rows[1], columns[1]]
            - sums[rows[0], columns[1]]
            - sums[rows[1], columns[0]]
            + sums[rows[0], columns[0]]
        )
        return inside / ((bottom - top) * (right - left))
