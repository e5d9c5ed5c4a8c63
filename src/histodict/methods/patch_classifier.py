"""What every method that judges patch vectors has in common: codes, and a distance to every class.

The smallest distance wins. What a distance is, a residual or the negative of a score, is the
method's own affair.

What every atom of a code has to do with the distances to the classes: parts that add up.

A residual is r_i = ‖y − x_i‖ with x_i = Σ s_j d_j over the atoms of class i. Its square is
quadratic in the atoms, and splits evenly: in the game v(A) = ‖y − Σ_{j∈A} s_j d_j‖² the value by
Shapley of atom j has the closed form

    q_j = s_j²‖d_j‖² − 2 s_j⟨y, d_j⟩ + Σ_{k≠j} s_j s_k⟨d_j, d_k⟩ = s_j⟨d_j, x_i − 2y⟩,

and Σ_j q_j = r_i² − ‖y‖². From squares to what is compared, r_i − ‖y‖ = (r_i² − ‖y‖²)/(r_i + ‖y‖),
so p_j = q_j/(r_i + ‖y‖) and r_i = ‖y‖ + Σ_j p_j. ‖y‖ is the same for all classes: where distances
are compared it cancels, and nothing is left over.

Reference: Shapley, "A value for n-person games", 1953.

The classifier that class-specific dictionaries share: the class that leaves the least wins.

A sample is coded over all dictionaries at once, min_s ½‖y − sD‖² + penalty·‖s‖₁, and gets the class
whose share δ_i(s) of the code leaves the smallest residual r_i = ‖y − δ_i(s)D‖.

Reference: Wright, Yang, Ganesh, Sastry, Ma, "Robust face recognition via sparse representation",
IEEE TPAMI 2009.

What the methods share whose atoms are training samples themselves: nothing is learnt.
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

from ..dictionaries.atoms import normalise
from ..kernels import load_backend, row_blocks, warn_not_converged
from ..utils.array_schema import CLASSES, UNIT, ArraySpec
from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import check_labelled, make_rng


@dataclass(frozen=True)
class DistanceContributions:
    """distances_i = a number that is the same for all classes + rest_i + Σ_j by_class[i]_j.

    by_class : per class (n_samples, n_codes), what each atom adds to the distance
    rest : (n_samples, n_classes), what belongs to no atom
    """

    by_class: list[csr_array]
    rest: NDArray[np.float64]

    @classmethod
    def of(
        cls, by_class: list[csr_array], distances: NDArray[np.float64], base: NDArray[np.float64]
    ) -> DistanceContributions:
        """With what is left of the distances beyond the parts and `base` (n_samples,)."""
        told = np.stack([np.asarray(part.sum(axis=1)).ravel() for part in by_class], axis=1)
        return cls(by_class, distances - base[:, None] - told)

    def of_margin(self, place: int) -> csr_array:
        """Parts of a class's margin: mean distance of the others less its own, (n, n_codes)."""
        n_classes = len(self.by_class)
        total = sum(self.by_class[1:], start=self.by_class[0])
        found: csr_array = (total - self.by_class[place]) / (n_classes - 1) - self.by_class[place]
        return csr_array(found)


def squared_residual_contributions(D: NDArray[Any], Y: NDArray[Any], S: csr_array) -> csr_array:
    """q_j of the atoms D of one class, from codes S over these: (n_samples, n_atoms)."""
    atoms, samples = np.asarray(D, np.float64), np.asarray(Y, np.float64)
    codes = csr_array(S, dtype=np.float64)
    slopes = (codes @ atoms - 2 * samples) @ atoms.T
    return csr_array(codes.multiply(slopes))


def scaled_rows(parts: csr_array, scale: NDArray[np.float64]) -> csr_array:
    """Every row times a number."""
    return csr_array(parts.multiply(scale[:, None]))


