from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
from scipy.stats import bootstrap, t

from histodict.metrics.intervals import (
    CROSS_VALIDATION_WIDENING,
    PatientBootstrap,
    bootstrap_interval,
)
from histodict.metrics.scores import accuracy, auc, balanced_accuracy
from histodict.model_selection.protocols import Repeat
from tests.model_selection.manifests import clustered


def above_zero(labels, scores):
    """Return the balanced accuracy of predicting the second class above 0."""
    return balanced_accuracy(labels, (scores > 0).astype(int))


def percentile_interval(metric, tested):
    """Return the plain percentile interval: the middle 95 % of the replicates."""

    def of_rows(_, rows):
        return metric(tested.labels[rows], tested.predictions[rows])

    return np.quantile(
        PatientBootstrap([tested]).draw_replicates(of_rows, 2000, 0).values, [0.025, 0.975]
    )


def by_image(tested):
    """Return the same predictions with every image as a separate patient."""
    return Repeat(tested.labels, np.arange(len(tested.labels)), tested.predictions)


# --- comparison with other computations -----------------------------------------------------------


@pytest.mark.parametrize("metric", [auc, above_zero])
def test_intervals_equal_scipy_bootstrap_over_patients(rng, metric):
    (tested,) = clustered(rng, 24)
    rows = [np.flatnonzero(tested.patients == patient) for patient in range(24)]

    def statistic(resampled):
        taken = np.concatenate([rows[patient] for patient in resampled.astype(int)])
        return metric(tested.labels[taken], tested.predictions[taken])

    draws = {"n_resamples": 2000, "vectorized": False, "method": "percentile"}
    draws["rng" if "rng" in signature(bootstrap).parameters else "random_state"] = rng
    expected = bootstrap((np.arange(24),), statistic, **draws).confidence_interval
    # With 2000 replicates each, the ends vary by about a tenth of the interval's half-width.
    slack = 0.2 * (expected.high - expected.low)
    np.testing.assert_allclose(percentile_interval(metric, tested), expected, atol=slack)
    value = bootstrap_interval(metric, [tested]).value
    assert value == pytest.approx(metric(tested.labels, tested.predictions), abs=1e-12)


def test_accuracy_interval_reflects_patients_not_images(rng):
    # Patients of ten images each, all correct or all wrong: 20 independent results, not 200.
    right = np.repeat(rng.random(20) < 0.7, 10)
    labels = np.tile([0, 1], 100)
    tested = Repeat(labels, np.repeat(np.arange(20), 10), np.where(right, labels, 1 - labels))
    low, high = percentile_interval(accuracy, tested)
    share = right.mean()
    deviation = np.sqrt(share * (1 - share) / 20)
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.15)


def test_expanded_interval_of_a_mean_equals_students(rng):
    values = rng.normal(size=8)
    repeat = Repeat(np.zeros(8), np.arange(8), values)
    expected = t.interval(0.95, 7, values.mean(), values.std(ddof=1) / np.sqrt(8))
    interval = bootstrap_interval(lambda _, x: x.mean(), [repeat], n_replicates=20_000)
    # The mean of eight values is approximately normal.
    assert interval.high - interval.low == pytest.approx(expected[1] - expected[0], rel=0.07)
    low, high = percentile_interval(lambda _, x: x.mean(), repeat)
    assert high - low < 0.8 * (expected[1] - expected[0])


def simulated_coverage(change, truth, n_sets=100):
    """Return the share of simulated studies of 16 patients whose interval contains the truth."""
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(n_sets):
        tested = change(clustered(rng, 16)[0])
        interval = bootstrap_interval(above_zero, [tested], n_replicates=150, random_state=seed)
        hits += interval.low <= truth <= interval.high
    return hits / n_sets


