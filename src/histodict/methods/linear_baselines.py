"""Simple heads over patch vectors, to hold a dictionary against: strong on learned vectors.

| class | distance of a patch to a class |
|---|---|
| NearestMeanClassifier | squared, to the mean of the class's unit vectors, centred (SimpleShot) |
| LogisticPatchClassifier | −log of the probability by multinomial logistic regression |
| NearestPatchClassifier | 1 − the class's share among the k training patches of nearest direction |

Their code of a patch is the distances' negatives, so that pooled codes mean something too.

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

from ..dictionaries.atoms import normalise
from ..kernels import row_blocks
from ..utils.array_schema import CLASSES, UNIT, ArraySpec
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import check_labelled, make_rng
from .patch_classifier import PatchClassifier


class _Head(PatchClassifier):
    """Distances block by block; a head says how, in `_distances`."""

    code_length = "classes"

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """The negative distances as codes, and the distances: (n_samples, n_classes) both."""
        check_is_fitted(self)
        samples: NDArray[Any] = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        parts = map_blocks(
            lambda rows: self._distances(samples[rows]), row_blocks(len(samples)), self.n_jobs
        )
        distances = np.concatenate(list(parts))
        return csr_array(-distances), distances

    @property
    def n_codes_(self) -> int:
        return len(self.classes_)

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        raise NotImplementedError


class NearestMeanClassifier(_Head):
    """The class whose mean direction is nearest.

    Parameters
    ----------
    n_jobs : threads; None for all cores
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
        tags.classifier_tags.poor_score = True  # directions are compared, not places
        return tags

    def check_parameters(self) -> None:
        """There are none that could be wrong."""

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> NearestMeanClassifier:
        samples, self.classes_, labels = check_labelled(self, X, y)
        callback(Progress("train", 0, 1))
        self.centre_ = samples.mean(axis=0)
        unit = normalise(samples - self.centre_)
        self.means_ = np.stack([unit[labels == i].mean(axis=0) for i in range(len(self.classes_))])
        callback(Progress("train", 1, 1))
        return self

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        unit = normalise(Y - self.centre_)
        return np.stack([((unit - m) ** 2).sum(axis=1) for m in self.means_], axis=1).astype(
            np.float64
        )


class LogisticPatchClassifier(_Head):
    """Logistic regression on patch vectors, classes weighted equally.

    Parameters
    ----------
    C : inverse strength of the ridge, as in scikit-learn
    standardise : bring every feature to mean 0 and deviation 1 first
    n_jobs : threads; None for all cores
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "weights_": ArraySpec("classes, features"),
        "bias_": ArraySpec("classes"),
    }
    weights_: NDArray[Any]
    bias_: NDArray[Any]

    def __init__(
        self, C: float = 1.0, *, standardise: bool = False, n_jobs: int | None = None
    ) -> None:
        self.C = C
        self.standardise = standardise
        self.n_jobs = n_jobs

    def check_parameters(self) -> None:
        check_number("C", self.C, above=True)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> LogisticPatchClassifier:
        self.check_parameters()
        samples, self.classes_, labels = check_labelled(self, X, y)
        callback(Progress("train", 0, 1))
        scaler = StandardScaler() if self.standardise else None
        with single_blas_thread():
            model = LogisticRegression(C=self.C, class_weight="balanced", max_iter=2000)
            model.fit(scaler.fit_transform(samples) if scaler else samples, labels)
        weights, bias = model.coef_, model.intercept_
        if scaler:
            weights = weights / scaler.scale_
            bias = bias - weights @ scaler.mean_
        if len(self.classes_) == 2:  # one row stands for the difference of two
            weights = np.concatenate([-weights / 2, weights / 2])
            bias = np.concatenate([-bias / 2, bias / 2])
        self.weights_, self.bias_ = weights.astype(samples.dtype), bias.astype(samples.dtype)
        callback(Progress("train", 1, 1))
        return self

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        values = (Y @ self.weights_.T + self.bias_).astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        return np.log(np.exp(values).sum(axis=1, keepdims=True)) - values


class NearestPatchClassifier(_Head):
    """Votes of the training patches whose direction is nearest.

    Parameters
    ----------
    n_neighbours : how many vote
    max_patches : training patches kept per class, at most
    random_state : seed of that choice
    n_jobs : threads; None for all cores
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "patches_": ArraySpec("patches, features", UNIT),
        "labels_": ArraySpec("patches", CLASSES),
    }
    patches_: NDArray[Any]
    labels_: NDArray[np.int64]

    def __init__(
        self,
        n_neighbours: int = 15,
        *,
        max_patches: int = 5000,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbours = n_neighbours
        self.max_patches = max_patches
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # directions are compared, not places
        return tags

    def check_parameters(self) -> None:
        check_whole_number("n_neighbours", self.n_neighbours, 1)
        check_whole_number("max_patches", self.max_patches, 1)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback
    ) -> NearestPatchClassifier:
        self.check_parameters()
        samples, self.classes_, labels = check_labelled(self, X, y)
        callback(Progress("train", 0, 1))
        rng = make_rng(self.random_state)
        chosen = [
            rng.permutation(np.flatnonzero(labels == i))[: self.max_patches]
            for i in range(len(self.classes_))
        ]
        kept = np.concatenate(chosen)
        self.patches_, self.labels_ = normalise(samples[kept]), labels[kept]
        callback(Progress("train", 1, 1))
        return self

    def _distances(self, Y: NDArray[Any]) -> NDArray[np.float64]:
        k = min(self.n_neighbours, len(self.patches_))
        cosines = normalise(Y) @ self.patches_.T
        nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        votes = self.labels_[nearest][:, :, None] == np.arange(len(self.classes_))
        return 1 - votes.mean(axis=1)
