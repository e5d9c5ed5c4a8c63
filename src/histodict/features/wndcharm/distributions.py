"""Numbers summed up: levels, shares of bins and moments; what most families end in.

Every family is a function of a plane that gives `Entries`, its numbers by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Entries = dict[str, float]

# A range this small, relative to the values, is rounding: such values are one value.
_ROUNDING = 1e-5


def numbered(name: str, values: NDArray[Any]) -> Entries:
    """Entries "name 1", "name 2", …"""
    return {f"{name} {i}": float(value) for i, value in enumerate(values, 1)}


def stretched(values: NDArray[Any]) -> NDArray[Any]:
    """Values from 0, the least, to 1, the greatest; 0 throughout if they are all the same."""
    low, high = values.min(), values.max()
    if high - low <= _ROUNDING * max(1.0, abs(low), abs(high)):
        return np.zeros_like(values)
    return (values - low) / (high - low)


def levels(values: NDArray[Any], n_levels: int) -> NDArray[np.intp]:
    """The place of each value among n_levels equal steps from the least to the greatest."""
    return np.minimum(stretched(values) * n_levels, n_levels - 1).astype(np.intp)


def shares(values: NDArray[Any], n_bins: int) -> NDArray[np.float64]:
    """The share of the values in each of n_bins equal steps from the least to the greatest."""
    return np.bincount(levels(values.ravel(), n_bins), minlength=n_bins) / values.size


def moments(values: NDArray[Any]) -> tuple[float, float, float, float]:
    """Mean, standard deviation, skewness and kurtosis; the last two are 0 for equal values."""
    mean = float(values.mean(dtype=np.float64))
    centred = values - mean
    squares = centred * centred
    deviation = float(np.sqrt(squares.mean(dtype=np.float64)))
    if deviation <= _ROUNDING * max(1.0, abs(mean)):
        return mean, deviation, 0.0, 0.0
    skewness = float((squares * centred).mean(dtype=np.float64)) / deviation**3
    kurtosis = float((squares * squares).mean(dtype=np.float64)) / deviation**4
    return mean, deviation, skewness, kurtosis


def signed_log(values: NDArray[Any]) -> NDArray[Any]:
    """Coefficients of a transform, which span many powers of ten, on a scale that shows them all.

    sign(v)·log(1 + |v|).
    """
    return np.sign(values) * np.log1p(np.abs(values))
