"""Tamura's textures: coarseness, contrast and directionality, made to agree with what people see.

Reference: Tamura, Mori, Yamawaki, "Textural features corresponding to visual perception", IEEE
Transactions on Systems, Man and Cybernetics, 1978.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from ..pixels import Plane
from .distributions import Entries, moments, numbered, stretched
from .gradients import gradient

_MOST_SCALES = 5
_N_DIRECTIONS = 16
# A slope of less than this, of the range of the plane per pixel, has no direction: noise.
_LEAST_SLOPE = 12 / 255


def tamura_textures(plane: Plane) -> Entries:
    """Mean coarseness, how fine, middle and coarse share the plane, contrast, directionality."""
    unit = stretched(plane)
    scales, n_scales = coarsest_scales(unit)
    share = np.bincount(scales.ravel(), minlength=n_scales) / scales.size
    thirds = np.bincount(np.arange(n_scales) * 3 // n_scales, share, minlength=3)
    return (
        {"coarseness": float(np.exp2(np.arange(1, n_scales + 1)) @ share)}
        | numbered("coarseness", thirds)
        | {"contrast": contrast(plane), "directionality": directionality(unit)}
    )


def coarsest_scales(plane: Plane) -> tuple[NDArray[np.uint8], int]:
    """Per pixel corner the k − 1 whose windows differ most, and the number of scales.

    Two windows of 2^k × 2^k pixels lie side by side about a corner, and two one above the other.
    Corners so close to the border that a window leaves the plane are left out.
    """
    n_scales = min(_MOST_SCALES, int(np.log2(min(plane.shape) // 2)))
    margin = 2**n_scales
    strongest = np.full([side - 2 * margin + 1 for side in plane.shape], -1, np.float32)
    best = np.zeros(strongest.shape, np.uint8)
    for k in range(1, n_scales + 1):
        differences = _window_differences(plane, 2**k, margin)
        np.copyto(best, k - 1, where=differences > strongest)
        np.maximum(strongest, differences, out=strongest)
    return best, n_scales


def contrast(plane: Plane) -> float:
    """Standard deviation over the fourth root of the kurtosis."""
    _, deviation, _, kurtosis = moments(plane)
    return deviation / kurtosis**0.25 if kurtosis else 0.0


def directionality(plane: Plane) -> float:
    """1 where all slopes have one direction, 0 where they have all directions alike.

    1 − Σ_φ h(φ)·(φ − φ_p)² / (π²/12) over the directions, the same up to half a turn, from the most
    frequent, φ_p; h are their shares.
    """
    down, right = gradient(plane)
    steep = np.hypot(down, right) > _LEAST_SLOPE
    if not steep.any():
        return 0.0
    angles = np.arctan2(down[steep], right[steep]) / np.pi  # half turns
    places = np.rint(angles * _N_DIRECTIONS).astype(np.intp) % _N_DIRECTIONS
    h = np.bincount(places, minlength=_N_DIRECTIONS) / len(places)
    steps = np.arange(_N_DIRECTIONS)
    away = np.minimum(steps, _N_DIRECTIONS - steps)  # from the first, either way round
    alike = np.mean(away**2)
    return float(1 - np.roll(h, -int(h.argmax())) @ away**2 / alike)


def _window_differences(plane: Plane, side: int, margin: int) -> Plane:
    """|difference of the means of two windows|, across or down, about corners in the margin."""
    # The even window of a pixel lies evenly about its upper left corner.
    means = uniform_filter(np.pad(plane, [(0, 1), (0, 1)]), side, mode="constant")
    rows, columns = (slice(margin, length + 1 - margin) for length in plane.shape)
    half = side // 2
    up, down = (_moved(rows, step) for step in (-half, half))
    left, right = (_moved(columns, step) for step in (-half, half))
    return np.maximum(
        np.abs(means[down, columns] - means[up, columns]),
        np.abs(means[rows, right] - means[rows, left]),
    )


def _moved(places: slice, step: int) -> slice:
    return slice(places.start + step, places.stop + step)
