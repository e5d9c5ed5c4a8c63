from __future__ import annotations

import numpy as np
import pytest

from histodict.decision import calibration as module
from histodict.decision.calibration import Calibration
from tests.gradients import finite_differences


def two_classes(rng, n, slope=1.7, offset=-0.4):
    """Return scores whose true probability is known."""
    scores = rng.normal(0, 2, n)
    probability = 1 / (1 + np.exp(-(slope * scores + offset)))
    return scores[:, None], (rng.random(n) < probability).astype(int), probability


def test_planted_logistic_curve_is_recovered(rng):
    scores, labels, _ = two_classes(rng, 20_000)
    grid = np.linspace(-3, 3, 13)[:, None]
    found = Calibration.fit(scores, labels).probabilities(grid)
    # Calibration assumes equally frequent classes.
    odds = np.log(np.mean(labels) / np.mean(1 - labels))
    truth = 1 / (1 + np.exp(-(1.7 * grid[:, 0] - 0.4 - odds)))
    np.testing.assert_allclose(found[:, 1], truth, atol=0.02)
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_planted_temperature_of_three_classes_is_recovered(rng):
    scores = 3 * rng.normal(size=(6000, 3))
    labels = (scores / 2 + rng.gumbel(size=scores.shape)).argmax(axis=1)
    found = Calibration.fit(scores, labels).probabilities(scores)
    powers = np.exp(scores / 2)
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=0.03)


@pytest.mark.parametrize("n_per_class", [3, 10])
def test_prediction_sets_of_three_classes_have_coverage_with_few_images(rng, n_per_class):
    covered = []
    for _ in range(80):
        labels = np.repeat(np.arange(3), n_per_class)
        calibration = Calibration.fit(planted_three(rng, labels), labels)
        new = rng.integers(0, 3, 100)
        probabilities = calibration.probabilities(planted_three(rng, new))
        covered.append(calibration.prediction_set(probabilities, 0.1)[np.arange(100), new].mean())
    assert np.mean(covered) > 0.85


def planted_three(rng, labels):
    return 0.8 * np.eye(3)[labels] + rng.standard_normal((len(labels), 3))


def test_threshold_is_unbiased_for_a_rare_class(rng):
    """Weak scores, 3 images against 30: the true threshold is 0."""
    thresholds = []
    for _ in range(300):
        labels = np.repeat([0, 1], [3, 30])
        scores = 0.7 * (2 * labels - 1) + rng.standard_normal(33)
        calibration = Calibration.fit(scores[:, None], labels)
        if calibration.slopes.any():
            thresholds.append(calibration.boundary_score())
    assert abs(np.median(thresholds)) < 0.15


def test_separable_scores_of_few_images_do_not_give_certainty():
    scores, labels = np.array([[-2.0], [-1], [1], [2]]), np.array([0, 0, 1, 1])
    probabilities = Calibration.fit(scores, labels).probabilities(np.array([[-100.0], [0], [100]]))
    at_training = Calibration.fit(scores, labels).probabilities(scores)[:, 1]
    assert at_training.min() > 0.05 and at_training.max() < 0.95
    assert probabilities[1, 1] == pytest.approx(0.5, abs=0.01)
    assert probabilities[0, 1] < 0.5 < probabilities[2, 1]


def test_scale_of_the_scores_does_not_matter(rng):
    scores, labels, _ = two_classes(rng, 200)
    one = Calibration.fit(scores, labels).probabilities(scores)
    two = Calibration.fit(1e-4 * scores, labels).probabilities(1e-4 * scores)
    np.testing.assert_allclose(one, two, atol=1e-3)


@pytest.mark.parametrize("error_rate", [0.05, 0.1, 0.3])
def test_prediction_sets_have_the_stated_coverage(rng, error_rate):
    covered = []
    for _ in range(60):
        scores, labels, _ = two_classes(rng, 80)
        calibration = Calibration.fit(scores, labels)
        new_scores, new_labels, _ = two_classes(rng, 100)
        sets = calibration.prediction_set(calibration.probabilities(new_scores), error_rate)
        covered.append(sets[np.arange(100), new_labels].mean())
    assert np.mean(covered) == pytest.approx(1 - error_rate, abs=0.02)


def test_too_few_images_exclude_no_class():
    calibration = Calibration.fit(np.array([[-1.0], [1], [2]]), np.array([0, 1, 1]))
    assert calibration.prediction_set(np.array([[0.999, 0.001]]), 0.05).all()


