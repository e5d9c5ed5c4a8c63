"""Calibration of scores to probabilities, and combination of the scores of several classifiers.

Calibration is fitted on out-of-fold scores, because scores of the training images are too
optimistic. Two classes are calibrated by Platt's logistic curve with smoothed targets; for
ensembles, whose boundary is at 0, only the slope of the curve is fitted. More classes are
calibrated by the softmax of the scores with one temperature, as few images do not support more
parameters. Classes have equal weight: probabilities assume equally frequent classes.

Conformal prediction turns probabilities into sets of classes that contain the true one with a
chosen error rate, if new patients are exchangeable with those of the calibration. A set of one
class is a certain prediction; an empty set or a set of several classes is uncertain.

The score of an ensemble is the weighted mean of the scores of its members. Each member's scores are
divided by a scale, the root mean square of its out-of-fold scores. A tanh bounds the scores, so
that a member with extreme scores, as on an unknown scanner, cannot dominate the mean.

Weights depend on the out-of-fold AUC of the members. With two classes, an offset is added so that
both classes are equally likely at a score of 0. Because estimates from few patients are unreliable,
the weights are shrunk towards equal weights and the offset towards 0, by half if the smallest class
has `_N_HALF_SHRINKAGE` patients.

References: Platt, "Probabilistic outputs for support vector machines", 1999; Vovk, Gammerman,
Shafer, "Algorithmic learning in a random world", 2005 (cross-conformal: Vovk 2015).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtri

from ..utils.validation import check_number

# Weight of ½‖slopes‖² in the loss; it keeps the curve smooth if there are few images.
_RIDGE = 0.01


@dataclass(frozen=True)
class Calibration:
    """Calibration of scores to probabilities p = softmax(scores · slopes + offsets).

    Attributes
    ----------
    slopes : (n_scores, n_classes)
    offsets : (n_classes,)
    nonconformity_scores : (n_images,), 1 − p of the true class of each calibration image, sorted
    """

    slopes: NDArray[np.float64]
    offsets: NDArray[np.float64]
    nonconformity_scores: NDArray[np.float64]

    @classmethod
    def fit(
        cls,
        scores: NDArray[np.float64],
        labels: NDArray[np.int64],
        *,
        boundary_at_zero: bool = False,
    ) -> Calibration:
        """Fit the calibration to out-of-fold scores.

        Parameters
        ----------
        scores : (n_images, n_scores)
        labels : (n_images,), class indices
        boundary_at_zero : whether two classes must have equal probabilities at score 0
        """
        n_classes = int(labels.max()) + 1
        counts = np.bincount(labels, minlength=n_classes)
        # Platt's targets, as for one more image of the class and one of another. They are equal
        # for all classes; otherwise the boundary is biased against the rare class.
        n = counts[counts > 0].min()
        target = (n + 1) / (n + 2)
        targets = np.full((len(labels), n_classes), (1 - target) / max(n_classes - 1, 1))
        targets[np.arange(len(labels)), labels] = target
        weights = (len(labels) / (n_classes * np.maximum(counts, 1)))[labels]
        scale = max(float(scores.std()), 1e-12)
        if scores.shape[1] == 1:
            symmetric = scores * np.array([-0.5, 0.5]) / scale
            slope, offset = (
                (_fit_temperature(symmetric, targets, weights), 0.0)
                if boundary_at_zero
                else _fit_platt(scores[:, 0] / scale, targets, weights)
            )
            slopes = np.array([[-slope / 2, slope / 2]]) / scale
            offsets = np.array([-offset / 2, offset / 2])
        else:
            slopes = np.eye(n_classes) * _fit_temperature(scores / scale, targets, weights) / scale
            offsets = np.zeros(n_classes)
        calibration = cls(slopes, offsets, np.empty(0))
        p_true = calibration.probabilities(scores)[np.arange(len(labels)), labels]
        return cls(slopes, offsets, np.sort(1 - p_true))

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities (n_images, n_classes) of scores (n_images, n_scores)."""
        return _softmax(scores @ self.slopes + self.offsets)

    def boundary_score(self) -> float:
        """Return the score at which two classes are equally likely; 0 if the slope is 0."""
        slope = float(self.slopes[0, 1] - self.slopes[0, 0])
        return float(self.offsets[0] - self.offsets[1]) / slope if slope else 0.0

    def prediction_set(
        self, probabilities: NDArray[np.float64], error_rate: float
    ) -> NDArray[np.bool_]:
        """Return whether each class is in the conformal prediction set, (n_images, n_classes).

        `error_rate` is the chosen fraction of images whose set lacks the true class.
        """
        check_number("error_rate", error_rate)
        n = len(self.nonconformity_scores)
        # Rank among n + 1 that a new nonconformity score exceeds with at most this probability.
        rank = int(np.ceil((n + 1) * (1 - error_rate)))
        limit = np.inf if rank > n else self.nonconformity_scores[max(rank, 1) - 1]
        return 1 - probabilities <= limit


