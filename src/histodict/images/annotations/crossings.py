"""Whether a ring crosses itself, and where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Maximum of compared pairs of sides; the interior of a more complex ring is not meaningful.
_MOST_PAIRS = 20_000_000
_CHUNK = 500_000  # pairs at a time


def first_crossing(ring: NDArray[np.float64]) -> tuple[float, float] | None:
    """A place where two sides of a closed ring (n, 2) cross; touching is no crossing.

    Sides are sorted along the axis on which fewer of them overlap, and each is compared with those
    that begin before it ends. Only pairs whose boxes meet are computed.
    """
    ends = np.stack([ring, np.roll(ring, -1, axis=0)], axis=1)  # (n, 2 ends, 2 coordinates)
    low, high = ends.min(axis=1), ends.max(axis=1)
    counts = [_n_behind(np.sort(low[:, axis]), high[:, axis]).sum() for axis in (0, 1)]
    axis = int(np.argmin(counts))
    order = np.argsort(low[:, axis], kind="stable")
    ends, low, high = ends[order], low[order], high[order]
    n_behind = _n_behind(low[:, axis], high[:, axis]) - np.arange(1, len(ends) + 1)
    other_low, other_high = low[:, 1 - axis], high[:, 1 - axis]
    until = np.cumsum(n_behind)
    begin = 0
    while begin < len(ends) and until[begin] - n_behind[begin] < _MOST_PAIRS:
        done = until[begin] - n_behind[begin]
        stop = max(begin + 1, int(np.searchsorted(until, done + _CHUNK, side="right")))
        n = n_behind[begin:stop]
        first = np.repeat(np.arange(begin, stop), n)
        second = first + 1 + np.arange(len(first)) - np.repeat(until[begin:stop] - n - done, n)
        is_near = (other_low[first] <= other_high[second]) & (
            other_low[second] <= other_high[first]
        )
        a, b = ends[first[is_near]], ends[second[is_near]]
        crossed = (_sides(a, b).prod(axis=1) < 0) & (_sides(b, a).prod(axis=1) < 0)
        if crossed.any():
            place = int(np.argmax(crossed))
            return _meeting(a[place], b[place])
        begin = stop
    return None


def _n_behind(sorted_low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of sides that begin at or before each of these ends."""
    return np.searchsorted(sorted_low, high, side="right").astype(np.int64)


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
