"""Zernike moments, Chebyshev transform, Chebyshev–Fourier statistics and Radon features.

Zernike moments expand an image on a disc in orthogonal polynomials:

    Z_nm = (n + 1)/π · Σ f(r, φ) R_nm(r) e^(−i(m + 1)φ) / Σ f,     n ≤ 15, 0 ≤ m ≤ n, n − m even

The disc is centred at the image's centre of mass, with the shorter side as its radius. As in the
original program, the angular frequency is m + 1 instead of m. The moduli |Z_nm| are invariant to
rotation.

Reference: Teague, "Image analysis via the general theory of moments", J. Opt. Soc. Am., 1980.

The Chebyshev transform expands an image in products of polynomials T_n(cos θ) = cos nθ:

    a_nm = c_n·c_m/(w·h) · Σ f(y, x) T_n(x) T_m(y),   c_0 = 1/2, c_n = 1

with the pixels at x = 2/w − 1, 4/w − 1, …, 1, and y likewise. As in the original program, there is
no weight 1/√(1 − x²), under which the polynomials would be orthogonal.

Chebyshev–Fourier statistics use Chebyshev polynomials of the radius and waves of the angle:

    a_nm = Σ f(r, φ) T_n(2r − 1) e^(−imφ)   over the pixels of the ellipse r < 1 that fits the image

with n from 0 to 22, m from −11 to 11, and the terms of n = 0 and of m = 0 halved. The moduli |a_nm|
are invariant to rotation. Images of more than 300 × 300 pixels are reduced until both sides are at
most 300.

Radon features are histograms of line sums in four directions, with three bins each. A pixel is
divided into four points, and the value of each point is shared between the two nearest lines. Lines
are a pixel apart and extend beyond the corners of the image, so the outer ones are 0.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from .histograms import Entries, Plane, histogram, named_entries

_N_ORDERS = 20
_N_BINS = 32


def chebyshev_coefficients(plane: Plane, n_orders: int) -> NDArray[np.float64]:
    """Return the Chebyshev transform of orders below `n_orders`, (n_orders, n_orders)."""
    down, across = (_chebyshev_basis(side, n_orders) for side in plane.shape)
    return across @ plane.T @ down.T


def chebyshev_transform(plane: Plane) -> Plane:
    """Return the Chebyshev coefficients, with as many orders as the shorter side has pixels."""
    return chebyshev_coefficients(plane, min(plane.shape))


def chebyshev_statistics(plane: Plane) -> Entries:
    """Return the 32-bin histogram of the Chebyshev coefficients of orders below 20."""
    low_orders = chebyshev_coefficients(plane, min(_N_ORDERS, *plane.shape))
    return named_entries("bin", histogram(low_orders, _N_BINS))


def _chebyshev_basis(n_pixels: int, n_orders: int) -> NDArray[np.float64]:
    """Return Chebyshev polynomials at the pixels of a row, divided by n_pixels.

    The array is (n_orders, n_pixels); the polynomial of order 0 is halved.
    """
    angles = np.arccos(2 * np.arange(1, n_pixels + 1) / n_pixels - 1)
    basis = np.cos(np.arange(n_orders)[:, None] * angles) / n_pixels
    basis[0] /= 2
    return basis


_MAX_PX = 300
_MAX_ANGULAR_ORDER = 11


def chebyshev_fourier_statistics(plane: Plane) -> Entries:
    """Return the 32-bin histogram of the moduli of the Chebyshev–Fourier coefficients."""
    return named_entries("bin", histogram(chebyshev_fourier_moduli(limit_size(plane)), _N_BINS))


def chebyshev_fourier_moduli(plane: Plane) -> NDArray[np.float64]:
    """Return the moduli of the Chebyshev–Fourier coefficients.

    Rows are orders of the polynomial, and columns are angular orders, both ascending.
    """
    inside, phase_step, polynomials = _ellipse_basis(plane.shape)
    max_angular_order = len(polynomials) // 2
    modulated = plane.ravel()[inside].astype(np.complex128)
    columns = []
    for m in range(max_angular_order + 1):
        # Real and imaginary parts separately, as the polynomials are real.
        parts = (polynomials @ modulated.real, polynomials @ modulated.imag)
        columns.append(np.hypot(*parts) / (1 if m else 2))
        modulated *= phase_step
    # As f is real, the moduli of m and −m are equal.
    return np.column_stack([*columns[:0:-1], *columns])


def limit_size(plane: Plane) -> Plane:
    """Return the plane, resized by area means if it has more than 300 × 300 pixels."""
    if plane.size <= _MAX_PX**2:
        return plane
    ratio = min(_MAX_PX / side for side in plane.shape)
    down, across = (_area_fractions(side, ratio) for side in plane.shape)
    return down @ plane @ across.T


def _area_fractions(n_pixels: int, ratio: float) -> NDArray[np.float64]:
    """Return the fraction of each new pixel that each old pixel covers, (n_new, n_pixels).

    `ratio` is the number of new pixels per old pixel of an axis.
    """
    width = 1 / ratio
    borders = np.arange(int(ratio * n_pixels) + 1)[:, None] * width
    pixels = np.arange(n_pixels)
    ends, starts = np.minimum(borders[1:], pixels + 1), np.maximum(borders[:-1], pixels)
    return np.maximum(ends - starts, 0) / width


@lru_cache(maxsize=4)  # an image and its transforms have few shapes
def _ellipse_basis(
    shape: tuple[int, int],
) -> tuple[NDArray[np.intp], NDArray[np.complex128], NDArray[np.float64]]:
    """Return the basis functions on the ellipse that fits an image of this (height, width).

    They are functions of the angle φ and the radius r, which is 1 on the ellipse.

    Returns
    -------
    inside : (n_inside,), flat indices of the pixels in the ellipse
    waves : (n_inside,), e^(−iφ) at these pixels
    polynomials : (n_orders, n_inside), T_n(2r − 1) at these pixels; halved for n = 0
    """
    y, x = (np.linspace(-1, 1, side) for side in shape)
    r = np.hypot(x, y[:, None])
    inside = np.flatnonzero(r < 1)
    points = (x - 1j * y[:, None]).ravel()[inside]
    max_angular_order = min(_MAX_ANGULAR_ORDER, (min(shape) - 1) // 2)
    angles = np.arccos(np.clip(2 * r.ravel()[inside] - 1, -1, 1))
    polynomials = np.cos(np.arange(2 * max_angular_order + 1)[:, None] * angles)
    polynomials[0] = 0.5
    return inside, np.exp(1j * np.angle(points)), polynomials


def radon_features(plane: Plane) -> Entries:
    """Return Radon features: three-bin histograms of line sums in four directions."""
    entries: Entries = {}
    for direction, sums in line_sums(plane).items():
        entries |= named_entries(direction, histogram(sums, 3))
    return entries


def line_sums(plane: Plane) -> dict[str, NDArray[np.float64]]:
    """Return the sums along parallel lines, by the direction perpendicular to the lines.

    The directions are "0°" (to the right), "45°", "90°" and "135°".
    """
    height, width = plane.shape
    half_width, half_height = width - 1 - (width - 1) // 2, height - 1 - (height - 1) // 2
    max_position = int(np.ceil(np.hypot(half_width, half_height))) + 1
    x = np.arange(width) - (width - 1) // 2
    y = np.arange(height)[::-1] - (height - 1) // 2  # rises upwards
    rising, falling = _diagonal_sums(plane[::-1]), _diagonal_sums(plane)
    steps = np.arange(height + width - 1)
    quarter, half = [(-0.25, 1), (0.25, 1)], [(-0.5, 1), (0.0, 2), (0.5, 1)]
    lines = {
        "0°": (x, plane.sum(axis=0), quarter, 1.0),
        # x − y and x + y, which are constant on the diagonals.
        "135°": (y[0] - x[0] - steps, falling, half, np.sqrt(0.5)),
        "45°": (x[0] + y[-1] + steps, rising, half, np.sqrt(0.5)),
        "90°": (y, plane.sum(axis=1), quarter, 1.0),
    }
    return {name: _resample_line_sums(*line, max_position) for name, line in lines.items()}


def _resample_line_sums(
    positions: NDArray[np.int64],
    sums: NDArray[np.float64],
    points: list[tuple[float, int]],
    unit: float,
    max_position: int,
) -> NDArray[np.float64]:
    """Resample line sums, by linear interpolation, to lines that are one pixel apart.

    Parameters
    ----------
    positions : (n,), positions perpendicular to the lines, in multiples of `unit`
    sums : (n,), line sums
    points : (offset, weight) of the points among which each sum is divided, with offsets in
        multiples of `unit`; each part is added to the two nearest output lines by linear
        interpolation
    unit : length of one unit in pixels
    max_position : output lines are at −max_position … max_position, in pixels
    """
    resampled = np.zeros(2 * max_position + 2)
    total = sum(weight for _, weight in points)
    for offset, weight in points:
        line_position = (positions + offset) * unit + max_position
        line = line_position.astype(np.intp)
        low = sums * (weight / total) * (1 - (line_position - line))
        resampled += np.bincount(line, low, len(resampled))
        resampled += np.bincount(line + 1, sums * (weight / total) - low, len(resampled))
    return resampled[:-1]


def _diagonal_sums(plane: Plane) -> NDArray[np.float64]:
    """Return the sums over the pixels with the same row + column, (height + width − 1,)."""
    height, width = plane.shape
    # Padded rows that are read as rows one pixel shorter shift by one pixel each.
    padded = np.zeros((height, width + height))
    padded[:, :width] = plane
    sheared = padded.ravel()[: height * (width + height - 1)].reshape(height, -1)
    sums: NDArray[np.float64] = sheared.sum(axis=0)
    return sums


_MAX_DEGREE = 15
_ORDERS = [(n, m) for n in range(_MAX_DEGREE + 1) for m in range(n % 2, n + 1, 2)]


def zernike_moments(plane: Plane) -> Entries:
    """Return the moduli of the 72 Zernike moments up to degree 15; 0 for a zero plane."""
    total = plane.sum()
    values = np.abs(np.tensordot(_zernike_basis(), _geometric_moments(plane), 2)) / (total or 1.0)
    return {f"{n},{m}": float(z) for (n, m), z in zip(_ORDERS, values, strict=True)}


def _geometric_moments(plane: Plane) -> NDArray[np.float64]:
    """Return the moments Σ f/r·x^p·y^q of the plane f over the disc, for p and q from 0 to 16.

    x and y are relative to the centre of mass, in units of the shorter side; r = √(x² + y²).
    """
    total = plane.sum() or 1.0
    steps = [np.arange(1, side + 1) for side in plane.shape]
    centres = [plane.sum(axis=1 - axis) @ at / total for axis, at in enumerate(steps)]
    y, x = ((at - centre) / min(plane.shape) for at, centre in zip(steps, centres, strict=True))
    r = np.hypot(x, y[:, None])
    inside = (r > np.finfo(np.float64).eps) & (r <= 1)
    weighted = np.divide(plane, r, out=np.zeros_like(plane), where=inside)
    powers = np.arange(_MAX_DEGREE + 2)[:, None]
    # Pixels outside count as 0; clipped, as the disc may be far away if values cancel out.
    x, y = (np.clip(steps, -1, 1) ** powers for steps in (x, y))
    return x @ weighted.T @ y.T


@cache
def _zernike_basis() -> NDArray[np.complex128]:
    """Return r times each Zernike function as a polynomial in x and y.

    The result (n_orders, n_p, n_q) has the coefficients of x^p·y^q in the product of r and
    (n + 1)/π·R_nm(r)·e^(−i(m + 1)φ). Only with the factor r, by which `_geometric_moments` divides,
    is this a polynomial: r^(m + 1)·e^(−i(m + 1)φ) = (x − iy)^(m + 1), and R_nm is r^m times a
    polynomial of r² = x² + y².
    """
    coefficients = np.zeros((len(_ORDERS), _MAX_DEGREE + 2, _MAX_DEGREE + 2), np.complex128)
    for index, (n, m) in enumerate(_ORDERS):
        for k in range((n - m) // 2 + 1):
            power = (n - m) // 2 - k  # of r²
            factor = (n + 1) / np.pi * radial_coefficient(n, m, k)
            for a in range(m + 2):
                for b in range(power + 1):
                    q = a + 2 * b
                    term = comb(m + 1, a) * (-1j) ** a * comb(power, b)
                    coefficients[index, m + 1 + 2 * power - q, q] += factor * term
    return coefficients


def radial_coefficient(n: int, m: int, k: int) -> float:
    """Return the coefficient of r^(n − 2k) in the radial polynomial R_nm.

    It is (−1)^k (n − k)! / (k! ((n + m)/2 − k)! ((n − m)/2 − k)!).
    """
    denominator = factorial(k) * factorial((n + m) // 2 - k) * factorial((n - m) // 2 - k)
    return (-1) ** k * factorial(n - k) / denominator
