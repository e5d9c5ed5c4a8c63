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

from .distributions import Entries, Plane, histogram, moments, named_entries

_Region = tuple[slice, slice]

_N_SCALES = 7
_N_DIRECTIONS = 125
_MARGIN = 32
_ACROSS = np.array([[-1.0, 2, 1], [-2, 0, 2], [-1, -2, -1]])
_DOWN = np.array([[1.0, 0, 0], [0, 0, 0], [-1, 0, 0]])
# A slope of less than this has no direction.
_MIN_SLOPE = 1e-4


def tamura_textures(plane: Plane) -> Entries:
    """Shares of fine, middle and coarse, the fullest as 1; contrast, directionality, coarseness."""
    greatest = plane.max()
    unit = (plane - plane.min()) / (greatest if greatest else 1.0)
    scales = coarsest_scales(unit)
    thirds = histogram(scales, 3)
    inner = [side - _MARGIN for side in plane.shape]
    return named_entries("coarseness", thirds / thirds.max()) | {
        "contrast": contrast(unit),
        "directionality": directionality(unit),
        "coarseness": float(scales.sum() / np.prod([side or 1 for side in inner])),
    }


def coarsest_scales(plane: Plane) -> NDArray[np.uint8]:
    """Per pixel the k, from 1 to 7, whose windows of 2^k pixels differ most; 0 where none do."""
    best, strongest = np.zeros(plane.shape, np.uint8), np.zeros(plane.shape)
    most = 2 ** (_N_SCALES - 1)
    padded = np.pad(plane, [(0, most), (most, 0)], mode="edge")
    sums = plane[: 2 * most].cumsum(axis=0)
    for k in range(1, _N_SCALES + 1):
        half = 2 ** (k - 1)
        means = _window_means(padded, sums, half)
        for there, one, other in _opposites(plane.shape, half):
            step = means[one] - means[other]
            np.abs(step, out=step)
            better = step > strongest[there]
            best[there][better] = k
            np.maximum(strongest[there], step, out=strongest[there])
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
    steep = across >= _MIN_SLOPE
    if not steep.any():
        return 0.0
    angles = np.zeros_like(plane)
    angles[steep] = np.arctan(down[steep] / across[steep]) + np.pi / 2 + 0.001
    energy = (across[steep] ** 2 + down[steep] ** 2 + angles[steep] ** 2).sum()
    h = histogram(angles, _N_DIRECTIONS)
    spread = h @ (np.arange(_N_DIRECTIONS) + 1 - h.argmax()) ** 2
    return float(abs(np.log(spread / energy + 1e-7)))


def _window_means(padded: Plane, sums: Plane, half: int) -> Plane:
    """What is left of the mean over [y − half, y + half) × [x − half, x + half) of each pixel.

    The pixel at the window's lower left over the window's area inside the image; where the window
    reaches the upper border, the sum of the column down to that pixel. `padded` goes on below and
    left with the border's pixels; `sums` are down the columns.
    """
    most = 2 ** (_N_SCALES - 1)
    height, width = (side - most for side in padded.shape)
    values = padded[half - 1 : half - 1 + height, most - half : most - half + width].copy()
    above = np.arange(min(half + 1, height))
    left = np.maximum(np.arange(width) - half, 0)
    values[: len(above)] = sums[np.ix_(np.minimum(above + half - 1, height - 1), left)]
    down, across = (_extents(side, half) for side in (height, width))
    values /= down[:, None] * across
    return values


def _extents(n: int, half: int) -> NDArray[np.float64]:
    """How much of [place − half, place + half) lies inside, for each place."""
    places = np.arange(n)
    inside = np.minimum(places + half, n) - np.maximum(places - half, 0)
    return inside.astype(np.float64)


def _opposites(shape: tuple[int, ...], half: int) -> list[tuple[_Region, _Region, _Region]]:
    """Pixels with windows on both sides, and the middles of these: across, then down."""
    (height, width), whole = shape, slice(None)
    places = slice(half, -half), slice(2 * half, None), slice(None, -2 * half)
    across = [(whole, place) for place in places] if width > 2 * half else []
    down = [(place, whole) for place in places] if height > 2 * half else []
    return [(pair[0], pair[1], pair[2]) for pair in (across, down) if pair]
