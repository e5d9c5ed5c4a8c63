"""Masks: which part of an image is the region of interest, by a picture or by outlines.

A mask is a picture of the image's proportions, of its size or smaller. Everything but 0 is region;
in a JPEG, whose values blur, everything from the middle of the range.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .annotations.drawing import ImageGeometry
from .decoding import check_memory, check_readable_file, decoded_bytes, open_pillow
from .errors import ImageError
from .feature_file import check_has_patch_size, is_feature_file
from .picture import iter_strips
from .records import ImageRecord

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
