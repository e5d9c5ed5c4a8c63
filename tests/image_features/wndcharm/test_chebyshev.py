from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.wndcharm.polynomials import (
    chebyshev_coefficients,
    chebyshev_statistics,
    chebyshev_transform,
)
from tests.image_features.planes import texture


def polynomial(n, x):
    return np.cos(n * np.arccos(x))


def test_coefficients_equal_explicit_sums(rng):
    plane = rng.standard_normal((5, 8))
    ours = chebyshev_coefficients(plane, 4)
    x, y = (2 * np.arange(1, side + 1) / side - 1 for side in (8, 5))
    for n in range(4):
        for m in range(4):
            total = polynomial(m, y) @ plane @ polynomial(n, x)
            halves = (1 if n else 0.5) * (1 if m else 0.5)
            assert ours[n, m] == pytest.approx(halves * total / 40, abs=1e-12)


def test_flat_image_has_its_mean_in_the_first_coefficient():
    assert chebyshev_coefficients(np.full((30, 40), 7.0), 20)[0, 0] == pytest.approx(7 / 4)


def test_transposed_image_has_the_transposed_transform(rng):
    plane = texture(rng, (30, 40)).astype(np.float64)
    np.testing.assert_allclose(
        chebyshev_coefficients(plane.T, 9), chebyshev_coefficients(plane, 9).T, atol=1e-12
    )


def test_transform_is_a_square_of_the_shorter_side(rng):
    assert chebyshev_transform(texture(rng, (20, 30)).astype(np.float64)).shape == (20, 20)


def test_statistics_count_400_coefficients(rng):
    entries = chebyshev_statistics(texture(rng).astype(np.float64))
    assert len(entries) == 32
    assert sum(entries.values()) == 400
