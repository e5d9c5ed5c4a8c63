"""An area cut into windows of the size a network was trained on, and their maps joined again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def window_starts(length: int, side: int) -> list[int]:
    """Where windows begin that cover a length; the last ends with it, and may overlap another."""
    if length <= side:
        return [0]
    return [*range(0, length - side, side), length - side]


def padded(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """At least one window large: mirrored behind its end where it is smaller."""
    missing = [(0, max(0, side - length)) for length in pixels.shape[:2]]
    return np.pad(pixels, (*missing, (0, 0)), mode="symmetric") if np.any(missing) else pixels


def cut_windows(
    pixels: NDArray[np.uint8], side: int
) -> tuple[list[tuple[int, int]], NDArray[np.uint8]]:
    """Corners (y, x) and windows (n, side, side, 3) of an area at least one window large."""
    corners = [
        (y, x)
        for y in window_starts(pixels.shape[0], side)
        for x in window_starts(pixels.shape[1], side)
    ]
    return corners, np.stack([pixels[y : y + side, x : x + side] for y, x in corners])


def join_maps(
    corners: list[tuple[int, int]],
    maps: NDArray[np.float32],
    cell_px: int,
    shape: tuple[int, int],
) -> NDArray[np.float32]:
    """Maps (n, h, w, n_features) of windows as one of a shape in cells.

    Where windows overlap a cell is taken from the one in which it lies farther inside; both are
    right, and which one does not depend on their order.
    """
    n_cells, n_features = maps.shape[1], maps.shape[3]
    inside = np.minimum(np.arange(n_cells), np.arange(n_cells)[::-1])
    depths = np.minimum(inside[:, None], inside)
    whole = np.zeros((*shape, n_features), np.float32)
    deepest = np.full(shape, -1)
    for (y, x), own in zip(corners, maps, strict=True):
        rows, columns = (slice(at // cell_px, at // cell_px + n_cells) for at in (y, x))
        there = whole[rows, columns]  # cut off where the area was mirrored behind its end
        height, width = there.shape[:2]
        deeper = depths[:height, :width] > deepest[rows, columns]
        there[deeper] = own[:height, :width][deeper]
        deepest[rows, columns][deeper] = depths[:height, :width][deeper]
    return whole
