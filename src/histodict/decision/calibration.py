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

Several classifiers' scores as one.

The score of a panel is the weighted mean of its members' scores, each over its own scale: the root
mean square of what the member said of patients it had not seen. Far from 0 scores are bent, so that
a member that is beside itself, as on a scanner it does not know, cannot overrule all the others.

Weights follow how well a member put those patients in order, so that one that tells nothing of this
tissue has hardly a say; with two classes an offset moves the mean towards where both are equally
likely for such patients. What a handful of patients say is mostly chance, so both are shrunk, the
weights towards equal ones and the offset towards none: half way with `_HALF_WAY` patients of the
class that has fewest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtri

from ..utils.validation import check_number

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


_HALF_WAY = 12
_BEND = 1.0  # where several decide: nobody says more than 1 / this
# Of AUC: nobody is silenced for good, and a handful of patients in the right order proves little.
_MIN, _MAX = 0.51, 0.98


@dataclass(frozen=True)
class ScoreCombination:
    """scales, weights : (n_members,), weights sum to 1; offset : added to the mean, 0 with more
    than two classes; bend : a score x over its scale counts as tanh(bend · x) / bend, as x where
    it is 0.
    """

    scales: NDArray[np.float64]
    weights: NDArray[np.float64]
    offset: float = 0.0
    tanh_scale: float = 0.0

    @classmethod
    def fit(
        cls,
        parts: NDArray[np.float64],
        labels: NDArray[np.int64],
        orders: NDArray[np.float64],
        n_patients: int,
    ) -> tuple[ScoreCombination, Calibration]:
        """From scores (n_images, n_members, n_scores) of unseen patients, NaN where a member saw
        nothing, the places of their classes, and the members' AUC (n_members,) on them.

        n_patients : of the class with fewest
        """
        mean = replace(cls.equal(parts), weights=shrunk_weights(orders, n_patients))
        scores = mean.scores(parts)
        if scores.shape[1] == 1:
            border = Calibration.fit(scores, labels).quantile()
            mean = replace(mean, offset=-border * _trust(n_patients))
        return mean, Calibration.fit(scores + mean.offset, labels, at_zero=True)

    @classmethod
    def equal(cls, parts: NDArray[np.float64]) -> ScoreCombination:
        """All have the same say: where nothing is known of unseen patients."""
        scales = np.sqrt(np.nanmean(parts**2, axis=(0, 2)))
        n_members = parts.shape[1]
        return cls(
            np.where(scales > 0, scales, 1.0),
            np.full(n_members, 1 / n_members),
            tanh_scale=_BEND if n_members > 1 else 0.0,
        )

    def scores(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., n_scores) from the members' (..., n_members, n_scores)."""
        present = ~np.isnan(parts)
        say = self.weights[:, None] * present
        said = parts / self.scales[:, None]
        if self.tanh_scale:
            said = np.tanh(self.tanh_scale * said) / self.tanh_scale
        total = (np.nan_to_num(said) * say).sum(axis=-2)
        with np.errstate(invalid="ignore"):  # NaN where all are silent
            mean: NDArray[np.float64] = total / say.sum(axis=-2)
        return mean + self.offset

    def score_gradients(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_members, n_scores), 0 of the silent: the scores are Σ factors · parts + offset.

        What a member says is bent as a whole, so all parts of it are made smaller alike.
        """
        present = ~np.isnan(parts)
        x = np.nan_to_num(parts) / self.scales[:, None]
        bent = np.tanh(self.tanh_scale * x) / self.tanh_scale if self.tanh_scale else x
        smaller = np.divide(bent, x, out=np.ones_like(x), where=x != 0)
        say = self.weights[:, None] * present
        found: NDArray[np.float64] = smaller * say / say.sum(axis=0) / self.scales[:, None]
        return found

    def invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a single member would have to say for such scores of a panel, over its scale."""
        mean = scores - self.offset
        if not self.tanh_scale:
            return mean
        most = 1 - 1e-9
        found: NDArray[np.float64] = (
            np.arctanh(np.clip(self.tanh_scale * mean, -most, most)) / self.tanh_scale
        )
        return found


def shrunk_weights(orders: NDArray[np.float64], n_patients: int) -> NDArray[np.float64]:
    """From members' AUC, and the number of patients that it rests on; they sum to 1."""
    # With normal scores of either class, AUC = Φ(d'/√2); independent members add up their d'².
    steep = ndtri(np.clip(orders, _MIN, _MAX)) ** 2
    trust = _trust(n_patients)
    weights: NDArray[np.float64] = trust * steep / steep.sum() + (1 - trust) / len(orders)
    return weights / weights.sum()


def _trust(n_patients: int) -> float:
    """In what so many patients say, from 0 to 1."""
    return n_patients / (n_patients + _HALF_WAY)
