"""Simultaneous sparsity for histopathological image representation and classification (SHIRC).

The training samples are the atoms, split into colour channels. The channels y_c of a sample are
written with the same few training samples, each channel with coefficients of its own:

    min Σ_c ‖y_c − s_c D_c‖²   with at most L training samples used, the same ones in every channel

greedily (simultaneous pursuit, see `kernels.encode_joint`). The class whose atoms leave the
smallest residual r_i = (Σ_c ‖y_c − δ_i(s_c)D_c‖²)^½ wins. The sample is scaled to unit norm first;
that changes no answer.

Reference: Srinivas, Mousavi, Monga, Hattel, Jayarao, "Simultaneous sparsity model for
histopathological image representation and classification", IEEE Transactions on Medical Imaging,
2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from ..dictionaries.atoms import normalise
from ..kernels import load_backend
from ..utils.validation import check_whole_number
from .patch_classifier import (
    BlockEncoder,
    DistanceContributions,
    ExemplarClassifier,
    PatchClassifier,
)


class SHIRC(ExemplarClassifier):
    """Colour channels written with the same few training samples; the least residual wins.

    A row of X is the planes of its channels one after another, as histodict's patch vectors are.

    Parameters
    ----------
    n_atoms : most training samples of a class that are kept, chosen at random; None keeps all, as
        in the paper. The products of all pairs are held in memory, for n atoms in all 12·n² bytes
        in single precision and three channels (and as much again while they are made): 48 MB for
        two classes of 1000. Time per sample grows with n too.
    n_nonzero : most training samples that a sample is written with (L)
    n_channels : planes in a row of X
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
        n_nonzero: int = 5,
        n_channels: int = 3,
        random_state: Any = None,
        n_jobs: int | None = None,
        backend: str = "cpu",
    ) -> None:
        self.n_atoms = n_atoms
        self.n_nonzero = n_nonzero
        self.n_channels = n_channels
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend

    @property
    def n_codes_(self) -> int:
        """Coefficients of a sample: channel c of atom j has the place j · n_channels + c."""
        return len(self.atoms_) * self.n_channels

    @property
    def code_length(self) -> str:  # type: ignore[override]
        return f"{self.n_channels}*atoms"

    def check_parameters(self) -> None:
        super().check_parameters()
        check_whole_number("n_nonzero", self.n_nonzero, 1)
        check_whole_number("n_channels", self.n_channels, 1)

    def check_features(self, n_features: int) -> None:
        if n_features % self.n_channels:
            raise ValueError(
                f"X has {n_features} features, which is not a multiple of "
                f"n_channels={self.n_channels}: a row must be the planes of its channels one after "
                "another; for vectors of another kind give n_channels=1"
            )

    def _open_coder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockEncoder:
        """Codes and residuals of a block's samples, scaled to unit norm."""
        self.check_parameters()
        self.check_features(D.shape[1])
        module = load_backend(self.backend)
        D_c = _split(D, self.n_channels)
        # Classical selection: the order-recursive one leaves less of a sample, but on tissue its
        # class residuals told the classes apart no better, and on some worse.
        coder = module.JointCoder(D_c, self.n_nonzero, tol=0.0, order_recursive=False)
        n_channels, n_classes = self.n_channels, len(self.classes_)

        def code(Y: NDArray[Any]) -> tuple[csr_array, NDArray[np.float64], int]:
            Y_c = _split(normalise(Y), n_channels)
            S, _ = coder.code(Y_c)
            squares = sum(
                module.class_residuals(*channel, atom_classes, n_classes) ** 2
                for channel in zip(D_c, Y_c, S, strict=True)
            )
            return _interleave(S), np.sqrt(squares), 0

        return code

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Atoms have a coefficient per channel, and are not told apart by them."""
        return PatchClassifier.distance_contributions(self, X, codes, distances)

    def disable_atoms(self, off: Sequence[int]) -> Self:
        return PatchClassifier.disable_atoms(self, off)


def _split(rows: NDArray[Any], n_channels: int) -> NDArray[Any]:
    """(n, n_channels · m) as (n_channels, n, m)."""
    planes = rows.reshape(len(rows), n_channels, -1)
    return np.ascontiguousarray(planes.transpose(1, 0, 2))


def _interleave(S: list[csr_array]) -> csr_array:
    """Codes of equal pattern as one matrix: channel c of atom j in column j · n_channels + c."""
    n_channels = len(S)
    n_samples, n_atoms = S[0].shape
    data = np.stack([S_c.data for S_c in S], axis=1).ravel()
    columns = (S[0].indices[:, None] * n_channels + np.arange(n_channels)).ravel()
    indptr = S[0].indptr * n_channels
    return csr_array((data, columns, indptr), shape=(n_samples, n_atoms * n_channels))
