"""Honest probabilities: from the scores of a rule to how often such a score is right.

Fitted on scores that a model gave to images of patients it had not seen (inner folds); scores of
its own training images are too good. Two classes: Platt's logistic curve with smoothed targets, of
which a panel, which draws the line itself, keeps the slope alone; more: the softmax of the scores
at one temperature, since a few images cannot say more. Classes weigh the same however many
images they have: probabilities are those of equally frequent classes.

Conformal prediction turns probabilities into sets of classes that hold the true one with a chosen
error rate, as long as new patients are like the calibration's. A set of one class is a certain
answer; none or several is an uncertain one.

References: Platt, "Probabilistic outputs for support vector machines", 1999; Vovk, Gammerman,
Shafer, "Algorithmic learning in a random world", 2005 (cross-conformal: Vovk 2015).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ..parameters import check_number

# Weight of ½‖slopes‖² against the log-likelihood: few images must not make a step of the curve.
_RIDGE = 0.01


@dataclass(frozen=True)
class Calibration:
    """p = softmax(scores · slopes + offsets), and the calibration images' conformity.

    slopes : (n_scores, n_classes); offsets : (n_classes,)
    misfits : (n_images,), 1 − p of each image's true class
    """

    slopes: NDArray[np.float64]
    offsets: NDArray[np.float64]
    nonconformity_scores: NDArray[np.float64]

    @classmethod
    def fit(
        cls, scores: NDArray[np.float64], labels: NDArray[np.int64], *, at_zero: bool = False
    ) -> Calibration:
        """From scores (n_images, n_scores) of unseen patients and the places of their classes.

        at_zero : two classes are equally likely where the score is 0, as of more classes those are
            whose scores are the same
        """
        n_classes = int(labels.max()) + 1
        counts = np.bincount(labels, minlength=n_classes)
        # Platt's targets, as if a class had one more image of its own and one of another; the same
        # for all classes, else the border would lean against the rare one.
        n = counts[counts > 0].min()
        own = (n + 1) / (n + 2)
        targets = np.full((len(labels), n_classes), (1 - own) / max(n_classes - 1, 1))
        targets[np.arange(len(labels)), labels] = own
        weights = (len(labels) / (n_classes * np.maximum(counts, 1)))[labels]
        scale = max(float(scores.std()), 1e-12)
        if scores.shape[1] == 1:
            halves = scores * np.array([-0.5, 0.5]) / scale
            rise, offset = (
                (_fit_temperature(halves, targets, weights), 0.0)
                if at_zero
                else _fit_curve(scores[:, 0] / scale, targets, weights)
            )
            slopes = np.array([[-rise / 2, rise / 2]]) / scale
            offsets = np.array([-offset / 2, offset / 2])
        else:
            slopes = np.eye(n_classes) * _fit_temperature(scores / scale, targets, weights) / scale
            offsets = np.zeros(n_classes)
        found = cls(slopes, offsets, np.empty(0))
        chances = found.probabilities(scores)[np.arange(len(labels)), labels]
        return cls(slopes, offsets, np.sort(1 - chances))

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_classes), from scores (n_images, n_scores)."""
        return _softmax(scores @ self.slopes + self.offsets)

    def quantile(self) -> float:
        """With one score for two classes: the score at which both are equally likely."""
        rise = float(self.slopes[0, 1] - self.slopes[0, 0])
        return float(self.offsets[0] - self.offsets[1]) / rise if rise else 0.0

    def prediction_set(
        self, probabilities: NDArray[np.float64], error_rate: float
    ) -> NDArray[np.bool_]:
        """Which classes cannot be ruled out at this error rate: (n_images, n_classes)."""
        check_number("error_rate", error_rate)
        n = len(self.nonconformity_scores)
        # The rank among n + 1 that the new image's misfit exceeds with at most this probability.
        rank = int(np.ceil((n + 1) * (1 - error_rate)))
        limit = np.inf if rank > n else self.nonconformity_scores[max(rank, 1) - 1]
        return 1 - probabilities <= limit


def _fit_curve(
    scores: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Slope, at least 0, and offset of the log-odds of the second of two classes."""

    def loss(found: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        half = (found[0] * scores + found[1]) / 2
        chances = _softmax(np.column_stack([-half, half]))
        value = -np.sum(weights[:, None] * targets * np.log(np.maximum(chances, 1e-300)))
        miss = weights * (chances[:, 1] - targets[:, 1])
        gradient = np.array([miss @ scores + _RIDGE * found[0] / 2, miss.sum()])
        return value + _RIDGE * found[0] ** 2 / 4, gradient

    # Scores of unseen patients that are not even in the right order say nothing: slope 0.
    found = minimize(
        loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]
    ).x
    return (float(found[0]), float(found[1])) if found[0] > 0 else (0.0, 0.0)


def _fit_temperature(
    scores: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    """a ≥ 0 of the most likely softmax(a · scores)."""

    def loss(found: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        chances = _softmax(found[0] * scores)
        value = -np.sum(weights[:, None] * targets * np.log(np.maximum(chances, 1e-300)))
        slope = np.sum(weights[:, None] * (chances - targets) * scores)
        return value + 0.5 * _RIDGE * found[0] ** 2, np.array([slope + _RIDGE * found[0]])

    found = minimize(loss, np.zeros(1), jac=True, method="L-BFGS-B", bounds=[(0, None)]).x
    return float(found[0])


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
