"""Zernike moments: an image on a disc as a sum of orthogonal polynomials.

    Z_nm = (n + 1)/π · Σ f(r, φ) R_nm(r) e^(−i(m + 1)φ) / Σ f,     n ≤ 15, 0 ≤ m ≤ n, n − m even

The disc lies about the image's centre of mass, with the shorter side as its radius. As in the
original the wave of m turns m + 1 times, which Zernike's does m times. The lengths |Z_nm| do not
change when the image is turned.

Reference: Teague, "Image analysis via the general theory of moments", J. Opt. Soc. Am., 1980.
"""

from __future__ import annotations

from functools import cache
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane

_DEGREE = 15
_ORDERS = [(n, m) for n in range(_DEGREE + 1) for m in range(n % 2, n + 1, 2)]


def zernike_moments(plane: Plane) -> Entries:
    """|Z_nm| for the 72 orders up to degree 15; 0 of a plane whose sum is 0."""
    total = plane.sum()
    values = np.abs(np.tensordot(_polynomials(), _geometric_moments(plane), 2)) / (total or 1.0)
    return {f"{n},{m}": float(z) for (n, m), z in zip(_ORDERS, values, strict=True)}


def _geometric_moments(plane: Plane) -> NDArray[np.float64]:
    """Σ f/r·x^p·y^q over the disc, for p, q ≤ 16: all that the polynomials need."""
    total = plane.sum() or 1.0
    steps = [np.arange(1, side + 1) for side in plane.shape]
    middle = [plane.sum(axis=1 - axis) @ at / total for axis, at in enumerate(steps)]
    y, x = ((at - centre) / min(plane.shape) for at, centre in zip(steps, middle, strict=True))
    r = np.hypot(x, y[:, None])
    inside = (r > np.finfo(np.float64).eps) & (r <= 1)
    weighted = np.divide(plane, r, out=np.zeros_like(plane), where=inside)
    powers = np.arange(_DEGREE + 2)[:, None]
    # Outside the disc nothing counts, and the disc can be far away: of values that cancel out.
    x, y = (np.clip(steps, -1, 1) ** powers for steps in (x, y))
    return x @ weighted.T @ y.T


@cache
def _polynomials() -> NDArray[np.complex128]:
    """Coefficients of x^p·y^q in (n + 1)/π·r·R_nm(r)·e^(−i(m + 1)φ): (orders, p, q).

    r^(m + 1)·e^(−i(m + 1)φ) = (x − iy)^(m + 1), and R_nm is r^m times a polynomial of r² = x² + y².
    """
    coefficients = np.zeros((len(_ORDERS), _DEGREE + 2, _DEGREE + 2), np.complex128)
    for place, (n, m) in enumerate(_ORDERS):
        for k in range((n - m) // 2 + 1):
            power = (n - m) // 2 - k  # of r²
            factor = (n + 1) / np.pi * radial(n, m, k)
            for a in range(m + 2):
                for b in range(power + 1):
                    q = a + 2 * b
                    term = comb(m + 1, a) * (-1j) ** a * comb(power, b)
                    coefficients[place, m + 1 + 2 * power - q, q] += factor * term
    return coefficients


def radial(n: int, m: int, k: int) -> float:
    """Coefficient of r^(n − 2k) in R_nm.

    (−1)^k (n − k)! / (k! ((n + m)/2 − k)! ((n − m)/2 − k)!).
    """
    below = factorial(k) * factorial((n + m) // 2 - k) * factorial((n - m) // 2 - k)
    return (-1) ** k * factorial(n - k) / below
