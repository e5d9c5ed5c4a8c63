from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from histodict.features.wndcharm.distributions import (
    levels,
    moments,
    numbered,
    shares,
    signed_log,
    stretched,
)


def test_levels_are_equal_steps_and_the_greatest_value_is_in_the_last():
    values = np.array([0, 84, 85, 169, 170, 255], np.float32)
    assert levels(values, 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert shares(values, 3).tolist() == [1 / 3, 1 / 3, 1 / 3]


def test_stretched_is_blind_to_offset_and_scale(rng):
    values = rng.standard_normal(50)
    np.testing.assert_allclose(stretched(3 * values - 7), stretched(values), atol=1e-12)
    assert (stretched(values).min(), stretched(values).max()) == (0, 1)


def test_equal_values_up_to_rounding_are_one_value(rng):
    values = (200 + 1e-4 * rng.standard_normal(50)).astype(np.float32)
    assert not stretched(values).any()
    assert shares(values, 4).tolist() == [1, 0, 0, 0]
    assert moments(values)[2:] == (0, 0)


def test_moments_are_scipys(rng):
    values = rng.gamma(2, size=500)
    known = values.mean(), values.std(), stats.skew(values), stats.kurtosis(values, fisher=False)
    assert moments(values) == pytest.approx(known)


def test_signed_log_keeps_signs_and_order():
    values = np.array([-1000.0, -1, 0, 1, 1000])
    ours = signed_log(values)
    assert (np.diff(ours) > 0).all()
    np.testing.assert_array_equal(ours, -ours[::-1])
    assert ours[-1] == pytest.approx(np.log(1001))


def test_numbered_counts_from_one():
    assert numbered("bin", np.array([5, 6])) == {"bin 1": 5, "bin 2": 6}
