"""Chebyshev transform: an image as a sum of products of Chebyshev polynomials.

With pixels as steps of a function f on [−1, 1]², its coefficients in the polynomials
T_n(x) = cos(n·arccos x), orthogonal under the weight 1/√(1 − x²), are

    a_nm = c_n·c_m ∫∫ f(y, x) T_n(y) T_m(x) / √((1 − y²)(1 − x²)) dy dx,   c_0 = 1/π, c_n = 2/π.

With x = cos θ, a pixel's share of the integral is that of cos nθ between the pixel's borders: no
rule of quadrature is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..pixels import Plane
from .distributions import Entries, numbered, shares, signed_log

# Higher orders tell single pixels apart, no texture.
_MOST_ORDERS = 400
_STATISTICS_ORDERS = 20
_N_BINS = 32


def coefficients(plane: Plane, n_orders: tuple[int, int]) -> NDArray[np.float64]:
    """a_nm, of orders n < n_orders[0] down the image and m < n_orders[1] across."""
    down, across = map(_basis, plane.shape, n_orders)
    return down @ plane @ across.T


def chebyshev_transform(plane: Plane) -> Plane:
    """Coefficients as a plane, on a logarithmic scale with their signs; orders up to its size."""
    height, width = (min(side, _MOST_ORDERS) for side in plane.shape)
    return signed_log(coefficients(plane, (height, width))).astype(np.float32)


def chebyshev_statistics(plane: Plane) -> Entries:
    """How the coefficients of low order are distributed."""
    low = coefficients(plane, (_STATISTICS_ORDERS, _STATISTICS_ORDERS))
    return numbered("bin", shares(signed_log(low), _N_BINS))


def _basis(n_pixels: int, n_orders: int) -> NDArray[np.float64]:
    """c_n·∫ cos nθ dθ over every pixel: (n_orders, n_pixels)."""
    borders = np.arccos(np.linspace(-1, 1, n_pixels + 1))
    n = np.arange(1, n_orders)[:, None]
    integrals = np.vstack([borders / np.pi, np.sin(n * borders) * (2 / np.pi) / n])
    return -np.diff(integrals, axis=1)
