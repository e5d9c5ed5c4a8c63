"""A look at images before hours of work: can all be read, and is none of them there twice?

Technical properties of an image: format, size, pixel size and colours.

Order of images by content, so that results do not depend on the order of rows or on file names.

Training samples patches image by image and sums over them; both depend on the order of images.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.file_types import ImageError
from ..images.pixel_size import PixelSizeOption, first_hint, how_to_set, is_mixed
from ..images.raster import check_readable_file
from ..images.source import ImageSource, open_image
from ..precomputed.feature_file import check_features, is_feature_file, open_features
from ..utils.files import content_digest, exists, file_bytes, file_key, sampled_digest
from ..utils.parallel import map_blocks
from ..utils.progress import Callback, Progress, no_callback
from ..utils.text_io import failure_reason, first_of, pluralize, truncated_list
from ..utils.validation import hint
from .annotated import load_region
from .manifest import Manifest
from .record import ImageRecord, ManifestError

_SIDE = 128  # of the overview whose colours are measured
_WHITE = 99  # percentile of each channel, near that of the background
_SUFFIXES = {".jpeg": ".jpg", ".tiff": ".tif"}

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class ImageProperties:
    """Format, size, pixel size and colours of an image; only the format for a feature file.

    size : (width, height); mpp : µm per pixel, if known; mean, white : mean and 99th percentile
    of red, green and blue over the whole image
    """

    format: str
    size: tuple[int, int] | None = None
    mpp: float | None = None
    mean: Colour | None = None
    white: Colour | None = None

    @classmethod
    def of(cls, source: ImageSource) -> ImageProperties:
        suffix = source.path.suffix.lower() if hasattr(source.path, "suffix") else ""
        suffix = _SUFFIXES.get(suffix, suffix)
        if is_feature_file(source.path):
            return cls(suffix)
        pixels = source.thumbnail(_SIDE).reshape(-1, 3)
        mean, white = pixels.mean(axis=0), np.percentile(pixels, _WHITE, axis=0)
        return cls(suffix, source.size, source.mpp, _colour(mean), _colour(white))


def _colour(values: NDArray[Any]) -> Colour:
    red, green, blue = values.tolist()
    return red, green, blue


_HEAD_BYTES = 65536


@dataclass(frozen=True)
class ReadabilityReport:
    """(record, reason) of those that cannot be read."""

    n_images: int
    bad: list[tuple[ImageRecord, str]]

    def check(self) -> None:
        """Raise an error if an image cannot be read; the message lists the first ten."""
        if self.bad:
            # Of an image there may be several parts.
            reasons = list(dict.fromkeys(reason for _, reason in self.bad))
            names = "".join(f"\n  {line}" for line in first_of(reasons))
            n_bad = len({record.path for record, _ in self.bad})
            how = hint(python="histodict.datasets.survey.drop_unreadable", cli="--skip-unreadable")
            raise ImageError(
                f"{n_bad} of {pluralize(self.n_images, 'image')} cannot be read. Mend or "
                f"remove them, or go on without them: {how}:{names}"
            )


def check_readable(
    records: Sequence[ImageRecord], n_jobs: int | None = None, callback: Callback = no_callback
) -> ReadabilityReport:
    """Reads every image once, plain ones whole; of slides, which are large, a little."""
    callback(Progress("look", 0, len(records)))
    bad = []
    for place, reason in enumerate(map_blocks(_unreadable_reason, records, n_jobs)):
        if reason:
            bad.append((records[place], reason))
        callback(Progress("look", place + 1, len(records)))
    return ReadabilityReport(len({record.path for record in records}), bad)


def check_files(records: Sequence[ImageRecord]) -> None:
    """Raise an error that lists paths without an image file; the files are not opened."""
    bad = []
    for record in records:
        try:
            check_readable_file(record.path)
        except ImageError as error:
            bad.append(str(error))
    if bad:
        names = "".join(f"\n  {line}" for line in first_of(bad))
        n = pluralize(len(records), "image")
        raise ImageError(f"{len(bad)} of {n} cannot be read; replace or remove them:{names}")


def drop_unreadable(
    manifest: Manifest, n_jobs: int | None = None, callback: Callback = no_callback
) -> tuple[Manifest, list[str]]:
    """The images that can be read, and why the others cannot; these are named in the manifest."""
    bad = check_readable(manifest.records, n_jobs, callback).bad
    lost = {record for record, _ in bad}
    kept = [place for place, record in enumerate(manifest.records) if record not in lost]
    left_out = tuple(manifest.name(record) for record, _ in bad)
    chosen = replace(manifest.select(kept), skipped=manifest.skipped + left_out)
    return chosen, [reason for _, reason in bad]


def with_pixel_size(
    manifest: Manifest, mpp: float | None = None, override_mpp: float | None = None
) -> Manifest:
    """The same images, of a pixel size where nobody says it, or whatever is said."""
    if mpp is None and override_mpp is None:
        return manifest
    return replace(
        manifest,
        records=tuple(_with_size(record, mpp, override_mpp) for record in manifest.records),
    )


def _with_size(record: ImageRecord, mpp: float | None, override_mpp: float | None) -> ImageRecord:
    try:
        size = PixelSizeOption(mpp, record.mpp, override_mpp).at(record.path)
    except ImageError:  # a survey names it, with all others that cannot be read
        return record
    return replace(record, mpp=size.is_user_given)


def image_properties(record: ImageRecord) -> ImageProperties | None:
    """Return the surveyed properties of an image, read if necessary; None if unreadable."""
    try:
        return _surveyed(record)
    except (ValueError, OSError, MemoryError):
        return None


def _unreadable_reason(record: ImageRecord) -> str:
    """Why an image, or its mask, cannot be read; nothing if it can."""
    if record.error:
        return record.error
    try:
        for file in record.files:
            if not exists(file):
                check_readable_file(file)  # reports what it is instead
                raise ImageError(f"{file}: there is no such file; check the name and the folder")
        _surveyed(record)
    except Exception as error:
        words = failure_reason(error)
        return words if words.startswith(str(record.path)) else f"{record.path}: {words}"
    return ""


def _surveyed(record: ImageRecord) -> ImageProperties:
    alone = ImageRecord(record.path, "", "", None, None, record.mpp)
    alone = replace(
        alone,
        mask=record.mask,
        annotations=record.annotations,
        region_of_interest=record.region_of_interest,
    )
    return _try(alone, repr([file_key(file) for file in record.files]))


@lru_cache(maxsize=100_000)
def _try(record: ImageRecord, state: str) -> ImageProperties:
    """Reads it, once as long as it stays as it is."""
    if is_feature_file(record.path):
        check_features(record.path)
    with open_image(record.path, record.mpp) as source:
        source.read(0, 0, 1, 1)  # of a plain image, this decodes all of it
        if record.is_mapped:
            load_region(record, source, "")
        if (
            record.region_of_interest is not None
            and not record.region_of_interest.region(source).any()
        ):
            raise ImageError(
                f"{record.region_of_interest.path}: its outlines hold no pixel of {record.path}"
            )
        return ImageProperties.of(source)


# --- the same twice -----------------------------------------------------------------------------


def check_duplicates_by_content(manifest: Manifest) -> list[str]:
    """Refuses one content under two labels; what is there twice under one is said in a line."""
    groups = find_identical_files(manifest.records)
    for group in groups:
        first = group[0]
        for other in group[1:]:
            if other.label != first.label:
                raise ManifestError(
                    f"{manifest.name(first)} and {manifest.name(other)} are the same image, once "
                    f"as {first.label!r} and once as {other.label!r}: remove what is wrong"
                )
    pairs = [" = ".join(manifest.name(record) for record in group) for group in groups]
    if not pairs:
        return []
    return [
        f"{pluralize(len(pairs), 'image')} there more than once, under other names: "
        f"{truncated_list(pairs)}. Trained on and tested, they make figures too good"
    ]


def find_identical_files(records: Sequence[ImageRecord]) -> list[list[ImageRecord]]:
    """Different files of the same bytes; only files of one size and one beginning are read."""
    groups = [list({record.path: record for record in records}.values())]
    steps: tuple[Callable[[Path], object], ...] = (_n_bytes, _beginning, content_digest)
    for step in steps:
        groups = [part for group in groups for part in _parted(group, step)]
    return groups


def _parted(group: list[ImageRecord], step: Callable[[Path], object]) -> list[list[ImageRecord]]:
    """The records alike by a step, where there are several; files that are not there are left."""
    parts: dict[object, list[ImageRecord]] = {}
    for record in group:
        found = step(record.path) if exists(record.path) else None
        if found:
            parts.setdefault(found, []).append(record)
    return [part for part in parts.values() if len(part) > 1]


def _n_bytes(path: Path) -> int:
    return file_bytes(path)


def _beginning(path: Path) -> str:
    if path.is_dir():
        return "folder"  # of many small files, which are read whole or not at all
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()


def common_size(records: Sequence[ImageRecord], works_at: float | None) -> float | None:
    """The pixel size of training images, None where none of them has one.

    Refuses sizes of which some are not known, and a mixture that is not reduced to one. With a
    pixel size that the model works at, every image is reduced to it, and none has to match another.
    """
    found = [PixelSizeOption(table=record.mpp).at(record.path) for record in records]
    sizes = [size.mpp for size in found]
    known = [size for size in sizes if size is not None]
    unknown = list(
        dict.fromkeys(str(r.path) for r, s in zip(records, sizes, strict=True) if s is None)
    )
    if unknown and (known or works_at is not None):
        others = "that of the others is" if known else f"the model works at {works_at:g} µm"
        raise ValueError(
            f"the pixel size of {pluralize(len(unknown), 'image')} is not known, and {others}: "
            f"{how_to_set()}. It is not known of {truncated_list(unknown)}{first_hint(found)}"
        )
    if works_at is not None or not known:
        return None
    if is_mixed(known):
        size = f"{max(known):g}"
        setting = hint(
            python=f"with the setting mpp={size}",
            cli=f"with --set mpp={size}",
            web=f"by setting mpp to {size} in the training settings",
        )
        raise ValueError(
            f"the training images have pixel sizes (mpp) from {min(known):g} to {size} µm: "
            f"reduce them to a common one {setting}, or leave some out"
        )
    return float(np.median(known))


_N_FEATURES = 4  # of a feature file, for the sorting digest
_DIGITS = 6  # of mean colours, whose last bits may differ between machines


def training_content(
    record: ImageRecord, digest: Callable[[Path], str] = content_digest
) -> list[Any]:
    """Return the content of a record that affects training, independent of file names."""
    mask = digest(record.mask) if record.mask else None
    annotations = {"drawn": record.annotations, "within": record.region_of_interest}
    facts = [[name, each.fingerprint()] for name, each in annotations.items() if each is not None]
    return [digest(record.path), record.label, record.patient, record.mpp, mask, *facts]


def _sorting_digest(path: Path) -> str:
    """Return a digest of a feature file's vectors, for any format and order; else of the bytes."""
    try:
        if is_feature_file(path):
            return _features_digest(path, repr(file_key(path)))
    except (ImageError, OSError):  # errors are reported when it is opened
        return ""
    return sampled_digest(path)


