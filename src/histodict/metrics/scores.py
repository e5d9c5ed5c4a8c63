"""Metrics of predictions, scores and probabilities.

All functions take true labels (n_images,) and predicted labels or scores in the same order. Scores
of two classes have the shape (n_images,) and are high for the class `positive`, by default the
second class in sorted order, as in `decision_function`. Scores of more classes have the shape
(n_images, n_classes), with the classes in sorted order. The same holds for probabilities.

Metrics that the bootstrap computes thousands of times are implemented here. The functions of
scikit-learn give the same values and take 9 to 210 times as long on 30 to 2,000 images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils.validation import check_whole_number

# --- predictions --------------------------------------------------------------------------------


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Return the fraction of images that are predicted correctly.

    Parameters
    ----------
    labels : (n_images,), true classes
    predictions : (n_images,), predicted classes

    Returns
    -------
    float
    """
    truth, predicted = _check_predictions(labels, predictions)
    return float(np.mean(truth == predicted))


def balanced_accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Return the mean over the classes of the fraction of images predicted correctly.

    Parameters
    ----------
    labels : (n_images,), true classes
    predictions : (n_images,), predicted classes

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If all images are of one class.
    """
    truth, predicted = _check_predictions(labels, predictions)
    classes, indices = np.unique(truth, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"the metric needs two classes, but all images are {classes[0].item()!r}")
    n_correct = np.bincount(indices, weights=truth == predicted)
    return float(np.mean(n_correct / np.bincount(indices)))


def sensitivity(labels: ArrayLike, predictions: ArrayLike, *, positive: object) -> float:
    """Return the fraction of images of class `positive` that are predicted as positive.

    Parameters
    ----------
    labels : (n_images,), true classes
    predictions : (n_images,), predicted classes
    positive : positive class

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If there is no image of class `positive`.
    """
    truth, predicted = _check_predictions(labels, predictions)
    return _fraction_correct(predicted == positive, truth == positive, f"class {positive!r}")


def specificity(labels: ArrayLike, predictions: ArrayLike, *, positive: object) -> float:
    """Return the fraction of images of other classes that are not predicted as `positive`.

    Parameters
    ----------
    labels : (n_images,), true classes
    predictions : (n_images,), predicted classes
    positive : positive class

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If all images are of class `positive`.
    """
    truth, predicted = _check_predictions(labels, predictions)
    other = f"a class other than {positive!r}"
    return _fraction_correct(predicted != positive, truth != positive, other)


def _fraction_correct(
    is_correct: NDArray[np.bool_], is_selected: NDArray[np.bool_], description: str
) -> float:
    """Return the fraction of the selected images that are predicted correctly.

    `description` of the selected images is part of the error message if there are none.
    """
    if not is_selected.any():
        raise ValueError(f"no image is of {description}")
    return float(np.mean(is_correct[is_selected]))


# --- scores -------------------------------------------------------------------------------------


def auc(labels: ArrayLike, scores: ArrayLike, *, positive: object = None) -> float:
    """Return the area under the ROC curve; ties count one half.

    For more than two classes, return the mean over the classes of the AUC of each class against all
    others.

    Parameters
    ----------
    labels : (n_images,), true classes
    scores : (n_images,) for two classes; (n_images, n_classes) for more
    positive : with two classes, the one with high scores; None for the second in sorted order

    Returns
    -------
    float
    """
    truth, values = _check_predictions(labels, scores)
    if values.ndim == 1:
        return _two_class_auc(_is_positive(truth, positive), values)
    classes = _check_columns(truth, values)
    areas = [
        _two_class_auc(truth == name, column)
        for name, column in zip(classes, values.T, strict=True)
    ]
    return float(np.mean(areas))


def _two_class_auc(is_positive: NDArray[np.bool_], scores: NDArray[Any]) -> float:
    higher, lower = scores[is_positive], np.sort(scores[~is_positive])
    n_lower = lower.searchsorted(higher, "left") + lower.searchsorted(higher, "right")
    return float(n_lower.sum() / (2 * len(higher) * len(lower)))


@dataclass(frozen=True)
class RocCurve:
    """False positive and false negative rates, (n_thresholds,), by decreasing threshold.

    `operating_point` has the false positive and the false negative rate at the decision threshold.
    """

    false_positive_rate: NDArray[np.float64]
    false_negative_rate: NDArray[np.float64]
    operating_point: tuple[float, float]


def roc_curve(
    labels: ArrayLike, scores: ArrayLike, *, positive: object = None, threshold: float = 0.0
) -> RocCurve:
    """Return the ROC curve of class `positive` for scores of two classes.

    An image counts as positive if its score is above the threshold.

    Parameters
    ----------
    labels : (n_images,), true classes; there must be two
    scores : (n_images,), high for the positive class
    positive : positive class; None for the second in sorted order
    threshold : decision threshold, at which `RocCurve.operating_point` is computed

    Returns
    -------
    RocCurve
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    truth, values = _check_predictions(labels, scores)
    is_positive = _is_positive(truth, positive)
    if values.ndim != 1:
        raise ValueError(
            "scores must be one number per image, as ROC curves are defined for two classes"
        )
    false_positive_rate, true_positive_rate, _ = sklearn_roc_curve(
        is_positive, values, drop_intermediate=False
    )
    predicted = values > threshold
    operating_point = float(predicted[~is_positive].mean()), float((~predicted)[is_positive].mean())
    return RocCurve(false_positive_rate, 1 - true_positive_rate, operating_point)


