"""Numbers summed up: histograms and moments; what most families end in.

Every family is a function of a plane that gives `Entries`, its numbers by name, in the order of
the original program. A `Plane` here has double precision: a Fourier plane spans ten powers of ten.
"""

from __future__ import annotations

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
