"""Histograms, moments and statistics of intensities.

A feature family is a function of a plane that returns `Entries`: numbers by name, in the order of
the original program. A `Plane` (height, width) has double precision, as the values of a Fourier
transform span ten orders of magnitude.

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
    """Return the values as entries "NAME 1", "NAME 2", and so on."""
    return {f"{name} {i}": float(value) for i, value in enumerate(values, 1)}


def histogram(values: NDArray[Any], n_bins: int) -> NDArray[np.float64]:
    """Return the number of values in each of n_bins equal bins from the minimum to the maximum.

    If all values are equal, they are in the first bin; without values, all bins are 0.
    """
    if values.size == 0:
        return np.zeros(n_bins)
    low, span = values.min(), np.ptp(values)
    scale = n_bins / span if span > 0 else 0.0
    bins = np.minimum(((values - low) * scale).astype(np.intp), n_bins - 1)
    return np.bincount(bins.ravel(), minlength=n_bins).astype(np.float64)


def moments(values: NDArray[Any]) -> tuple[float, float, float, float]:
    """Return mean, standard deviation, skewness and kurtosis.

    The standard deviation is computed with n − 1 for n values. Skewness and kurtosis are central
    moments divided by powers of the variance, computed with n. The standard deviation is 0 for n ≤
    2, the skewness for n ≤ 3 and the kurtosis for n ≤ 4. If all values are equal, all three are 0;
    without values, the mean is 0 too.
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


_N_COMB_LINES = 20  # lines of pixels per direction
# Position of each moment in the result of `moments`; in the order of the original program.
_MOMENT_POSITIONS = {"kurtosis": 3, "mean": 0, "skewness": 2, "deviation": 1}


def comb_moments(plane: Plane) -> Entries:
    """Return comb moments: three-bin histograms of four moments in each of four directions."""
    offsets = _line_offsets(len(plane))
    lines_by_direction = {
        "0°": _lines(plane, offsets),
        "90°": _lines(plane.T, offsets),
        "135°": _diagonals(plane, offsets),
        "45°": _diagonals(plane[:, ::-1], offsets),
    }
    entries: Entries = {}
    for direction, lines in lines_by_direction.items():
        values = np.array([moments(line) for line in lines])
        for moment, column in _MOMENT_POSITIONS.items():
            entries |= named_entries(f"{direction} {moment}", histogram(values[:, column], 3))
    return entries


def _line_offsets(n: int) -> NDArray[np.int64]:
    """Return 20 integer offsets from 1 − n on, n/10 apart; halves are rounded away from 0."""
    # Accumulated step by step, as in the original program, as this affects the rounding of halves.
    positions = np.cumsum([1.0 - n] + [n / 10] * (_N_COMB_LINES - 1))
    return (np.sign(positions) * np.floor(np.abs(positions) + 0.5)).astype(np.int64)


def _lines(plane: Plane, offsets: NDArray[np.int64]) -> Iterator[Plane]:
    """Yield the row at each of the offsets from the middle row; an empty array for rows outside."""
    n = len(plane)
    positions = n // 2 - 1 - offsets
    return (plane[position] if 0 <= position < n else plane[:0, 0] for position in positions)


def _diagonals(plane: Plane, offsets: NDArray[np.int64]) -> Iterator[Plane]:
    """Yield the diagonal from upper left to lower right at each offset from the main diagonal."""
    return (plane.diagonal(offset) for offset in offsets)


_BIN_COUNTS = (3, 5, 7, 9)


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
    """Return the Gini coefficient of the positive values; 0 if all are equal or fewer than two.

    It is Σ_i (2i − n − 1)·v_i / ((n − 1)·Σ v_i) over the n values v_i in ascending order, i from 1.
    """
    values = np.sort(plane[plane > 0], axis=None)
    n, total = len(values), values.sum()
    ranks = np.arange(1 - n, n, 2, dtype=np.float64)
    return {"coefficient": float(ranks @ values / ((n - 1) * total)) if n > 1 else 0.0}


def multiscale_histograms(plane: Plane) -> Entries:
    """Return histograms of 3, 5, 7 and 9 bins, divided by the largest count of all of them."""
    histograms = {n_bins: histogram(plane, n_bins) for n_bins in _BIN_COUNTS}
    largest = max(h.max() for h in histograms.values())
    entries: Entries = {}
    for n_bins, h in histograms.items():
        entries |= named_entries(f"of {n_bins}, bin", h / largest)
    return entries


_N_LEVELS = 1024


def otsu_threshold(values: NDArray[np.float64]) -> float:
    """Return Otsu's threshold among 1024 levels between the minimum and the maximum.

    It is the first level that maximises ω_0·ω_1·(μ_1 − μ_0)², with the fractions ω and the means μ
    of the values below and above the level.
    """
    fractions = histogram(values, _N_LEVELS) / values.size
    cumulative, cumulative_sum = fractions.cumsum(), (fractions * np.arange(_N_LEVELS)).cumsum()
    is_split = (cumulative > 0) & (cumulative < 1)
    variance = np.zeros(_N_LEVELS)
    difference = cumulative_sum[-1] * cumulative[is_split] - cumulative_sum[is_split]
    variance[is_split] = difference**2 / (cumulative[is_split] * (1 - cumulative[is_split]))
    level = variance[:-1].argmax()
    return float(level / (_N_LEVELS - 1) * np.ptp(values) + values.min())
