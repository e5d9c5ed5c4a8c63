"""Comb moments: parallel lines across the image, like the teeth of a comb, in four directions.

Mean, standard deviation, skewness and kurtosis along every line; of each, the shares of the lines
in three equal steps between the least and the greatest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..pixels import Plane
from .distributions import Entries, moments, numbered, shares

_N_LINES = 20
_MOMENTS = ("mean", "deviation", "skewness", "kurtosis")


def comb_moments(plane: Plane) -> Entries:
    """Four directions, four moments, three steps."""
    combs = {
        "0°": _rows(plane),
        "45°": _diagonals(plane[::-1]),
        "90°": _rows(plane.T),
        "135°": _diagonals(plane),
    }
    entries: Entries = {}
    for direction, lines in combs.items():
        values = np.array([moments(line) for line in lines])
        for moment, column in zip(_MOMENTS, values.T, strict=True):
            entries |= numbered(f"{direction} {moment}", shares(column, 3))
    return entries


def _places(n: int) -> list[int]:
    """_N_LINES places spread over 0 … n − 1."""
    return [int((i + 0.5) * n / _N_LINES) for i in range(_N_LINES)]


def _rows(plane: Plane) -> Iterator[Plane]:
    return (plane[row] for row in _places(len(plane)))


def _diagonals(plane: Plane) -> Iterator[Plane]:
    """Lines down to the right, those that begin or end near a corner left out."""
    height, width = plane.shape
    first = -height // 2
    return (plane.diagonal(first + place) for place in _places((height + width) // 2 + 1))
