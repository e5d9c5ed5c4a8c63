"""Comb moments: parallel lines across the image, like the teeth of a comb, in four directions.

Mean, standard deviation, skewness and kurtosis along every line; of each, how many of the lines
lie in three equal steps between the least and the greatest. Lines are a tenth of a side apart,
over twice the image: those that miss it count as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .distributions import Entries, Plane, histogram, moments, numbered

# The order of the original.
_MOMENTS = {"kurtosis": 3, "mean": 0, "skewness": 2, "deviation": 1}


def comb_moments(plane: Plane) -> Entries:
    """Four directions, four moments, three steps."""
    combs = {
        "0°": _rows(plane),
        "90°": _rows(plane.T),
        "135°": _diagonals(plane),
        "45°": _diagonals(plane[:, ::-1]),
    }
    entries: Entries = {}
    for direction, lines in combs.items():
        values = np.array([moments(line) for line in lines])
        for moment, column in _MOMENTS.items():
            entries |= numbered(f"{direction} {moment}", histogram(values[:, column], 3))
    return entries


def _offsets(n: int) -> range:
    """Places from 1 − n to n, a tenth of n apart."""
    return range(1 - n, n + 1, max(1, int(n / 10 + 0.5)))


def _rows(plane: Plane) -> Iterator[Plane]:
    """Rows about the middle one; an empty line for a place outside."""
    n = len(plane)
    places = (n // 2 - 1 - offset for offset in _offsets(n))
    return (plane[place] if 0 <= place < n else plane[:0, 0] for place in places)


def _diagonals(plane: Plane) -> Iterator[Plane]:
    """Lines down to the right."""
    return (plane.diagonal(offset) for offset in _offsets(len(plane)))
