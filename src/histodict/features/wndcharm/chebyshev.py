"""Chebyshev transform: an image as a sum of products of Chebyshev polynomials T_n(cos θ) = cos nθ.

    a_nm = c_n·c_m/(w·h) · Σ f(y, x) T_n(x) T_m(y),   c_0 = 1/2, c_n = 1

with the pixels at x = 2/w − 1, 4/w − 1, …, 1, and y likewise. As in the original there is no weight
1/√(1 − x²), under which the polynomials would be orthogonal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane, histogram, named_entries

_STATISTICS_ORDERS = 20
_N_BINS = 32


def coefficients(plane: Plane, n_orders: int) -> NDArray[np.float64]:
    """a_nm of orders below n_orders: rows are orders across the image, columns orders down it."""
    down, across = (_basis(side, n_orders) for side in plane.shape)
    return across @ plane.T @ down.T


def chebyshev_transform(plane: Plane) -> Plane:
    """The coefficients as a plane, square: as many orders as its shorter side has pixels."""
    return coefficients(plane, min(plane.shape))


def chebyshev_statistics(plane: Plane) -> Entries:
    """How the coefficients of low order are distributed."""
    low = coefficients(plane, min(_STATISTICS_ORDERS, *plane.shape))
    return named_entries("bin", histogram(low, _N_BINS))


def _basis(n_pixels: int, n_orders: int) -> NDArray[np.float64]:
    """c_n·T_n at the pixels, over their number: (n_orders, n_pixels)."""
    angles = np.arccos(2 * np.arange(1, n_pixels + 1) / n_pixels - 1)
    basis = np.cos(np.arange(n_orders)[:, None] * angles) / n_pixels
    basis[0] /= 2
    return basis
