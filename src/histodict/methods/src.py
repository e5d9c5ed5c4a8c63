"""Sparse representation-based classification (SRC).

The training samples are the atoms. A sample is written with few of them,

    min_s  ½‖y − sD‖² + λ‖s‖₁      rows of D: training samples of all classes, of unit norm

and gets the class whose atoms, with their share of s, leave the smallest residual ‖y − δ_i(s)D‖.
The sample is scaled to unit norm first, so that λ means the same for all.

Reference: Wright, Yang, Ganesh, Sastry, Ma, "Robust face recognition via sparse representation",
IEEE Transactions on Pattern Analysis and Machine Intelligence, 2009.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from ..dictionaries.atoms import normalise
from ..utils.validation import check_number
from .patch_classifier import BlockEncoder, DistanceContributions, ExemplarClassifier


class SRC(ExemplarClassifier):
    """Samples written with few training samples; the class that leaves the least wins.

    Parameters
    ----------
    n_atoms : most training samples of a class that are kept, chosen at random; None keeps all. The
        products of all pairs are held in memory, for n atoms in all 4·n² bytes in single precision
        (and as much again while they are made): 16 MB for two classes of 1000, 1.6 GB for two of
        10,000. Time per sample grows with n too.
    penalty : l1 penalty of the codes (λ), for samples and atoms of unit norm
    random_state : seed of the choice
    n_jobs : threads; None for all cores
    backend : arithmetic inside a block of samples, "cpu"

    Attributes
    ----------
    classes_ : (n_classes,)
    atoms_ : (n, n_features), unit-norm training samples, class by class; a zero sample stays zero
    atom_classes_ : (n,), the place of each atom's class in `classes_`
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
        super().check_parameters()
        check_number("penalty", self.penalty, above=True)

    def _open_coder(self, D: NDArray[Any], atom_classes: NDArray[Any]) -> BlockEncoder:
        """Codes and residuals of a block's samples, scaled to unit norm."""
        code = super()._open_coder(D, atom_classes)
        return lambda Y: code(normalise(Y))

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Of the samples as they are coded, scaled to unit norm."""
        return super().distance_contributions(normalise(np.asarray(X)), codes, distances)
