"""What the methods share whose atoms are training samples themselves: nothing is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..dictionaries.atoms import normalise
from ..execution.progress import Callback, Progress, no_callback
from ..learnt_arrays import CLASSES, UNIT, ArraySpec
from ..parameters import check_whole_number
from .class_dictionaries import check_labelled, make_rng
from .residual_rule import ResidualClassifier


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
