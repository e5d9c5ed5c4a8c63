"""The image itself, reduced to a small fixed size, for sparse representation over whole images.

Vectors of unit norm, row by row; a black image stays 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .pixels import Pixels, area_means, check_pixels, luminance

SIDE_PX = 32


def luminance_thumbnail(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Grey levels, for SRC: (SIDE_PX²,)."""
    return _unit(area_means(luminance(check_pixels(pixels)), SIDE_PX).ravel()), _names("grey")


def plane_thumbnail(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """All of red, then green, then blue, for SHIRC: (3·SIDE_PX²,)."""
    checked = check_pixels(pixels)
    planes = [area_means(checked[..., i].astype(np.float32), SIDE_PX) for i in range(3)]
    return _unit(np.concatenate(planes, axis=None)), _names("red", "green", "blue")


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / (np.linalg.norm(vector) or 1.0)


def _names(*channels: str) -> list[str]:
    places = [(row, column) for row in range(SIDE_PX) for column in range(SIDE_PX)]
    return [f"{channel} {row},{column}" for channel in channels for row, column in places]