def pad_columns(parts: csr_array, columns: NDArray[np.int64], n_columns: int) -> csr_array:
    """The same columns at other places of a wider matrix of zeros."""
    narrow = csr_array(parts)
    wide = narrow.data, columns[narrow.indices], narrow.indptr
    return csr_array(wide, shape=(narrow.shape[0], n_columns))


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


_CODE_TOLERANCE = 1e-4  # relative duality gap of the codes

# Of a block of samples: codes, residuals, and how many samples missed the tolerance.
BlockEncoder = Callable[[NDArray[Any]], tuple[csr_array, NDArray[np.float64], int]]


class ResidualClassifier(PatchClassifier):
    """Answers from `classes_` and `dictionaries_` (n_classes, n_atoms, n_features).

    A method derives from it and learns these two; `penalty`, `n_jobs` and `backend` are its
    parameters. One with other numbers of atoms per class gives its own `labelled_atoms` instead of
    `dictionaries_`; one with other codes than l1 its own `_open_coder`.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "dictionaries_": ArraySpec("classes, atoms, features", UNIT)
    }
    code_length = "classes*atoms"
    has_class_atoms: ClassVar[bool] = True
    penalty: float
    backend: str
    dictionaries_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Directions are compared, up to sign: three blobs in a plane are not its kind of data.
        tags.classifier_tags.poor_score = True
        return tags

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The atoms of all classes in turn (n, n_features), and the place of each one's class."""
        n_classes, n_atoms, n_features = self.dictionaries_.shape
        D = np.ascontiguousarray(self.dictionaries_.reshape(-1, n_features))
        return D, np.repeat(np.arange(n_classes), n_atoms)

    def encode(self, X: ArrayLike) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes s over the atoms of all classes in turn, and the residual r_i of every class.

        (n_samples, n_codes_) and (n_samples, n_classes).
        """
        codes, residuals, missed = zip(*self._work(X, lambda code: code), strict=True)
        warn_not_converged(sum(missed), sum(map(len, residuals)), _CODE_TOLERANCE)
        return self._over_all(vstack(codes, format="csr")), np.concatenate(residuals)

    def class_residuals(self, X: ArrayLike) -> NDArray[np.float64]:
        """r_i = ‖y − δ_i(s)D‖ for every sample and class: (n_samples, n_classes)."""
        residuals, missed = zip(*self._work(X, _residuals_only), strict=True)
        warn_not_converged(sum(missed), sum(map(len, residuals)), _CODE_TOLERANCE)
        return np.concatenate(residuals)

    def distances(self, X: ArrayLike) -> NDArray[np.float64]:
        return self.class_residuals(X)

    # --- atoms one by one -----------------------------------------------------------------------

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Each class's residual in parts of its own atoms; see `atom_parts`."""
        D, atom_classes = self.labelled_atoms()
        if len(D) != codes.shape[1]:  # several coefficients per atom
            return super().distance_contributions(X, codes, distances)
        samples = np.asarray(X, np.float64)
        by_class, norms = [], np.linalg.norm(samples, axis=1)
        for place in range(distances.shape[1]):
            own = np.flatnonzero(atom_classes == place)
            squares = squared_residual_contributions(D[own], samples, codes[:, own])
            scale = 1 / np.maximum(distances[:, place] + norms, np.finfo(np.float64).tiny)
            by_class.append(pad_columns(scaled_rows(squares, scale), own, len(D)))
        return DistanceContributions.of(by_class, distances, norms)

    def disable_atoms(self, off: Sequence[int]) -> Self:
        D, atom_classes = self.labelled_atoms()
        chosen = sorted(set(map(int, off)))
        if chosen and (len(D) != self.n_codes_ or not 0 <= chosen[0] <= chosen[-1] < len(D)):
            raise ValueError(f"there are no such atoms that can be switched off: {chosen}")
        left = np.delete(atom_classes, chosen)
        if len(np.unique(left)) < len(np.unique(atom_classes)):
            raise ValueError("every class must keep an atom that is not switched off")
        changed = copy(self)
        changed.disabled_atoms_ = tuple(chosen)
        return changed

    @property
    def _is_active(self) -> NDArray[np.int64]:
        """Places of the atoms that are not switched off."""
        return np.delete(np.arange(len(self.labelled_atoms()[0])), list(self.disabled_atoms_))

    def _active_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        D, atom_classes = self.labelled_atoms()
        if not self.disabled_atoms_:
            return D, atom_classes
        return np.ascontiguousarray(D[self._is_active]), atom_classes[self._is_active]

    def _over_all(self, codes: csr_array) -> csr_array:
        """Codes over the atoms in use as such over all atoms."""
        return pad_columns(codes, self._is_active, self.n_codes_) if self.disabled_atoms_ else codes

    def _work(
        self, X: ArrayLike, choose: Callable[[BlockEncoder], Callable[[NDArray[Any]], Any]]
    ) -> Iterator[Any]:
        """What the chosen part of the coder gives for every block of X."""
        check_is_fitted(self)
        module = load_backend(self.backend)
        D, code = self._opened()
        work = choose(code)
        # One pass over the samples less on the host, where the device looks for NaN.
        finds_nan = module.FINDS_NAN and isinstance(code, LassoEncoder)
        options = {"dtype": [np.float64, np.float32], "reset": False}
        samples = validate_data(self, X, ensure_all_finite=not finds_nan, **options)

        def work_on(rows: slice) -> Any:
            return work(np.ascontiguousarray(samples[rows], dtype=D.dtype))

        try:
            blocks = row_blocks(len(samples), module.BLOCK_ROWS)
            yield from map_blocks(work_on, blocks, module.count_threads(self.n_jobs))
        except NotFiniteError:
            validate_data(self, samples, **options)  # says what is wrong with them
            raise

    def _opened(self) -> tuple[NDArray[Any], BlockEncoder]:
        """The atoms in use, and what codes by them: the same as last time, if nothing changed."""
        learnt = [np.asarray(getattr(self, name)) for name in self.fitted_arrays]
        settings = self.get_params(deep=False) | {"n_jobs": None, "off": self.disabled_atoms_}
        D, atom_classes = self._active_atoms()
        others = [array for array in learnt if not np.may_share_memory(array, D)]
        made_of = [D, atom_classes, *others]
        opened = _OPENED.get(learnt)
        if opened is None or not opened.is_of(settings, made_of):
            made_of = [array.copy() for array in made_of]
            with single_blas_thread():
                code = self._open_coder(*made_of[:2])
            opened = _Opened(settings, made_of, code)
            _OPENED.put(learnt, opened)
        return opened.source[0], opened.code

    @property
    def n_codes_(self) -> int:
        """Atoms of all classes."""
        return len(self.labelled_atoms()[0])

    def _open_coder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockEncoder:
        """What codes a block, here by the l1 problem; it is kept, and must not hold `self`."""
        penalty = check_number("penalty", self.penalty, above=True)
        return LassoEncoder(self.backend, D, atom_classes, len(self.classes_), penalty)


