"""Annotated images: outlines and masks matched to images, and regions of interest.

Annotation files are matched to images by name. A mask is an image with the aspect ratio of the
slide, and may be smaller. Non-zero pixels belong to the region; in JPEG masks, pixels of at least
128.
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
from ..precomputed.feature_file import check_has_slide_size, is_feature_file
from ..utils.text_io import pluralize, relative_name, truncated_list
from .folder_layout import FeatureFolder, find_images
from .manifest import (
    MANIFEST_NAME,
    Manifest,
    no_patients_warning,
    rare_class_warnings,
    read_manifest,
)
from .record import ImageRecord, ManifestError, annotation_stems, normalize_unicode

_PATIENT_REMEDY = "List the images in a CSV with a column 'patient'"


def match_annotations(
    images: Sequence[ImageLike], annotations_source: AnnotationFile | Path | str
) -> list[AnnotationFile]:
    """Return the annotation file of each image.

    The result for an image without an annotation file is the expected file name, which does not
    exist.

    Parameters
    ----------
    images : image files, or images in memory
    annotations_source : folder of annotation files, or a single file for a single image

    Returns
    -------
    list of AnnotationFile
        One for each image, in the order of `images`.
    """
    annotations = (
        annotations_source
        if isinstance(annotations_source, AnnotationFile)
        else AnnotationFile(Path(annotations_source))
    )
    if not annotations.path.exists():
        raise ManifestError(f"{annotations.path}: file or folder not found")
    if not annotations.path.is_dir():
        if len(images) > 1:
            raise ManifestError(
                f"{annotations.path}: is one annotation file, but there are {len(images)} "
                "images; give a folder with annotation files named like the images"
            )
        return [annotations] * len(images)
    matches = _match_by_name(images, find_annotation_files(annotations.path))
    if not any(matches):
        raise ManifestError(
            f"{annotations.path}: no annotation file is named like an image, such as {images[0]}"
        )
    return [
        replace(
            annotations,
            path=_single_file(image, matched)
            if matched
            else annotations.path / f"{_stem(image)}.geojson",
        )
        for image, matched in zip(images, matches, strict=True)
    ]


def _stem(image: ImageLike) -> str:
    return Path(str(image)).stem


def find_annotation_files(folder: Path) -> list[Path]:
    """Return the annotation files in a folder and its sub-folders, including unreadable files."""
    paths = (path for path in sorted(folder.rglob("*")) if not path.name.startswith("."))
    return [path for path in paths if image_stem(path) and not os.path.isdir(path)]


def _match_by_name(images: Sequence[ImageLike], files: Sequence[Path]) -> list[list[Path]]:
    """Return the annotation files of each image.

    The files of slide.svs have names such as slide.geojson or slide.svs.geojson. Raise
    ManifestError if a file matches two images.
    """
    by_name: dict[str, list[Path]] = {}
    for file in files:
        by_name.setdefault(normalize_unicode(image_stem(file)), []).append(file)
    matches, image_of = [], dict[Path, ImageLike]()
    for image in images:
        names = [] if isinstance(image, MemoryImage) else annotation_stems(image)
        matched = [file for name in names for file in by_name.get(name, [])]
        for file in matched:
            other = image_of.setdefault(file, image)
            if other != image:
                raise ManifestError(
                    f"{file}: matches two images, {other} and {image}, because annotation "
                    "files are matched by name; rename the images and their annotation files"
                )
        matches.append(matched)
    return matches


def _single_file(image: Path | MemoryImage, files: list[Path]) -> Path:
    """Return the single annotation file of an image; raise ManifestError if `files` has several."""
    if len(files) > 1:
        names = truncated_list([str(file) for file in files])
        raise ManifestError(f"{image}: has several annotation files: {names}; keep one")
    return files[0]


def read_images(
    source: Path | str, columns: dict[str, str] | None = None, *, features: Path | None = None
) -> Manifest:
    """Read images without labels from a CSV file, or all images in a folder and its sub-folders.

    Parameters
    ----------
    source : folder, or CSV file with a header
    columns : column of a field, such as {"patient": "source_image"}; None for the default names
    features : folder of feature files that replace the images; None to use the images

    Returns
    -------
    Manifest
    """
    source = Path(source)
    if not source.is_dir() or (source / MANIFEST_NAME).is_file():
        return read_manifest(source, columns, labelled=False, features=features)
    if columns:
        raise ManifestError(
            f"{source}: column names were specified, but the folder has no {MANIFEST_NAME}"
        )
    paths, _ = find_images(source)
    if not paths:
        raise ManifestError(f"{source}: the folder contains no images")
    records = tuple(ImageRecord(path, "", relative_name(source, path)) for path in paths)
    if features is not None:
        records = FeatureFolder(features).replace_by_feature_files(records)
    return Manifest(records, (no_patients_warning(source, len(records), _PATIENT_REMEDY),), source)


def with_annotations(
    images: Manifest | Path | str,
    annotations: Path | str,
    *,
    coordinates: str = PIXELS,
    keep_all: bool = False,
) -> Manifest:
    """Attach annotation files to images.

    Images without annotation file, label and mask are skipped and listed in a warning, as are
    annotation files that match no image.

    Parameters
    ----------
    images : folder of images, CSV file (labels are not needed), or `Manifest`
    annotations : folder of files named like the images (slide.geojson or slide.svs.geojson for
        slide.svs), or a single file for a single image
    coordinates : "pixels" (level-0 pixels, with the origin of the program that wrote the file),
        "slide" (level-0 pixels from the upper left corner of the slide) or "um" (µm from the upper
        left pixel of the image)
    keep_all : whether to keep images without annotation file, label and mask

    Returns
    -------
    Manifest

    Raises
    ------
    ManifestError
        If there are no annotation files, or if no file matches an image.
    """
    manifest = images if isinstance(images, Manifest) else read_images(images)
    folder = Path(annotations)
    if not folder.exists():
        raise ManifestError(f"{folder}: file or folder not found")
    files = find_annotation_files(folder) if folder.is_dir() else [folder]
    if not files:
        raise ManifestError(
            f"{folder}: the folder contains no annotation files ({', '.join(FORMATS)}, also "
            "compressed as .gz)"
        )
    is_single = len(manifest.records) == 1 and not folder.is_dir()
    matches = [files] if is_single else _match_by_name([r.path for r in manifest.records], files)
    records = [
        _add_annotations(record, matched, coordinates) if matched else record
        for record, matched in zip(manifest.records, matches, strict=True)
    ]
    mapped_records = tuple(
        record for record in records if record.has_regions or record.label or keep_all
    )
    _check_any_matched(folder, files, manifest, records)
    warnings = _match_warnings(manifest, records, mapped_records, files)
    return replace(manifest, records=mapped_records, warnings=(*manifest.warnings, *warnings))


def _add_annotations(record: ImageRecord, files: list[Path], coordinates: str) -> ImageRecord:
    annotations = AnnotationFile(_single_file(record.path, files), (), coordinates, record.image)
    return replace(record, mask=None, annotations=annotations)


def _check_any_matched(
    folder: Path, files: Sequence[Path], manifest: Manifest, records: Sequence[ImageRecord]
) -> None:
    if not any(record.annotations for record in records):
        raise ManifestError(
            f"{folder}: none of {pluralize(len(files), 'annotation file')} is named like an "
            f"image; for example, {files[0].name} does not match "
            f"{manifest.records[0].path.name}"
        )


def _match_warnings(
    manifest: Manifest,
    records: Sequence[ImageRecord],
    used_records: Sequence[ImageRecord],
    files: Sequence[Path],
) -> list[str]:
    """Return warnings about unused files, skipped images and the content of used files."""
    used = {record.annotations.path for record in records if record.annotations}
    unused = [file.name for file in files if file not in used]
    bare = [manifest.name(record) for record in records if record not in used_records]
    lines = [f"annotation files without an image: {truncated_list(unused)}"] if unused else []
    if bare:
        lines.append(
            f"{pluralize(len(bare), 'image')} skipped without annotations: {truncated_list(bare)}"
        )
    for record in used_records:
        lines += record.annotations.read().notes() if record.annotations else []
    return lines


def check_classes(manifest: Manifest, names: Sequence[str]) -> None:
    """Raise ManifestError if a class in `names` has neither outlines nor labelled images."""
    annotated = [record.annotations for record in manifest.records if record.annotations]
    counts = sum((annotations.read().class_counts for annotations in annotated), Counter[str]())
    labels = {record.label for record in manifest.records}
    missing = [repr(name) for name in names if name not in counts and name not in labels]
    if missing:
        known = ", ".join(f"{name!r} ({n})" for name, n in sorted(counts.items()))
        raise ManifestError(
            f"no outline has the class {' or '.join(missing)}; the annotations have {known}. "
            "Class names are case-sensitive"
        )


def split_by_annotation(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """Return one record per image and class, for the region with outlines of the class.

    The class is the label of the record. Areas without outlines have no record. A labelled image
    without annotations keeps its record.

    Parameters
    ----------
    manifest : images with annotations, from `with_annotations`
    names : class names of the outlines

    Returns
    -------
    Manifest

    Raises
    ------
    ManifestError
        If a class has neither outlines nor labelled images.
    """
    check_classes(manifest, names)
    parts: list[ImageRecord] = []
    others: list[str] = []
    for record in manifest.records:
        own_parts = _split_record(record, names)
        parts += own_parts
        others += [] if own_parts else [manifest.name(record)]
    warnings = rare_class_warnings(parts, "outlines", "annotated image")
    if others:
        warnings += [
            f"images without the class {' or '.join(names)} were skipped: {truncated_list(others)}"
        ]
    return replace(manifest, records=tuple(parts), warnings=(*manifest.warnings, *warnings))


def _split_record(record: ImageRecord, names: Sequence[str]) -> list[ImageRecord]:
    """Return a record for each class that has outlines; see `split_by_annotation`."""
    if record.annotations is None:
        return [record] if record.label in names and record.mask is None else []
    counts = record.annotations.read().class_counts
    return [
        replace(
            record,
            label=name,
            annotations=None,
            region_of_interest=record.annotations.with_classes(name),
        )
        for name in names
        if name in counts
    ]


_LOSSY_SUFFIXES = (".jpg", ".jpeg")
_N_COLOUR_BANDS = {2: 1, 3: 3, 4: 3}  # by number of bands
_MAX_PIXELS = 200_000_000
_MASK_FORMATS = ("PNG", "TIFF", "BMP", "GIF", "JPEG", "PPM", "TGA")


class RegionCoverage(Protocol):
    """Interface of a region of an image; coordinates are level-0 pixels."""

    def coverage(
        self, x: NDArray[np.float64], y: NDArray[np.float64], side: float
    ) -> NDArray[np.float64]:
        """Return the fraction of each square that the region covers, (n,).

        Parameters
        ----------
        x, y : (n,), upper left corners of the squares in level-0 pixels
        side : side of the squares in level-0 pixels
        """

    def any(self) -> bool:
        """Return whether any pixel belongs to the region."""

    def all(self) -> bool:
        """Return whether all pixels belong to the region."""

    @property
    def box(self) -> tuple[int, int, int, int] | None:
        """Bounding box (left, top, right, bottom) of the region; None if unknown."""


def load_region(record: ImageRecord, image: ImageGeometry, *names: str) -> RegionCoverage:
    """Return the region of a record.

    If the record has annotations, it is the region inside the outlines of the classes `names`, or
    inside all outlines if no names are passed. Otherwise it is the region in the mask.
    """
    if record.annotations is not None:
        return record.annotations.with_classes(*names).region_mask(image, allow_missing=True)
    assert record.mask is not None
    if is_feature_file(record.path):
        check_has_slide_size(record.path)
    return RegionMask.read(record.mask, image.size)


class RegionMask:
    """Region in a mask image.

    Parameters
    ----------
    region : (height, width), whether each pixel of the mask belongs to the region
    size : (width, height) of the image in level-0 pixels
    """

    box: tuple[int, int, int, int] | None = None

    def __init__(self, region: NDArray[np.bool_], size: tuple[int, int]) -> None:
        self.region = region
        self._scale = region.shape[1] / size[0], region.shape[0] / size[1]

    @cached_property
    def _summed_area_table(self) -> NDArray[np.int32]:
        """Number of region pixels above and left of each pixel corner."""
        height, width = self.region.shape
        sums = np.zeros((height + 1, width + 1), np.int32)
        for row in range(height):  # row by row, to limit memory
            np.cumsum(self.region[row], dtype=np.int32, out=sums[row + 1, 1:])
            sums[row + 1] += sums[row]
        return sums

    @classmethod
    def read(cls, path: Path, size: tuple[int, int]) -> RegionMask:
        """Return the region in a mask file of an image of `size` (width, height)."""
        check_readable_file(path)
        threshold = 128 if path.suffix.lower() in _LOSSY_SUFFIXES else 1
        with open_pillow(path, _MASK_FORMATS) as file:
            if file.width * file.height > _MAX_PIXELS:
                raise ImageError(
                    f"{path}: a mask of {file.width} x {file.height} pixels is too large; "
                    "reduce it, as a mask may be smaller than its image"
                )
            check_memory(path, file.size, decoded_bytes(file) + 5 * file.width * file.height)
            region = np.empty((file.height, file.width), bool)
            for rows, strip in iter_strips(file):
                # Of two or four bands, the last one is opacity and ignored.
                pixels = (
                    strip
                    if strip.ndim == 2
                    else strip[..., : _N_COLOUR_BANDS[strip.shape[2]]].max(2)
                )
                np.greater_equal(pixels, threshold, out=region[rows])
        height, width = region.shape
        if abs(width * size[1] - height * size[0]) > 0.02 * width * size[1]:
            raise ImageError(
                f"{path}: the mask ({width} x {height} pixels) and the image ({size[0]} x "
                f"{size[1]}) have different aspect ratios"
            )
        return cls(region, size)

    def any(self) -> bool:
        """Return whether any pixel belongs to the region."""
        return bool(self.region.any())

    def all(self) -> bool:
        """Return whether all pixels belong to the region."""
        return bool(self.region.all())

    def coverage(
        self, x: NDArray[np.float64], y: NDArray[np.float64], side: float
    ) -> NDArray[np.float64]:
        """Return the fraction of each square that the region covers; see `RegionCoverage`."""
        height, width = self.region.shape
        left, right = (np.clip(np.rint((x + d) * self._scale[0]), 0, width) for d in (0, side))
        top, bottom = (np.clip(np.rint((y + d) * self._scale[1]), 0, height) for d in (0, side))
        left, top = np.minimum(left, width - 1), np.minimum(top, height - 1)
        right, bottom = np.maximum(right, left + 1), np.maximum(bottom, top + 1)
        rows, columns = (top.astype(int), bottom.astype(int)), (left.astype(int), right.astype(int))
        sums = self._summed_area_table
        inside = (
            sums[rows[1], columns[1]]
            - sums[rows[0], columns[1]]
            - sums[rows[1], columns[0]]
            + sums[rows[0], columns[0]]
        )
        return inside / ((bottom - top) * (right - left))
