"""Tamura's textures: coarseness, contrast and directionality, as the original program has them.

Its coarseness is not quite Tamura's: a sum over a window takes the wrong corners of the table of
sums, which leaves one pixel of the window (or, at the image's upper border, a piece of one column)
over the window's area. Its slopes come from two uneven 3 × 3 windows. Both are followed here, so
that the numbers are the same.

Reference: Tamura, Mori, Yamawaki, "Textural features corresponding to visual perception", IEEE
Transactions on Systems, Man and Cybernetics, 1978.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate

from .distributions import Entries, Plane, histogram, moments, numbered

_N_SCALES = 7
_N_DIRECTIONS = 125
_MARGIN = 32
_ACROSS = np.array([[-1.0, 2, 1], [-2, 0, 2], [-1, -2, -1]])
_DOWN = np.array([[1.0, 0, 0], [0, 0, 0], [-1, 0, 0]])
# A slope of less than this has no direction.
_LEAST_SLOPE = 1e-4


def tamura_textures(plane: Plane) -> Entries:
    """Shares of fine, middle and coarse, the fullest as 1; contrast, directionality, coarseness."""
    greatest = plane.max()
    unit = (plane - plane.min()) / (greatest if greatest else 1.0)
    scales = coarsest_scales(unit)
    thirds = histogram(scales, 3)
    inner = [side - _MARGIN for side in plane.shape]
    return numbered("coarseness", thirds / thirds.max()) | {
        "contrast": contrast(unit),
        "directionality": directionality(unit),
        "coarseness": float(scales.sum() / np.prod([side or 1 for side in inner])),
    }


def coarsest_scales(plane: Plane) -> NDArray[np.int64]:
    """Per pixel the k, from 1 to 7, whose windows of 2^k pixels differ most; 0 where none do."""
    best, strongest = np.zeros(plane.shape, np.int64), np.zeros(plane.shape)
    sums = plane.cumsum(axis=0)
    for k in range(1, _N_SCALES + 1):
        half = 2 ** (k - 1)
        means = _window_means(plane, sums, half)
        for axis in (1, 0):
            step = _opposite_differences(means, half, axis)
            np.copyto(best, k, where=step > strongest)
            np.maximum(strongest, step, out=strongest)
    return best


def contrast(plane: Plane) -> float:
    """σ²/κ^(1/4), of standard deviation σ and kurtosis κ."""
    _, deviation, _, kurtosis = moments(plane)
    return deviation**2 / kurtosis**0.25 if kurtosis else 0.0


def directionality(plane: Plane) -> float:
    """|log(Σ_a h_a·(a + 1 − p)² / Σ (slopes² + φ²))|; p is the fullest of 125 bins h of directions.

    0 of a plane without slopes.
    """
    across, down = (correlate(plane, window, mode="constant") for window in (_ACROSS, _DOWN))
    steep = across >= _LEAST_SLOPE
    if not steep.any():
        return 0.0
    angles = np.zeros_like(plane)
    angles[steep] = np.arctan(down[steep] / across[steep]) + np.pi / 2 + 0.001
    energy = (across[steep] ** 2 + down[steep] ** 2 + angles[steep] ** 2).sum()
    h = histogram(angles, _N_DIRECTIONS)
    spread = h @ (np.arange(_N_DIRECTIONS) + 1 - h.argmax()) ** 2
    return float(abs(np.log(spread / energy + 1e-7)))


def _window_means(plane: Plane, sums: Plane, half: int) -> Plane:
    """What is left of the mean over [y − half, y + half) × [x − half, x + half) of each pixel.

    The pixel at the window's lower left over the window's area inside the image; where the window
    reaches the upper border, the sum of the column down to that pixel.
    """
    (top, bottom), (left, right) = (_reach(side, half) for side in plane.shape)
    values = plane[np.ix_(bottom, left)]
    above = top == 0
    values[above] = sums[np.ix_(bottom[above], left)]
    return values / np.outer(bottom - top + 1, right - left + 1)


def _reach(n: int, half: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    places = np.arange(n)
    return np.maximum(places - half, 0), np.minimum(places + half - 1, n - 1)


def _opposite_differences(means: Plane, half: int, axis: int) -> Plane:
    """|difference| of the windows half a window before and behind; 0 where one is outside."""
    means = np.moveaxis(means, axis, 0)
    differences = np.zeros_like(means)
    if len(means) > 2 * half:
        differences[half:-half] = np.abs(means[2 * half :] - means[: -2 * half])
    return np.moveaxis(differences, 0, axis)