@lru_cache(maxsize=100_000)
def _features_digest(path: Path, state: str) -> str:
    """Return a digest of all coordinates and of a few vectors, as files may hold gigabytes."""
    with open_features(path) as file:
        order = np.lexsort(file.coords.T)
        some = order[np.linspace(0, len(order) - 1, _N_FEATURES).astype(np.int64)]
        parts = [
            file.coords[order].tobytes(),
            *(file.read(slice(i, i + 1)).tobytes() for i in some),
        ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _pixel_statistics(record: ImageRecord) -> list[Any]:
    """Size and colours of an image, as a survey measures them; empty if it cannot be read."""
    found = image_properties(record)
    if found is None or found.mean is None or found.white is None:
        return []
    return [found.size, *(round(value, _DIGITS) for value in (*found.mean, *found.white))]


def content_order(records: Sequence[ImageRecord]) -> list[int]:
    """Return the order of records by image content, then label, patient, pixel size and mask.

    Colours and size come first, as they do not depend on how the same pixels are stored.
    Records that agree in all of these are interchangeable in training.
    """
    pixels = map_blocks(_pixel_statistics, records)
    contents = (training_content(record, _sorting_digest) for record in records)
    keys = [json.dumps(both) for both in zip(pixels, contents, strict=True)]
    return sorted(range(len(records)), key=keys.__getitem__)


def sorted_by_content(manifest: Manifest) -> Manifest:
    """Return the same images in the order of `content_order`."""
    return manifest.select(content_order(manifest.records))
