"""AUCs of many measurements of patients: against the plain definition."""

import numpy as np
import pytest

from histodict.metrics.confounding import auc_per_feature
from histodict.metrics.scores import auc


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_every_auc_is_the_plain_one_and_lies_in_its_interval(rng):
    values = np.round(rng.random((20, 6)), 1)  # with ties
    positive = np.arange(20) < 9
    found = auc_per_feature(values, positive, np.arange(20), n_replicates=200)
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
    found = auc_per_feature(values, positive, patients, n_replicates=200)
    assert found.value[0] == pytest.approx(0.55)
    assert found.high[0] - found.low[0] < 0.2


def test_too_few_patients_have_no_interval(rng):
    one = auc_per_feature(rng.random((5, 2)), np.arange(5) < 1, np.arange(5))
    assert np.isfinite(one.value).all() and np.isnan(one.low).all()
    none = auc_per_feature(rng.random((5, 2)), np.zeros(5, bool), np.arange(5))
    assert np.isnan(none.value).all()


def test_measurements_in_parts_are_the_same_as_all_at_once(rng, monkeypatch):
    """Memory is bounded by ranking a few columns at a time."""
    values, positive = np.round(rng.random((30, 7)), 1), np.arange(30) % 2 == 0
    whole = auc_per_feature(values, positive, np.arange(30), n_replicates=100)
    monkeypatch.setattr("histodict.metrics.confounding._AT_ONCE", 1)
    parts = auc_per_feature(values, positive, np.arange(30), n_replicates=100)
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
