"""Simple baseline classifiers of patch vectors.

They are accurate on feature vectors of trained encoders, and serve as a reference for dictionary
methods.

| class | distance of a patch to a class |
|---|---|
| NearestMeanClassifier | squared distance to the class mean of centred unit vectors (SimpleShot) |
| LogisticPatchClassifier | −log of the class probability by multinomial logistic regression |
| NearestPatchClassifier | 1 − fraction of the class among the k patches with the largest cosine |

The code of a patch consists of its negative distances, for aggregators that need codes.

References: Wang, Chao, Weinberger, van der Maaten, "SimpleShot: revisiting nearest-neighbor
classification for few-shot learning", 2019; Hastie, Tibshirani, Friedman, "The elements of
statistical learning", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from ..dictionaries.atoms import normalize
from ..kernels import row_blocks
from ..utils.array_schema import CLASS_INDICES, UNIT_VECTORS, ArraySpec
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import make_rng, validate_labelled_data
from .patch_classifier import PatchClassifier


class _DistanceClassifier(PatchClassifier):
    """Base class of classifiers whose codes are the negative distances; see `_distances`."""

    code_dimension = "classes"

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Return the negative distances as codes and the distances, both (n_samples, n_classes)."""
        check_is_fitted(self)
        samples: NDArray[Any] = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        parts = map_blocks(
            lambda rows: self._distances(samples[rows]), row_blocks(len(samples)), self.n_jobs
        )
        distances = np.concatenate(list(parts))
        return csr_array(-distances), distances

    @property
    def n_codes_(self) -> int:
        """Length of a code: the number of classes."""
        return len(self.classes_)

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the distances of the samples Y to the classes, (n_samples, n_classes)."""
        raise NotImplementedError


class NearestMeanClassifier(_DistanceClassifier):
    """Classifier by the nearest class mean of centred unit vectors.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    centre_ : ndarray of shape (n_features,)
        Mean of the training samples.
    means_ : ndarray of shape (n_classes, n_features)
        Class means of the samples, which are centred and scaled to unit norm first.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "centre_": ArraySpec("features"),
        "means_": ArraySpec("classes, features"),
    }
    centre_: NDArray[Any]
    means_: NDArray[Any]

    def __init__(self, *, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # compares directions, not positions
        return tags

    def check_parameters(self) -> None:
        """Do nothing, as the classifier has no parameter that can be invalid."""

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> NearestMeanClassifier:
        """Compute the class means.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` of the stage "train" at the start and at the end.

        Returns
        -------
        NearestMeanClassifier
            Fitted estimator.
        """
        samples, self.classes_, labels = validate_labelled_data(self, X, y)
        callback(Progress("train", 0, 1))
        self.centre_ = samples.mean(axis=0)
        unit = normalize(samples - self.centre_)
        self.means_ = np.stack([unit[labels == i].mean(axis=0) for i in range(len(self.classes_))])
        callback(Progress("train", 1, 1))
        return self

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        unit = normalize(Y - self.centre_)
        return np.stack([((unit - m) ** 2).sum(axis=1) for m in self.means_], axis=1).astype(
            np.float64
        )


class LogisticPatchClassifier(_DistanceClassifier):
    """Logistic regression on patch vectors with balanced class weights.

    Parameters
    ----------
    C : float, default=1.0
        Inverse strength of the l2 penalty, as in scikit-learn.
    standardize : bool, default=False
        Whether to standardise the features first.
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    weights_ : ndarray of shape (n_classes, n_features)
        Coefficients of each class.
    bias_ : ndarray of shape (n_classes,)
        Intercept of each class.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "weights_": ArraySpec("classes, features"),
        "bias_": ArraySpec("classes"),
    }
    weights_: NDArray[Any]
    bias_: NDArray[Any]

    def __init__(
        self, C: float = 1.0, *, standardize: bool = False, n_jobs: int | None = None
    ) -> None:
        self.C = C
        self.standardize = standardize
        self.n_jobs = n_jobs

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        check_number("C", self.C, exclusive=True)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> LogisticPatchClassifier:
        """Fit the logistic regression.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` of the stage "train" at the start and at the end.

        Returns
        -------
        LogisticPatchClassifier
            Fitted estimator.
        """
        self.check_parameters()
        samples, self.classes_, labels = validate_labelled_data(self, X, y)
        callback(Progress("train", 0, 1))
        scaler = StandardScaler() if self.standardize else None
        with single_blas_thread():
            model = LogisticRegression(C=self.C, class_weight="balanced", max_iter=2000)
            model.fit(scaler.fit_transform(samples) if scaler else samples, labels)
        weights, bias = model.coef_, model.intercept_
        if scaler:
            weights = weights / scaler.scale_
            bias = bias - weights @ scaler.mean_
        if len(self.classes_) == 2:  # the one row is the difference of the two classes
            weights = np.concatenate([-weights / 2, weights / 2])
            bias = np.concatenate([-bias / 2, bias / 2])
        self.weights_, self.bias_ = weights.astype(samples.dtype), bias.astype(samples.dtype)
        callback(Progress("train", 1, 1))
        return self

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        values = (Y @ self.weights_.T + self.bias_).astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        return np.log(np.exp(values).sum(axis=1, keepdims=True)) - values


class NearestPatchClassifier(_DistanceClassifier):
    """Nearest-neighbour classifier of patch vectors by cosine.

    Parameters
    ----------
    n_neighbors : int, default=15
        Number of neighbours that vote.
    max_patches : int, default=5000
        Maximum number of training patches per class to keep, chosen at random.
    random_state : int, RandomState instance or None, default=None
        Seed of the choice of training patches.
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    patches_ : ndarray of shape (n_patches, n_features)
        Training patches of unit norm.
    labels_ : ndarray of shape (n_patches,)
        Class index of each training patch.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "patches_": ArraySpec("patches, features", UNIT_VECTORS),
        "labels_": ArraySpec("patches", CLASS_INDICES),
    }
    patches_: NDArray[Any]
    labels_: NDArray[np.int64]

    def __init__(
        self,
        n_neighbors: int = 15,
        *,
        max_patches: int = 5000,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.max_patches = max_patches
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # compares directions, not positions
        return tags

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        check_whole_number("n_neighbors", self.n_neighbors, 1)
        check_whole_number("max_patches", self.max_patches, 1)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> NearestPatchClassifier:
        """Store training patches.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` of the stage "train" at the start and at the end.

        Returns
        -------
        NearestPatchClassifier
            Fitted estimator.
        """
        self.check_parameters()
        samples, self.classes_, labels = validate_labelled_data(self, X, y)
        callback(Progress("train", 0, 1))
        rng = make_rng(self.random_state)
        chosen = [
            rng.permutation(np.flatnonzero(labels == i))[: self.max_patches]
            for i in range(len(self.classes_))
        ]
        selected = np.concatenate(chosen)
        self.patches_, self.labels_ = normalize(samples[selected]), labels[selected]
        callback(Progress("train", 1, 1))
        return self

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        k = min(self.n_neighbors, len(self.patches_))
        cosines = normalize(Y) @ self.patches_.T
        nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        votes = self.labels_[nearest][:, :, None] == np.arange(len(self.classes_))
        return 1 - votes.mean(axis=1)
