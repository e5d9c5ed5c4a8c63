from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, t

from histodict.metrics.intervals import BootstrapReplicates, _p_value, holm, paired_bootstrap
from histodict.metrics.scores import auc
from histodict.model_selection.protocols import Repeat
from tests.model_selection.manifests import clustered


def two_methods(rng, advantage, n_patients=20, n_repeats=1):
    """Return two methods; scores of class 1 are lower by `advantage` in the second, with own
    noise."""
    first = clustered(rng, n_patients, n_repeats)
    second = [
        Repeat(
            tested.labels,
            tested.patients,
            tested.predictions - advantage * tested.labels + rng.normal(0, 0.4, len(tested.labels)),
        )
        for tested in first
    ]
    return first, second


def test_paired_bootstrap_finds_a_difference_and_is_antisymmetric(rng):
    first, second = two_methods(rng, 1.0, n_repeats=3)
    result = paired_bootstrap(auc, first, second, random_state=2)
    assert result.first == pytest.approx(np.mean([auc(x.labels, x.predictions) for x in first]))
    assert result.difference == pytest.approx(result.first - result.second)
    assert 0 < result.low < result.difference < result.high
    assert result.p_value < 0.02
    turned = paired_bootstrap(auc, second, first, random_state=2)
    assert (turned.difference, turned.low, turned.high, turned.p_value) == pytest.approx(
        (-result.difference, -result.high, -result.low, result.p_value)
    )
    assert paired_bootstrap(auc, first, second, random_state=2) == result


@pytest.mark.parametrize("shift", [-1.0, 0.3, 2.0])
def test_p_value_of_normal_replicates_equals_t_test(shift):
    """Replicates of the mean of n patients of deviation s have s·√((n−1)/n)/√n; the t-test uses
    s/√n."""
    n, s = 6, 2.0
    spread = s * np.sqrt((n - 1) / n) / np.sqrt(n)
    values = shift + spread * norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    sample = BootstrapReplicates(shift, values, n, 0)
    assert _p_value(sample) == pytest.approx(
        2 * t.sf(abs(shift) / (s / np.sqrt(n)), n - 1), rel=0.02
    )


def test_p_value_and_interval_agree():
    n_significant = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        result = paired_bootstrap(auc, *two_methods(rng, 0.4, 12), n_replicates=400)
        n_significant += result.p_value < 0.05
        # closer to 0.05, the resolution of the replicates decides
        if not 0.03 < result.p_value < 0.07:
            assert (result.p_value < 0.05) == (not result.low <= 0 <= result.high)
    assert 0 < n_significant < 30


def test_paired_bootstrap_has_few_false_positives():
    alarms = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        labels, patients = (x := clustered(rng, 16)[0]).labels, x.patients
        # Two equally good methods that err on different patients.
        first, second = (
            [Repeat(labels, patients, x.predictions + rng.normal(size=16)[patients])]
            for _ in range(2)
        )
        alarms += paired_bootstrap(auc, first, second, n_replicates=150).p_value < 0.05
    assert alarms / 120 <= 0.09


def test_equal_methods_have_p_value_one(rng):
    tested = clustered(rng, 16)
    result = paired_bootstrap(auc, tested, tested)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_different_test_images_are_refused(rng):
    first, second = clustered(rng, 16, 2), clustered(rng, 16, 2)
    for a, b in ((first, second), (first, first[:1])):
        with pytest.raises(ValueError, match=r"not tested on the same images .*same splits"):
            paired_bootstrap(auc, a, b)


# --- Holm ---------------------------------------------------------------------------------------


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5: multiplied by 4, 3, 2, 1, and made monotone.
    assert holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert (holm([0.2]), holm([])) == ([0.2], [])


def test_holm_equals_the_step_down_procedure(rng):
    for _ in range(50):
        p = rng.random(6) ** 3
        rejected = np.zeros(6, bool)
        for step, place in enumerate(np.argsort(p)):
            if p[place] > 0.05 / (6 - step):
                break
            rejected[place] = True
        np.testing.assert_array_equal(np.array(holm(p)) <= 0.05, rejected)


def test_holm_refuses_values_outside_0_and_1():
    for p in ([0.1, 1.2], [np.nan], [[0.1]]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holm(p)
