"""Tests of intervals of proportions by patient, including proportions of 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from histodict.metrics.intervals import mean_interval, proportion_interval


def test_all_correct_images_do_not_give_certainty():
    found = proportion_interval([True] * 22, ["a"] * 8 + ["b"] * 7 + ["c"] * 7)
    assert (found.value, found.n_images, found.n_patients) == (1.0, 22, 3)
    assert found.low < 0.2 and found.high == 1.0
    many = proportion_interval([True] * 40, [str(place) for place in range(40)])
    assert many.low > 0.9


def test_two_patients_give_no_interval():
    found = proportion_interval([True] * 22, ["a"] * 11 + ["b"] * 11)
    assert found.low is None and found.high is None and found.n_patients == 2
    assert mean_interval([found, proportion_interval([True, False, True], ["a", "b", "c"])]) is None


def test_correlated_images_of_a_patient_count_less():
    patients = [str(place // 4) for place in range(40)]
    alike = proportion_interval([place // 4 % 2 == 0 for place in range(40)], patients)
    mixed = proportion_interval([place % 2 == 0 for place in range(40)], patients)
    single = proportion_interval(
        [place % 2 == 0 for place in range(40)], [str(p) for p in range(40)]
    )
    assert alike.value == mixed.value == single.value == 0.5
    assert alike.high - alike.low > 1.5 * (single.high - single.low)
    assert mixed.high - mixed.low >= single.high - single.low


@pytest.mark.parametrize(("n_patients", "rate", "alike"), [(4, 0.9, 0.3), (12, 0.8, 0.4)])
def test_intervals_have_the_stated_coverage(n_patients, rate, alike):
    rng = np.random.default_rng(0)
    stored = []
    for _ in range(300):
        sizes = rng.integers(1, 10, n_patients)
        own = rng.beta(rate * (1 / alike - 1), (1 - rate) * (1 / alike - 1), n_patients)
        right = rng.random(sizes.sum()) < np.repeat(own, sizes)
        found = proportion_interval(right, np.repeat(np.arange(n_patients).astype(str), sizes))
        assert 0 <= found.low <= found.value <= found.high <= 1
        stored.append(found.low <= rate <= found.high)
    assert np.mean(stored) > 0.9


@pytest.mark.parametrize(("n", "n_right"), [(5, 1), (20, 13), (40, 39)])
def test_limits_are_the_roots_of_the_wilson_equation(n, n_right):
    """(p − x)² = q·x(1 − x), with q = t²/(n − 1) for one image per patient."""
    found = proportion_interval(
        np.arange(n) < n_right, [str(patient) for patient in range(n)], level=0.9
    )
    q, p = t.ppf(0.95, n - 1) ** 2 / (n - 1), n_right / n
    roots = np.sort(np.roots([1 + q, -(2 * p + q), p**2]))
    np.testing.assert_allclose((found.low, found.high), roots)


def test_mean_of_two_has_a_narrower_interval():
    patients = [str(place) for place in range(30)]
    one = proportion_interval([place % 3 != 0 for place in range(30)], patients)
    low, high = mean_interval([one, one])
    assert high - low < one.high - one.low
    assert low < one.value < high
