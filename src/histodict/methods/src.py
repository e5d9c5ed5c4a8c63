"""Sparse representation-based classification (SRC).

The atoms are training samples. A sample is represented by a few atoms,

    min_s  ½‖y − sD‖² + λ‖s‖₁      rows of D: training samples of all classes, of unit norm

and SRC predicts the class i whose part δ_i(s) of the code has the smallest residual ‖y − δ_i(s)D‖.
The sample is scaled to unit norm first, so that λ has the same meaning for all samples.

Reference: Wright, Yang, Ganesh, Sastry, Ma, "Robust face recognition via sparse representation",
IEEE Transactions on Pattern Analysis and Machine Intelligence, 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from ..dictionaries.atoms import normalize
from ..utils.array_schema import CLASS_INDICES, UNIT_VECTORS, ArraySpec
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_number, check_whole_number
from .class_dictionaries import make_rng, validate_labelled_data
from .patch_classifier import BlockEncoder, DistanceContributions, ResidualClassifier


class ExemplarClassifier(ResidualClassifier):
    """Base class of classifiers whose atoms are training samples of unit norm.

    Subclasses have the parameters `n_atoms` (maximum per class; None for all samples) and
    `random_state`, and extend `check_parameters`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    atoms_ : ndarray of shape (n_atoms_total, n_features)
        Training samples of unit norm, class by class. A zero sample stays zero.
    atom_classes_ : ndarray of shape (n_atoms_total,)
        Class index of each atom.
    """

    fitted_arrays: ClassVar[Mapping[str, ArraySpec]] = {
        "atoms_": ArraySpec("atoms, features", UNIT_VECTORS),
        "atom_classes_": ArraySpec("atoms", CLASS_INDICES),
    }
    code_dimension = "atoms"
    n_atoms: int | None
    random_state: Any
    atoms_: NDArray[Any]
    atom_classes_: NDArray[np.int64]

    def fit(self, X: ArrayLike, y: ArrayLike, *, callback: Callback = no_callback) -> Self:
        """Store training samples as atoms.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples. With a memory map only the selected samples are copied.
        y : array-like of shape (n_samples,)
            Class labels.
        callback : callable, optional
            Called with a `Progress` of the stage "train" after every class.

        Returns
        -------
        Self
            Fitted estimator.
        """
        samples, classes, labels = validate_labelled_data(self, X, y)
        self.check_parameters()
        self.check_features(samples.shape[1])
        rng = make_rng(self.random_state)
        atoms_by_class = []
        callback(Progress("train", 0, len(classes)))
        for i in range(len(classes)):
            rows = self._sample_rows(np.flatnonzero(labels == i), rng)
            atoms_by_class.append(normalize(np.ascontiguousarray(samples[rows])))
            callback(Progress("train", i + 1, len(classes)))
        self.classes_ = classes
        self.atoms_ = np.concatenate(atoms_by_class)
        self.atom_classes_ = np.repeat(
            np.arange(len(classes)), [len(atoms) for atoms in atoms_by_class]
        )
        return self

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the atoms, class by class, and their class indices.

        Returns
        -------
        atoms : ndarray of shape (n_atoms, n_features)
            Atoms.
        classes : ndarray of shape (n_atoms,)
            Class index of each atom.
        """
        return self.atoms_, self.atom_classes_

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        if self.n_atoms is not None:
            check_whole_number("n_atoms (if not None)", self.n_atoms, 1)

    def _sample_rows(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Return at most `n_atoms` random elements of `rows`, sorted; all if `n_atoms` is None."""
        if self.n_atoms is None or len(rows) <= self.n_atoms:
            return rows
        return np.sort(rng.choice(rows, self.n_atoms, replace=False))


class SRC(ExemplarClassifier):
    """Classifier by sparse representation of a sample by training samples.

    Parameters
    ----------
    n_atoms : int or None, default=1000
        Maximum number of training samples per class to keep, chosen at random. None keeps all.
        The Gram matrix of all n atoms is held in memory: 4·n² bytes in single precision, and as
        much again during its computation, that is 16 MB for two classes of 1000 and 1.6 GB for two
        classes of 10,000. The time per sample grows with n too.
    penalty : float, default=0.1
        l1 penalty of the codes (λ), for samples and atoms of unit norm.
    random_state : int, RandomState instance or None, default=None
        Seed of the choice of training samples.
    n_jobs : int or None, default=None
        Number of threads. None uses all cores.
    backend : {"cpu", "cuda"}, default="cpu"
        Device that processes the samples; "cuda" is an NVIDIA GPU.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    atoms_ : ndarray of shape (n_atoms_total, n_features)
        Training samples of unit norm, class by class. A zero sample stays zero.
    atom_classes_ : ndarray of shape (n_atoms_total,)
        Class index of each atom.
    n_features_in_ : int
        Number of features seen during fit.
    """

    def __init__(
        self,
        n_atoms: int | None = 1000,
        *,
        penalty: float = 0.1,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.penalty = penalty
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        super().check_parameters()
        check_number("penalty", self.penalty, exclusive=True)

    def _make_block_encoder(self, D: NDArray[Any], atom_classes: NDArray[Any]) -> BlockEncoder:
        """Return the function that encodes a block of samples, scaled to unit norm."""
        encode = super()._make_block_encoder(D, atom_classes)
        return lambda Y: encode(normalize(Y))

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Attribute the residual of each class to its atoms, for samples scaled to unit norm.

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
        return super().distance_contributions(normalize(np.asarray(X)), codes, distances)
