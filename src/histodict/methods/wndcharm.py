"""WND-CHARM classifier: selection of image features by Fisher score.

The Fisher score of a feature is the variance of its class means divided by the mean of its
variances within the classes,

    w_f = 1/(c − 1)·Σ_i (μ_fi − μ̄_f)²  /  1/c·Σ_i σ²_fi,     μ̄_f = 1/c·Σ_i μ_fi.

The features with the highest scores are scaled so that the training samples span 0 … 1, and clipped
to this range. The decision is made by a support vector machine or by the weighted neighbour
distance: over the training samples t of a class, the similarity of x to the class is

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

from ..utils.array_schema import CLASS_INDICES, ArraySpec
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number
from .svm import (
    KernelSVMState,
    argmax_class,
    check_svm_parameters,
    svm_array_schema,
    validate_and_set_classes,
)

DECISIONS = ("svm", "neighbours")
_SIMILARITY_EXPONENT = -5
# Lower bound of the variance within classes, relative to the total variance: a feature that is
# constant within the few samples of each class must not get an infinite score.
_MIN_WITHIN_VARIANCE = 1e-3
_DECISION_ARRAYS = {
    "svm": svm_array_schema("selected"),
    "neighbours": {
        "samples_": ArraySpec("samples, selected"),
        "labels_": ArraySpec("samples", CLASS_INDICES),
    },
}


class WNDCHARM(ClassifierMixin, BaseEstimator):
    """Classifier that selects features by Fisher score, then uses an SVM or neighbours.

    The neighbour distance weights the features by their scores, as in the original. The SVM does
    not, as weights relative to the highest score would remove most of the hundreds of features.

    Parameters
    ----------
    selected_fraction : float, default=0.15
        Fraction of the features to select, those with the highest scores.
    decision : {"svm", "neighbours"}, default="svm"
        Classifier of the selected features; "neighbours" as in the original.
    kernel : {"linear", "rbf"}, default="rbf"
        Kernel of the SVMs, for decision="svm".
    C : float, default=1.0
        Weight of margin violations, for decision="svm".
    gamma : float or "scale", default="scale"
        Coefficient of the rbf kernel, as in `StandardizedSVM`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    selected_ : ndarray of shape (n_selected,)
        Indices of the selected features, best first.
    weights_ : ndarray of shape (n_selected,)
        Fisher scores of the selected features, relative to the highest.
    min_, span_ : ndarray of shape (n_selected,)
        Minimum and range of the selected features in the training samples. The range of a constant
        feature is 1.
    samples_ : ndarray of shape (n_samples, n_selected)
        Weighted training samples, for decision="neighbours".
    labels_ : ndarray of shape (n_samples,)
        Class indices of the training samples, for decision="neighbours".
    support_vectors_, dual_coefficients_, intercepts_, gamma_ : ndarray
        SVMs, for decision="svm"; see `KernelSVMState`.
    n_features_in_ : int
        Number of features seen during fit.
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
        """Schemas of the fitted arrays, by name."""
        return {
            "selected_": ArraySpec("selected", "distinct feature indices"),
            "weights_": ArraySpec("selected"),
            "min_": ArraySpec("selected"),
            "span_": ArraySpec("selected", "positive numbers"),
            **_DECISION_ARRAYS[self.decision],
        }

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> WNDCHARM:
        """Select the features and fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` of the stage "train" after every SVM.

        Returns
        -------
        WNDCHARM
            Fitted estimator.
        """
        self.check_parameters()
        samples, labels = validate_and_set_classes(self, X, y)
        scores = fisher_scores(StandardScaler().fit_transform(samples), labels)
        n_selected = max(1, round(self.selected_fraction * samples.shape[1]))
        self.selected_ = np.argsort(-scores, kind="stable")[:n_selected]
        self.weights_ = scores[self.selected_] / (scores.max() or 1.0)
        selected = samples[:, self.selected_]
        self.min_, span = selected.min(axis=0), np.ptp(selected, axis=0)
        self.span_ = np.where(span > 0, span, 1.0)
        scaled = self._scale(samples)
        if self.decision == "svm":
            KernelSVMState.fit(
                scaled, labels, kernel=self.kernel, C=self.C, gamma=self.gamma, callback=callback
            ).assign_to(self)
        else:
            callback(Progress("train", 0, 1))
            self.samples_, self.labels_ = scaled, labels
            callback(Progress("train", 1, 1))
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the decision scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            Two classes have one score, positive for the second class; more classes have one score
            each. With "neighbours", ρ_i is the similarity to class i, and the scores are
            log ρ_1 − log ρ_0 for two classes and log ρ_i for more.
        """
        check_is_fitted(self)
        samples: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = self._scale(samples)
        if self.decision == "svm":
            return KernelSVMState.from_estimator(self).scores(scaled, self.kernel)
        similarities = log_similarities(scaled, self.samples_, self.labels_)
        if len(self.classes_) == 2:
            return similarities[:, 1] - similarities[:, 0]
        return similarities

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the class with the highest score.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predicted class labels.
        """
        return argmax_class(self.decision_function(X), self.classes_)

    @available_if(lambda self: self.decision == "neighbours")
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the class probabilities; only for decision="neighbours".

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            ρ_i / Σ ρ for the similarity ρ_i to class i.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        probabilities: NDArray[np.float64] = softmax(scores, axis=1)
        return probabilities

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        fraction = check_number("selected_fraction", self.selected_fraction, exclusive=True)
        if fraction > 1:
            raise ValueError(f"selected_fraction must be at most 1, not {self.selected_fraction!r}")
        if self.decision not in DECISIONS:
            raise ValueError(f"decision must be one of {DECISIONS}, not {self.decision!r}")
        check_svm_parameters(self.kernel, self.C, self.gamma)

    def _scale(self, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the selected features, scaled to 0 … 1 and weighted, (n_samples, n_selected).

        With decision="neighbours", the weights are `weights_`. With "svm", they are 1, or 0 for a
        feature with score 0.
        """
        unit = (samples[:, self.selected_] - self.min_) / self.span_
        # A feature with score 0 is constant up to rounding: exclude it.
        weights = self.weights_ > 0 if self.decision == "svm" else self.weights_
        return np.clip(unit, 0, 1) * weights


def fisher_scores(Z: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the Fisher score of each feature, (n_features,); 0 for constant features.

    Z (n_samples, n_features) are standardised samples, and `labels` their class indices.
    """
    groups = [Z[labels == i] for i in range(int(labels.max()) + 1)]
    between = np.var([group.mean(axis=0) for group in groups], axis=0, ddof=1)
    within = np.mean([group.var(axis=0) for group in groups], axis=0)
    varies = Z.var(axis=0) > 0.5  # a standardised feature has variance 1, or is constant
    return np.where(varies, between / np.maximum(within, _MIN_WITHIN_VARIANCE), 0.0)


def log_similarities(
    weighted: NDArray[np.float64], training: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the logarithm of the similarity of each sample to each class, (n_samples, n_classes).

    The similarity is the mean of ‖x − t‖^−10 over the training samples t of the class. Its
    logarithm is finite for any sample x.

    Parameters
    ----------
    weighted : (n_samples, n_selected), samples x, with features multiplied by their weights
    training : (n_training, n_selected), training samples t, weighted likewise
    labels : (n_training,), class indices of the training samples
    """
    distances = np.maximum(cdist(weighted, training, "sqeuclidean"), np.finfo(np.float64).tiny)
    log_powers = _SIMILARITY_EXPONENT * np.log(distances)
    by_class = [
        logsumexp(log_powers[:, labels == i], axis=1) - np.log(np.sum(labels == i))
        for i in range(int(labels.max()) + 1)
    ]
    return np.column_stack(by_class)
