"""Whether a ring crosses itself, and where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Pairs of sides that are looked at: of a ring that folds this often, nobody can say what is inside.
_MOST_PAIRS = 20_000_000


def first_crossing(ring: NDArray[np.float64]) -> tuple[float, float] | None:
    """A place where two sides of a closed ring (n, 2) cross; touching is no crossing.

    Sides are sorted by where they begin from the left, and each is held against those that begin
    before it ends.
    """
    ends = np.stack([ring, np.roll(ring, -1, axis=0)], axis=1)  # (n, 2 ends, 2 coordinates)
    ends = ends[np.argsort(ends[..., 0].min(axis=1), kind="stable")]
    left, right = ends[..., 0].min(axis=1), ends[..., 0].max(axis=1)
    first, n_pairs = np.arange(len(ends)), 0
    for ahead in range(1, len(ends)):
        first = first[first + ahead < len(ends)]
        first = first[left[first + ahead] <= right[first]]
        n_pairs += len(first)
        if not len(first) or n_pairs > _MOST_PAIRS:
            return None
        a, b = ends[first], ends[first + ahead]
        crossed = (_sides(a, b).prod(axis=1) < 0) & (_sides(b, a).prod(axis=1) < 0)
        if crossed.any():
            place = int(np.argmax(crossed))
            return _meeting(a[place], b[place])
    return None


def _sides(lines: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """On which side of each line both ends of another lie, by sign: (n, 2)."""
    along = lines[:, 1] - lines[:, 0]
    away = others - lines[:, :1]
    return np.sign(along[:, None, 0] * away[..., 1] - along[:, None, 1] * away[..., 0])


def _meeting(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    """Where two lines, each of two points, meet."""
    along, across = a[1] - a[0], b[1] - b[0]
    away = b[0] - a[0]
    share = (away[0] * across[1] - away[1] * across[0]) / (
        along[0] * across[1] - along[1] * across[0]
    )
    x, y = a[0] + share * along
    return float(x), float(y)
