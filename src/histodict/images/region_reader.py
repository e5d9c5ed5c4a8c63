"""Base class of image readers, which reads and reduces regions tile by tile."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..utils.validation import check_number, check_whole_number
from .resampling import (
    MAX_BLOCK_TILE_PX,
    MAX_TILE_PX,
    Box,
    ResampleTile,
    are_whole_numbers,
    resize,
    split_range,
)

if TYPE_CHECKING:
    from .memory_image import ImageLike

Pixels = NDArray[np.uint8]
Handle = TypeVar("Handle")

_MAX_POSITION = 2**40


class RegionReader(ABC, Generic[Handle]):
    """Base class of image readers: reduces regions and keeps one file handle per process.

    Subclasses open the file and read tiles. See `ImageSource` for the attributes.
    """

    def __init__(self, path: ImageLike, size: tuple[int, int], mpp: float | None) -> None:
        self.path = path
        self.size = size
        self.mpp = mpp
        self.offset = (0, 0)
        # By process identifier: a forked child must neither use nor close its parent's handle.
        self._handles: dict[int, Handle] = {}

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory of the open image in bytes."""

    @property
    def overview_downsample(self) -> float | None:
        """Downsample of a level that is fast to read as a whole; None if there is none."""
        return None

    @abstractmethod
    def _open(self) -> Handle: ...

    @abstractmethod
    def _close(self, handle: Handle) -> None: ...

    @abstractmethod
    def _select_level(self, downsample: float) -> tuple[int, float]:
        """Return the level to read for a reduction by `downsample`, and the level's downsample."""

    @abstractmethod
    def _read_tile(self, handle: Handle, tile: ResampleTile) -> Pixels:
        """Return a resampled tile as RGB; pixels outside the image are white."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """Return a reduced region (height, width, 3); see `ImageSource.read`."""
        x, y = (check_whole_number(name, at, -_MAX_POSITION) for name, at in (("x", x), ("y", y)))
        width = check_whole_number("width", width, 1)
        height = check_whole_number("height", height, 1)
        downsample = check_number("downsample", downsample, low=1)
        shape = max(1, round(height / downsample)), max(1, round(width / downsample))
        level, scale = self._select_level(downsample)
        box = x / scale, y / scale, (x + width) / scale, (y + height) / scale
        level_size = tuple(side / scale for side in self.size)
        return self._reduce(self._open_handle(), level, box, shape, level_size)

    def thumbnail(self, longest_side: int) -> Pixels:
        """Return the whole image, reduced so that no side has more than `longest_side` pixels."""
        longest_side = check_whole_number("longest_side", longest_side, 1)
        return self.read(0, 0, *self.size, max(1.0, max(self.size) / longest_side))

    def is_region_invariant(self, downsample: float) -> bool:
        """Return whether reduced pixels are independent of the region; see `ImageSource`."""
        scale = self._select_level(downsample)[1]
        return float(scale).is_integer() and (downsample / scale).is_integer()

    def _reduce(
        self,
        handle: Handle,
        level: int,
        box: Box,
        shape: tuple[int, int],
        level_size: tuple[float, ...],
    ) -> Pixels:
        """Return a box of a level, reduced tile by tile to an image (height, width, 3).

        The parameters are those of `ResampleTile.from_box`.
        """
        from PIL import Image

        steps = (box[3] - box[1]) / shape[0], (box[2] - box[0]) / shape[1]
        if max(steps) > MAX_TILE_PX:  # one output pixel needs too much memory: reduce in two steps
            finer = shape[0] * math.ceil(steps[0] / 64), shape[1] * math.ceil(steps[1] / 64)
            reduced = self._reduce(handle, level, box, finer, level_size)
            return np.array(resize(Image.fromarray(reduced), shape))
        pixels = np.empty((*shape, 3), np.uint8)
        is_integer = are_whole_numbers(*box, *steps)
        max_px = MAX_BLOCK_TILE_PX if is_integer else MAX_TILE_PX
        for rows in split_range(shape[0], steps[0], max_px):
            top, bottom = (box[1] + row * steps[0] for row in (rows.start, rows.stop))
            for columns in split_range(shape[1], steps[1], max_px):
                left, right = (box[0] + at * steps[1] for at in (columns.start, columns.stop))
                size = rows.stop - rows.start, columns.stop - columns.start
                tile = ResampleTile.from_box(level, (left, top, right, bottom), size, level_size)
                if size == shape:
                    return self._read_tile(handle, tile)
                pixels[rows, columns] = self._read_tile(handle, tile)
        return pixels

    def _open_handle(self) -> Handle:
        process = os.getpid()
        handle = self._handles.get(process)
        if handle is None:
            # If two threads open a handle at the same time, both use the first one.
            handle = self._handles.setdefault(process, self._open())
        return handle

    def close(self) -> None:
        """Close the file and free its pixels; a later read opens it again."""
        handle = self._handles.pop(os.getpid(), None)
        if handle is not None:
            self._close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}
