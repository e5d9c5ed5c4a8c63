"""A patch together with its surroundings, seen at a coarser scale.

The surroundings are `context` times as wide as the patch, have the same centre, and are reduced to
as many pixels: a cell and what it lies in, in two pictures of one size. Beyond the image lies its
mirror image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grid import PatchGrid, RegionSource


def context_margin(patch_px: int, context: int) -> tuple[int, int]:
    """How far the surroundings reach beyond the patch: before and after it."""
    both = patch_px * (context - 1)
    return both // 2, both - both // 2


def read_with_context(
    grid: PatchGrid, source: RegionSource, rows: slice, columns: slice, context: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels that the surroundings of a chunk's patches cover, and those of the patches alone.

    The origin of `source` is that of the grid.
    """
    p, stride = grid.patch_px, grid.stride_px
    before, after = context_margin(p, context)
    spans = [
        (part.start * stride - before, (part.stop - 1) * stride + p + after)
        for part in (columns, rows)
    ]
    area = read_mirrored(source, *spans[0], *spans[1], grid.downsample)
    return area, area[before : len(area) - after, before : area.shape[1] - after]


def downsampled_context(
    area: NDArray[np.uint8], side: int, stride: int, context: int, chosen: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """The chosen fields of an area on a grid (rows, columns), reduced: (n_fields, …, 3)."""
    windows = np.lib.stride_tricks.sliding_window_view(area, (side, side), axis=(0, 1))
    wide = windows[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    # A line of the grid at a time: less memory.
    lines = [block_means(fields[own], context) for fields, own in zip(wide, chosen, strict=True)]
    return np.concatenate(lines)


def read_mirrored(
    source: RegionSource, left: int, right: int, top: int, bottom: int, downsample: float
) -> NDArray[np.uint8]:
    """Pixels of the reduced image from left to right and top to bottom, which may lie outside."""
    size = [int(length / downsample) for length in source.size]
    inside = [(max(0, left), min(size[0], right)), (max(0, top), min(size[1], bottom))]
    (x0, x1), (y0, y1) = inside
    pixels = source.read(
        round(x0 * downsample),
        round(y0 * downsample),
        round((x1 - x0) * downsample),
        round((y1 - y0) * downsample),
        downsample,
    )[: y1 - y0, : x1 - x0]
    missing = ((y0 - top, bottom - y1), (x0 - left, right - x1), (0, 0))
    return np.pad(pixels, missing, mode="symmetric") if np.any(missing) else pixels


def block_means(pictures: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pictures (..., h, w, 3) reduced by a whole number: each pixel is the mean of its block."""
    # The sum over up to 16 × 16 pixels, and half as many more, is below 2¹⁶.
    kind: type[Any] = np.uint16 if size <= 16 else np.uint32
    total = np.zeros(pictures[..., ::size, ::size, :].shape, kind)
    for row in range(size):  # many times as fast as a sum over axes
        for column in range(size):
            total += pictures[..., row::size, column::size, :]
    means: NDArray[np.uint8] = (total + kind(size * size // 2)) // kind(size * size)
    return means.astype(np.uint8)