def test_copies_of_one_class_change_nothing(rng):
    scores, labels, _ = two_classes(rng, 4000)
    many = np.concatenate([np.arange(4000), np.repeat(np.flatnonzero(labels == 1), 4)])
    one, two = (Calibration.fit(scores[rows], labels[rows]) for rows in (np.arange(4000), many))
    np.testing.assert_allclose(one.probabilities(scores), two.probabilities(scores), atol=0.005)


def test_quantile_has_equal_probabilities(rng):
    scores, labels, _ = two_classes(rng, 300)
    calibration = Calibration.fit(scores, labels)
    np.testing.assert_allclose(calibration.probabilities([[calibration.boundary_score()]]), 0.5)


def test_reversed_scores_give_constant_probabilities(rng):
    scores, labels, _ = two_classes(rng, 300)
    calibration = Calibration.fit(-scores, labels)
    np.testing.assert_allclose(calibration.probabilities(scores), 0.5)
    assert calibration.boundary_score() == 0


# --- fitted parameters ----------------------------------------------------------------------------

RIDGE = 0.01


def smoothed_targets(labels):
    """Return Platt's targets for the size n of the smallest class, and balanced weights."""
    counts = np.bincount(labels)
    target = (counts.min() + 1) / (counts.min() + 2)
    targets = np.where(np.eye(len(counts))[labels], target, (1 - target) / (len(counts) - 1))
    return targets, (len(labels) / (len(counts) * counts))[labels]


def cross_entropy(logits, labels):
    """Return the weighted cross-entropy of the smoothed targets and softmax(logits)."""
    targets, weights = smoothed_targets(labels)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -np.sum(weights[:, None] * targets * log_p)


def platt_loss(scores, labels):
    scaled = scores[:, 0] / scores.std()

    def loss(parameters):
        half = (parameters[0] * scaled + parameters[1]) / 2
        penalty = 0.5 * RIDGE * 2 * (parameters[0] / 2) ** 2  # ½‖slopes‖², slopes ∓a/2
        return cross_entropy(np.column_stack([-half, half]), labels) + penalty

    return loss


def temperature_loss(scores, labels):
    scaled = scores / scores.std()
    if scaled.shape[1] == 1:
        scaled = scaled * [-0.5, 0.5]
    return lambda a: cross_entropy(a[0] * scaled, labels) + 0.5 * RIDGE * a[0] ** 2


@pytest.mark.parametrize(
    ("loss_of", "n_classes", "at_zero"),
    [(platt_loss, 2, False), (temperature_loss, 2, True), (temperature_loss, 3, False)],
)
def test_parameters_minimise_the_penalised_loss(rng, monkeypatch, loss_of, n_classes, at_zero):
    """The loss is the stated one, its gradient is exact, and it vanishes at the parameters."""
    calls, minimize = [], module.minimize

    def record(fun, *args, **options):
        calls.append((fun, minimize(fun, *args, **options).x))
        return minimize(fun, *args, **options)

    monkeypatch.setattr(module, "minimize", record)
    labels = np.repeat(np.arange(n_classes), [3, 9, 4][:n_classes])
    scores = 2.0 * np.eye(n_classes)[labels] + rng.normal(size=(len(labels), n_classes))
    scores = scores[:, [1]] - scores[:, [0]] if n_classes == 2 else scores
    calibration = Calibration.fit(scores, labels, boundary_at_zero=at_zero)
    ((minimised, parameters),) = calls
    loss = loss_of(scores, labels)
    assert parameters[0] > 0.1
    for point in (parameters, rng.uniform(2, 9, parameters.shape)):
        value, gradient = minimised(point)
        assert value == pytest.approx(loss(point), rel=1e-12)
        np.testing.assert_allclose(gradient, finite_differences(loss, point), atol=1e-6)
    np.testing.assert_allclose(minimised(parameters)[1], 0, atol=2e-3)
    slopes = np.array([[-0.5, 0.5]]) if scores.shape[1] == 1 else np.eye(n_classes)
    np.testing.assert_allclose(calibration.slopes, slopes * parameters[0] / scores.std())


def test_prediction_set_includes_ties_with_the_limit():
    """A new image with the nonconformity of rank ⌈(n + 1)(1 − error rate)⌉ is not excluded."""
    calibration = Calibration(np.zeros((1, 2)), np.zeros(2), np.array([0.25, 0.5, 0.75]))
    found = calibration.prediction_set(np.array([[0.5, 0.5], [0.5625, 0.4375]]), 0.5)
    assert found.tolist() == [[True, True], [True, False]]
