"""Base classes of patch classifiers, with the contributions of atoms to the decision.

A `PatchClassifier` encodes a feature vector, computes its distance to each class, and predicts the
class with the smallest distance. Depending on the method, this is a residual or a negative score.

A `ResidualClassifier` has class-specific dictionaries. It codes a sample y over all of them,

    min_s  ½‖y − sD‖² + penalty·‖s‖₁,

and predicts the class i whose part δ_i(s) of the code has the smallest residual
r_i = ‖y − δ_i(s)D‖. The atoms of an `ExemplarClassifier` are training samples.

`distance_contributions` attributes a distance to atoms. Let x_i = Σ s_j d_j over the atoms of class
i, so that r_i = ‖y − x_i‖. In the cooperative game v(A) = ‖y − Σ_{j∈A} s_j d_j‖² the Shapley value
of atom j has the closed form

    q_j = s_j²‖d_j‖² − 2 s_j⟨y, d_j⟩ + Σ_{k≠j} s_j s_k⟨d_j, d_k⟩ = s_j⟨d_j, x_i − 2y⟩,

and Σ_j q_j = r_i² − ‖y‖². Since r_i − ‖y‖ = (r_i² − ‖y‖²)/(r_i + ‖y‖), the contributions
p_j = q_j/(r_i + ‖y‖) satisfy r_i = ‖y‖ + Σ_j p_j. The term ‖y‖ is the same for all classes and
cancels when distances are compared.

References: Wright, Yang, Ganesh, Sastry, Ma, "Robust face recognition via sparse representation",
IEEE TPAMI 2009 (the classifier); Shapley, "A value for n-person games", 1953.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..kernels import load_backend, row_blocks, warn_not_converged
from ..utils.array_schema import UNIT_VECTORS, ArraySpec
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.validation import check_number


@dataclass(frozen=True)
class DistanceContributions:
    """Additive contributions of atoms to the distances of samples to classes.

    distances_i = offset + rest_i + Σ_j by_class[i]_j, with the same offset for all classes.

    Attributes
    ----------
    by_class : for each class, contributions to the distance to the class, (n_samples, n_codes)
    rest : (n_samples, n_classes), part of the distances that is not attributed to atoms
    """

    by_class: list[csr_array]
    rest: NDArray[np.float64]

    @classmethod
    def from_distances(
        cls, by_class: list[csr_array], distances: NDArray[np.float64], offset: NDArray[np.float64]
    ) -> DistanceContributions:
        """Compute `rest` as distances − offset (n_samples,) − the sums of `by_class` over atoms."""
        attributed = np.stack([np.asarray(part.sum(axis=1)).ravel() for part in by_class], axis=1)
        return cls(by_class, distances - offset[:, None] - attributed)

    def margin_contributions(self, class_index: int) -> csr_array:
        """Return the contributions of the atoms to the margin of a class, (n_samples, n_codes).

        The margin is the mean distance to the other classes minus the distance to this class.
        """
        n_classes = len(self.by_class)
        total, own = sum(self.by_class[1:], start=self.by_class[0]), self.by_class[class_index]
        margin: csr_array = (total - own) / (n_classes - 1) - own
        return csr_array(margin)


def squared_residual_contributions(D: NDArray[Any], Y: NDArray[Any], S: csr_array) -> csr_array:
    """Return the Shapley value q_j of each atom of a class in the squared residuals of samples.

    The result and S, the codes over these atoms, are (n_samples, n_atoms). D are the atoms
    (n_atoms, n_features), and Y the samples (n_samples, n_features).
    """
    atoms, samples = np.asarray(D, np.float64), np.asarray(Y, np.float64)
    codes = csr_array(S, dtype=np.float64)
    slopes = (codes @ atoms - 2 * samples) @ atoms.T
    return csr_array(codes.multiply(slopes))


def scale_rows(matrix: csr_array, factors: NDArray[np.float64]) -> csr_array:
    """Return the matrix with row i multiplied by factors[i]."""
    return csr_array(matrix.multiply(factors[:, None]))


def pad_columns(matrix: csr_array, columns: NDArray[np.int64], n_columns: int) -> csr_array:
    """Place the columns of `matrix` at the indices `columns` among `n_columns`, zero elsewhere."""
    narrow = csr_array(matrix)
    arrays = narrow.data, columns[narrow.indices], narrow.indptr
    return csr_array(arrays, shape=(narrow.shape[0], n_columns))


class PatchClassifier(ClassifierMixin, BaseEstimator):
    """Base class of classifiers that encode feature vectors and compare distances to classes.

    Subclasses implement `fit(X, y, *, callback)`, `encode` and `check_parameters`.

    Attributes
    ----------
    fitted_arrays : mapping of str to ArraySpec
        Names and schemas of the fitted arrays. With the parameters, `classes_` and
        `n_features_in_` they are the complete fitted state, and are stored in a model file.
    code_dimension : str
        Length of a code as a dimension of `ArraySpec`, such as "classes*atoms".
    has_class_atoms : bool
        Whether every atom belongs to a class.
    disabled_atoms_ : tuple of int
        Indices of disabled atoms. Predictions are made without them, and their codes are 0.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_features_in_ : int
        Number of features seen during fit.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]]
    code_dimension: str
    has_class_atoms: ClassVar[bool] = False
    disabled_atoms_: tuple[int, ...] = ()
    n_jobs: int | None
    classes_: NDArray[Any]
    n_features_in_: int

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        raise NotImplementedError

    def check_features(self, n_features: int) -> None:
        """Raise ValueError if the method does not support this number of features.

        Parameters
        ----------
        n_features : int
            Number of features of a sample.
        """

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Encode samples and compute their distances to the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        codes : csr_array of shape (n_samples, n_codes_)
            Sparse codes.
        distances : ndarray of shape (n_samples, n_classes)
            Distances to the classes.
        """
        raise NotImplementedError

    def distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the distances to the classes without the codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self.encode(X)[1]

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Attribute the distance to each class to the atoms.

        Methods that cannot attribute distances to atoms return them as `rest`, up to a constant
        per sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        codes : csr_array of shape (n_samples, n_codes_)
            Codes of these samples, from `encode`.
        distances : ndarray of shape (n_samples, n_classes)
            Distances of these samples, from `encode`.

        Returns
        -------
        DistanceContributions
        """
        no_contributions = csr_array(codes.shape, dtype=np.float64)
        return DistanceContributions.from_distances(
            [no_contributions] * distances.shape[1], distances, distances.mean(axis=1)
        )

    def disable_atoms(self, atoms: Sequence[int]) -> Self:
        """Return a copy in which these atoms, and no others, are disabled.

        Parameters
        ----------
        atoms : sequence of int
            Indices of the atoms to disable; empty to enable all.

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            If an atom does not exist, a class would have no active atom, or the method has no
            atoms that can be disabled.
        """
        if not atoms:
            changed = copy(self)
            changed.disabled_atoms_ = ()
            return changed
        raise ValueError(f"{type(self).__name__} has no atoms that can be disabled")

    @property
    def n_codes_(self) -> int:
        """Length of a code."""
        raise NotImplementedError

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the atoms and their class indices; implemented if `has_class_atoms`.

        Returns
        -------
        atoms : ndarray of shape (n_atoms, n_features)
            Atoms.
        classes : ndarray of shape (n_atoms,)
            Class index of each atom.
        """
        raise NotImplementedError

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the class with the smallest distance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predicted class labels.
        """
        distances = self.distances(X)
        return self.classes_[np.argmin(distances, axis=1)]

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute decision scores from the distances.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            d_0 − d_1 for two classes (positive for the second class), −d_i for more classes, where
            d_i is the distance to class i.
        """
        distances = self.distances(X)
        if len(self.classes_) == 2:
            return distances[:, 0] - distances[:, 1]
        return -distances

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute uncalibrated probabilities, which are proportional to exp(−distance).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities; a smaller distance gives a larger probability.
        """
        distances = self.distances(X)
        closeness = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return closeness / closeness.sum(axis=1, keepdims=True)


