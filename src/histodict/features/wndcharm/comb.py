"""Comb moments: parallel lines across the image, like the teeth of a comb, in four directions.

Mean, standard deviation, skewness and kurtosis along every line; of each, how many of the lines
lie in three equal steps between the least and the greatest. Lines are a tenth of the image's height
apart, in all directions, and reach beyond it: those that miss it count as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane, histogram, moments, named_entries

_N_LINES = 20
# The order of the original.
_MOMENTS = {"kurtosis": 3, "mean": 0, "skewness": 2, "deviation": 1}


def comb_moments(plane: Plane) -> Entries:
    """Four directions, four moments, three steps."""
    offsets = _offsets(len(plane))
    combs = {
        "0°": _lines(plane, offsets),
        "90°": _lines(plane.T, offsets),
        "135°": _diagonals(plane, offsets),
        "45°": _diagonals(plane[:, ::-1], offsets),
    }
    entries: Entries = {}
    for direction, lines in combs.items():
        values = np.array([moments(line) for line in lines])
        for moment, column in _MOMENTS.items():
            entries |= named_entries(f"{direction} {moment}", histogram(values[:, column], 3))
    return entries


def _offsets(n: int) -> NDArray[np.int64]:
    """20 whole places from 1 − n to n, a tenth of n apart; halves away from 0."""
    # Added up step by step, as the original does: which side of a half a place is on depends on it.
    places = np.cumsum([1.0 - n] + [n / 10] * (_N_LINES - 1))
    return (np.sign(places) * np.floor(np.abs(places) + 0.5)).astype(np.int64)


def _lines(plane: Plane, offsets: NDArray[np.int64]) -> Iterator[Plane]:
    """Rows about the middle one; an empty line for a place outside."""
    n = len(plane)
    places = n // 2 - 1 - offsets
    return (plane[place] if 0 <= place < n else plane[:0, 0] for place in places)


def _diagonals(plane: Plane, offsets: NDArray[np.int64]) -> Iterator[Plane]:
    """Lines down to the right."""
    return (plane.diagonal(offset) for offset in offsets)