def test_coverage_on_clustered_images():
    """95 % intervals cover the truth in about 90 % of studies; treating images as independent,
    fewer."""
    (everyone,) = clustered(np.random.default_rng(1), 20_000)
    truth = above_zero(everyone.labels, everyone.predictions)
    assert simulated_coverage(lambda tested: tested, truth) >= 0.88
    assert simulated_coverage(by_image, truth) <= 0.78


# --- repeats ------------------------------------------------------------------------------------


def test_identical_repeats_do_not_narrow_the_interval(rng):
    (tested,) = clustered(rng, 16)
    once = bootstrap_interval(auc, [tested])
    again = bootstrap_interval(auc, [tested] * 5)
    np.testing.assert_allclose(
        (again.value, again.low, again.high), (once.value, once.low, once.high), atol=1e-12
    )


def test_repeats_keep_the_variance_between_patients(rng):
    repeats = clustered(rng, 16, n_repeats=4)
    pooled = bootstrap_interval(auc, repeats)
    each = [bootstrap_interval(auc, [tested]) for tested in repeats]
    assert pooled.value == pytest.approx(np.mean([one.value for one in each]), abs=1e-12)
    widths = [one.high - one.low for one in each]
    # Four times as many images would halve the width.
    assert 0.7 * np.mean(widths) < pooled.high - pooled.low <= max(widths)


def test_order_of_images_and_patient_names_do_not_matter(rng):
    (tested,) = clustered(rng, 16)
    mixed = rng.permutation(len(tested.labels))
    names = np.array([f"patient {i:03}" for i in range(16)])
    other = Repeat(tested.labels[mixed], names[tested.patients[mixed]], tested.predictions[mixed])
    a, b = (bootstrap_interval(auc, [x]) for x in (tested, other))
    assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=1e-12)


def test_repeats_may_test_different_patients(rng):
    """Hold-out repeats: a patient counts in the repeats that tested it."""
    (tested,) = clustered(rng, 16)
    halves = [
        Repeat(tested.labels[stored], tested.patients[stored], tested.predictions[stored])
        for stored in (tested.patients < 8, tested.patients >= 8, tested.patients % 4 < 2)
    ]
    interval = bootstrap_interval(above_zero, halves)
    assert interval.n_patients == 16
    assert interval.value == pytest.approx(
        np.mean([above_zero(half.labels, half.predictions) for half in halves])
    )
    assert interval.low < interval.value < interval.high


# --- missing classes and other edge cases
# ----------------------------------------------------------


def rare_class(n_common):
    """Return two patients of class 1 among others of class 0."""
    patients = np.repeat(np.arange(n_common + 2), 3)
    labels = (patients >= n_common).astype(int)
    return Repeat(labels, patients, np.where(patients % 3 == 0, -1.0, 1.0) * np.arange(len(labels)))


def test_replicates_without_a_class_are_redrawn_and_counted():
    interval = bootstrap_interval(above_zero, [rare_class(8)], n_replicates=2000)
    assert np.isfinite([interval.low, interval.high]).all()
    # A replicate lacks both of two patients among ten with probability 0.8¹⁰ = 0.107, so that
    # 0.107/0.893 draws are repeated per replicate; the other class is hardly ever missing.
    assert interval.n_redrawn / 2000 == pytest.approx(0.107 / 0.893, rel=0.2)
    assert bootstrap_interval(above_zero, clustered(np.random.default_rng(0), 40)).n_redrawn == 0


def test_class_of_one_patient_is_refused():
    tested = rare_class(8)
    stored = tested.patients != 9
    lonely = Repeat(tested.labels[stored], tested.patients[stored], tested.predictions[stored])
    with pytest.raises(ValueError, match="class '1' are of a single patient, so the variation"):
        bootstrap_interval(above_zero, [lonely])


def test_repeat_without_a_class_is_refused(rng):
    (tested,) = clustered(rng, 8)
    stored = tested.labels == 0
    half = Repeat(tested.labels[stored], tested.patients[stored], tested.predictions[stored])
    with pytest.raises(ValueError, match=r"repeat 2 has no .*\(collect_repeats\)"):
        bootstrap_interval(above_zero, [tested, half])


