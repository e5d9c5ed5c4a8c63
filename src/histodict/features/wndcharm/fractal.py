"""Fractal features: how fast values part with distance.

On a fractal surface of Hurst exponent H, as fractional Brownian motion draws, the mean of
|f(x + k) − f(x)| grows as k^H: these means, for 20 distances up to a fifth of the image, hold H at
every scale.

Reference: Wu, Chen, Hsieh, "Texture features for classification of ultrasonic liver images", IEEE
Transactions on Medical Imaging, 1992.
"""

from __future__ import annotations

import numpy as np

from .distributions import Entries, Plane, named_entries

_N_DISTANCES = 20


def fractal_features(plane: Plane) -> Entries:
    """Σ |difference| at 20 distances, over w(w − k) + h(h − k), as the original has it.

    Of a square that is the mean. Distances a small image does not have are 0.
    """
    reach = min(plane.shape) // 5
    distances = range(1, reach, max(1, reach // _N_DISTANCES))[:_N_DISTANCES]
    values = np.zeros(_N_DISTANCES)
    values[: len(distances)] = [_mean_difference(plane, k) for k in distances]
    return named_entries("distance", values)


def _mean_difference(plane: Plane, k: int) -> float:
    height, width = plane.shape
    across, down = plane[:, k:] - plane[:, :-k], plane[k:] - plane[:-k]
    total = sum(np.abs(part, out=part).sum() for part in (across, down))
    return float(total / (width * (width - k) + height * (height - k)))
