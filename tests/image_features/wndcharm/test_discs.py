"""Tests of Zernike moments and Chebyshev–Fourier statistics, both on a disc."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.wndcharm.polynomials import (
    chebyshev_fourier_moduli,
    chebyshev_fourier_statistics,
    limit_size,
    radial_coefficient,
    zernike_moments,
)
from tests.image_features.planes import TURNS, texture


def naive_moment(plane, n, m):
    """Return |Z_nm| by a sum over pixels."""
    height, width = plane.shape
    rows, columns = np.indices(plane.shape)
    total = plane.sum()
    y = (rows - (rows * plane).sum() / total) / min(height, width)
    x = (columns - (columns * plane).sum() / total) / min(height, width)
    r, angle = np.hypot(x, y), np.arctan2(y, x)
    polynomial = sum(
        radial_coefficient(n, m, k) * r ** (n - 2 * k) for k in range((n - m) // 2 + 1)
    )
    term = plane * polynomial * np.exp(-1j * (m + 1) * angle) * (r <= 1)
    return (n + 1) / np.pi * abs(term.sum()) / total


@pytest.mark.parametrize(("n", "m"), [(0, 0), (2, 0), (3, 1), (7, 5), (14, 2), (15, 1), (15, 15)])
def test_moments_are_sums_over_the_disc(rng, n, m):
    plane = texture(rng, (40, 57)).astype(np.float64)
    assert zernike_moments(plane)[f"{n},{m}"] == pytest.approx(naive_moment(plane, n, m), abs=1e-11)


def test_radial_polynomials_are_1_at_the_border():
    for n in range(16):
        for m in range(n % 2, n + 1, 2):
            assert sum(
                radial_coefficient(n, m, k) for k in range((n - m) // 2 + 1)
            ) == pytest.approx(1)


def test_black_image_has_72_zero_moments():
    entries = zernike_moments(np.zeros((70, 70)))
    assert len(entries) == 72
    assert set(entries.values()) == {0.0}


@pytest.mark.parametrize("symmetry", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("shape", [(64, 64), (70, 91)])
def test_rotations_and_mirror_images_change_nothing(rng, symmetry, shape):
    plane = texture(rng, shape, blur=5).astype(np.float64)
    for features, tolerance in [(zernike_moments, 1e-10), (chebyshev_fourier_statistics, 0)]:
        np.testing.assert_allclose(
            list(features(symmetry(plane)).values()), list(features(plane).values()), atol=tolerance
        )


def test_scale_of_brightness_changes_nothing(rng):
    plane = texture(rng).astype(np.float64)
    for features in (zernike_moments, chebyshev_fourier_statistics):
        one, other = (list(features(p).values()) for p in (plane, plane * 4))
        np.testing.assert_allclose(other, one, atol=1e-12)


def test_magnitudes_are_sums_over_the_ellipse(rng):
    plane = rng.random((24, 30))
    y, x = np.meshgrid(np.linspace(-1, 1, 24), np.linspace(-1, 1, 30), indexing="ij")
    r, angle = np.hypot(x, y), np.arctan2(y, x)
    ours = chebyshev_fourier_moduli(plane)
    assert ours.shape == (23, 23)
    for n, m in [(0, 0), (0, 4), (5, 0), (7, -3), (22, 11)]:
        wave = np.exp(1j * m * angle) * np.cos(n * np.arccos(np.clip(2 * r - 1, -1, 1)))
        expected = abs((plane * wave * (r < 1)).sum()) * (1 if n else 0.5) * (1 if m else 0.5)
        assert ours[n, 11 + m] == pytest.approx(expected)


def test_statistics_count_all_magnitudes(rng):
    entries = chebyshev_fourier_statistics(texture(rng).astype(np.float64))
    assert len(entries) == 32
    assert sum(entries.values()) == 23 * 23


def test_large_planes_are_reduced_to_means():
    plane = np.arange(400 * 300, dtype=np.float64).reshape(400, 300)
    small = limit_size(np.kron(plane, np.ones((3, 3))))
    assert small.shape == (300, 225)
    assert small.mean() == pytest.approx(plane.mean())
    assert limit_size(plane[:300]) is not None
    np.testing.assert_array_equal(limit_size(plane[:300]), plane[:300])
