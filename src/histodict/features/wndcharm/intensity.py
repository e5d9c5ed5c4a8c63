"""Pixel intensities, wherever they lie: statistics, Gini's coefficient, multi-scale histograms."""

from __future__ import annotations

import numpy as np

from ..pixels import Plane
from .distributions import Entries, levels, numbered

_HISTOGRAMS = (3, 5, 7, 9)
_FINE = 315  # bins, that each of these numbers divides


def intensity_statistics(plane: Plane) -> Entries:
    """Mean, standard deviation, median, least and greatest."""
    return {
        "mean": float(plane.mean(dtype=np.float64)),
        "deviation": float(plane.std(dtype=np.float64)),
        "median": float(np.median(plane)),
        "least": float(plane.min()),
        "greatest": float(plane.max()),
    }


def gini(plane: Plane) -> Entries:
    """Gini's coefficient of |values|: 0 if all are equal, near 1 if one has everything.

    Σ_i (2i − n − 1)·v_i / (n·Σ v_i) over the n values in rising order, i from 1.
    """
    values = np.sort(np.abs(plane), axis=None).astype(np.float64)
    n, total = len(values), values.sum()
    ranks = np.arange(1 - n, n, 2, dtype=np.float64)
    return {"coefficient": float(ranks @ values / (n * total)) if total > 0 else 0.0}


def multiscale_histograms(plane: Plane) -> Entries:
    """Shares of the pixels in 3, 5, 7 and 9 equal steps from the least to the greatest value."""
    fine = np.bincount(levels(plane.ravel(), _FINE), minlength=_FINE) / plane.size
    entries: Entries = {}
    for n_bins in _HISTOGRAMS:
        entries |= numbered(f"of {n_bins}, bin", fine.reshape(n_bins, -1).sum(axis=1))
    return entries