_CODE_TOLERANCE = 1e-4  # relative duality gap of the codes

# Function of a block: codes, class residuals, and number of samples that did not converge.
BlockEncoder = Callable[[NDArray[Any]], tuple[csr_array, NDArray[np.float64], int]]


class ResidualClassifier(PatchClassifier):
    """Base class of classifiers that compare the residuals of class-specific dictionaries.

    Subclasses have the parameters `penalty`, `n_jobs` and `backend`, and fit `classes_` and
    `dictionaries_`. A subclass with different numbers of atoms per class overrides `labelled_atoms`
    instead of fitting `dictionaries_`. A subclass whose codes are not l1 codes overrides
    `_make_block_encoder`.

    Attributes
    ----------
    dictionaries_ : ndarray of shape (n_classes, n_atoms, n_features)
        Unit-norm atoms of each class.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "dictionaries_": ArraySpec("classes, atoms, features", UNIT_VECTORS)
    }
    code_dimension = "classes*atoms"
    has_class_atoms: ClassVar[bool] = True
    penalty: float
    backend: str
    dictionaries_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Only directions up to sign are compared, which does not suit blobs in a plane.
        tags.classifier_tags.poor_score = True
        return tags

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the atoms, sorted by class, and their class indices.

        Returns
        -------
        atoms : ndarray of shape (n_atoms, n_features)
            Atoms.
        classes : ndarray of shape (n_atoms,)
            Class index of each atom.
        """
        n_classes, n_atoms, n_features = self.dictionaries_.shape
        D = np.ascontiguousarray(self.dictionaries_.reshape(-1, n_features))
        return D, np.repeat(np.arange(n_classes), n_atoms)

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Encode samples over the atoms of all classes and compute the class residuals.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        codes : csr_array of shape (n_samples, n_codes_)
            Codes s over the atoms of all classes, class by class.
        residuals : ndarray of shape (n_samples, n_classes)
            Residuals, as in `class_residuals`.
        """
        codes, residuals, n_missed = zip(*self._map_blocks(X, lambda code: code), strict=True)
        warn_not_converged(sum(n_missed), sum(map(len, residuals)), _CODE_TOLERANCE)
        return self._expand_codes(vstack(codes, format="csr")), np.concatenate(residuals)

    def class_residuals(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the residual norm of each sample for each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            ‖y − δ_i(s)D‖ of each sample y for each class i, where D are the atoms, s is the code of
            y, and δ_i(s) is s with 0 for the atoms of other classes.
        """
        residuals, n_missed = zip(*self._map_blocks(X, _make_residual_function), strict=True)
        warn_not_converged(sum(n_missed), sum(map(len, residuals)), _CODE_TOLERANCE)
        return np.concatenate(residuals)

    def distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the class residuals as distances.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self.class_residuals(X)

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Attribute the residual of each class to the atoms of the class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        codes : csr_array of shape (n_samples, n_codes_)
            Codes of these samples, from `encode`.
        distances : ndarray of shape (n_samples, n_classes)
            Distances of these samples, from `encode`.

        Returns
        -------
        DistanceContributions
        """
        D, atom_classes = self.labelled_atoms()
        if len(D) != codes.shape[1]:  # several coefficients per atom
            return super().distance_contributions(X, codes, distances)
        samples = np.asarray(X, np.float64)
        by_class, norms = [], np.linalg.norm(samples, axis=1)
        for class_index in range(distances.shape[1]):
            in_class = np.flatnonzero(atom_classes == class_index)
            squares = squared_residual_contributions(D[in_class], samples, codes[:, in_class])
            scale = 1 / np.maximum(distances[:, class_index] + norms, np.finfo(np.float64).tiny)
            by_class.append(pad_columns(scale_rows(squares, scale), in_class, len(D)))
        return DistanceContributions.from_distances(by_class, distances, norms)

    def disable_atoms(self, atoms: Sequence[int]) -> Self:
        """Return a copy in which these atoms, and no others, are disabled.

        Parameters
        ----------
        atoms : sequence of int
            Indices of the atoms to disable; empty to enable all.

        Returns
        -------
        Self
        """
        D, atom_classes = self.labelled_atoms()
        chosen = sorted(set(map(int, atoms)))
        if chosen and (len(D) != self.n_codes_ or not 0 <= chosen[0] <= chosen[-1] < len(D)):
            raise ValueError(f"unknown atoms: {chosen}")
        remaining = np.delete(atom_classes, chosen)
        if len(np.unique(remaining)) < len(np.unique(atom_classes)):
            raise ValueError("each class must have at least one enabled atom")
        changed = copy(self)
        changed.disabled_atoms_ = tuple(chosen)
        return changed

    @property
    def _active_rows(self) -> NDArray[np.int64]:
        """Indices of the atoms that are not disabled."""
        return np.delete(np.arange(len(self.labelled_atoms()[0])), list(self.disabled_atoms_))

    def _active_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        D, atom_classes = self.labelled_atoms()
        if not self.disabled_atoms_:
            return D, atom_classes
        return np.ascontiguousarray(D[self._active_rows]), atom_classes[self._active_rows]

    def _expand_codes(self, S: csr_array) -> csr_array:
        """Return codes over all atoms from codes over the active atoms."""
        return pad_columns(S, self._active_rows, self.n_codes_) if self.disabled_atoms_ else S

    def _map_blocks(
        self, X: ArrayLike, make_function: Callable[[BlockEncoder], Callable[[NDArray[Any]], Any]]
    ) -> Iterator[Any]:
        """Yield the result of `make_function(encoder)(block)` for each block of X."""
        check_is_fitted(self)
        module = load_backend(self.backend)
        D, code = self._get_encoder()
        process_block = make_function(code)
        # The device checks for NaN itself, which saves one pass over the samples on the host.
        backend_checks_nan = module.CHECKS_NAN and isinstance(code, LassoEncoder)
        options = {"dtype": [np.float64, np.float32], "reset": False}
        samples = validate_data(self, X, ensure_all_finite=not backend_checks_nan, **options)

        def process_rows(rows: slice) -> Any:
            return process_block(np.ascontiguousarray(samples[rows], dtype=D.dtype))

        try:
            blocks = row_blocks(len(samples), module.BLOCK_ROWS)
            yield from map_blocks(process_rows, blocks, module.count_threads(self.n_jobs))
        except NotFiniteError:
            validate_data(self, samples, **options)  # raises a more specific error
            raise

    def _get_encoder(self) -> tuple[NDArray[Any], BlockEncoder]:
        """Return the active atoms and their encoder; cached while the fitted state is the same."""
        fitted = [np.asarray(getattr(self, name)) for name in self.fitted_arrays]
        settings = self.get_params(deep=False) | {"n_jobs": None, "disabled": self.disabled_atoms_}
        D, atom_classes = self._active_atoms()
        others = [array for array in fitted if not np.may_share_memory(array, D)]
        arrays = [D, atom_classes, *others]
        cached = _ENCODER_CACHE.get(fitted)
        if cached is None or not cached.is_valid_for(settings, arrays):
            arrays = [array.copy() for array in arrays]
            with single_blas_thread():
                code = self._make_block_encoder(*arrays[:2])
            cached = _CachedEncoder(settings, arrays, code)
            _ENCODER_CACHE.put(fitted, cached)
        return cached.arrays[0], cached.code

    @property
    def n_codes_(self) -> int:
        """Number of atoms of all classes."""
        return len(self.labelled_atoms()[0])

    def _make_block_encoder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockEncoder:
        """Return the function that encodes a block of samples; it must not reference `self`."""
        penalty = check_number("penalty", self.penalty, exclusive=True)
        return LassoEncoder(self.backend, D, atom_classes, len(self.classes_), penalty)


@dataclass(frozen=True)
class _CachedEncoder:
    """Encoder of an estimator, with copies of the settings and arrays on which it depends."""

    settings: dict[str, Any]
    arrays: list[NDArray[Any]]
    code: BlockEncoder

    def is_valid_for(self, settings: dict[str, Any], arrays: list[NDArray[Any]]) -> bool:
        return settings == self.settings and all(map(np.array_equal, arrays, self.arrays))


class _EncoderCache:
    """Cache of encoders, keyed by the fitted arrays and valid for their lifetime.

    Computing the Gram matrix of many atoms takes longer than encoding an image. The cache is not an
    attribute of an estimator, as predictions must not change it and its copies share the arrays.
    """

    def __init__(self) -> None:
        self._cached: dict[tuple[int, ...], tuple[_CachedEncoder, list[ref[NDArray[Any]]]]] = {}

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, fitted: list[NDArray[Any]]) -> _CachedEncoder | None:
        entry = self._cached.get(tuple(map(id, fitted)))
        return entry[0] if entry else None

    def put(self, fitted: list[NDArray[Any]], cached: _CachedEncoder) -> None:
        key, cache = tuple(map(id, fitted)), self._cached
        self._cached[key] = cached, [ref(array, lambda _: cache.pop(key, None)) for array in fitted]


_ENCODER_CACHE = _EncoderCache()


class NotFiniteError(ValueError):
    """Exception raised for samples that contain NaN or infinity."""


class LassoEncoder:
    """Callable that returns the lasso codes and class residuals of a block of samples."""

    def __init__(
        self,
        backend: str,
        D: NDArray[Any],
        atom_classes: NDArray[np.int64],
        n_classes: int,
        penalty: float,
    ) -> None:
        self._module = load_backend(backend)
        self._coder = self._module.LassoCoder(D, penalty, _CODE_TOLERANCE)
        self._D, self._atom_classes, self._n_classes = D, atom_classes, n_classes

    def __call__(self, Y: NDArray[Any]) -> tuple[csr_array, NDArray[np.float64], int]:
        """Return codes, class residuals, and the number of samples that did not converge."""
        on_device = self._to_device(Y)
        S, n_unfinished = self._coder.code(on_device)
        residuals = self._module.class_residuals(
            self._D, on_device, S, self._atom_classes, self._n_classes
        )
        return S, residuals, n_unfinished

    def residuals(self, Y: NDArray[Any]) -> tuple[NDArray[np.float64], int]:
        """Return the class residuals and the number of samples that did not converge."""
        residuals, n_unfinished = self._coder.residuals(
            self._to_device(Y), self._atom_classes, self._n_classes
        )
        return residuals, n_unfinished

    def _to_device(self, Y: NDArray[Any]) -> Any:
        on_device = self._module.to_device(Y, self._D.dtype)
        if self._module.CHECKS_NAN and not self._module.is_finite(on_device):
            raise NotFiniteError("samples contain NaN or infinity")
        return on_device


def _make_residual_function(
    code: BlockEncoder,
) -> Callable[[NDArray[Any]], tuple[NDArray[np.float64], int]]:
    """Return a function of a block: its class residuals and number of unconverged samples."""
    return code.residuals if isinstance(code, LassoEncoder) else lambda Y: code(Y)[1:]
