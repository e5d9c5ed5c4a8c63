"""Honest probabilities: from the scores of a rule to how often such a score is right.

Fitted on scores that a model gave to images of patients it had not seen (inner folds); scores of
its own training images are too good. Two classes: Platt's logistic curve with his smoothed targets;
more: multinomial logistic regression. Classes weigh the same however many images they have: the
probabilities are those where all classes are equally frequent.

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
    misfits: NDArray[np.float64]

    @classmethod
    def fit(cls, scores: NDArray[np.float64], labels: NDArray[np.int64]) -> Calibration:
        """From scores (n_images, n_scores) of unseen patients and the places of their classes."""
        n_classes = int(labels.max()) + 1
        counts = np.bincount(labels, minlength=n_classes)
        # Platt's targets: as if each class had one more image of its own and one of another.
        own = (counts + 1) / (counts + 2)
        targets = np.full(
            (len(labels), n_classes), ((1 - own) / max(n_classes - 1, 1))[labels, None]
        )
        targets[np.arange(len(labels)), labels] = own[labels]
        weights = len(labels) / (n_classes * np.maximum(counts, 1))
        scale = np.maximum(scores.std(axis=0), 1e-12)
        parameters = _fit_softmax(scores / scale, targets, weights[labels])
        slopes, offsets = parameters[:-1] / scale[:, None], parameters[-1]
        if scores.shape[1] == 1 and slopes[0, 1] <= slopes[0, 0]:
            # Unseen patients were not even in the right order: such a score says nothing.
            slopes, offsets = np.zeros_like(slopes), np.zeros_like(offsets)
        found = cls(slopes, offsets, np.empty(0))
        chances = found.probabilities(scores)[np.arange(len(labels)), labels]
        return cls(slopes, offsets, np.sort(1 - chances))

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_classes), from scores (n_images, n_scores)."""
        return _softmax(scores @ self.slopes + self.offsets)

    def border(self) -> float:
        """With one score for two classes: the score at which both are equally likely."""
        rise = float(self.slopes[0, 1] - self.slopes[0, 0])
        return float(self.offsets[0] - self.offsets[1]) / rise if rise else 0.0

    def candidates(
        self, probabilities: NDArray[np.float64], error_rate: float
    ) -> NDArray[np.bool_]:
        """Which classes cannot be ruled out at this error rate: (n_images, n_classes)."""
        check_number("error_rate", error_rate)
        n = len(self.misfits)
        # The rank among n + 1 that the new image's misfit exceeds with at most this probability.
        rank = int(np.ceil((n + 1) * (1 - error_rate)))
        limit = np.inf if rank > n else self.misfits[max(rank, 1) - 1]
        return 1 - probabilities <= limit


def _fit_softmax(
    X: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Slopes and, in the last row, offsets, of the most likely softmax with a small ridge."""
    design = np.column_stack([X, np.ones(len(X))])
    shape = design.shape[1], targets.shape[1]

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        curve = flat.reshape(shape)
        chances = _softmax(design @ curve)
        value = -np.sum(weights[:, None] * targets * np.log(np.maximum(chances, 1e-300)))
        gradient = design.T @ (weights[:, None] * (chances - targets))
        value += 0.5 * _RIDGE * np.sum(curve[:-1] ** 2)
        gradient[:-1] += _RIDGE * curve[:-1]
        return value, gradient.ravel()

    found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B")
    curve: NDArray[np.float64] = found.x.reshape(shape)
    return curve


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
