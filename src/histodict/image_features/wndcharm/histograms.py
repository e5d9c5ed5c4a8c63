"""Histograms, moments and statistics of intensities.

Every family is a function of a plane that returns `Entries`, its numbers by name, in the order of
the original program. A `Plane` has double precision, as a Fourier plane spans ten powers of ten.

Comb moments are mean, standard deviation, skewness and kurtosis along parallel lines in four
directions, each as a histogram over the lines with three bins. Lines are a tenth of the image's
height apart in all directions; lines outside the image count as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Entries = dict[str, float]
Plane = NDArray[np.float64]


def named_entries(name: str, values: NDArray[Any]) -> Entries:
    """Return entries "name 1", "name 2", and so on."""
    return {f"{name} {i}": float(value) for i, value in enumerate(values, 1)}


def histogram(values: NDArray[Any], n_bins: int) -> NDArray[np.float64]:
    """Return the number of values in n_bins equal bins from the minimum to the maximum.

    Equal values are all in the first bin; without values, all bins are 0.
    """
    if values.size == 0:
        return np.zeros(n_bins)
    low, span = values.min(), np.ptp(values)
    scale = n_bins / span if span > 0 else 0.0
    bins = np.minimum(((values - low) * scale).astype(np.intp), n_bins - 1)
    return np.bincount(bins.ravel(), minlength=n_bins).astype(np.float64)


def moments(values: NDArray[Any]) -> tuple[float, float, float, float]:
    """Return mean, standard deviation, skewness and kurtosis.

    The deviation is that of a sample (n − 1); skewness and kurtosis are moments over powers of the
    variance over n. They are 0 for equal values, and up to 2, 3 and 4 values, respectively.
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
# In the order of the original program.
_MOMENTS = {"kurtosis": 3, "mean": 0, "skewness": 2, "deviation": 1}


def comb_moments(plane: Plane) -> Entries:
    """Return comb moments: histograms of three bins of four moments in four directions."""
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
    """Return 20 integer positions from 1 − n to n, a tenth of n apart; halves round away from 0."""
    # Accumulated step by step, as in the original program, as this affects the rounding of halves.
    positions = np.cumsum([1.0 - n] + [n / 10] * (_N_LINES - 1))
    return (np.sign(positions) * np.floor(np.abs(positions) + 0.5)).astype(np.int64)


def _lines(plane: Plane, offsets: NDArray[np.int64]) -> Iterator[Plane]:
    """Yield rows at positions relative to the middle row; empty for positions outside."""
    n = len(plane)
    positions = n // 2 - 1 - offsets
    return (plane[position] if 0 <= position < n else plane[:0, 0] for position in positions)


def _diagonals(plane: Plane, offsets: NDArray[np.int64]) -> Iterator[Plane]:
    """Yield diagonals from upper left to lower right."""
    return (plane.diagonal(offset) for offset in offsets)


_HISTOGRAMS = (3, 5, 7, 9)


def intensity_statistics(plane: Plane) -> Entries:
    """Return mean, median, standard deviation, minimum and maximum."""
    return {
        "mean": float(plane.mean()),
        "median": float(np.median(plane)),
        "deviation": float(plane.std(ddof=1)),
        "least": float(plane.min()),
        "greatest": float(plane.max()),
    }


def gini(plane: Plane) -> Entries:
    """Return the Gini coefficient of the positive values: 0 for equal values, 1 for a single one.

    It is Σ_i (2i − n − 1)·v_i / ((n − 1)·Σ v_i) over the n values in ascending order, i from 1.
    """
    values = np.sort(plane[plane > 0], axis=None)
    n, total = len(values), values.sum()
    ranks = np.arange(1 - n, n, 2, dtype=np.float64)
    return {"coefficient": float(ranks @ values / ((n - 1) * total)) if n > 1 else 0.0}


def multiscale_histograms(plane: Plane) -> Entries:
    """Return histograms of 3, 5, 7 and 9 bins, relative to the largest of all bins."""
    histograms = {n_bins: histogram(plane, n_bins) for n_bins in _HISTOGRAMS}
    largest = max(h.max() for h in histograms.values())
    entries: Entries = {}
    for n_bins, h in histograms.items():
        entries |= named_entries(f"of {n_bins}, bin", h / largest)
    return entries


_N_LEVELS = 1024


def otsu(values: NDArray[np.float64]) -> float:
    """Return Otsu's threshold among 1024 levels between the minimum and the maximum.

    It is the first level that maximises ω_0·ω_1·(μ_1 − μ_0)² of the classes' fractions and means.
    """
    fractions = histogram(values, _N_LEVELS) / values.size
    below, mass = fractions.cumsum(), (fractions * np.arange(_N_LEVELS)).cumsum()
    is_split = (below > 0) & (below < 1)
    variance = np.zeros(_N_LEVELS)
    difference = mass[-1] * below[is_split] - mass[is_split]
    variance[is_split] = difference**2 / (below[is_split] * (1 - below[is_split]))
    level = variance[:-1].argmax()
    return float(level / (_N_LEVELS - 1) * np.ptp(values) + values.min())
