"""A regular grid of patches over an image of any size, read in chunks.

Lengths ending in `_px` are pixels of the reduced image, at which patches are cut; the image itself
is addressed in level-0 pixels, `downsample` times as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_CHUNK_PX = 1024


class RegionSource(Protocol):
    """The part of an image source that is needed here."""

    @property
    def size(self) -> tuple[int, int]: ...

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class PatchGrid:
    """n_rows × n_columns patches of patch_px, one every stride_px.

    left, top : level-0 corner of the first, where it does not lie in that of the image
    chunk_px : side of what is read together
    """

    n_rows: int
    n_columns: int
    patch_px: int
    stride_px: int
    downsample: float
    left: float = 0.0
    top: float = 0.0
    chunk_px: int = _CHUNK_PX

    @classmethod
    def covering(
        cls,
        size: tuple[int, int],
        patch_px: int,
        stride_px: int,
        downsample: float,
        corner: tuple[int, int] = (0, 0),
    ) -> PatchGrid:
        """Return the grid of all patches inside a box given by level-0 corner and size."""
        counts = [
            int((length / downsample - patch_px) // stride_px) + 1 if length else 0
            for length in size
        ]
        if min(counts) < 1:
            least = round(patch_px * downsample)
            raise ValueError(
                f"the image has {size[0]} x {size[1]} pixels, less than one patch of "
                f"{least} x {least}: use a smaller patch or scale, or leave the image out"
            )
        place = counts[1], counts[0], patch_px, stride_px, downsample, *corner
        return cls(*place, chunk_px=_CHUNK_PX)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Ranges of grid rows and columns whose patches are read together."""
        per_side = max(1, (self.chunk_px - self.patch_px) // self.stride_px + 1)
        for row in range(0, self.n_rows, per_side):
            for column in range(0, self.n_columns, per_side):
                yield (
                    slice(row, min(row + per_side, self.n_rows)),
                    slice(column, min(column + per_side, self.n_columns)),
                )

    def read(self, source: RegionSource, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """The patches of a chunk, row by row: (n_patches, patch_px, patch_px, 3)."""
        return extract_patches(self.read_area(source, rows, columns), self.patch_px, self.stride_px)

    def read_area(self, source: RegionSource, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """The pixels that the patches of a chunk cover, reduced."""
        height, width = (
            (part.stop - part.start - 1) * self.stride_px + self.patch_px
            for part in (rows, columns)
        )
        x, y = self.corner(rows.start, columns.start)
        return source.read(
            x,
            y,
            round(width * self.downsample),
            round(height * self.downsample),
            self.downsample,
        )[:height, :width]

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """Level-0 x and y of a patch's upper left corner."""
        return round(self.left + column * self.step), round(self.top + row * self.step)

    @property
    def patch_side(self) -> float:
        """Side of a patch in level-0 pixels."""
        return self.patch_px * self.downsample

    @property
    def step(self) -> float:
        """From a patch to the next, in level-0 pixels: the side of a cell of the grid."""
        return self.stride_px * self.downsample

    @property
    def shift(self) -> float:
        """Where the first cell begins: overlapping patches are drawn as the cells nearest them."""
        return (self.patch_side - self.step) / 2

    def cell_corner(self, corner: tuple[int, int]) -> tuple[float, float]:
        """Level-0 (x, y) of a corner (column, row) of the cells."""
        x, y = (at * self.step + self.shift for at in corner)
        return x + self.left, y + self.top

    def rows_at(self, y: NDArray[np.float64]) -> NDArray[np.int64]:
        """The rows of cells that are nearest to level-0 places."""
        return self._nearest(y - self.top, self.n_rows)

    def columns_at(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        return self._nearest(x - self.left, self.n_columns)

    def is_near(self, places: NDArray[np.float64], start: float, count: int) -> NDArray[np.bool_]:
        """Return whether level-0 x or y are within one patch of the columns or rows."""
        reach, first = max(self.patch_side, self.step), start + self.shift
        return (places > first - reach) & (places < first + count * self.step + reach)

    def _nearest(self, places: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        index = np.floor((places - self.shift) / self.step).astype(np.int64)
        return np.clip(index, 0, count - 1)


def extract_patches(pixels: NDArray[np.uint8], patch_px: int, stride_px: int) -> NDArray[np.uint8]:
    """All patches of an image on a grid, row by row: (n_patches, patch_px, patch_px, 3)."""
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (patch_px, patch_px), axis=(0, 1))
    chosen = windows[::stride_px, ::stride_px].transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(chosen).reshape(-1, patch_px, patch_px, 3)


def extract_selected_patches(
    pixels: NDArray[np.uint8], patch_px: int, stride_px: int, chosen: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Those patches of an image on a grid that are chosen (rows, columns): (n_patches, …, 3).

    In memory their colours lie one after another, as vectors want them.
    """
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (patch_px, patch_px), axis=(0, 1))
    return windows[::stride_px, ::stride_px][chosen].transpose(0, 2, 3, 1)
