"""Detection of uniform margins, which software adds to images to reach a fixed size.

A margin consists of whole rows or columns at a side of the image that have one colour. Microscope
background has noise and counts as content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 3  # grey levels; above the error of lossy compression in a uniform area
_STRIP = 64  # rows or columns read together
_MAX_FRAMES = 2  # nested margins of different colours
_MAX_PIXELS = 50_000_000  # larger images are not searched, as they are not tiles

Box = tuple[int, int, int, int]  # left, top, right, bottom in level-0 pixels


class Source(Protocol):
    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def overview_downsample(self) -> float | None: ...

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]: ...

    def thumbnail(self, longest_side: int) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class Crop:
    """A box of an image as an image of its own, with coordinates relative to the box."""

    source: Source
    box: Box
    overview_downsample: float | None = None  # slides are not cropped

    @property
    def size(self) -> tuple[int, int]:
        left, top, right, bottom = self.box
        return right - left, bottom - top

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        return self.source.read(self.box[0] + x, self.box[1] + y, width, height, downsample)

    def thumbnail(self, longest_side: int) -> NDArray[np.uint8]:
        return self.read(0, 0, *self.size, max(1.0, max(self.size) / longest_side))


def content_box(source: Source) -> Box:
    """Return the box of a tile or photograph inside its uniform margins.

    It is the whole image if there are none, if all of the image is uniform, or for a slide.
    """
    whole = (0, 0, *source.size)
    if source.overview_downsample is not None or source.size[0] * source.size[1] > _MAX_PIXELS:
        return whole
    box = list(whole)
    for axis in (1, 0) * _MAX_FRAMES:  # rows, then columns
        for is_last in (False, True):
            n_lines = _count_uniform(source, box, axis, is_last)
            if n_lines == box[axis + 2] - box[axis]:
                return whole
            box[axis + 2 * is_last] += -n_lines if is_last else n_lines
    left, top, right, bottom = box
    return left, top, right, bottom


def _count_uniform(source: Source, box: list[int], axis: int, is_last: bool) -> int:
    """Return the number of uniform rows or columns at one side of a box."""
    colour, count = None, 0
    for lines in _strips(source, box, axis, is_last):
        if colour is None:
            colour = np.median(lines[0], axis=0)
        differs = (np.abs(lines - colour) > _TOLERANCE).any(axis=(1, 2))
        if differs.any():
            return count + int(differs.argmax())
        count += len(lines)
    return count


def _strips(
    source: Source, box: list[int], axis: int, is_last: bool
) -> Iterator[NDArray[np.uint8]]:
    """Yield blocks of rows or columns (n, length, 3) of a box, from the outermost inwards."""
    for start in range(box[axis], box[axis + 2], _STRIP):
        stop = min(start + _STRIP, box[axis + 2])
        part = box.copy()
        part[axis], part[axis + 2] = start, stop
        if is_last:
            first = box[axis] + box[axis + 2]
            part[axis], part[axis + 2] = first - stop, first - start
        pixels = source.read(part[0], part[1], part[2] - part[0], part[3] - part[1])
        lines = pixels if axis == 1 else pixels.swapaxes(0, 1)
        yield lines[::-1] if is_last else lines
