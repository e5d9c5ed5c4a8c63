"""Sufficient statistics of coded samples, and replacement of unused atoms.

The statistics are E = Σ w·sᵀy, F = Σ w·sᵀs and a few counts, for samples y with codes s and weights
w. Dictionary learning stores them instead of the codes of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .input_checks import check_range

_MAX_WORST_SAMPLES = 64  # maximum number of samples with the largest residuals to store


@dataclass
class SufficientStatistics:
    """Sums over samples that are coded with the dictionary of one class.

    The dictionary has k atoms with d features. The arrays are NumPy arrays here, and tensors in
    `kernels.cuda.device.DeviceStatistics`. The samples of the class that have the largest residuals
    are called its worst samples.

    Attributes
    ----------
    E : (k, d), Σ w·sᵀy over samples y of all classes, with codes s and weights w
    F : (k, k), Σ w·sᵀs over the same samples
    usage_counts : (k,), number of samples of the class that use each atom
    sign_balance : (k,), number of positive minus number of negative coefficients of each atom over
        the samples of the class
    objective : Σ w·‖y − sD‖²
    worst_errors : (n_worst,), squared residuals of the worst samples, largest first
    worst_samples : (n_worst, d), worst samples, in the same order
    F_own_class : (k, k), Σ w·sᵀs over the samples of the class only; None if not requested
    """

    E: Any
    F: Any
    usage_counts: Any
    sign_balance: Any
    objective: float
    worst_errors: Any
    worst_samples: Any
    F_own_class: Any = None

    def to_double_precision(self) -> SufficientStatistics:
        """Convert E and F to double precision, in place, and return self."""
        self.E, self.F = self.E.astype(np.float64), self.F.astype(np.float64)
        if self.F_own_class is not None:
            self.F_own_class = self.F_own_class.astype(np.float64)
        return self

    def add(self, other: SufficientStatistics) -> SufficientStatistics:
        """Add the statistics of other samples, in place, and return self."""
        self.E += other.E
        self.F += other.F
        if self.F_own_class is not None and other.F_own_class is not None:
            self.F_own_class += other.F_own_class
        self.usage_counts = self.usage_counts + other.usage_counts
        self.sign_balance = self.sign_balance + other.sign_balance
        self.objective += other.objective
        self.merge_worst(other, _MAX_WORST_SAMPLES)
        return self

    def merge_worst(self, other: SufficientStatistics, n_worst: int) -> None:
        """Add the worst samples of `other`; store only the `n_worst` with the largest residuals."""
        errors = np.concatenate([self.worst_errors, other.worst_errors])
        samples = np.concatenate([self.worst_samples, other.worst_samples])
        worst = np.argsort(-errors, kind="stable")[:n_worst]
        self.worst_errors, self.worst_samples = errors[worst], samples[worst]

    def worst_reconstructed(self) -> NDArray[Any]:
        """Return the worst samples whose residual is larger than rounding errors."""
        norms = np.einsum("ij,ij->i", self.worst_samples, self.worst_samples)
        worst: NDArray[Any] = self.worst_samples[self.worst_errors > 1e-6 * norms]
        return worst

    def linearize_at(self, D: Any, proximal_weight: float) -> SufficientStatistics:
        """Return statistics for an objective whose term of the other classes is linearised at D.

        E becomes E + (F_own_class − F)·D + μ·D, and F becomes F_own_class; see `methods.dfdl`.

        Parameters
        ----------
        D : (k, d), atoms at which the term is linearised
        proximal_weight : μ as a multiple of the mean of the diagonal of F_own_class
        """
        mu = proximal_weight * np.trace(self.F_own_class) / len(D)
        gradient = (self.F_own_class - self.F).astype(D.dtype) @ D
        return replace(self, E=self.E + gradient + mu * D, F=self.F_own_class)

    def to_host(self) -> SufficientStatistics:
        """Return the statistics with NumPy arrays."""
        return self


# Two atoms are duplicates if their absolute cosine exceeds this value.
DUPLICATE_COSINE = 1 - 1e-4


def normalize(rows: NDArray) -> NDArray:
    """Return rows scaled to unit norm; zero rows stay zero."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    check_range("X", squares, rows.dtype)
    norms = np.sqrt(squares)[:, None]
    return (rows / np.where(norms > 0, norms, 1)).astype(rows.dtype)


def duplicate_atoms(D: NDArray) -> NDArray[np.bool_]:
    """Return a mask of the unit-norm atoms that equal an earlier atom, up to sign and rounding."""
    cosines = np.abs(D @ D.T)
    return np.any(np.tril(cosines, -1) > DUPLICATE_COSINE, axis=1)


def replace_unused_atoms(D: NDArray, usage_counts: NDArray, candidates: NDArray) -> NDArray:
    """Return the atoms with unused and duplicate ones replaced by candidate samples.

    Candidates that are zero or have the direction of an existing atom are skipped.

    Parameters
    ----------
    D : (n_atoms, n_features), unit-norm atoms
    usage_counts : (n_atoms,), number of samples that use each atom
    candidates : (n_candidates, n_features), in order of preference
    """
    replaceable = np.flatnonzero((usage_counts == 0) | duplicate_atoms(D))
    if len(replaceable) == 0 or len(candidates) == 0:
        return D
    D = D.copy()
    new_atoms = normalize(candidates)
    new_atoms = new_atoms[new_atoms.any(axis=1)]
    new_atoms = new_atoms[~duplicate_atoms(new_atoms)]
    new_atoms = new_atoms[np.abs(new_atoms @ D.T).max(axis=1, initial=0) <= DUPLICATE_COSINE]
    n_replaced = min(len(replaceable), len(new_atoms))
    D[replaceable[:n_replaced]] = new_atoms[:n_replaced]
    return D
