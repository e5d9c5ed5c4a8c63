"""Chebyshev–Fourier statistics: Chebyshev polynomials along the radius, waves along the angle.

    a_nm = Σ f(r, φ) T_n(2r − 1) e^(−imφ) over Chebyshev's nodes of r and equal steps of φ

The lengths |a_nm| do not change when the image is turned.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from ..pixels import Plane
from .disc import DISC_PX, disc_square
from .distributions import Entries, numbered, shares

_N_RADII, _N_ANGLES = 64, 128
_N_ORDERS = 16
_N_BINS = 32


def chebyshev_fourier_statistics(plane: Plane) -> Entries:
    """How the logarithms of |a_nm| are distributed, of the first 16 orders each way."""
    around = ndimage.map_coordinates(disc_square(plane), _polar_grid(), order=1)
    waves = fft.rfft(around.astype(np.float64), axis=1)[:, :_N_ORDERS]
    # The cosine transform is the sum over Chebyshev's nodes.
    lengths = np.hypot(*(fft.dct(part, axis=0)[:_N_ORDERS] for part in (waves.real, waves.imag)))
    return numbered("bin", shares(np.log1p(lengths), _N_BINS))


@cache
def _polar_grid() -> NDArray[np.float64]:
    """Row and column in the square of each (radius, angle): (2, _N_RADII, _N_ANGLES)."""
    nodes = np.cos((np.arange(_N_RADII) + 0.5) * np.pi / _N_RADII)
    r = (1 + nodes)[:, None] / 2 * (DISC_PX / 2)
    angles = np.arange(_N_ANGLES) * (2 * np.pi / _N_ANGLES)
    middle = (DISC_PX - 1) / 2
    return np.clip(middle + r * np.stack([np.sin(angles), np.cos(angles)])[:, None], 0, DISC_PX - 1)