# --- probabilities ------------------------------------------------------------------------------


def brier_score(labels: ArrayLike, probabilities: ArrayLike, *, positive: object = None) -> float:
    """Return the mean squared difference between the probabilities and the true outcome.

    With two classes, only the probability of `positive` is used; with more classes, squared
    differences are summed over the classes.

    Parameters
    ----------
    labels : (n_images,), true classes
    probabilities : (n_images,) for two classes; (n_images, n_classes) for more
    positive : with two classes, the one with these probabilities; None for the second in sorted
        order

    Returns
    -------
    float
    """
    from sklearn.metrics import brier_score_loss

    truth, p = _check_probabilities(labels, probabilities)
    if p.ndim == 1:
        return float(brier_score_loss(_is_positive(truth, positive), p))
    return float(brier_score_loss(truth, p, labels=_check_columns(truth, p)))


@dataclass(frozen=True)
class CalibrationCurve:
    """Mean probability, observed fraction and number of images in each non-empty bin, (n_bins,)."""

    probability: NDArray[np.float64]
    observed: NDArray[np.float64]
    counts: NDArray[np.int64]


def calibration_curve(
    labels: ArrayLike, probabilities: ArrayLike, n_bins: int = 10, *, positive: object = None
) -> CalibrationCurve:
    """Return the calibration curve, with bins of equal width.

    With two classes, the probability of `positive` is used; with more classes, the probability of
    the predicted class.

    Parameters
    ----------
    labels : (n_images,), true classes
    probabilities : (n_images,) for two classes; (n_images, n_classes) for more
    n_bins : number of bins between 0 and 1
    positive : with two classes, the one with these probabilities; None for the second in sorted
        order

    Returns
    -------
    CalibrationCurve
    """
    n_bins = check_whole_number("n_bins", n_bins, 1)
    truth, p = _check_probabilities(labels, probabilities)
    if p.ndim == 1:
        is_correct = _is_positive(truth, positive)
    else:
        is_correct = _check_columns(truth, p)[p.argmax(axis=1)] == truth
        p = p.max(axis=1)
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], p)
    counts = np.bincount(bins, minlength=n_bins)
    is_nonempty = counts > 0
    probability, observed = (
        np.bincount(bins, weights=x, minlength=n_bins)[is_nonempty] / counts[is_nonempty]
        for x in (p, is_correct)
    )
    return CalibrationCurve(probability, observed, counts[is_nonempty].astype(np.int64))


def expected_calibration_error(
    labels: ArrayLike, probabilities: ArrayLike, n_bins: int = 10, *, positive: object = None
) -> float:
    """Return the expected calibration error: the mean of |mean probability − observed fraction|.

    The mean is over the bins, weighted by their numbers of images. With few images the error is
    above 0 even for perfectly calibrated probabilities.

    Parameters
    ----------
    labels : (n_images,), true classes
    probabilities : (n_images,) for two classes; (n_images, n_classes) for more
    n_bins : number of bins between 0 and 1
    positive : with two classes, the one with these probabilities; None for the second in sorted
        order

    Returns
    -------
    float
    """
    curve = calibration_curve(labels, probabilities, n_bins, positive=positive)
    return float(np.average(np.abs(curve.probability - curve.observed), weights=curve.counts))


# --- checks -------------------------------------------------------------------------------------


def _check_predictions(
    labels: ArrayLike, predictions: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any]]:
    truth, predicted = np.asarray(labels), np.asarray(predictions)
    if truth.ndim != 1 or predicted.ndim not in (1, 2) or len(truth) != len(predicted):
        raise ValueError(
            f"labels and predictions must have one entry per image, not shapes {truth.shape} "
            f"and {predicted.shape}"
        )
    if len(truth) == 0:
        raise ValueError("no images to evaluate")
    if predicted.dtype.kind == "f" and not np.isfinite(predicted).all():
        raise ValueError(
            "predictions contain NaN or infinity; replace or exclude images without prediction"
        )
    return truth, predicted


def _check_probabilities(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any]]:
    truth, p = _check_predictions(labels, probabilities)
    if p.min() < 0 or p.max() > 1 or (p.ndim == 2 and not np.allclose(p.sum(axis=1), 1)):
        raise ValueError("probabilities must be between 0 and 1 and sum to 1 for each image")
    return truth, p


def _is_positive(truth: NDArray[Any], positive: object) -> NDArray[np.bool_]:
    classes = np.unique(truth)
    if len(classes) == 1:
        raise ValueError(f"the metric needs two classes, but all images are {classes.item()!r}")
    if len(classes) != 2:
        raise ValueError(
            f"one score per image requires two classes, not {classes.tolist()}; use one "
            "column per class"
        )
    if positive is not None and positive not in classes:
        raise ValueError(f"positive must be one of the labels {classes.tolist()}, not {positive!r}")
    is_positive: NDArray[np.bool_] = truth == (classes[1] if positive is None else positive)
    return is_positive


def _check_columns(truth: NDArray[Any], scores: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted classes; raise ValueError unless `scores` has one column per class."""
    classes = np.unique(truth)
    if scores.shape[1] == 2:
        raise ValueError(
            "two classes require one score per image, that of the second class: [:, 1]"
        )
    if len(classes) != scores.shape[1]:
        raise ValueError(
            f"scores have {scores.shape[1]} columns, one per class, but the images are of "
            f"{len(classes)}: {', '.join(map(str, classes))}"
        )
    return classes
