from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from histodict.image_features.wndcharm.histograms import histogram, moments, named_entries


def test_bins_are_equal_steps_and_the_greatest_value_is_in_the_last():
    assert histogram(np.array([0.0, 84, 85, 169, 170, 255]), 3).tolist() == [2, 2, 2]


def test_histograms_are_numpys(rng):
    values = rng.standard_normal((40, 40))
    np.testing.assert_array_equal(histogram(values, 9), np.histogram(values, 9)[0])


def test_one_value_is_in_the_first_bin_and_none_in_no_bin():
    assert histogram(np.full(7, 3.0), 4).tolist() == [7, 0, 0, 0]
    assert histogram(np.zeros(0), 3).tolist() == [0, 0, 0]


def test_moments_are_scipys(rng):
    v = rng.gamma(2, size=500)
    known = v.mean(), v.std(ddof=1), stats.skew(v), stats.kurtosis(v, fisher=False)
    assert moments(v) == pytest.approx(known)


def test_few_and_equal_values_have_few_moments():
    assert moments(np.zeros(0)) == (0, 0, 0, 0)
    assert moments(np.array([3.0, 5])) == (4, 0, 0, 0)
    assert moments(np.array([3.0, 4, 5])) == (4, 1, 0, 0)
    assert moments(np.full(9, 7.0)) == (7, 0, 0, 0)


def test_numbered_counts_from_one():
    assert named_entries("bin", np.array([5, 6])) == {"bin 1": 5, "bin 2": 6}
