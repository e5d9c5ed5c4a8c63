from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from sklearn.calibration import calibration_curve as sklearn_calibration_curve
from sklearn.preprocessing import label_binarize

from histodict.metrics.scores import (
    accuracy,
    auc,
    balanced_accuracy,
    brier_score,
    calibration_curve,
    expected_calibration_error,
    roc_curve,
    sensitivity,
    specificity,
)

NAMES = np.array(["benign", "malignant", "other"])


@pytest.fixture(params=[2, 3])
def predicted(request, rng):
    """Return labels and predictions of two or three classes."""
    labels = rng.integers(request.param, size=200)
    wrong = rng.random(200) < 0.3
    predictions = np.where(wrong, rng.integers(request.param, size=200), labels)
    return NAMES[labels], NAMES[predictions]


@pytest.fixture
def scored(rng):
    """Return labels and scores of two classes, with many ties."""
    labels = rng.random(150) < 0.4
    return NAMES[labels.astype(int)], np.round(rng.normal(labels, 1.0), 1)


@pytest.fixture
def probable(rng):
    """Return labels of three classes and informative probabilities."""
    labels = rng.integers(3, size=120)
    p = rng.dirichlet(np.ones(3), 120) + 0.6 * np.eye(3)[labels]
    return NAMES[labels], p / p.sum(axis=1, keepdims=True)


# --- predictions --------------------------------------------------------------------------------


def test_scores_equal_scikit_learn(predicted):
    assert accuracy(*predicted) == sklearn.metrics.accuracy_score(*predicted)
    assert balanced_accuracy(*predicted) == pytest.approx(
        sklearn.metrics.balanced_accuracy_score(*predicted), abs=1e-15
    )
    recalls = sklearn.metrics.recall_score(*predicted, average=None)
    for name, recall in zip(NAMES, recalls, strict=False):
        assert sensitivity(*predicted, positive=name) == pytest.approx(recall, abs=1e-15)


def test_specificity_is_the_sensitivity_of_the_other_class(scored):
    labels, scores = scored
    predictions = np.where(scores > 0.5, "malignant", "benign")
    assert specificity(labels, predictions, positive="malignant") == sensitivity(
        labels, predictions, positive="benign"
    )


def test_predictions_of_a_class_without_images_are_wrong():
    assert balanced_accuracy(["a", "a", "b"], ["a", "z", "b"]) == 0.75


def test_balanced_accuracy_of_one_class_is_not_defined():
    with pytest.raises(ValueError, match="the metric needs two classes, but all images are 'a'"):
        balanced_accuracy(["a", "a"], ["a", "a"])


# --- scores -------------------------------------------------------------------------------------


def test_auc_is_the_share_of_ordered_pairs(scored):
    labels, scores = scored
    higher = scores[labels == "malignant"][:, None]
    lower = scores[labels == "benign"]
    pairs = np.mean((higher > lower) + 0.5 * (higher == lower))
    assert auc(*scored) == pytest.approx(pairs, abs=1e-14)
    assert auc(*scored) == pytest.approx(sklearn.metrics.roc_auc_score(*scored), abs=1e-14)


def test_auc_of_three_classes_is_macro_one_against_rest(probable):
    expected = sklearn.metrics.roc_auc_score(*probable, multi_class="ovr", average="macro")
    assert auc(*probable) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("change", [np.exp, np.cbrt, lambda x: 3 * x - 7, lambda x: x**3])
def test_auc_depends_only_on_the_order_of_scores(scored, change):
    labels, scores = scored
    assert auc(labels, change(scores)) == auc(labels, scores)


def test_auc_of_negated_scores_and_of_ties(scored):
    labels, scores = scored
    assert auc(labels, -scores) == pytest.approx(1 - auc(labels, scores), abs=1e-14)
    assert auc(labels, np.zeros(len(labels))) == 0.5
    assert auc([0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0]) == 1