def _fit_platt(
    scores: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Return slope (≥ 0) and offset of the log-odds of the second class as a function of the score.

    Parameters
    ----------
    scores : (n_images,)
    targets : (n_images, 2), smoothed probabilities of the classes
    weights : (n_images,), weight of each image
    """

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        half = (parameters[0] * scores + parameters[1]) / 2
        p = _softmax(np.column_stack([-half, half]))
        value = -np.sum(weights[:, None] * targets * np.log(np.maximum(p, 1e-300)))
        residuals = weights * (p[:, 1] - targets[:, 1])
        gradient = np.array([residuals @ scores + _RIDGE * parameters[0] / 2, residuals.sum()])
        return value + _RIDGE * parameters[0] ** 2 / 4, gradient

    # Scores that are not positively correlated with the class get the slope 0.
    parameters = minimize(
        loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]
    ).x
    return (float(parameters[0]), float(parameters[1])) if parameters[0] > 0 else (0.0, 0.0)


def _fit_temperature(
    scores: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    """Return the inverse temperature a ≥ 0 that maximises the likelihood of softmax(a · scores).

    Parameters
    ----------
    scores : (n_images, n_classes)
    targets : (n_images, n_classes), smoothed probabilities of the classes
    weights : (n_images,), weight of each image
    """

    def loss(temperature: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        p = _softmax(temperature[0] * scores)
        value = -np.sum(weights[:, None] * targets * np.log(np.maximum(p, 1e-300)))
        gradient = np.sum(weights[:, None] * (p - targets) * scores)
        return value + 0.5 * _RIDGE * temperature[0] ** 2, np.array(
            [gradient + _RIDGE * temperature[0]]
        )

    temperature = minimize(loss, np.zeros(1), jac=True, method="L-BFGS-B", bounds=[(0, None)]).x
    return float(temperature[0])


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


_N_HALF_SHRINKAGE = 12
_TANH_SCALE = 1.0  # of ensembles; its inverse is the maximum |score| of a member
# Limits of the AUC: no member gets weight 0, and few patients give no extreme weight.
_MIN_AUC, _MAX_AUC = 0.51, 0.98


@dataclass(frozen=True)
class ScoreCombination:
    """Combination of the scores of ensemble members by a weighted mean.

    Attributes
    ----------
    scales : (n_members,), divisor of the scores of each member
    weights : (n_members,), weight of each member; their sum is 1
    offset : constant added to the mean; 0 for more than two classes
    tanh_scale : scaled scores x are replaced by tanh(tanh_scale · x) / tanh_scale unless this is 0
    """

    scales: NDArray[np.float64]
    weights: NDArray[np.float64]
    offset: float = 0.0
    tanh_scale: float = 0.0

    @classmethod
    def fit(
        cls,
        member_scores: NDArray[np.float64],
        labels: NDArray[np.int64],
        aucs: NDArray[np.float64],
        n_patients: int,
    ) -> tuple[ScoreCombination, Calibration]:
        """Fit combination and calibration to out-of-fold scores.

        Parameters
        ----------
        member_scores : (n_images, n_members, n_scores), NaN where a member abstains
        labels : (n_images,), class indices
        aucs : (n_members,), AUC of each member on these images
        n_patients : number of patients of the smallest class
        """
        combination = replace(
            cls.with_equal_weights(member_scores), weights=shrunk_weights(aucs, n_patients)
        )
        scores = combination.scores(member_scores)
        if scores.shape[1] == 1:
            boundary = Calibration.fit(scores, labels).boundary_score()
            combination = replace(combination, offset=-boundary * _shrinkage_factor(n_patients))
        return combination, Calibration.fit(
            scores + combination.offset, labels, boundary_at_zero=True
        )

    @classmethod
    def with_equal_weights(cls, member_scores: NDArray[np.float64]) -> ScoreCombination:
        """Return a combination with equal weights.

        `member_scores` are as in `fit`, out-of-fold or not; they determine the scales.
        """
        scales = np.sqrt(np.nanmean(member_scores**2, axis=(0, 2)))
        n_members = member_scores.shape[1]
        return cls(
            np.where(scales > 0, scales, 1.0),
            np.full(n_members, 1 / n_members),
            tanh_scale=_TANH_SCALE if n_members > 1 else 0.0,
        )

    def scores(self, member_scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return combined scores (..., n_scores) from member scores (..., n_members, n_scores).

        Members with NaN abstain; the combined score is NaN if all members abstain.
        """
        present = ~np.isnan(member_scores)
        weights = self.weights[:, None] * present
        scaled = member_scores / self.scales[:, None]
        if self.tanh_scale:
            scaled = np.tanh(self.tanh_scale * scaled) / self.tanh_scale
        total = (np.nan_to_num(scaled) * weights).sum(axis=-2)
        with np.errstate(invalid="ignore"):  # NaN where all members abstain
            mean: NDArray[np.float64] = total / weights.sum(axis=-2)
        return mean + self.offset

    def member_factors(self, member_scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return factors (n_members, n_scores) with scores = Σ factors · member_scores + offset.

        The sum is over the members. The contributions of atoms to the score of a member are
        multiplied by the same factor, which is 0 for an abstaining member.
        """
        present = ~np.isnan(member_scores)
        x = np.nan_to_num(member_scores) / self.scales[:, None]
        transformed = np.tanh(self.tanh_scale * x) / self.tanh_scale if self.tanh_scale else x
        ratio = np.divide(transformed, x, out=np.ones_like(x), where=x != 0)
        weights = self.weights[:, None] * present
        gradients: NDArray[np.float64] = (
            ratio * weights / weights.sum(axis=0) / self.scales[:, None]
        )
        return gradients

    def invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scaled scores of a single member that give these combined scores."""
        mean = scores - self.offset
        if not self.tanh_scale:
            return mean
        limit = 1 - 1e-9
        scaled: NDArray[np.float64] = (
            np.arctanh(np.clip(self.tanh_scale * mean, -limit, limit)) / self.tanh_scale
        )
        return scaled


def shrunk_weights(aucs: NDArray[np.float64], n_patients: int) -> NDArray[np.float64]:
    """Return the weights of members, with sum 1, from their out-of-fold AUCs (n_members,).

    `n_patients` is the number of patients of the smallest class.
    """
    # For normal scores AUC = Φ(d'/√2), and d'² of independent members are additive.
    separability = ndtri(np.clip(aucs, _MIN_AUC, _MAX_AUC)) ** 2
    factor = _shrinkage_factor(n_patients)
    weights: NDArray[np.float64] = factor * separability / separability.sum() + (1 - factor) / len(
        aucs
    )
    return weights / weights.sum()


def _shrinkage_factor(n_patients: int) -> float:
    """Return the factor (0 to 1) by which estimates from this number of patients are multiplied."""
    return n_patients / (n_patients + _N_HALF_SHRINKAGE)
