"""Gabor textures: in how much of the image waves of seven frequencies are strong.

A Gabor filter is a wave under a Gaussian window of 0.56 wavelengths, twice as long along the wave's
crests; here of 38 × 38 pixels, with waves that run down the image. The length of its complex
response does not depend on the wave's phase.

Reference: Grigorescu, Petkov, Kruizinga, "Comparison of texture features based on Gabor filters",
IEEE Transactions on Image Processing, 2002.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from .distributions import Entries, Plane
from .otsu import otsu

_FREQUENCIES = (1, 2, 3, 4, 5, 6, 7)  # radians per pixel
_LOW_FREQUENCY = 0.1
_SIDE = 38
_WINDOW = 0.56  # wavelengths
_ASPECT = 0.5
_ANGLE = 3.14159265 / 2


def gabor_textures(plane: Plane) -> Entries:
    """Pixels whose response is above Otsu's threshold, per frequency.

    Over those whose response to a slow wave is above 0.4 of the strongest; 0 where there is none.
    """
    slow = _response(plane, _LOW_FREQUENCY)
    known = int((slow > 0.4 * slow.max()).sum())
    entries: Entries = {}
    for frequency in _FREQUENCIES:
        response = _response(plane, frequency)
        strong = int((response > otsu(response)).sum())
        entries[f"frequency {frequency}"] = strong / known if known else 0.0
    return entries


def _response(plane: Plane, frequency: float) -> Plane:
    """|response|, over the strongest."""
    whole = np.abs(fftconvolve(plane, _filter(frequency)))
    start, (height, width) = _SIDE // 2, plane.shape
    part = whole[start : start + height, start : start + width]
    return part / (part.max() or 1.0)


@cache
def _filter(frequency: float) -> NDArray[np.complex128]:
    deviation = _WINDOW * 2 * np.pi / frequency
    steps = np.arange(_SIDE) - _SIDE // 2
    y, x = np.meshgrid(steps, steps, indexing="ij")
    along = x * np.cos(_ANGLE) + y * np.sin(_ANGLE)
    across = y * np.cos(_ANGLE) - x * np.sin(_ANGLE)
    window = np.exp(-(along**2 + _ASPECT**2 * across**2) / (2 * deviation**2))
    return window / window.sum() * np.exp(1j * frequency * along)
