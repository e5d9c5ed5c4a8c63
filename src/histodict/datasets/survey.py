"""Survey of image sets before training: readability, duplicates, pixel sizes and order.

The random sample of patches and the rounding of sums depend on the order of images.
`sorted_by_content` sorts images by content, so that trained models do not depend on the order of
rows and on file names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.file_types import ImageError
from ..images.pixel_size import (
    PixelSizeOption,
    first_hint,
    have_mixed_pixel_sizes,
    pixel_size_advice,
)
from ..images.raster import check_readable_file
from ..images.source import ImageSource, open_image
from ..precomputed.feature_file import check_features, is_feature_file, open_features
from ..utils.files import content_digest, exists, file_key, file_size, sampled_digest
from ..utils.parallel import map_blocks
from ..utils.progress import Callback, Progress, no_callback
from ..utils.text_io import failure_reason, limit_lines, pluralize, truncated_list
from ..utils.validation import hint
from .annotated import load_region
from .manifest import Manifest
from .record import ImageRecord, ManifestError

_THUMBNAIL_PX = 128  # longest side of the thumbnail whose colours are measured
_WHITE_PERCENTILE = 99  # percentile of each channel that approximates the background
_SUFFIX_ALIASES = {".jpeg": ".jpg", ".tiff": ".tif"}

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class ImageProperties:
    """Properties of an image; those of a feature file are unknown except for the format.

    Attributes
    ----------
    format : suffix in lower case
    size : (width, height) in level-0 pixels; None for a feature file
    mpp : µm per level-0 pixel; None if unknown
    mean : mean of red, green and blue in a thumbnail; None for a feature file
    white_point : 99th percentile of red, green and blue in a thumbnail; None for a feature file
    """

    format: str
    size: tuple[int, int] | None = None
    mpp: float | None = None
    mean: Colour | None = None
    white_point: Colour | None = None

    @classmethod
    def from_source(cls, source: ImageSource) -> ImageProperties:
        """Return the properties of an open image."""
        suffix = source.path.suffix.lower() if hasattr(source.path, "suffix") else ""
        suffix = _SUFFIX_ALIASES.get(suffix, suffix)
        if is_feature_file(source.path):
            return cls(suffix)
        pixels = source.thumbnail(_THUMBNAIL_PX).reshape(-1, 3)
        mean, white = pixels.mean(axis=0), np.percentile(pixels, _WHITE_PERCENTILE, axis=0)
        return cls(suffix, source.size, source.mpp, _to_colour(mean), _to_colour(white))


def _to_colour(values: NDArray[Any]) -> Colour:
    red, green, blue = values.tolist()
    return red, green, blue


_HEAD_BYTES = 65536  # bytes of a file that are compared before the whole file


@dataclass(frozen=True)
class ReadabilityReport:
    """Result of `check_readable`.

    Attributes
    ----------
    n_images : number of checked images
    unusable : (record, reason) of each record that cannot be used
    """

    n_images: int
    unusable: list[tuple[ImageRecord, str]]

    def raise_if_unusable(self) -> None:
        """Raise ImageError if there are unusable images; the message lists the first ones."""
        if self.unusable:
            # An image may have several records.
            reasons = list(dict.fromkeys(reason for _, reason in self.unusable))
            names = "".join(f"\n  {line}" for line in limit_lines(reasons))
            n_bad = len({record.path for record, _ in self.unusable})
            remedy = hint(
                python="histodict.datasets.survey.drop_unreadable", cli="--skip-unreadable"
            )
            raise ImageError(
                f"{n_bad} of {pluralize(self.n_images, 'image')} cannot be used. Replace or "
                f"remove them, or skip them with {remedy}:{names}"
            )


# Function that returns the reason why an image cannot be used; "" if it can be used.
UsabilityCheck = Callable[[ImageRecord, ImageProperties], str]


def check_readable(
    records: Sequence[ImageRecord],
    n_jobs: int | None = None,
    callback: Callback = no_callback,
    check: UsabilityCheck | None = None,
) -> ReadabilityReport:
    """Check whether each image can be read: plain images as a whole, slides in part.

    Parameters
    ----------
    records : images
    n_jobs : number of threads; None for all cores
    callback : called with the progress
    check : additional check, for example of the image size: function of a record and its
        `ImageProperties` that returns the reason why the image cannot be used, or "" if it can be
        used; None for no additional check

    Returns
    -------
    ReadabilityReport
    """
    inspect = partial(_unusable_reason, check=check)
    callback(Progress("read", 0, len(records)))
    bad = []
    for index, reason in enumerate(map_blocks(inspect, records, n_jobs)):
        if reason:
            bad.append((records[index], reason))
        callback(Progress("read", index + 1, len(records)))
    return ReadabilityReport(len({record.path for record in records}), bad)


def check_files(records: Sequence[ImageRecord]) -> None:
    """Raise ImageError if image files are missing or empty; the files are not opened."""
    bad = []
    for record in records:
        try:
            check_readable_file(record.path)
        except ImageError as error:
            bad.append(str(error))
    if bad:
        names = "".join(f"\n  {line}" for line in limit_lines(bad))
        n = pluralize(len(records), "image")
        raise ImageError(f"{len(bad)} of {n} cannot be read; replace or remove them:{names}")


def drop_unreadable(
    manifest: Manifest,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
    check: UsabilityCheck | None = None,
) -> tuple[Manifest, list[str]]:
    """Return a manifest without unusable images, and the reason for each excluded image.

    The names of excluded images are added to `Manifest.skipped`. See `check_readable` for the
    parameters.
    """
    bad = check_readable(manifest.records, n_jobs, callback, check).unusable
    unreadable = {record for record, _ in bad}
    indices = [index for index, record in enumerate(manifest.records) if record not in unreadable]
    skipped = tuple(manifest.name(record) for record, _ in bad)
    readable = replace(manifest.select(indices), skipped=manifest.skipped + skipped)
    return readable, [reason for _, reason in bad]


def with_pixel_size(
    manifest: Manifest, mpp: float | None = None, override_mpp: float | None = None
) -> Manifest:
    """Return a manifest in which images have the specified pixel sizes, in µm.

    Parameters
    ----------
    manifest : images
    mpp : pixel size for images for which neither the manifest nor the file states one; None to
        leave it unknown
    override_mpp : pixel size for all images; None to use that of the manifest, the file or `mpp`
    """
    if mpp is None and override_mpp is None:
        return manifest
    return replace(
        manifest,
        records=tuple(_with_pixel_size(record, mpp, override_mpp) for record in manifest.records),
    )


def _with_pixel_size(
    record: ImageRecord, mpp: float | None, override_mpp: float | None
) -> ImageRecord:
    try:
        size = PixelSizeOption(mpp, record.mpp, override_mpp).resolve(record.path)
    except ImageError:  # the survey lists all unreadable images
        return record
    return replace(record, mpp=size.user_mpp)


def image_properties(record: ImageRecord) -> ImageProperties | None:
    """Return the properties of an image, cached until its files change; None if unreadable."""
    try:
        return _cached_properties(record)
    except (ValueError, OSError, MemoryError):
        return None


def _unusable_reason(record: ImageRecord, check: UsabilityCheck | None) -> str:
    """Return the reason why the image or a file of a record is unusable; "" if all are usable."""
    if record.error:
        return record.error
    try:
        for file in record.files:
            if not exists(file):
                check_readable_file(file)  # names other kinds of entries
                raise ImageError(f"{file}: file not found; check the name and the folder")
        properties = _cached_properties(record)
        return check(record, properties) if check else ""
    except Exception as error:
        reason = failure_reason(error)
        return reason if reason.startswith(str(record.path)) else f"{record.path}: {reason}"


def _cached_properties(record: ImageRecord) -> ImageProperties:
    # Without fields that do not affect the properties, for the cache.
    essential = ImageRecord(record.path, "", "", None, None, record.mpp)
    essential = replace(
        essential,
        mask=record.mask,
        annotations=record.annotations,
        region_of_interest=record.region_of_interest,
    )
    return _read_properties(essential, repr([file_key(file) for file in record.files]))


@lru_cache(maxsize=100_000)
def _read_properties(record: ImageRecord, cache_key: str) -> ImageProperties:
    """Return the properties of an image.

    They are cached until `cache_key`, which depends on the files of the image, changes.
    """
    if is_feature_file(record.path):
        check_features(record.path)
    with open_image(record.path, record.mpp) as source:
        source.read(0, 0, 1, 1)  # of a plain image, this decodes all of it
        if record.has_regions:
            load_region(record, source, "")
        if (
            record.region_of_interest is not None
            and not record.region_of_interest.region_mask(source).any()
        ):
            raise ImageError(
                f"{record.region_of_interest.path}: the outlines contain no pixels of {record.path}"
            )
        return ImageProperties.from_source(source)


# --- duplicates ----------------------------------------------------------------------------------


def check_duplicates_by_content(manifest: Manifest) -> list[str]:
    """Return a warning about identical images, in a list; an empty list if there are none.

    Raise ManifestError if identical images have different labels.
    """
    groups = find_identical_files(manifest.records)
    for group in groups:
        first = group[0]
        for other in group[1:]:
            if other.label != first.label:
                raise ManifestError(
                    f"{manifest.name(first)} and {manifest.name(other)} are identical images "
                    f"with different labels, {first.label!r} and {other.label!r}; remove the "
                    "wrong one"
                )
    pairs = [" = ".join(manifest.name(record) for record in group) for group in groups]
    if not pairs:
        return []
    return [
        f"{pluralize(len(pairs), 'image')} with copies under other names: "
        f"{truncated_list(pairs)}. Measured accuracy is too high if copies are in both training "
        "and test set"
    ]


def find_identical_files(records: Sequence[ImageRecord]) -> list[list[ImageRecord]]:
    """Return groups of two or more records with identical files."""
    groups = [list({record.path: record for record in records}.values())]
    steps: tuple[Callable[[Path], object], ...] = (file_size, _head_digest, content_digest)
    for step in steps:
        groups = [subgroup for group in groups for subgroup in _split_by_key(group, step)]
    return groups


def _split_by_key(
    group: list[ImageRecord], key: Callable[[Path], object]
) -> list[list[ImageRecord]]:
    """Return the subgroups of two or more records whose paths have equal keys.

    Records with missing files are ignored.
    """
    subgroups: dict[object, list[ImageRecord]] = {}
    for record in group:
        value = key(record.path) if exists(record.path) else None
        if value:
            subgroups.setdefault(value, []).append(record)
    return [subgroup for subgroup in subgroups.values() if len(subgroup) > 1]


def _head_digest(path: Path) -> str:
    if path.is_dir():
        return "folder"  # folders of many small files are compared in full only
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()


def common_pixel_size(records: Sequence[ImageRecord], model_mpp: float | None) -> float | None:
    """Return the median pixel size of training images in µm.

    The result is None if the model resamples images, or if all pixel sizes are unknown.

    Parameters
    ----------
    records : training images
    model_mpp : pixel size (µm) to which the model resamples images; None if it does not resample

    Raises
    ------
    ValueError
        If some, but not all pixel sizes are unknown; if all are unknown and the model resamples
        images; or if the model does not resample images and their sizes differ by more than 10 %.
    """
    options = [PixelSizeOption(table=record.mpp).resolve(record.path) for record in records]
    sizes = [size.mpp for size in options]
    known = [size for size in sizes if size is not None]
    unknown = list(
        dict.fromkeys(str(r.path) for r, s in zip(records, sizes, strict=True) if s is None)
    )
    if unknown and (known or model_mpp is not None):
        reason = (
            "that of the others is known"
            if known
            else f"the model resamples images to {model_mpp:g} µm"
        )
        raise ValueError(
            f"the pixel size of {pluralize(len(unknown), 'image')} is not known, but "
            f"{reason}; {pixel_size_advice()}. Images without pixel size: "
            f"{truncated_list(unknown)}{first_hint(options)}"
        )
    if model_mpp is not None or not known:
        return None
    if have_mixed_pixel_sizes(known):
        size = f"{max(known):g}"
        remedy = hint(
            python=f"with the setting mpp={size}",
            cli=f"with --set mpp={size}",
            web=f"by setting mpp to {size} in the training settings",
        )
        raise ValueError(
            f"the training images have different pixel sizes (mpp), from {min(known):g} to "
            f"{size} µm; resample them {remedy}, or exclude some"
        )
    return float(np.median(known))


_N_VECTORS = 4  # vectors of a feature file in the sorting digest
_N_DIGITS = 6  # decimals of mean colours, whose last bits may differ between machines


def training_content(
    record: ImageRecord, digest: Callable[[Path], str] = content_digest
) -> list[Any]:
    """Return the digests and metadata of a record that affect training, for cache and sort keys."""
    mask = digest(record.mask) if record.mask else None
    annotations = {"drawn": record.annotations, "within": record.region_of_interest}
    fingerprints = [
        [name, outlines.fingerprint()]
        for name, outlines in annotations.items()
        if outlines is not None
    ]
    return [digest(record.path), record.label, record.patient, record.mpp, mask, *fingerprints]


def _sorting_digest(path: Path) -> str:
    """Return a digest of a file; "" for an unreadable feature file.

    The digest of a feature file does not depend on its format and the order of rows.
    """
    try:
        if is_feature_file(path):
            return _features_digest(path, repr(file_key(path)))
    except (ImageError, OSError):  # errors are reported when it is opened
        return ""
    return sampled_digest(path)


@lru_cache(maxsize=100_000)
def _features_digest(path: Path, cache_key: str) -> str:
    """Return a digest of the coords and of a few vectors of a feature file, sorted by coords."""
    with open_features(path) as file:
        order = np.lexsort(file.coords.T)
        some = order[np.linspace(0, len(order) - 1, _N_VECTORS).astype(np.int64)]
        parts = [
            file.coords[order].tobytes(),
            *(file.read(slice(i, i + 1)).tobytes() for i in some),
        ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _pixel_statistics(record: ImageRecord) -> list[Any]:
    """Return [size, mean colour, white point] of an image; [] for unreadable and feature files."""
    properties = image_properties(record)
    if properties is None or properties.mean is None or properties.white_point is None:
        return []
    return [
        properties.size,
        *(round(value, _N_DIGITS) for value in (*properties.mean, *properties.white_point)),
    ]


def content_order(records: Sequence[ImageRecord]) -> list[int]:
    """Return the indices that sort records by content, independent of file names.

    The sort keys are size and colours, which do not depend on the file format, then
    `training_content`. Records with equal keys are interchangeable in training.
    """
    pixels = map_blocks(_pixel_statistics, records)
    contents = (training_content(record, _sorting_digest) for record in records)
    keys = [json.dumps(key) for key in zip(pixels, contents, strict=True)]
    return sorted(range(len(records)), key=keys.__getitem__)


def sorted_by_content(manifest: Manifest) -> Manifest:
    """Return the same images, sorted by `content_order`."""
    return manifest.select(content_order(manifest.records))
