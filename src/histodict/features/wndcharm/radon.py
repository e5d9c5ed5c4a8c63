"""Radon features: sums along the lines of four directions.

Of each direction's sums, the shares in three equal steps between the least and the greatest. Lines
run through pixel centres, along rows, columns and both diagonals, so that every pixel is counted
once in each direction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..pixels import Plane
from .distributions import Entries, numbered, shares


def radon_features(plane: Plane) -> Entries:
    """Four directions, three steps."""
    entries: Entries = {}
    for direction, sums in line_sums(plane).items():
        entries |= numbered(direction, shares(sums, 3))
    return entries


def line_sums(plane: Plane) -> dict[str, NDArray[np.float64]]:
    """The sum along every line, by direction."""
    return {
        "0°": plane.sum(axis=1, dtype=np.float64),
        "45°": _rising_sums(plane),
        "90°": plane.sum(axis=0, dtype=np.float64),
        "135°": _rising_sums(plane[::-1]),
    }


def _rising_sums(plane: Plane) -> NDArray[np.float64]:
    """Sums over pixels of the same row + column."""
    height, width = plane.shape
    # Rows that are one pixel longer each time shift against each other when read in shorter rows.
    wide = np.zeros((height, width + height), plane.dtype)
    wide[:, :width] = plane
    sheared = wide.ravel()[: height * (width + height - 1)].reshape(height, -1)
    sums: NDArray[np.float64] = sheared.sum(axis=0, dtype=np.float64)
    return sums
