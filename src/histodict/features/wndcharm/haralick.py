"""Haralick's textures: fourteen statistics of which grey levels lie next to each other.

Reference: Haralick, Shanmugam, Dinstein, "Textural features for image classification", IEEE
Transactions on Systems, Man and Cybernetics, 1973.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pixels import Plane
from .distributions import Entries, levels

_N_LEVELS = 64
_STATISTICS = (
    "angular second moment",
    "contrast",
    "correlation",
    "variance",
    "inverse difference moment",
    "sum average",
    "sum variance",
    "sum entropy",
    "entropy",
    "difference variance",
    "difference entropy",
    "information of correlation 1",
    "information of correlation 2",
    "maximal correlation",
)
_NAMES = [f"{name} {over}" for over in ("mean", "range") for name in _STATISTICS]


def haralick_textures(plane: Plane) -> Entries:
    """Mean and range of each statistic over the four directions."""
    from mahotas.features.texture import cooccurence, haralick_features

    image = levels(plane, _N_LEVELS).astype(np.uint8)
    counts = [cooccurence(image, direction) for direction in range(4)]
    known = haralick_features(counts, use_x_minus_y_variance=True)
    last = np.array([maximal_correlation(one) for one in counts])
    values = np.column_stack([known, last])
    both = np.concatenate([values.mean(axis=0), np.ptp(values, axis=0)])
    return dict(zip(_NAMES, both.tolist(), strict=True))


def maximal_correlation(counts: NDArray[Any]) -> float:
    """Largest correlation that functions of two neighbours' levels can have.

    The second largest singular value of p_ij / √(p_i p_j), whose largest is 1; counts symmetric.
    Haralick's fourteenth statistic, which mahotas understands otherwise.
    """
    seen = counts.sum(axis=0) > 0
    p = counts[np.ix_(seen, seen)].astype(np.float64)
    if len(p) < 2:
        return 0.0
    roots = np.sqrt(p.sum(axis=0))
    values = np.linalg.eigvalsh(p / np.outer(roots, roots))
    return float(np.sort(np.abs(values))[-2])
