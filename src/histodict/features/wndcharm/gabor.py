"""Gabor textures: in how much of the image waves of seven frequencies are strong.

A Gabor filter is a wave under a Gaussian window of 0.56 wavelengths, twice as long along the wave's
crests; here of 38 × 38 pixels, with waves that run down the image. The length of its complex
response does not depend on the wave's phase.

Reference: Grigorescu, Petkov, Kruizinga, "Comparison of texture features based on Gabor filters",
IEEE Transactions on Image Processing, 2002.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft

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
    slow, *others = _responses(plane, (_LOW_FREQUENCY, *_FREQUENCIES))
    known = int((slow > 0.4 * slow.max()).sum())
    return {
        f"frequency {frequency}": int((one > otsu(one)).sum()) / known if known else 0.0
        for frequency, one in zip(_FREQUENCIES, others, strict=True)
    }


def _responses(plane: Plane, frequencies: Sequence[float]) -> Iterator[Plane]:
    """|response| to each filter, over the strongest; beyond the border there is nothing."""
    height, width = plane.shape
    shape = [fft.next_fast_len(side + _SIDE - 1) for side in plane.shape]
    spectrum, start = fft.fft2(plane, shape), _SIDE // 2
    for frequency in frequencies:
        whole = fft.ifft2(spectrum * fft.fft2(_filter(frequency), shape))
        part = np.abs(whole[start : start + height, start : start + width])
        yield part / (part.max() or 1.0)


@cache
def _filter(frequency: float) -> NDArray[np.complex128]:
    deviation = _WINDOW * 2 * np.pi / frequency
    steps = np.arange(_SIDE) - _SIDE // 2
    y, x = np.meshgrid(steps, steps, indexing="ij")
    along = x * np.cos(_ANGLE) + y * np.sin(_ANGLE)
    across = y * np.cos(_ANGLE) - x * np.sin(_ANGLE)
    window = np.exp(-(along**2 + _ASPECT**2 * across**2) / (2 * deviation**2))
    return window / window.sum() * np.exp(1j * frequency * along)
