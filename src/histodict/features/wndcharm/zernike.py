"""Zernike moments: an image on the unit disc as a sum of orthogonal polynomials.

    Z_nm = (n + 1)/π · Σ f(r, φ) R_nm(r) e^(−imφ) / Σ f,     n ≤ 15, 0 ≤ m ≤ n, n − m even

Their lengths |Z_nm| do not change when the image is turned.

Reference: Teague, "Image analysis via the general theory of moments", J. Opt. Soc. Am., 1980.
"""

from __future__ import annotations

from functools import cache
from math import factorial

import numpy as np
from numpy.typing import NDArray

from ..pixels import Plane
from .disc import DISC_PX, disc_square
from .distributions import Entries

_DEGREE = 15
_ORDERS = [(n, m) for n in range(_DEGREE + 1) for m in range(n % 2, n + 1, 2)]


def zernike_moments(plane: Plane) -> Entries:
    """|Z_nm| for the 72 orders up to degree 15."""
    inside, basis = _basis()
    f = disc_square(plane).ravel()[inside].astype(np.float64)
    lengths = np.abs(basis @ f) / f.sum()
    return {f"{n},{m}": float(z) for (n, m), z in zip(_ORDERS, lengths, strict=True)}


@cache
def _basis() -> tuple[NDArray[np.intp], NDArray[np.complex128]]:
    """Pixels of the square that lie in the disc, and (n + 1)/π · R_nm e^(−imφ) at each of them."""
    steps = (np.arange(DISC_PX) + 0.5) * (2 / DISC_PX) - 1
    y, x = (part.ravel() for part in np.meshgrid(steps, steps, indexing="ij"))
    inside = np.flatnonzero(x * x + y * y <= 1)
    r, turn = np.hypot(x, y)[inside], np.exp(-1j * np.arctan2(y, x)[inside])
    rows = [(n + 1) / np.pi * _radial(n, m, r) * turn**m for n, m in _ORDERS]
    return inside, np.array(rows)


def _radial(n: int, m: int, r: NDArray[np.float64]) -> NDArray[np.float64]:
    """R_nm(r) = Σ_k (−1)^k (n − k)! / (k! ((n + m)/2 − k)! ((n − m)/2 − k)!) r^(n − 2k)."""
    values = np.zeros_like(r)
    for k in range((n - m) // 2 + 1):
        below = factorial(k) * factorial((n + m) // 2 - k) * factorial((n - m) // 2 - k)
        values += (-1) ** k * factorial(n - k) / below * r ** (n - 2 * k)
    return values
