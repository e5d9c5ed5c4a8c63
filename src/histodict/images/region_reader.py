"""Reading of reduced regions in pieces of one level of an image."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..utils.validation import check_number, check_whole_number
from .resampling import BLOCKS_PX, PIECE_PX, Box, ResampleTile, is_integer_grid, pieces, resize

if TYPE_CHECKING:
    from .memory_image import ImageLike

Pixels = NDArray[np.uint8]
Handle = TypeVar("Handle")

_FARTHEST = 2**40


class RegionReader(ABC, Generic[Handle]):
    """Base class of image readers, with reduction, white borders and management of file handles.

    Subclasses open the file and read rectangles of its levels.
    """

    def __init__(self, path: ImageLike, size: tuple[int, int], mpp: float | None) -> None:
        self.path = path
        self.size = size
        self.mpp = mpp
        self.offset = (0, 0)
        # By process: a forked child must neither use nor close the handle of its parent.
        self._handles: dict[int, Handle] = {}

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory of an opened image."""

    @property
    def overview_downsample(self) -> float | None:
        """Downsample of a level that is fast to read as a whole; None without one."""
        return None

    @abstractmethod
    def _open(self) -> Handle: ...

    @abstractmethod
    def _close(self, handle: Handle) -> None: ...

    @abstractmethod
    def _level(self, downsample: float) -> tuple[int, float]:
        """Return the level to reduce from, and its downsample."""

    @abstractmethod
    def _read_tile(self, handle: Handle, piece: ResampleTile) -> Pixels:
        """Return a reduced piece as RGB; pixels outside the image are white."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """Return a region (level-0 pixels), reduced: (height, width, 3)."""
        x, y = (check_whole_number(name, at, -_FARTHEST) for name, at in (("x", x), ("y", y)))
        width = check_whole_number("width", width, 1)
        height = check_whole_number("height", height, 1)
        downsample = check_number("downsample", downsample, low=1)
        shape = max(1, round(height / downsample)), max(1, round(width / downsample))
        level, scale = self._level(downsample)
        box = x / scale, y / scale, (x + width) / scale, (y + height) / scale
        limits = tuple(side / scale for side in self.size)
        return self._reduce(self._open_handle(), level, box, shape, limits)

    def thumbnail(self, longest_side: int) -> Pixels:
        """Return the whole image, reduced to this longest side; never enlarged."""
        longest_side = check_whole_number("longest_side", longest_side, 1)
        return self.read(0, 0, *self.size, max(1.0, max(self.size) / longest_side))

    def is_region_invariant(self, downsample: float) -> bool:
        """Return whether reduced pixels do not depend on the region that is read."""
        scale = self._level(downsample)[1]
        return float(scale).is_integer() and (downsample / scale).is_integer()

    def _reduce(
        self,
        handle: Handle,
        level: int,
        box: Box,
        shape: tuple[int, int],
        limits: tuple[float, ...],
    ) -> Pixels:
        """Reduce a box of a level to an image of this shape, in pieces."""
        from PIL import Image

        steps = (box[3] - box[1]) / shape[0], (box[2] - box[0]) / shape[1]
        if (
            max(steps) > PIECE_PX
        ):  # reduce in two steps, as one output pixel would need too much memory
            finer = shape[0] * math.ceil(steps[0] / 64), shape[1] * math.ceil(steps[1] / 64)
            reduced = self._reduce(handle, level, box, finer, limits)
            return np.array(resize(Image.fromarray(reduced), shape))
        pixels = np.empty((*shape, 3), np.uint8)
        is_integer = is_integer_grid(*box, *steps)
        most_px = BLOCKS_PX if is_integer else PIECE_PX
        for rows in pieces(shape[0], steps[0], most_px):
            top, bottom = (box[1] + row * steps[0] for row in (rows.start, rows.stop))
            for columns in pieces(shape[1], steps[1], most_px):
                left, right = (box[0] + at * steps[1] for at in (columns.start, columns.stop))
                size = rows.stop - rows.start, columns.stop - columns.start
                piece = ResampleTile.around(level, (left, top, right, bottom), size, limits)
                if size == shape:
                    return self._read_tile(handle, piece)
                pixels[rows, columns] = self._read_tile(handle, piece)
        return pixels

    def _open_handle(self) -> Handle:
        process = os.getpid()
        handle = self._handles.get(process)
        if handle is None:
            # If two threads open a handle, that of the first to finish is kept.
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
