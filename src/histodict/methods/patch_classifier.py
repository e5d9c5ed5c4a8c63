"""What every method that judges patch vectors has in common: codes, and a distance to every class.

The smallest distance wins. What a distance is, a residual or the negative of a score, is the
method's own affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin

from ..learnt_arrays import ArraySpec
from .atom_parts import DistanceContributions


class PatchClassifier(ClassifierMixin, BaseEstimator):
    """A method derives from it, learns in `fit(X, y, *, callback)`, and gives `encode`.

    Attributes
    ----------
    fitted_arrays : the arrays that, with the parameters, `classes_` and `n_features_in_`, are all
        that was learnt, by name, and what they must be; a model file holds these
    code_length : length of a code, in the words of their shapes
    has_class_atoms : whether it learns atoms that belong to classes
    off_ : places of atoms that are switched off: it answers as if it had never had them, and in
        codes they are 0
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]]
    code_length: str
    has_class_atoms: ClassVar[bool] = False
    disabled_atoms_: tuple[int, ...] = ()
    n_jobs: int | None
    classes_: NDArray[Any]
    n_features_in_: int

    def check_parameters(self) -> None:
        """Refuses parameters with which it can neither learn nor answer."""
        raise NotImplementedError

    def check_features(self, n_features: int) -> None:
        """Refuses vectors of a length that it cannot take apart."""

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes (n_samples, n_codes), and distances to the classes (n_samples, n_classes)."""
        raise NotImplementedError

    def distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Distances to the classes (n_samples, n_classes), as `encode` gives them."""
        return self.encode(X)[1]

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """What each atom adds to the distances that `encode` gave with these codes.

        A method that cannot tell leaves all of it in the rest.
        """
        none = csr_array(codes.shape, dtype=np.float64)
        return DistanceContributions.of(
            [none] * distances.shape[1], distances, distances.mean(axis=1)
        )

    def disable_atoms(self, off: Sequence[int]) -> Self:
        """A copy with these atoms switched off, and no others; every class must keep one."""
        if not off:
            changed = copy(self)
            changed.disabled_atoms_ = ()
            return changed
        raise ValueError(f"{type(self).__name__} has no atoms that can be switched off")

    @property
    def n_codes_(self) -> int:
        """Length of a code."""
        raise NotImplementedError

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Where it `has_class_atoms`: these (n, n_features), and the place of each one's class."""
        raise NotImplementedError

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class at the smallest distance."""
        distances = self.distances(X)
        return self.classes_[np.argmin(distances, axis=1)]

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """For two classes d_0 − d_1, positive for the second; for more, −d_i per class."""
        distances = self.distances(X)
        if len(self.classes_) == 2:
            return distances[:, 0] - distances[:, 1]
        return -distances

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """exp(−d_i), scaled to sum to 1: in the order of the distances, but not calibrated."""
        distances = self.distances(X)
        closeness = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return closeness / closeness.sum(axis=1, keepdims=True)
