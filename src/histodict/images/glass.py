"""Where a slide is glass, seen at a low level: there is nothing to read there at full scale."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .tissue import TissueThreshold

# Level-0 pixels: the side of the squares that are told apart, and of what is read at once.
_SQUARE = 256
_STRIP = 2048
# In pixels of the low level; those of scanners lie off by one or so.
_DISABLED = 2


class _Source(Protocol):
    @property
    def size(self) -> tuple[int, int]: ...

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]: ...


class BackgroundMask:
    """Which squares of a slide may have tissue; all others are glass.

    maybe : (rows, columns) of squares of 256 level-0 pixels
    """

    def __init__(self, source: _Source, downsample: float, threshold: TissueThreshold) -> None:
        width, height = source.size
        self._off = math.ceil(_DISABLED * downsample)
        self.possible_tissue = np.zeros((-(-height // _SQUARE), -(-width // _SQUARE)), bool)
        for y in range(0, height, _STRIP):
            pixels = source.read(0, y, width, min(_STRIP, height - y), downsample)
            part = self.possible_tissue[y // _SQUARE : (y + _STRIP) // _SQUARE]
            part[:] = _any_in_squares(threshold.possible_tissue(pixels), part.shape, downsample)

    def maybe_tissue(
        self, x: NDArray[np.int64], y: NDArray[np.int64], side: int
    ) -> NDArray[np.bool_]:
        """Which squares of this side, with these left and upper ends, may have tissue: (y, x)."""
        sums = np.pad(self.possible_tissue.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
        (top, bottom), (left, right) = (
            (
                np.clip((ends - self._off) // _SQUARE, 0, n),
                np.clip((ends + side + self._off - 1) // _SQUARE + 1, 0, n),
            )
            for ends, n in zip((y, x), self.possible_tissue.shape, strict=True)
        )
        found: NDArray[np.bool_] = (
            sums[np.ix_(bottom, right)] - sums[np.ix_(top, right)]
            > sums[np.ix_(bottom, left)] - sums[np.ix_(top, left)]
        )
        return found


def _any_in_squares(
    mask: NDArray[np.bool_], shape: tuple[int, ...], downsample: float
) -> NDArray[np.bool_]:
    for axis, n in enumerate(shape):
        starts = np.floor(np.arange(n) * _SQUARE / downsample).astype(int)
        starts = np.minimum(starts, mask.shape[axis] - 1)
        mask = np.logical_or.reduceat(mask, starts, axis=axis)
    return mask
