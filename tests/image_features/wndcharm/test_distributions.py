from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from histodict.image_features.wndcharm.histograms import histogram, moments, named_entries


def test_bins_have_equal_width_and_the_maximum_is_in_the_last():
    assert histogram(np.array([0.0, 84, 85, 169, 170, 255]), 3).tolist() == [2, 2, 2]


def test_histograms_equal_numpy(rng):
    values = rng.standard_normal((40, 40))
    np.testing.assert_array_equal(histogram(values, 9), np.histogram(values, 9)[0])


def test_constant_values_are_in_the_first_bin_and_no_values_in_none():
    assert histogram(np.full(7, 3.0), 4).tolist() == [7, 0, 0, 0]
    assert histogram(np.zeros(0), 3).tolist() == [0, 0, 0]


def test_moments_equal_scipy(rng):
    v = rng.gamma(2, size=500)
    expected = v.mean(), v.std(ddof=1), stats.skew(v), stats.kurtosis(v, fisher=False)
    assert moments(v) == pytest.approx(expected)


def test_few_and_constant_values_have_zero_moments():
    assert moments(np.zeros(0)) == (0, 0, 0, 0)
    assert moments(np.array([3.0, 5])) == (4, 0, 0, 0)
    assert moments(np.array([3.0, 4, 5])) == (4, 1, 0, 0)
    assert moments(np.full(9, 7.0)) == (7, 0, 0, 0)


def test_named_entries_count_from_one():
    assert named_entries("bin", np.array([5, 6])) == {"bin 1": 5, "bin 2": 6}
