from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, norm, t
from sklearn.metrics import roc_auc_score

from histodict.evaluation.answers import Repeat
from histodict.evaluation.comparison import (
    _p_value,
    delong,
    delong_covariance,
    holm,
    mcnemar,
    paired_bootstrap,
    per_patient,
)
from histodict.evaluation.intervals import Replicates
from histodict.evaluation.metrics import auc
from tests.evaluation.manifests import clustered


@pytest.fixture(params=[3, 0], ids=["few ties", "many ties"])
def paired(request, rng):
    """Labels and two correlated scores of 60 patients."""
    labels = (np.arange(60) % 5 < 2).astype(int)
    shared = rng.normal(size=60)
    first, second = (
        np.round(s * labels + shared + 0.7 * rng.normal(size=60), request.param) for s in (2, 1.2)
    )
    return labels, first, second


# --- DeLong -------------------------------------------------------------------------------------


def placements(labels, scores):
    """By all pairs: the share of the other class that each score beats, ties one half."""
    a, b = scores[labels == 1][:, None], scores[labels == 0]
    wins = (a > b) + 0.5 * (a == b)
    return wins.mean(axis=1), wins.mean(axis=0)


def test_covariance_against_all_pairs(paired):
    labels, *scores = paired
    ones, zeros = zip(*(placements(labels, row) for row in scores), strict=True)
    expected = np.cov(ones) / len(ones[0]) + np.cov(zeros) / len(zeros[0])
    np.testing.assert_allclose(delong_covariance(labels, scores), expected, atol=1e-15)


def test_variance_against_leaving_out_one_at_a_time(paired):
    labels, first, second = paired
    aucs = [roc_auc_score(labels, x) for x in (first, second)]
    without = np.array(
        [
            [roc_auc_score(np.delete(labels, i), np.delete(x, i)) for x in (first, second)]
            for i in range(len(labels))
        ]
    )
    expected = np.zeros((2, 2))
    for name in (0, 1):
        n = (labels == name).sum()
        shifts = without[labels == name] - aucs
        expected += (n - 1) / n * shifts.T @ shifts
    np.testing.assert_allclose(delong_covariance(labels, [first, second]), expected, atol=1e-12)


def test_variance_against_the_bootstrap(paired, rng):
    labels, first, second = paired
    strata = [np.flatnonzero(labels == name) for name in (0, 1)]
    differences = []
    for _ in range(2000):
        rows = np.concatenate([rng.choice(stratum, len(stratum)) for stratum in strata])
        differences.append(auc(labels[rows], first[rows]) - auc(labels[rows], second[rows]))
    C = delong_covariance(labels, [first, second])
    assert C[0, 0] + C[1, 1] - 2 * C[0, 1] == pytest.approx(np.var(differences), rel=0.15)


def test_the_test_and_its_interval(paired):
    labels, first, second = paired
    result = delong(labels, first, second, np.arange(60))
    C = delong_covariance(labels, [first, second])
    z = result.difference / np.sqrt(np.array([1, -1]) @ C @ np.array([1, -1]))
    assert result.p_value == pytest.approx(2 * norm.cdf(-abs(z)))
    assert result.difference == pytest.approx(roc_auc_score(*paired[:2]) - auc(labels, second))
    assert (result.p_value < 0.05) == (not result.low <= 0 <= result.high)
    turned = delong(labels, second, first, np.arange(60))
    assert (turned.difference, turned.low, turned.p_value) == pytest.approx(
        (-result.difference, -result.high, result.p_value)
    )
    same_order = delong(labels, np.exp(first), 2 * second - 1, np.arange(60))
    assert same_order == result


def test_false_alarms_of_delong():
    rng = np.random.default_rng(3)
    labels = np.arange(80) % 2
    p_values = []
    for _ in range(400):
        shared = labels + rng.normal(size=80)
        first, second = (shared + rng.normal(size=80) for _ in range(2))
        p_values.append(delong(labels, first, second, np.arange(80)).p_value)
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(np.array(p_values) < 0.5) == pytest.approx(0.5, abs=0.08)


def test_equal_scores_and_no_spread():
    labels, scores = [0, 0, 1, 1], [0.1, 0.4, 0.3, 0.8]
    same = delong(labels, scores, scores, range(4))
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="no spread to judge the difference by"):
        delong(labels, [0, 0, 1, 1], [0, 0, 0, 0], range(4))


# --- McNemar ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 1), (3, 3), (2, 14), (40, 61)])
def test_mcnemar_against_the_binomial_test(b, c):
    labels = np.zeros(b + c + 7, int)
    first, second = labels.copy(), labels.copy()
    second[:b] = 1
    first[b : b + c] = 1
    first[-2:] = second[-2:] = 1  # both wrong: says nothing
    result = mcnemar(labels, first, second, np.arange(len(labels)))
    assert (result.first_only, result.second_only) == (b, c)
    expected = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert result.p_value == pytest.approx(expected)


# --- one row per patient ------------------------------------------------------------------------