def test_too_many_rare_classes_are_refused():
    labels = np.repeat(np.arange(30), 2)
    tested = Repeat(labels, np.arange(60), labels)
    with pytest.raises(ValueError, match="nearly all bootstrap samples lack a class"):
        bootstrap_interval(balanced_accuracy, [tested], n_replicates=100)


def test_perfect_predictions_have_a_degenerate_interval(rng):
    (tested,) = clustered(rng, 12)
    interval = bootstrap_interval(auc, [Repeat(tested.labels, tested.patients, tested.labels)])
    assert (interval.value, interval.low, interval.high) == (1, 1, 1)


def test_level_and_seed(rng):
    (tested,) = clustered(rng, 10)
    narrow, wide = (bootstrap_interval(auc, [tested], level=level) for level in (0.8, 0.95))
    assert wide.low < narrow.low < narrow.high < wide.high
    low, high = percentile_interval(auc, tested)
    assert wide.low < low < high < wide.high
    assert bootstrap_interval(auc, [tested]) == wide
    assert bootstrap_interval(auc, [tested], random_state=1) != wide


def test_invalid_input_is_refused(rng):
    (tested,) = clustered(rng, 10)
    for message, options in {
        "level must be between 0 and 1": {"level": 95},
        "n_replicates must be a whole number of at least 100": {"n_replicates": 10},
        "random_state must be": {"random_state": -1},
    }.items():
        with pytest.raises(ValueError, match=message):
            bootstrap_interval(auc, [tested], **options)
    with pytest.raises(ValueError, match="no predictions to evaluate"):
        bootstrap_interval(auc, [])
    with pytest.raises(ValueError, match="the metric is not finite"):
        bootstrap_interval(lambda labels, predictions: np.nan, [tested])


# --- cross-validation ---------------------------------------------------------------------------


def test_cross_validated_interval_is_wider_and_clipped(rng):
    (tested,) = clustered(rng, 24)
    alone, wider = (
        bootstrap_interval(auc, [tested], n_replicates=200, cross_validated=crossed)
        for crossed in (False, True)
    )
    assert wider.value == alone.value
    assert wider.low - wider.value == pytest.approx(2**0.5 * (alone.low - alone.value))
    assert wider.high == pytest.approx(min(1, alone.value + 2**0.5 * (alone.high - alone.value)))


def null_study(rng, n_patients=24, n_folds=4):
    """Return cross-validated predictions of a nearest-mean classifier on noise."""
    labels = np.arange(n_patients) % 2
    X, folds = rng.normal(size=(n_patients, 5)), np.arange(n_patients) // 2 % n_folds
    predictions = np.zeros(n_patients, int)
    for fold in range(n_folds):
        out = folds == fold
        means = [X[~out & (labels == place)].mean(axis=0) for place in (0, 1)]
        distances = [((X[out] - mean) ** 2).sum(axis=1) for mean in means]
        predictions[out] = np.argmin(distances, axis=0)
    return Repeat(labels, np.arange(n_patients), predictions)


def test_cross_validated_intervals_rarely_exclude_one_half_without_signal():
    """Intervals from patients alone exclude 0.5 in twice as many studies as they should."""
    rng, n_studies, excluded = np.random.default_rng(0), 150, np.zeros(2)
    for _ in range(n_studies):
        tested = null_study(rng)

        def statistic(_, rows, tested=tested):
            return balanced_accuracy(tested.labels[rows], tested.predictions[rows])

        sample = PatientBootstrap([tested]).draw_replicates(statistic, 100, 0)
        for place, wider in enumerate((1.0, CROSS_VALIDATION_WIDENING)):
            low, high = sample.interval(0.95, wider)
            excluded[place] += not low <= 0.5 <= high
    assert excluded[0] / n_studies > 0.08
    assert excluded[1] / n_studies < 0.06
