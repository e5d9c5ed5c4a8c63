"""Simultaneous sparsity for histopathological image representation and classification (SHIRC).

The atoms are training samples, split into colour channels. All channels y_c of a sample are
represented by the same few training samples, with separate coefficients per channel:

    min Σ_c ‖y_c − s_c D_c‖²   with at most L training samples used, the same ones in every channel

The problem is solved greedily (simultaneous pursuit, see `kernels.encode_joint`). SHIRC predicts
the class with the smallest residual r_i = (Σ_c ‖y_c − δ_i(s_c)D_c‖²)^½. The sample is scaled to
unit norm first, which does not change the prediction.

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

from ..dictionaries.atoms import normalize
from ..kernels import load_backend
from ..utils.validation import check_whole_number
from .patch_classifier import BlockEncoder, DistanceContributions, PatchClassifier
from .src import ExemplarClassifier


class SHIRC(ExemplarClassifier):
    """Classifier by joint sparse representation of the colour channels by training samples.

    A row of X contains the planes of its channels one after another, as patch vectors of pixels do.

    Parameters
    ----------
    n_atoms : int or None, default=1000
        Maximum number of training samples per class to keep, chosen at random. None keeps all, as
        in the paper. The Gram matrices of all n atoms are held in memory: with three channels
        12·n² bytes in single precision, and as much again during their computation, that is 48 MB
        for two classes of 1000. The time per sample grows with n too.
    n_nonzero : int, default=5
        Maximum number of training samples that represent a sample (L).
    n_channels : int, default=3
        Number of planes in a row of X.
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
        """Length of a code, in which channel c of atom j has the index j · n_channels + c."""
        return len(self.atoms_) * self.n_channels

    @property
    def code_dimension(self) -> str:  # type: ignore[override]
        """Length of a code as a dimension of `ArraySpec`, such as "3*atoms"."""
        return f"{self.n_channels}*atoms"

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        super().check_parameters()
        check_whole_number("n_nonzero", self.n_nonzero, 1)
        check_whole_number("n_channels", self.n_channels, 1)

    def check_features(self, n_features: int) -> None:
        """Raise ValueError if n_features is not a multiple of n_channels.

        Parameters
        ----------
        n_features : int
            Number of features of a sample.
        """
        if n_features % self.n_channels:
            raise ValueError(
                f"X has {n_features} features, which is not a multiple of "
                f"n_channels={self.n_channels}; a row contains the channels one after "
                "another; set n_channels=1 for other vectors"
            )

    def _make_block_encoder(self, D: NDArray[Any], atom_classes: NDArray[np.int64]) -> BlockEncoder:
        """Return the function that encodes a block of samples, scaled to unit norm."""
        self.check_parameters()
        self.check_features(D.shape[1])
        module = load_backend(self.backend)
        D_c = _split_channels(D, self.n_channels)
        # Classical selection: order-recursive selection gives smaller residuals, but its class
        # residuals did not separate tissue classes better, and separated some worse.
        coder = module.JointCoder(D_c, self.n_nonzero, tol=0.0, order_recursive=False)
        n_channels, n_classes = self.n_channels, len(self.classes_)

        def encode(Y: NDArray[Any]) -> tuple[csr_array, NDArray[np.float64], int]:
            Y_c = _split_channels(normalize(Y), n_channels)
            S, _ = coder.code(Y_c)
            squares = sum(
                module.class_residuals(*channel, atom_classes, n_classes) ** 2
                for channel in zip(D_c, Y_c, S, strict=True)
            )
            return _merge_channels(S), np.sqrt(squares), 0

        return encode

    def distance_contributions(
        self, X: ArrayLike, codes: csr_array, distances: NDArray[np.float64]
    ) -> DistanceContributions:
        """Return all distances in `rest`, as SHIRC does not attribute them to atoms.

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
        return PatchClassifier.distance_contributions(self, X, codes, distances)

    def disable_atoms(self, atoms: Sequence[int]) -> Self:
        """Return a copy if `atoms` is empty; raise ValueError otherwise.

        Atoms of SHIRC cannot be disabled.

        Parameters
        ----------
        atoms : sequence of int
            Indices of the atoms to disable.

        Returns
        -------
        Self
        """
        return PatchClassifier.disable_atoms(self, atoms)


def _split_channels(rows: NDArray[Any], n_channels: int) -> NDArray[Any]:
    """Return samples (n, n_channels · m) reshaped to channels (n_channels, n, m)."""
    planes = rows.reshape(len(rows), n_channels, -1)
    return np.ascontiguousarray(planes.transpose(1, 0, 2))


def _merge_channels(S: list[csr_array]) -> csr_array:
    """Return one code array from the codes S of the channels.

    Channel c of atom j becomes column j · n_channels + c.
    """
    n_channels = len(S)
    n_samples, n_atoms = S[0].shape
    data = np.stack([S_c.data for S_c in S], axis=1).ravel()
    columns = (S[0].indices[:, None] * n_channels + np.arange(n_channels)).ravel()
    indptr = S[0].indptr * n_channels
    return csr_array((data, columns, indptr), shape=(n_samples, n_atoms * n_channels))
