"""How good answers are: plain functions of labels (n_images,) and answers in the same order.

Answers are predictions, one label per image, or scores. Scores of two classes are one number per
image, high for the class `positive`, which is the second of the sorted ones where it is not named,
as `decision_function` gives them; of more classes (n_images, n_classes), columns in sorted order.
Probabilities likewise.

Metrics that the bootstrap computes thousands of times are written out: scikit-learn's functions,
which give the same figures, take 9 to 210 times as long on 30 to 2,000 images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utils.validation import check_whole_number

# --- predictions --------------------------------------------------------------------------------


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Share of the images that are right."""
    truth, said = _checked(labels, predictions)
    return float(np.mean(truth == said))


def balanced_accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Mean over the classes of the share of their images that are right."""
    truth, said = _checked(labels, predictions)
    _, places = np.unique(truth, return_inverse=True)
    right = np.bincount(places, weights=truth == said)
    return float(np.mean(right / np.bincount(places)))


def sensitivity(labels: ArrayLike, predictions: ArrayLike, *, positive: object) -> float:
    """Share of the images of class `positive` that are called so; 1 less the miss rate."""
    truth, said = _checked(labels, predictions)
    return _fraction(said == positive, truth == positive, f"class {positive!r}: sensitivity")


def specificity(labels: ArrayLike, predictions: ArrayLike, *, positive: object) -> float:
    """Share of the other images that are not called `positive`; 1 less the false-alarm rate."""
    truth, said = _checked(labels, predictions)
    other = f"a class other than {positive!r}: specificity"
    return _fraction(said != positive, truth != positive, other)


def _fraction(right: NDArray[np.bool_], chosen: NDArray[np.bool_], what: str) -> float:
    if not chosen.any():
        raise ValueError(f"there is no image of {what} is not defined")
    return float(np.mean(right[chosen]))


# --- scores -------------------------------------------------------------------------------------


def auc(labels: ArrayLike, scores: ArrayLike, *, positive: object = None) -> float:
    """Probability that of two images the right one has the higher score; a tie counts one half.

    More than two classes: mean over the classes of the AUC of their column against all others.
    """
    truth, values = _checked(labels, scores)
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
    beaten = lower.searchsorted(higher, "left") + lower.searchsorted(higher, "right")
    return float(beaten.sum() / (2 * len(higher) * len(lower)))


@dataclass(frozen=True)
class RocCurve:
    """False-alarm and miss rates (n_thresholds,), from the highest threshold to the lowest.

    `operating` is (false alarm, miss) at the threshold in use.
    """

    false_positive_rate: NDArray[np.float64]
    false_negative_rate: NDArray[np.float64]
    operating: tuple[float, float]


def roc_curve(
    labels: ArrayLike, scores: ArrayLike, *, positive: object = None, threshold: float = 0.0
) -> RocCurve:
    """False alarms and misses of class `positive`, over all thresholds on scores of two classes.

    An image counts as positive if its score is above the threshold.
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    truth, values = _checked(labels, scores)
    is_positive = _is_positive(truth, positive)
    if values.ndim != 1:
        raise ValueError("scores must be one number per image: a ROC curve is of two classes")
    false_alarm, hit, _ = sklearn_roc_curve(is_positive, values, drop_intermediate=False)
    called = values > threshold
    operating = float(called[~is_positive].mean()), float((~called)[is_positive].mean())
    return RocCurve(false_alarm, 1 - hit, operating)


# --- probabilities ------------------------------------------------------------------------------


def brier_score(labels: ArrayLike, probabilities: ArrayLike, *, positive: object = None) -> float:
    """Mean squared distance of the probabilities from 0 and 1, whichever came true.

    Two classes: (p − 1[positive])²; more: summed over the classes.
    """
    from sklearn.metrics import brier_score_loss

    truth, p = _checked_probabilities(labels, probabilities)
    if p.ndim == 1:
        return float(brier_score_loss(_is_positive(truth, positive), p))
    return float(brier_score_loss(truth, p, labels=_check_columns(truth, p)))