@dataclass(frozen=True)
class _Opened:
    """What an estimator codes by, with the settings and copies of the arrays that it is made of."""

    settings: dict[str, Any]
    source: list[NDArray[Any]]
    code: BlockEncoder

    def is_of(self, settings: dict[str, Any], made_of: list[NDArray[Any]]) -> bool:
        return settings == self.settings and all(map(np.array_equal, made_of, self.source))


class _KeptOpen:
    """What is coded by, beside the arrays that were learnt, for as long as these are there.

    Images are answered one by one, and the products of many atoms with each other take longer than
    the codes of an image. An estimator does not hold it, as answering must not change one; its
    copies have the same arrays.
    """

    def __init__(self) -> None:
        self._cached: dict[tuple[int, ...], tuple[_Opened, list[ref[NDArray[Any]]]]] = {}

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, learnt: list[NDArray[Any]]) -> _Opened | None:
        found = self._cached.get(tuple(map(id, learnt)))
        return found[0] if found else None

    def put(self, learnt: list[NDArray[Any]], opened: _Opened) -> None:
        key, kept = tuple(map(id, learnt)), self._cached
        self._cached[key] = opened, [ref(array, lambda _: kept.pop(key, None)) for array in learnt]


_OPENED = _KeptOpen()


class NotFiniteError(ValueError):
    """Samples that hold NaN or infinity."""


