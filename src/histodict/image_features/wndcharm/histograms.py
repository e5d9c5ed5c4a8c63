"""Comb moments: parallel lines across the image, like the teeth of a comb, in four directions.

Mean, standard deviation, skewness and kurtosis along every line; of each, how many of the lines
lie in three equal steps between the least and the greatest. Lines are a tenth of the image's height
apart, in all directions, and reach beyond it: those that miss it count as zeros.

Numbers summed up: histograms and moments; what most families end in.

Every family is a function of a plane that gives `Entries`, its numbers by name, in the order of
the original program. A `Plane` here has double precision: a Fourier plane spans ten powers of ten.

Pixel intensities, wherever they lie: statistics, Gini's coefficient, multi-scale histograms.

Otsu's threshold, which parts values into the two classes that differ most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Entries = dict[str, float]
Plane = NDArray[np.float64]


def named_entries(name: str, values: NDArray[Any]) -> Entries:
    """Entries "name 1", "name 2", …"""
    return {f"{name} {i}": float(value) for i, value in enumerate(values, 1)}


def histogram(values: NDArray[Any], n_bins: int) -> NDArray[np.float64]:
    """How many values lie in each of n_bins equal steps from the least to the greatest.

    All in the first if they are the same; all zero if there are none.
    """
    if values.size == 0:
        return np.zeros(n_bins)
    low, span = values.min(), np.ptp(values)
    scale = n_bins / span if span > 0 else 0.0
    places = np.minimum(((values - low) * scale).astype(np.intp), n_bins - 1)
    return np.bincount(places.ravel(), minlength=n_bins).astype(np.float64)


def moments(values: NDArray[Any]) -> tuple[float, float, float, float]:
    """Mean, standard deviation, skewness and kurtosis, as far as there are values for them.

    The deviation is that of a sample (n − 1); skewness and kurtosis are moments over powers of the
    variance over n. They are 0 of equal values, and of too few: 2, 3 and 4.
    """
    n = values.size
    if n == 0:
        return 0.0, 0.0, 0.0, 0.0
    mean = float(values.mean(dtype=np.float64))
    centred = values - mean
    squares = centred * centred
    variance = float(squares.mean(dtype=np.float64))
    if n <= 2 or variance == 0:
        return mean, 0.0, 0.0, 0.0
    third, fourth = float((squares * centred).mean()), float((squares * squares).mean())
    skewness = third / variance**1.5 if n > 3 else 0.0
    kurtosis = fourth / variance**2 if n > 4 else 0.0
    return mean, (variance * n / (n - 1)) ** 0.5, skewness, kurtosis


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


_HISTOGRAMS = (3, 5, 7, 9)


def intensity_statistics(plane: Plane) -> Entries:
    """Mean, median, standard deviation, least and greatest."""
    return {
        "mean": float(plane.mean()),
        "median": float(np.median(plane)),
        "deviation": float(plane.std(ddof=1)),
        "least": float(plane.min()),
        "greatest": float(plane.max()),
    }


def gini(plane: Plane) -> Entries:
    """Gini's coefficient of the positive values: 0 if all are equal, 1 if one has everything.

    Σ_i (2i − n − 1)·v_i / ((n − 1)·Σ v_i) over the n values in rising order, i from 1.
    """
    values = np.sort(plane[plane > 0], axis=None)
    n, total = len(values), values.sum()
    ranks = np.arange(1 - n, n, 2, dtype=np.float64)
    return {"coefficient": float(ranks @ values / ((n - 1) * total)) if n > 1 else 0.0}


def multiscale_histograms(plane: Plane) -> Entries:
    """Pixels in 3, 5, 7 and 9 equal steps from the least to the greatest, the fullest as 1."""
    histograms = {n_bins: histogram(plane, n_bins) for n_bins in _HISTOGRAMS}
    fullest = max(h.max() for h in histograms.values())
    entries: Entries = {}
    for n_bins, h in histograms.items():
        entries |= named_entries(f"of {n_bins}, bin", h / fullest)
    return entries


_N_LEVELS = 1024


def otsu(values: NDArray[np.float64]) -> float:
    """The threshold among 1024 levels between the least and the greatest value.

    It makes ω_0·ω_1·(μ_1 − μ_0)² of the classes' shares and means largest; the first of several.
    """
    share = histogram(values, _N_LEVELS) / values.size
    below, mass = share.cumsum(), (share * np.arange(_N_LEVELS)).cumsum()
    parts = (below > 0) & (below < 1)
    spread = np.zeros(_N_LEVELS)
    lag = mass[-1] * below[parts] - mass[parts]
    spread[parts] = lag**2 / (below[parts] * (1 - below[parts]))
    level = spread[:-1].argmax()
    return float(level / (_N_LEVELS - 1) * np.ptp(values) + values.min())
