"""Sufficient statistics of coded samples, and replacement of unused atoms.

The statistics are E, F and a few counts. They replace the codes of a block in dictionary learning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .input_checks import check_range

_MAX_WORST = 64  # maximum number of worst samples to keep


@dataclass
class SufficientStatistics:
    """Sums over samples coded with the dictionary of one class, with k atoms.

    The arrays are NumPy arrays here, and device arrays in `kernels.cuda.device.DeviceStatistics`.

    Attributes
    ----------
    E : (k, d), Σ w·sᵀy
    F : (k, k), Σ w·sᵀs
    usage_counts : (k,), number of samples of the class that use each atom
    sign_balance : (k,), number of positive minus number of negative coefficients of each atom over
        the samples of the class
    objective : Σ w·‖y − sD‖²
    worst_errors : squared residuals of the worst samples of the class, largest first
    worst_samples : these samples, (n_worst, d)
    F_own_class : (k, k), the part of F of the samples of the class; None if not requested
    """

    E: Any
    F: Any
    usage_counts: Any
    sign_balance: Any
    objective: float
    worst_errors: Any
    worst_samples: Any
    F_own_class: Any = None

    def in_double_precision(self) -> SufficientStatistics:
        """Convert E and F to double precision, in place, and return self."""
        self.E, self.F = self.E.astype(np.float64), self.F.astype(np.float64)
        if self.F_own_class is not None:
            self.F_own_class = self.F_own_class.astype(np.float64)
        return self

    def plus(self, other: SufficientStatistics) -> SufficientStatistics:
        """Add other statistics, in place, and return self."""
        self.E += other.E
        self.F += other.F
        if self.F_own_class is not None and other.F_own_class is not None:
            self.F_own_class += other.F_own_class
        self.usage_counts = self.usage_counts + other.usage_counts
        self.sign_balance = self.sign_balance + other.sign_balance
        self.objective += other.objective
        self.store_worst(other, _MAX_WORST)
        return self

    def store_worst(self, other: SufficientStatistics, n_worst: int) -> None:
        """Merge the worst samples of both, and keep the `n_worst` largest residuals."""
        errors = np.concatenate([self.worst_errors, other.worst_errors])
        samples = np.concatenate([self.worst_samples, other.worst_samples])
        worst = np.argsort(-errors, kind="stable")[:n_worst]
        self.worst_errors, self.worst_samples = errors[worst], samples[worst]

    def worst_reconstructed(self) -> NDArray[Any]:
        """Return the worst samples, without those whose residual is within rounding error."""
        norms = np.einsum("ij,ij->i", self.worst_samples, self.worst_samples)
        worst: NDArray[Any] = self.worst_samples[self.worst_errors > 1e-6 * norms]
        return worst

    def with_tangent(self, D: Any, proximal_weight: float) -> SufficientStatistics:
        """Return the statistics of the objective with the term of the other classes linearised.

        E is replaced by E + (F_own_class − F)·D + μ·D, and F by F_own_class; see `methods.dfdl`.

        Parameters
        ----------
        D : (k, d), atoms at which the tangent is taken
        proximal_weight : μ, in units of the mean of the diagonal of F_own_class
        """
        mu = proximal_weight * np.trace(self.F_own_class) / len(D)
        gradient = (self.F_own_class - self.F).astype(D.dtype) @ D
        return replace(self, E=self.E + gradient + mu * D, F=self.F_own_class)

    def on_host(self) -> SufficientStatistics:
        """Return the statistics as NumPy arrays."""
        return self


# Atoms whose absolute cosine exceeds this count as duplicates.
SAME_DIRECTION = 1 - 1e-4


def normalize(rows: NDArray) -> NDArray:
    """Scale rows to unit norm; zero rows stay zero."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    check_range("X", squares, rows.dtype)
    norms = np.sqrt(squares)[:, None]
    return (rows / np.where(norms > 0, norms, 1)).astype(rows.dtype)


def duplicate_atoms(D: NDArray) -> NDArray[np.bool_]:
    """Return whether each unit-norm atom equals an earlier one, up to sign."""
    cosines = np.abs(D @ D.T)
    return np.any(np.tril(cosines, -1) > SAME_DIRECTION, axis=1)


def replace_unused_atoms(D: NDArray, uses: NDArray, candidates: NDArray) -> NDArray:
    """Replace unused and duplicate atoms by candidate samples.

    Candidates that are zero or have the direction of an existing atom are skipped.

    Parameters
    ----------
    D : (n_atoms, n_features), unit-norm atoms
    uses : (n_atoms,), number of samples that use each atom
    candidates : (n_candidates, n_features), in order of preference

    Returns
    -------
    (n_atoms, n_features), new atoms; D is not modified
    """
    idle = np.flatnonzero((uses == 0) | duplicate_atoms(D))
    if len(idle) == 0 or len(candidates) == 0:
        return D
    D = D.copy()
    fresh = normalize(candidates)
    fresh = fresh[fresh.any(axis=1)]
    fresh = fresh[~duplicate_atoms(fresh)]
    fresh = fresh[np.abs(fresh @ D.T).max(axis=1, initial=0) <= SAME_DIRECTION]
    n_replaced = min(len(idle), len(fresh))
    D[idle[:n_replaced]] = fresh[:n_replaced]
    return D
