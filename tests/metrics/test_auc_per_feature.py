"""Tests of the AUC per feature against the direct definition."""

import numpy as np
import pytest

from histodict.metrics.intervals import auc_per_feature
from histodict.metrics.scores import auc


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_values_equal_auc_and_lie_in_their_intervals(rng):
    values = np.round(rng.random((20, 6)), 1)  # rounded, so that there are ties
    positive = np.arange(20) < 9
    found = auc_per_feature(values, positive, np.arange(20), n_replicates=200)
    for column in range(6):
        expected = auc(positive, values[:, column], positive=True)
        assert found.value[column] == pytest.approx(expected)
    assert (found.low <= found.value).all() and (found.value <= found.high).all()
    assert (found.high - found.low > 0.2).all()


def test_patient_in_both_classes_is_resampled_as_one(rng):
    """The same patients in both classes with almost equal values: the AUC is near 0.5."""
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


def test_column_blocks_give_the_same_result(rng, monkeypatch):
    """Columns are ranked a few at a time to limit memory."""
    values, positive = np.round(rng.random((30, 7)), 1), np.arange(30) % 2 == 0
    expected = auc_per_feature(values, positive, np.arange(30), n_replicates=100)
    monkeypatch.setattr("histodict.metrics.intervals._BATCH_VALUES", 1)
    parts = auc_per_feature(values, positive, np.arange(30), n_replicates=100)
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(getattr(parts, name), getattr(expected, name), rtol=1e-12)