@pytest.mark.parametrize("positive", ["benign", "malignant"])
def test_roc_curve_points_equal_their_thresholds(scored, positive):
    labels, scores = scored
    (other,) = set(labels.tolist()) - {positive}
    curve = roc_curve(labels, scores, positive=positive, threshold=0.33)
    # each threshold has one more distinct score above it
    below = [*np.unique(scores)[::-1], -np.inf]
    points = [*zip(below, curve.false_positive_rate, curve.false_negative_rate, strict=True)]
    for threshold, false_alarm, miss in [*points, (0.33, *curve.operating_point)]:
        output = np.where(scores > threshold, positive, other)
        assert 1 - miss == pytest.approx(sensitivity(labels, output, positive=positive))
        assert 1 - false_alarm == pytest.approx(specificity(labels, output, positive=positive))
    assert len(points) == len(np.unique(scores)) + 1
    area = np.sum(
        np.abs(np.diff(curve.false_positive_rate))
        * (curve.false_negative_rate[1:] + curve.false_negative_rate[:-1])
        / 2
    )
    assert area == pytest.approx(1 - auc(labels, scores, positive=positive), abs=1e-14)


def test_scores_refer_to_the_positive_class(scored, likely):
    labels, scores = scored
    assert auc(labels, -scores, positive="benign") == pytest.approx(auc(labels, scores))
    labels, p = likely
    for metric in (brier_score, expected_calibration_error):
        assert metric(labels, 1 - p, positive=NAMES[0]) == pytest.approx(metric(labels, p))


# --- probabilities ------------------------------------------------------------------------------


@pytest.fixture
def likely(rng):
    """Return labels of two classes and probabilities of the second, some on edges of bins."""
    p = np.round(rng.random(300), 1)
    return NAMES[(rng.random(300) < p**2).astype(int)], p


def test_probability_scores_equal_scikit_learn(likely):
    labels, p = likely
    assert brier_score(labels, p) == pytest.approx(
        sklearn.metrics.brier_score_loss(labels == "malignant", p)
    )
    curve = calibration_curve(labels, p, n_bins=7)
    observed, probability = sklearn_calibration_curve(labels == "malignant", p, n_bins=7)
    np.testing.assert_allclose(curve.observed, observed, atol=1e-14)
    np.testing.assert_allclose(curve.probability, probability, atol=1e-14)
    assert curve.counts.sum() == len(labels)


def test_brier_score_of_three_classes(probable):
    labels, p = probable
    ones = label_binarize(labels, classes=NAMES)
    assert brier_score(labels, p) == pytest.approx(((p - ones) ** 2).sum() / len(labels))


def test_calibration_error_by_hand():
    # two bins: predicted 0.1, observed 0.5; predicted 0.85, observed 0.5
    labels, p = [0, 1, 0, 1], [0.1, 0.1, 0.8, 0.9]
    assert expected_calibration_error(labels, p, n_bins=2) == pytest.approx(
        (0.4 * 2 + 0.35 * 2) / 4
    )
    assert expected_calibration_error([0, 1, 1, 1], [0.75] * 4) == 0


def test_calibration_of_three_classes_uses_the_most_probable():
    p = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6], [0.6, 0.4, 0.0]]
    curve = calibration_curve([0, 1, 2, 1], p, n_bins=5)
    assert (curve.probability, curve.observed, curve.counts) == (0.6, 0.75, 4)


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy([0, 1], [0]), r"must have one entry per image, .*\(2,\) and \(1,\)"),
        (lambda: accuracy([], []), "no images to evaluate"),
        (lambda: auc([0, 1], [np.nan, 1]), "predictions contain NaN"),
        (lambda: auc([0, 0], [1.0, 2.0]), "needs two classes, but all images are 0"),
        (lambda: auc([0, 1, 2], [1.0, 2.0, 3.0]), "use one column per class"),
        (lambda: auc([0, 1], [[1.0, 0.0], [0.0, 1.0]]), r"that of the second class: \[:, 1\]"),
        (lambda: auc([0, 1, 1], np.eye(3)), "3 columns, one per class, but the images are of 2"),
        (lambda: sensitivity(["a"], ["a"], positive="b"), "no image is of class 'b'"),
        (lambda: specificity(["a"], ["a"], positive="a"), "no image is of a class other than 'a'"),
        (
            lambda: roc_curve([0, 1], [0.1, 0.2], positive=2),
            r"positive must be one of the labels \[0",
        ),
        (lambda: roc_curve([0, 1], np.eye(2), positive=1), "one number per image"),
        (lambda: brier_score([0, 1], [0.5, 1.5]), "between 0 and 1"),
        (lambda: brier_score([0, 1, 2], np.full((3, 3), 0.5)), "sum to 1"),
        (lambda: calibration_curve([0, 1], [0.5, 0.5], n_bins=0), "n_bins must be"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
