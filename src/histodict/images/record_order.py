"""Order of images by content, so that results do not depend on the order of rows or on file names.

Training samples patches image by image and sums over them; both depend on the order of images.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..execution.files import content_digest, file_key, sampled_digest
from ..execution.local import map_blocks
from .errors import ImageError
from .feature_file import is_feature_file, open_features
from .manifest import Manifest
from .records import ImageRecord
from .survey import image_properties

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