def test_images_of_one_patient_are_not_taken_for_independent():
    for test in (delong, mcnemar):
        with pytest.raises(ValueError, match=r"patient 'x' has 2 rows, .*use paired_bootstrap"):
            test([0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1], ["x", "y", "x", "z"])
        with pytest.raises(ValueError, match="one entry per patient"):
            test([0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1], ["x", "y"])


def test_delong_needs_two_patients_of_two_classes():
    for labels in ([0, 1, 1, 1], [0, 1, 2, 2]):
        with pytest.raises(ValueError, match="two classes"):
            delong(labels, [1, 2, 3, 4], [1, 2, 4, 3], range(4))


def test_mean_scores_per_patient():
    labels, scores, names = per_patient([1, 0, 1, 0], [1.0, 5.0, 2.0, 6.0], ["b", "a", "b", "c"])
    assert (labels.tolist(), scores.tolist()) == ([0, 1, 0], [5, 1.5, 6])
    assert names.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"patient 'b' has images of \[0, 1\]"):
        per_patient([1, 0], [1.0, 2.0], ["b", "b"])


# --- any metric ---------------------------------------------------------------------------------


def rivals(rng, advantage, n_patients=20, n_repeats=1):
    """A second method whose scores of class 1 are lower by `advantage`, with its own noise."""
    first = clustered(rng, n_patients, n_repeats)
    second = [
        Repeat(
            tested.labels,
            tested.patients,
            tested.answers - advantage * tested.labels + rng.normal(0, 0.4, len(tested.labels)),
        )
        for tested in first
    ]
    return first, second


def test_paired_bootstrap_finds_what_is_there_and_turns_round(rng):
    first, second = rivals(rng, 1.0, n_repeats=3)
    result = paired_bootstrap(auc, first, second, random_state=2)
    assert result.first == pytest.approx(np.mean([auc(x.labels, x.answers) for x in first]))
    assert result.difference == pytest.approx(result.first - result.second)
    assert 0 < result.low < result.difference < result.high
    assert result.p_value < 0.02
    turned = paired_bootstrap(auc, second, first, random_state=2)
    assert (turned.difference, turned.low, turned.high, turned.p_value) == pytest.approx(
        (-result.difference, -result.high, -result.low, result.p_value)
    )
    assert paired_bootstrap(auc, first, second, random_state=2) == result


@pytest.mark.parametrize("shift", [-1.0, 0.3, 2.0])
def test_p_value_of_normal_replicates_is_students(shift):
    """n patients of deviation s: replicates of the mean have s·√((n−1)/n)/√n, the t-test s/√n."""
    n, s = 6, 2.0
    spread = s * np.sqrt((n - 1) / n) / np.sqrt(n)
    values = shift + spread * norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    sample = Replicates(shift, values, n, 0, lambda: np.empty(0))
    assert _p_value(sample) == pytest.approx(
        2 * t.sf(abs(shift) / (s / np.sqrt(n)), n - 1), rel=0.02
    )


def test_p_value_and_interval_agree():
    n_significant = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        result = paired_bootstrap(auc, *rivals(rng, 0.4, 12), n_replicates=400)
        n_significant += result.p_value < 0.05
        if not 0.03 < result.p_value < 0.07:  # nearer, the steps of the replicates decide
            assert (result.p_value < 0.05) == (not result.low <= 0 <= result.high)
    assert 0 < n_significant < 30


def test_false_alarms_of_the_paired_bootstrap():
    alarms = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        labels, patients = (x := clustered(rng, 16)[0]).labels, x.patients
        # Methods that err on other patients, and are equally good.
        first, second = (
            [Repeat(labels, patients, x.answers + rng.normal(size=16)[patients])] for _ in range(2)
        )
        alarms += paired_bootstrap(auc, first, second, n_replicates=150).p_value < 0.05
    assert alarms / 120 <= 0.09


def test_equal_methods(rng):
    tested = clustered(rng, 16)
    result = paired_bootstrap(auc, tested, tested)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_other_images_are_refused(rng):
    first, second = clustered(rng, 16, 2), clustered(rng, 16, 2)
    for a, b in ((first, second), (first, first[:1])):
        with pytest.raises(ValueError, match=r"not tested on the same images .*same splits"):
            paired_bootstrap(auc, a, b)


# --- Holm ---------------------------------------------------------------------------------------


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1, and never falling.
    assert holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert (holm([0.2]), holm([])) == ([0.2], [])


def test_holm_rejects_what_the_step_down_rule_rejects(rng):
    for _ in range(50):
        p = rng.random(6) ** 3
        rejected = np.zeros(6, bool)
        for step, place in enumerate(np.argsort(p)):
            if p[place] > 0.05 / (6 - step):
                break
            rejected[place] = True
        np.testing.assert_array_equal(np.array(holm(p)) <= 0.05, rejected)


def test_holm_wants_probabilities():
    for p in ([0.1, 1.2], [np.nan], [[0.1]]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holm(p)