@dataclass(frozen=True)
class CalibrationCurve:
    """Per bin that holds images: mean probability, share that came true, number of images."""

    probability: NDArray[np.float64]
    observed: NDArray[np.float64]
    counts: NDArray[np.int64]


def calibration_curve(
    labels: ArrayLike, probabilities: ArrayLike, n_bins: int = 10, *, positive: object = None
) -> CalibrationCurve:
    """Do things said with probability p come true p of the time? In bins of equal width.

    Two classes: the probability of `positive`. More: that of the most probable class.
    """
    n_bins = check_whole_number("n_bins", n_bins, 1)
    truth, p = _checked_probabilities(labels, probabilities)
    if p.ndim == 1:
        came_true = _is_positive(truth, positive)
    else:
        came_true = _check_columns(truth, p)[p.argmax(axis=1)] == truth
        p = p.max(axis=1)
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], p)
    counts = np.bincount(bins, minlength=n_bins)
    held = counts > 0
    probability, observed = (
        np.bincount(bins, weights=x, minlength=n_bins)[held] / counts[held] for x in (p, came_true)
    )
    return CalibrationCurve(probability, observed, counts[held].astype(np.int64))


def expected_calibration_error(
    labels: ArrayLike, probabilities: ArrayLike, n_bins: int = 10, *, positive: object = None
) -> float:
    """Mean over the images of |mean probability − share that came true| of their bin.

    With few images it is above 0 even for perfect probabilities.
    """
    curve = calibration_curve(labels, probabilities, n_bins, positive=positive)
    return float(np.average(np.abs(curve.probability - curve.observed), weights=curve.counts))


# --- checks -------------------------------------------------------------------------------------


def _checked(labels: ArrayLike, answers: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    truth, said = np.asarray(labels), np.asarray(answers)
    if truth.ndim != 1 or said.ndim not in (1, 2) or len(truth) != len(said):
        raise ValueError(
            f"there must be one label and one answer per image, not arrays of shape {truth.shape} "
            f"and {said.shape}"
        )
    if len(truth) == 0:
        raise ValueError("there are no images to judge by")
    if said.dtype.kind == "f" and not np.isfinite(said).all():
        raise ValueError(
            "some answers are not finite: decide first what an image without an answer counts as"
        )
    return truth, said


def _checked_probabilities(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any]]:
    truth, p = _checked(labels, probabilities)
    if p.min() < 0 or p.max() > 1 or (p.ndim == 2 and not np.allclose(p.sum(axis=1), 1)):
        raise ValueError(
            "probabilities must lie between 0 and 1, and those of an image add up to 1"
        )
    return truth, p


def _is_positive(truth: NDArray[Any], positive: object) -> NDArray[np.bool_]:
    classes = np.unique(truth)
    if len(classes) == 1:
        raise ValueError(f"all images are {classes.item()!r}; it takes images of two classes")
    if len(classes) != 2:
        raise ValueError(
            f"one score per image is for two classes; the labels are {classes.tolist()}. More "
            "classes need a column each"
        )
    if positive is not None and positive not in classes:
        raise ValueError(f"positive is {positive!r}; the labels are {classes.tolist()}")
    chosen: NDArray[np.bool_] = truth == (classes[1] if positive is None else positive)
    return chosen


def _check_columns(truth: NDArray[Any], scores: NDArray[Any]) -> NDArray[Any]:
    """The sorted classes, where each has its column."""
    classes = np.unique(truth)
    if scores.shape[1] == 2:
        raise ValueError("of two classes give one score per image, that of the second: [:, 1]")
    if len(classes) != scores.shape[1]:
        raise ValueError(
            f"there are {scores.shape[1]} columns, but images of {len(classes)} classes: "
            f"{classes.tolist()}"
        )
    return classes
