"""AUCs and leaks of many measurements of patients: against plain definitions and planted truth."""

import numpy as np
import pytest

from histodict.evaluation.by_patient import aucs_by_patient, leaks
from histodict.evaluation.metrics import auc


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_every_auc_is_the_plain_one_and_lies_in_its_interval(rng):
    values = np.round(rng.random((20, 6)), 1)  # with ties
    positive = np.arange(20) < 9
    found = aucs_by_patient(values, positive, np.arange(20), n_replicates=200)
    for column in range(6):
        expected = auc(positive, values[:, column], positive=True)
        assert found.value[column] == pytest.approx(expected)
    assert (found.low <= found.value).all() and (found.value <= found.high).all()
    assert (found.high - found.low > 0.2).all()


def test_a_patient_in_both_classes_is_drawn_as_one(rng):
    """Images of the same patients in both classes: what is the same in both says nothing."""
    base = rng.random((10, 1))
    values = np.concatenate([base, base + 1e-6])
    positive, patients = np.arange(20) >= 10, np.tile(np.arange(10), 2)
    found = aucs_by_patient(values, positive, patients, n_replicates=200)
    assert found.value[0] == pytest.approx(0.55)
    assert found.high[0] - found.low[0] < 0.2


def test_too_few_patients_have_no_interval(rng):
    one = aucs_by_patient(rng.random((5, 2)), np.arange(5) < 1, np.arange(5))
    assert np.isfinite(one.value).all() and np.isnan(one.low).all()
    none = aucs_by_patient(rng.random((5, 2)), np.zeros(5, bool), np.arange(5))
    assert np.isnan(none.value).all()


def test_a_share_is_what_lies_between_groups_of_a_class():
    classes, groups = np.array([0] * 4 + [1] * 4), np.array([0, 0, 1, 1] * 2)
    by_class = classes[:, None] * 0.5
    by_group = groups[:, None] * 1.0
    inside = np.array([0.0, 1, 0, 1, 0, 1, 0, 1])[:, None]
    both = np.sin((by_group + inside) / 2) ** 2  # the sum, before shares are made even
    in_one = by_group * (classes == 1)[:, None]
    found = leaks(np.hstack([by_class, by_group, inside, both, in_one]), classes, groups)
    np.testing.assert_allclose(found.shares, [0, 1, 0, 0.5, 1], atol=1e-12)
    assert found.n_groups == 2


def test_a_planted_site_is_found_and_noise_is_not(rng):
    classes, groups = np.repeat([0, 1], 12), np.tile([0, 1], 12)
    values = rng.beta(3, 20, size=(24, 50))
    values[(classes == 1) & (groups == 1), 7] += 0.5
    found = leaks(values, classes, groups)
    assert np.flatnonzero(found.chances <= 0.01).tolist() == [7]
    assert found.shares[7] > 0.5


def test_chances_hold_for_all_measurements_together(rng):
    """Without any site effect at most about 1 in 10 sets has any chance of 0.1 or less."""
    classes, groups = np.repeat([0, 1], 8), np.tile([0, 1], 8)
    low = [
        leaks(rng.random((16, 30)), classes, groups, n_permutations=99).chances.min()
        for _ in range(60)
    ]
    assert np.mean(np.array(low) <= 0.1) < 0.25


def test_without_two_sites_in_a_class_nothing_is_known(rng):
    found = leaks(rng.random((6, 3)), np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1]))
    assert np.isnan(found.shares).all() and np.isnan(found.chances).all()
