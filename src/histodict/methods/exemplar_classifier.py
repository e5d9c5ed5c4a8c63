"""Base class of classifiers whose atoms are training samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..dictionaries.atoms import normalize
from ..utils.array_schema import CLASSES, UNIT, ArraySpec
from ..utils.progress import Callback, Progress, no_callback
from ..utils.validation import check_whole_number
from .class_dictionaries import check_labelled, make_rng
from .patch_classifier import ResidualClassifier


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
        "atoms_": ArraySpec("atoms, features", UNIT),
        "atom_classes_": ArraySpec("atoms", CLASSES),
    }
    code_length = "atoms"
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
        samples, classes, labels = check_labelled(self, X, y)
        self.check_parameters()
        self.check_features(samples.shape[1])
        rng = make_rng(self.random_state)
        atoms_by_class = []
        callback(Progress("train", 0, len(classes)))
        for i in range(len(classes)):
            rows = self._choose(np.flatnonzero(labels == i), rng)
            atoms_by_class.append(normalize(np.ascontiguousarray(samples[rows])))
            callback(Progress("train", i + 1, len(classes)))
        self.classes_ = classes
        self.atoms_ = np.concatenate(atoms_by_class)
        self.atom_classes_ = np.repeat(
            np.arange(len(classes)), [len(atoms) for atoms in atoms_by_class]
        )
        return self

    def labelled_atoms(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the atoms, class by class, and their classes.

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

    def _choose(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw n_atoms of the rows at random, in ascending order; all if there are not more."""
        if self.n_atoms is None or len(rows) <= self.n_atoms:
            return rows
        return np.sort(rng.choice(rows, self.n_atoms, replace=False))
