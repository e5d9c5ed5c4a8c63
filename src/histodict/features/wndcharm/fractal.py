"""Fractal features: how fast values part with distance.

On a fractal surface of Hurst exponent H, as fractional Brownian motion draws, the mean of
|f(x + k) − f(x)| grows as k^H: these means, for 20 distances, hold H at every scale.

Reference: Wu, Chen, Hsieh, "Texture features for classification of ultrasonic liver images", IEEE
Transactions on Medical Imaging, 1992.
"""

from __future__ import annotations

import numpy as np

from ..pixels import Plane
from .distributions import Entries, stretched

_DISTANCES = range(1, 21)


def fractal_features(plane: Plane) -> Entries:
    """Mean |difference| at distances of 1 … 20 pixels, over the standard deviation.

    The plane must be larger than that.
    """
    unit = stretched(plane)
    deviation = float(unit.std(dtype=np.float64)) or 1.0
    return {f"distance {k}": _mean_difference(unit, k) / deviation for k in _DISTANCES}


def _mean_difference(plane: Plane, k: int) -> float:
    across, down = plane[:, k:] - plane[:, :-k], plane[k:] - plane[:-k]
    return float(np.abs(across).mean() + np.abs(down).mean()) / 2
