"""Chebyshev–Fourier statistics: Chebyshev polynomials along the radius, waves along the angle.

    a_nm = Σ f(r, φ) T_n(2r − 1) e^(−imφ)   over the pixels of the ellipse r < 1 that fits the image

with n from 0 to 22, m from −11 to 11, and the terms of n = 0 and of m = 0 halved. The lengths
|a_nm| do not change when the image is turned. An image of more than 300 × 300 pixels is reduced
first, until both sides are at most 300.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane, histogram, named_entries

_MAX_PX = 300
_MAX_WAVES = 11
_N_BINS = 32


def chebyshev_fourier_statistics(plane: Plane) -> Entries:
    """How the lengths |a_nm| are distributed."""
    return named_entries("bin", histogram(lengths(reduced(plane)), _N_BINS))


def lengths(plane: Plane) -> NDArray[np.float64]:
    """|a_nm|: (polynomials n, waves m from the most negative)."""
    inside, turn, polynomials = _ellipse(plane.shape)
    n_waves = len(polynomials) // 2
    wave = plane.ravel()[inside].astype(np.complex128)
    columns = []
    for m in range(n_waves + 1):
        # Real and imaginary part apart: the polynomials are real.
        parts = (polynomials @ wave.real, polynomials @ wave.imag)
        columns.append(np.hypot(*parts) / (1 if m else 2))
        wave *= turn
    # f is real: the lengths of m and −m are the same.
    return np.column_stack([*columns[:0:-1], *columns])


def reduced(plane: Plane) -> Plane:
    """The plane itself, or means over its pixels if it has more than 300 × 300 of them."""
    if plane.size <= _MAX_PX**2:
        return plane
    ratio = min(_MAX_PX / side for side in plane.shape)
    down, across = (_fractions(side, ratio) for side in plane.shape)
    return down @ plane @ across.T


def _fractions(n_pixels: int, ratio: float) -> NDArray[np.float64]:
    """How much of every new pixel, 1/ratio wide, each old one is: (new, old)."""
    width = 1 / ratio
    borders = np.arange(int(ratio * n_pixels) + 1)[:, None] * width
    pixels = np.arange(n_pixels)
    ends, starts = np.minimum(borders[1:], pixels + 1), np.maximum(borders[:-1], pixels)
    return np.maximum(ends - starts, 0) / width


@lru_cache(maxsize=4)  # an image and its transforms have few shapes between them
def _ellipse(
    shape: tuple[int, int],
) -> tuple[NDArray[np.intp], NDArray[np.complex128], NDArray[np.float64]]:
    """Pixels inside; e^(−iφ) and the polynomials (n, pixels) at each of them."""
    y, x = (np.linspace(-1, 1, side) for side in shape)
    r = np.hypot(x, y[:, None])
    inside = np.flatnonzero(r < 1)
    points = (x - 1j * y[:, None]).ravel()[inside]
    n_waves = min(_MAX_WAVES, (min(shape) - 1) // 2)
    angles = np.arccos(np.clip(2 * r.ravel()[inside] - 1, -1, 1))
    polynomials = np.cos(np.arange(2 * n_waves + 1)[:, None] * angles)
    polynomials[0] = 0.5
    return inside, np.exp(1j * np.angle(points)), polynomials
