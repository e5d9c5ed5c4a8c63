"""Support vector machines (SVMs) whose fitted state consists of arrays only.

The features are standardised, z = (x − mean)/scale. For two classes one SVM is fitted, for more
classes one SVM per class (one-versus-rest):

    min_{w, b}  ½‖w‖² + C·Σ_i c_i·max(0, 1 − y_i(⟨w, φ(z_i)⟩ + b)),    y_i = ±1,

where the weights c_i have the same sum for every class. The score is f(z) = Σ_j α_j k(v_j, z) + b
over the support vectors v_j, with k(v, z) = ⟨v, z⟩ or exp(−γ‖v − z‖²).

Reference: Cortes, Vapnik, "Support-vector networks", Machine Learning, 1995.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ..utils.array_schema import ArraySpec
from ..utils.parallel import single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number

KERNELS = ("linear", "rbf")


def svm_array_schema(features: str) -> dict[str, ArraySpec]:
    """Return the schemas of the fitted arrays of SVMs, by attribute name.

    `features` is the name of the dimension whose length is the number of features.
    """
    return {
        "support_vectors_": ArraySpec(f"vectors, {features}"),
        "dual_coefficients_": ArraySpec("scores, vectors"),
        "intercepts_": ArraySpec("scores"),
        "gamma_": ArraySpec("1", "positive numbers"),
    }


_SVM_ARRAYS = tuple(svm_array_schema(""))


@dataclass(frozen=True)
class KernelSVMState:
    """Fitted state of one or several SVMs, which share an array of support vectors.

    Attributes
    ----------
    support_vectors : (n_vectors, n_features)
    dual_coefficients : (n_svms, n_vectors), weights of the vectors; 0 if the SVM does not use them
    intercepts : (n_svms,)
    gamma : (1,), coefficient of the rbf kernel
    """

    support_vectors: NDArray[np.float64]
    dual_coefficients: NDArray[np.float64]
    intercepts: NDArray[np.float64]
    gamma: NDArray[np.float64]

    @classmethod
    def fit(
        cls,
        Z: NDArray[np.float64],
        labels: NDArray[np.int64],
        *,
        kernel: str,
        C: float,
        gamma: float | str,
        callback: Callback,
    ) -> KernelSVMState:
        """Fit one SVM for two classes, or one SVM per class for more, and return their state.

        Parameters
        ----------
        Z : (n_samples, n_features), standardised samples
        labels : (n_samples,), class indices
        kernel, C, gamma : as in `StandardizedSVM`
        callback : called with a `Progress` of the stage "train" after every SVM
        """
        n_classes = int(labels.max()) + 1
        positive_classes = [1] if n_classes == 2 else list(range(n_classes))
        gamma_value = _compute_gamma(gamma, Z)
        alphas = np.zeros((len(positive_classes), len(Z)))
        intercepts = np.zeros(len(positive_classes))
        callback(Progress("train", 0, len(positive_classes)))
        for i, positive in enumerate(positive_classes):
            svm = SVC(kernel=kernel, C=C, gamma=gamma_value, class_weight="balanced")
            svm.fit(Z, labels == positive)
            alphas[i, svm.support_] = svm.dual_coef_[0]
            intercepts[i] = svm.intercept_[0]
            callback(Progress("train", i + 1, len(positive_classes)))
        used_rows = np.flatnonzero(alphas.any(axis=0))
        return cls(
            Z[used_rows],
            np.ascontiguousarray(alphas[:, used_rows]),
            intercepts,
            np.array([gamma_value]),
        )

    @classmethod
    def from_estimator(cls, estimator: Any) -> KernelSVMState:
        """Return the state that `assign_to` stored in the attributes of an estimator."""
        return cls(*(getattr(estimator, name) for name in _SVM_ARRAYS))

    def assign_to(self, estimator: Any) -> None:
        """Store the arrays as attributes of an estimator, with "_" appended to their names."""
        arrays = (self.support_vectors, self.dual_coefficients, self.intercepts, self.gamma)
        for name, array in zip(_SVM_ARRAYS, arrays, strict=True):
            setattr(estimator, name, array)

    def scores(self, Z: NDArray[np.float64], kernel: str) -> NDArray[np.float64]:
        """Return the scores of standardised samples Z.

        They are (n_samples,) for one SVM, and (n_samples, n_svms) for several.
        """
        V = self.support_vectors
        with single_blas_thread():
            K = Z @ V.T if kernel == "linear" else np.exp(-self.gamma * cdist(Z, V, "sqeuclidean"))
            scores: NDArray[np.float64] = K @ self.dual_coefficients.T + self.intercepts
        return scores[:, 0] if scores.shape[1] == 1 else scores


class StandardizedSVM(ClassifierMixin, BaseEstimator):
    """Classifier by support vector machines on standardised features, with balanced classes.

    Parameters
    ----------
    kernel : {"linear", "rbf"}, default="rbf"
        Kernel of the SVMs.
    C : float, default=1.0
        Weight of margin violations.
    gamma : float or "scale", default="scale"
        Coefficient of the rbf kernel. "scale" is 1 / (n_features · variance), with the variance of
        all standardised values.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    mean_, scale_ : ndarray of shape (n_features,)
        Mean and standard deviation of the training samples.
    support_vectors_ : ndarray of shape (n_vectors, n_features)
        Standardised support vectors.
    dual_coefficients_, intercepts_, gamma_ : ndarray
        See `KernelSVMState`.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "mean_": ArraySpec("features"),
        "scale_": ArraySpec("features", "positive numbers"),
        **svm_array_schema("features"),
    }
    classes_: NDArray[Any]
    n_features_in_: int

    def __init__(
        self, kernel: str = "rbf", *, C: float = 1.0, gamma: float | str = "scale"
    ) -> None:
        self.kernel = kernel
        self.C = C
        self.gamma = gamma

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        check_svm_parameters(self.kernel, self.C, self.gamma)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> StandardizedSVM:
        """Fit the support vector machines.

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
        StandardizedSVM
            Fitted estimator.
        """
        self.check_parameters()
        samples, labels = validate_and_set_classes(self, X, y)
        scaler = StandardScaler().fit(samples)
        self.mean_, self.scale_ = scaler.mean_, scaler.scale_
        KernelSVMState.fit(
            self._standardize(samples),
            labels,
            kernel=self.kernel,
            C=self.C,
            gamma=self.gamma,
            callback=callback,
        ).assign_to(self)
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
            each.
        """
        check_is_fitted(self)
        samples: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, reset=False)
        return KernelSVMState.from_estimator(self).scores(self._standardize(samples), self.kernel)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class with the highest score for each sample, (n_samples,)."""
        return argmax_class(self.decision_function(X), self.classes_)

    def _standardize(self, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        return (samples - self.mean_) / self.scale_


def validate_and_set_classes(
    estimator: Any, X: ArrayLike, y: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Validate X and y, set `estimator.classes_`, and return X as float64 and class indices."""
    samples, targets = validate_data(estimator, X, y, dtype=np.float64)
    check_classification_targets(targets)
    classes, labels = np.unique(targets, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"{type(estimator).__name__} needs at least two classes, but y has only one class: "
            f"{classes.tolist()}"
        )
    estimator.classes_ = classes
    return samples, labels.astype(np.int64)


def argmax_class(scores: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[Any]:
    """Return the predicted class of each sample, (n_samples,).

    For scores (n_samples, n_classes), it is the class with the highest score. For scores
    (n_samples,) of two classes, it is the second class if the score is above 0, else the first.
    """
    indices = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
    return classes[indices]


def check_svm_parameters(kernel: str, C: float, gamma: float | str) -> None:
    """Raise ValueError if a parameter of the support vector machines is invalid."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {KERNELS}, not {kernel!r}")
    check_number("C", C, exclusive=True)
    if gamma != "scale":
        check_number("gamma (if not 'scale')", gamma, exclusive=True)


def _compute_gamma(gamma: float | str, Z: NDArray[np.float64]) -> float:
    if gamma != "scale":
        return float(gamma)
    variance = float(Z.var())
    return 1.0 / (Z.shape[1] * variance) if variance > 0 else 1.0
