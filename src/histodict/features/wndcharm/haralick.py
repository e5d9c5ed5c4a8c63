"""Haralick's textures: fourteen statistics of which grey levels lie next to each other.

Reference: Haralick, Shanmugam, Dinstein, "Textural features for image classification", IEEE
Transactions on Systems, Man and Cybernetics, 1973.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane

Fractions = NDArray[np.float64]

_N_LEVELS = 256
_MIN = 1e-9  # keeps logarithms of shares finite


def haralick_textures(plane: Plane) -> Entries:
    """Mean and range of each statistic over the four directions."""
    each = [statistics(p) for p in neighbour_frequencies(plane)]
    entries: Entries = {}
    for name in each[0]:
        values = [one[name] for one in each]
        entries[f"{name} mean"] = sum(values) / 4
        entries[f"{name} range"] = max(values) - min(values)
    return entries


def neighbour_frequencies(plane: Plane) -> list[Fractions]:
    """Shares of the pairs of levels of neighbours, in four directions: (level, level).

    Levels are 256 steps from the least value to the greatest, and only those that occur have a
    place. As in the original, pairs with a pixel of the lowest level do not count.
    """
    span = np.ptp(plane)
    grey = ((plane - plane.min()) * (255.0 / span if span > 0 else 0.0)).astype(np.intp)
    seen = np.bincount(grey.ravel(), minlength=_N_LEVELS) > 0
    pairs = [
        (grey[:, :-1], grey[:, 1:]),
        (grey[:-1, 1:], grey[1:, :-1]),
        (grey[:-1], grey[1:]),
        (grey[:-1, :-1], grey[1:, 1:]),
    ]
    return [_fractions(one, other)[np.ix_(seen, seen)] for one, other in pairs]


def _fractions(one: NDArray[np.intp], other: NDArray[np.intp]) -> Fractions:
    counts = np.bincount((one * _N_LEVELS + other).ravel(), minlength=_N_LEVELS**2)
    both = counts.reshape(_N_LEVELS, _N_LEVELS).astype(np.float64)
    both[0] = both[:, 0] = 0
    both += both.T
    return both / max(both.sum(), 1.0)


def statistics(p: Fractions) -> dict[str, float]:
    """The fourteen statistics of shares p (levels, levels), symmetric, in the original's order.

    As in the original, the sum variance is taken about the sum entropy.
    """
    steps = np.arange(len(p))
    i, j = steps[:, None], steps
    margin = p.sum(axis=0)
    mean = float(margin @ steps)
    variance = float(margin @ (steps - mean) ** 2)
    sums, differences = _totals(i + j, p), _totals(np.abs(i - j), p)
    entropy, sum_entropy = _entropy(p), _entropy(sums)
    independent = np.outer(margin, margin)
    known = entropy - _entropy(p, independent)
    whole = _entropy(margin)
    apart = float(differences @ np.arange(len(differences)))
    squares = float(differences @ np.arange(len(differences)) ** 2.0)
    together = float(steps @ p @ steps)
    return {
        "angular second moment": float((p * p).sum()),
        "contrast": squares,
        "correlation": (together - mean * mean) / variance if variance > 0 else 1.0,
        "difference variance": squares - apart**2,
        "difference entropy": _entropy(differences),
        "entropy": entropy,
        "information of correlation 1": known / whole if whole else 1.0,
        "inverse difference moment": float((p / (1.0 + (i - j) ** 2)).sum()),
        "maximal correlation": maximal_correlation(p),
        "information of correlation 2": _information(_entropy(independent) - entropy),
        "sum average": float(sums @ np.arange(len(sums))),
        "sum entropy": sum_entropy,
        "sum variance": float(sums @ (np.arange(len(sums)) - sum_entropy) ** 2),
        "variance": variance,
    }


def _totals(places: NDArray[np.intp], p: Fractions) -> Fractions:
    """The sum of the shares at each place."""
    return np.bincount(places.ravel(), p.ravel()).astype(np.float64)


def _entropy(p: Fractions, other: Fractions | None = None) -> float:
    """−Σ p·log₂ p, or −Σ p·log₂ other."""
    return float(-(p * np.log2((p if other is None else other) + _MIN)).sum())


def _information(nats: float) -> float:
    return abs(1 - np.exp(-2.0 * nats)) ** 0.5


def maximal_correlation(p: Fractions) -> float:
    """Largest correlation that functions of two neighbours' levels can have.

    The second largest singular value of p_ij / √(p_i p_j), whose largest is 1; p symmetric.
    """
    seen = p.sum(axis=0) > 0
    p = p[np.ix_(seen, seen)]
    if len(p) < 2:
        return 0.0
    roots = np.sqrt(p.sum(axis=0))
    values = np.linalg.eigvalsh(p / np.outer(roots, roots))
    return float(np.sort(np.abs(values))[-2])
