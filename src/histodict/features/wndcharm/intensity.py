"""Pixel intensities, wherever they lie: statistics, Gini's coefficient, multi-scale histograms."""

from __future__ import annotations

import numpy as np

from .distributions import Entries, Plane, histogram, named_entries

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
