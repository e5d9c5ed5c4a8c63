"""The classifier of WND-CHARM: the image features that part the classes best.

The Fisher score of a feature is the variance of its class means over the mean of its variances
within the classes,

    w_f = 1/(c − 1)·Σ_i (μ_fi − μ̄_f)²  /  1/c·Σ_i σ²_fi,     μ̄_f = 1/c·Σ_i μ_fi.

The best features are kept and brought to 0 … 1 between the least and the greatest of the training
samples, what lies beyond to the nearer of the two. Then either a support vector machine decides, or
the weighted neighbour distance: with t over the training samples of a class, its similarity to x is

    ρ_i = mean_t (Σ_f w_f² (x_f − t_f)²)^−5,     and ρ_i / Σ ρ its marginal probability.

Reference: Orlov, Shamir, Macura, Johnston, Eckley, Goldberg, "WND-CHARM: multi-purpose image
classification using compound image transforms", Pattern Recognition Letters, 2008.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from ..utils.array_schema import CLASSES, ArraySpec
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number
from .svm import (
    KernelSVMState,
    argmax_class,
    check_machine_parameters,
    labelled_samples,
    machine_arrays,
)

DECISIONS = ("svm", "neighbours")
_POWER = -5
# Least variance within classes, of the variance of all: a feature that does not vary within the
# few samples of a class is not perfect.
_MIN_WITHIN = 1e-3
_STATE = {
    "svm": machine_arrays("kept"),
    "neighbours": {
        "samples_": ArraySpec("samples, kept"),
        "labels_": ArraySpec("samples", CLASSES),
    },
}


class WNDCHARM(ClassifierMixin, BaseEstimator):
    """Features of the highest Fisher scores; support vectors or weighted neighbours decide.

    Neighbours weigh the features by their scores, as in the original. Support vectors do not: with
    the best score as 1 few of hundreds of features would be left to speak.

    Parameters
    ----------
    selected_fraction : fraction of the features to select, those with the highest scores
    decision : "svm", or "neighbours" as in the original
    kernel, C, gamma : of the support vector machine, as in `StandardizedSVM`

    Attributes
    ----------
    classes_ : (n_classes,)
    selected_ : (n_selected,), indices of the selected features, best first
    weights_ : (n_kept,), their Fisher scores, the best as 1
    min_, span_ : (n_selected,), minimum and range of the training samples; range 1 if all are equal
    samples_, labels_ : weighted training samples and places of their classes, for "neighbours"
    support_vectors_, dual_coefficients_, intercepts_, gamma_ : of "svm"; see `KernelSVMState`
    """

    classes_: NDArray[Any]
    n_features_in_: int

    def __init__(
        self,
        selected_fraction: float = 0.15,
        *,
        decision: str = "svm",
        kernel: str = "rbf",
        C: float = 1.0,
        gamma: float | str = "scale",
    ) -> None:
        self.selected_fraction = selected_fraction
        self.decision = decision
        self.kernel = kernel
        self.C = C
        self.gamma = gamma

    @property
    def fitted_arrays(self) -> dict[str, ArraySpec]:
        """The arrays that, with the parameters and classes, are all that was learnt."""
        return {
            "selected_": ArraySpec("kept", "different places of features"),
            "weights_": ArraySpec("kept"),
            "min_": ArraySpec("kept"),
            "span_": ArraySpec("kept", "positive numbers"),
            **_STATE[self.decision],
        }

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> WNDCHARM:
        """Learn from samples X (n_samples, n_features) and their labels."""
        self.check_parameters()
        samples, labels = labelled_samples(self, X, y)
        scores = fisher_scores(StandardScaler().fit_transform(samples), labels)
        n_kept = max(1, round(self.selected_fraction * samples.shape[1]))
        self.selected_ = np.argsort(-scores, kind="stable")[:n_kept]
        self.weights_ = scores[self.selected_] / (scores.max() or 1.0)
        kept = samples[:, self.selected_]
        self.min_, span = kept.min(axis=0), np.ptp(kept, axis=0)
        self.span_ = np.where(span > 0, span, 1.0)
        scaled = self._scaled(samples)
        if self.decision == "svm":
            KernelSVMState.fit(
                scaled,
                labels,
                kernel=self.kernel,
                C=self.C,
                gamma=self.gamma,
                callback=callback,
            ).assign_to(self)
        else:
            callback(Progress("train", 0, 1))
            self.samples_, self.labels_ = scaled, labels
            callback(Progress("train", 1, 1))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """For two classes one score, positive for the second; for more, one per class.

        The scores of "neighbours" are logarithms of similarities, log ρ_i; for two classes,
        log ρ_1 − log ρ_0.
        """
        check_is_fitted(self)
        samples: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = self._scaled(samples)
        if self.decision == "svm":
            return KernelSVMState.of(self).scores(scaled, self.kernel)
        similarities = log_similarities(scaled, self.samples_, self.labels_)
        if len(self.classes_) == 2:
            return similarities[:, 1] - similarities[:, 0]
        return similarities

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of the highest score."""
        return argmax_class(self.decision_function(X), self.classes_)

    @available_if(lambda self: self.decision == "neighbours")
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Marginal probabilities ρ_i / Σ ρ; "neighbours" alone has them."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        probabilities: NDArray[np.float64] = softmax(scores, axis=1)
        return probabilities

    def check_parameters(self) -> None:
        share = check_number("selected_fraction", self.selected_fraction, above=True)
        if share > 1:
            raise ValueError(f"selected_fraction must be at most 1, not {self.selected_fraction!r}")
        if self.decision not in DECISIONS:
            raise ValueError(f"decision must be one of {DECISIONS}, not {self.decision!r}")
        check_machine_parameters(self.kernel, self.C, self.gamma)

    def _scaled(self, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        unit = (samples[:, self.selected_] - self.min_) / self.span_
        # A score of 0 is that of a feature of one value, whose range is 0 or rounding.
        weights = self.weights_ > 0 if self.decision == "svm" else self.weights_
        return np.clip(unit, 0, 1) * weights


def fisher_scores(Z: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """w_f of standardised features, labels from 0; 0 for features of one value: (n_features,)."""
    groups = [Z[labels == i] for i in range(int(labels.max()) + 1)]
    between = np.var([group.mean(axis=0) for group in groups], axis=0, ddof=1)
    within = np.mean([group.var(axis=0) for group in groups], axis=0)
    varies = Z.var(axis=0) > 0.5  # a standardised feature has variance 1, or one value
    return np.where(varies, between / np.maximum(within, _MIN_WITHIN), 0.0)


def log_similarities(
    weighted: NDArray[np.float64], known: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """log ρ of every sample to every class, finite even for a sample that is known: (n, c)."""
    distances = np.maximum(cdist(weighted, known, "sqeuclidean"), np.finfo(np.float64).tiny)
    powers = _POWER * np.log(distances)
    columns = [
        logsumexp(powers[:, labels == i], axis=1) - np.log(np.sum(labels == i))
        for i in range(int(labels.max()) + 1)
    ]
    return np.column_stack(columns)
