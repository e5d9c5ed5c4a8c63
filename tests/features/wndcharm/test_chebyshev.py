from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import chebyshev
from scipy.integrate import quad

from histodict.features.wndcharm.chebyshev import (
    chebyshev_statistics,
    chebyshev_transform,
    coefficients,
)
from tests.features.planes import texture


def centres(n):
    return (np.arange(n) + 0.5) * 2 / n - 1


def test_coefficients_are_the_integrals():
    plane = np.array([[3.0, -1.0, 2.0, 5.0]], np.float32)
    ours = coefficients(plane, (1, 6))[0]
    for n in range(6):

        def integrand(theta, n=n):
            pixel = min(int((np.cos(theta) + 1) * 2), 3)
            return plane[0, pixel] * np.cos(n * theta)

        breaks = np.arccos([-0.5, 0, 0.5])
        known = quad(integrand, 0, np.pi, points=breaks)[0] * (1 if n == 0 else 2) / np.pi
        assert ours[n] == pytest.approx(known, abs=1e-6)


def test_polynomials_are_orthogonal():
    x = centres(2000)
    for n, m in [(0, 0), (3, 1), (0, 7), (5, 6)]:
        row, column = chebyshev.chebval(x, np.eye(8)[n]), chebyshev.chebval(x, np.eye(8)[m])
        ours = coefficients(np.outer(row, column).astype(np.float32), (8, 8))
        np.testing.assert_allclose(ours, np.outer(np.eye(8)[n], np.eye(8)[m]), atol=2e-3)


def test_the_series_gives_the_image_back():
    x = centres(400)
    plane = np.outer(np.exp(x), np.cos(3 * x)).astype(np.float32)
    series = coefficients(plane, (12, 14))
    np.testing.assert_allclose(chebyshev.chebgrid2d(x, x, series), plane, atol=0.02)


def test_a_blank_image_has_one_coefficient():
    ours = coefficients(np.full((30, 40), 7, np.float32), (30, 40))
    assert ours[0, 0] == pytest.approx(7)
    ours[0, 0] = 0
    np.testing.assert_allclose(ours, 0, atol=1e-6)


def test_mirroring_changes_the_signs_of_odd_orders(rng):
    plane = texture(rng, (30, 40))
    ours, mirrored = coefficients(plane, (9, 9)), coefficients(plane[:, ::-1], (9, 9))
    np.testing.assert_allclose(mirrored, ours * (-1) ** np.arange(9), atol=1e-4)


def test_the_transform_has_the_size_of_the_plane_up_to_a_limit(rng):
    assert chebyshev_transform(texture(rng, (20, 30))).shape == (20, 30)
    assert chebyshev_transform(np.zeros((3, 500), np.float32)).shape == (3, 400)


def test_statistics_are_shares(rng):
    entries = chebyshev_statistics(texture(rng))
    assert len(entries) == 32
    assert sum(entries.values()) == pytest.approx(1)