class LassoEncoder:
    """Codes blocks over all atoms by the l1 problem; gives residuals with or without the codes."""

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
        placed = self._to_device(Y)
        S, n_unfinished = self._coder.code(placed)
        left = self._module.class_residuals(self._D, placed, S, self._atom_classes, self._n_classes)
        return S, left, n_unfinished

    def residuals(self, Y: NDArray[Any]) -> tuple[NDArray[np.float64], int]:
        left, n_unfinished = self._coder.residuals(
            self._to_device(Y), self._atom_classes, self._n_classes
        )
        return left, n_unfinished

    def _to_device(self, Y: NDArray[Any]) -> Any:
        placed = self._module.to_device(Y, self._D.dtype)
        if self._module.FINDS_NAN and not self._module.is_finite(placed):
            raise NotFiniteError("samples contain NaN or infinity")
        return placed


def _residuals_only(
    code: BlockEncoder,
) -> Callable[[NDArray[Any]], tuple[NDArray[np.float64], int]]:
    """Residuals and misses of a block."""
    return code.residuals if isinstance(code, LassoEncoder) else lambda Y: code(Y)[1:]


class ExemplarClassifier(ResidualClassifier):
    """Atoms are training samples of unit norm, at most `n_atoms` of a class; None keeps all.

    A method derives from it with the parameters `n_atoms` and `random_state`, and extends
    `check_parameters`.

    Attributes
    ----------
    classes_ : (n_classes,)
    atoms_ : (n, n_features), unit-norm training samples, class by class; a zero sample stays zero
    atom_classes_ : (n,), the place of each atom's class in `classes_`
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "atoms_": ArraySpec("atoms, features", UNIT),
        "atom_classes_": ArraySpec("atoms", CLASSES),
    }
    code_length = "atoms"
    n_atoms: int | None
    random_state: Any
    atoms_: NDArray[Any]
    atom_classes_: NDArray[np.int64]

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> Self:
        """Keep samples X (n_samples, n_features) as atoms of the classes in their labels.

        X may be a memory map: only the kept samples are copied. `callback` gets a `Progress` of the
        stage "train" after every class.
        """
        samples, classes, labels = check_labelled(self, X, y)
        self.check_parameters()
        self.check_features(samples.shape[1])
        rng = make_rng(self.random_state)
        kept = []
        callback(Progress("train", 0, len(classes)))
        for i in range(len(classes)):
            rows = self._choose(np.flatnonzero(labels == i), rng)
            kept.append(normalise(np.ascontiguousarray(samples[rows])))
            callback(Progress("train", i + 1, len(classes)))
        self.classes_ = classes
        self.atoms_ = np.concatenate(kept)
        self.atom_classes_ = np.repeat(np.arange(len(classes)), [len(atoms) for atoms in kept])
        return self

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The atoms of all classes in turn (n, n_features), and the place of each one's class."""
        return self.atoms_, self.atom_classes_

    def check_parameters(self) -> None:
        if self.n_atoms is not None:
            check_whole_number("n_atoms (if not None)", self.n_atoms, 1)

    def _choose(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """n_atoms of the rows at random, in their order; all, if there are not more."""
        if self.n_atoms is None or len(rows) <= self.n_atoms:
            return rows
        return np.sort(rng.choice(rows, self.n_atoms, replace=False))
