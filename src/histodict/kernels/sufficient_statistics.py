"""What coding leaves of a block of samples: E, F and a few counts, not the codes.

Atoms that do no work, and samples in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .input_checks import check_range

_MAX_WORST = 64  # of the worst samples


@dataclass
class SufficientStatistics:
    """Sums over coded samples, for a dictionary of k atoms that some of them call their own.

    The arrays are the backend's: numpy's here, the device's in `gpu_sums`.

    E, F : Σ w·sᵀy (k, d) and Σ w·sᵀs (k, k)
    uses, leaning : per atom, how many own samples use it, and in how many more of them its weight
        is positive than negative
    objective : Σ w·‖y − sD‖²
    worst_errors, worst_samples : of own samples, the largest first
    F_own_class : the part of F that is due to own samples, where it was asked for
    """

    E: Any
    F: Any
    usage_counts: Any
    code_sum: Any
    objective: float
    worst_errors: Any
    worst_samples: Any
    F_own_class: Any = None

    def in_double_precision(self) -> SufficientStatistics:
        self.E, self.F = self.E.astype(np.float64), self.F.astype(np.float64)
        if self.F_own_class is not None:
            self.F_own_class = self.F_own_class.astype(np.float64)
        return self

    def plus(self, other: SufficientStatistics) -> SufficientStatistics:
        self.E += other.E
        self.F += other.F
        if self.F_own_class is not None and other.F_own_class is not None:
            self.F_own_class += other.F_own_class
        self.usage_counts = self.usage_counts + other.usage_counts
        self.code_sum = self.code_sum + other.code_sum
        self.objective += other.objective
        self.store_worst(other, _MAX_WORST)
        return self

    def store_worst(self, other: SufficientStatistics, most: int) -> None:
        """Of the worst samples of both, so many."""
        errors = np.concatenate([self.worst_errors, other.worst_errors])
        samples = np.concatenate([self.worst_samples, other.worst_samples])
        keep = np.argsort(-errors, kind="stable")[:most]
        self.worst_errors, self.worst_samples = errors[keep], samples[keep]

    def worst_reconstructed(self) -> NDArray[Any]:
        """The worst samples, less those that are coded to within rounding."""
        norms = np.einsum("ij,ij->i", self.worst_samples, self.worst_samples)
        kept: NDArray[Any] = self.worst_samples[self.worst_errors > 1e-6 * norms]
        return kept

    def with_tangent(self, D: Any, pull: float) -> SufficientStatistics:
        """The sums with E + (F_own_class − F)·D + μ·D and F_own_class instead of E and F.

        pull : μ, in units of the mean of F_own_class's diagonal
        """
        mu = pull * np.trace(self.F_own_class) / len(D)
        bent = (self.F_own_class - self.F).astype(D.dtype) @ D
        return replace(self, E=self.E + bent + mu * D, F=self.F_own_class)

    def on_host(self) -> SufficientStatistics:
        """The same in numpy's arrays."""
        return self


# Two atoms closer than this in cosine do the work of one.
SAME_DIRECTION = 1 - 1e-4


def normalise(rows: NDArray) -> NDArray:
    """Rows scaled to unit norm; zero rows stay zero."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    check_range("X", squares, rows.dtype)
    norms = np.sqrt(squares)[:, None]
    return (rows / np.where(norms > 0, norms, 1)).astype(rows.dtype)


def duplicate_atoms(D: NDArray) -> NDArray[np.bool_]:
    """Which rows (unit norm) have the direction, up to sign, of a row before them."""
    cosines = np.abs(D @ D.T)
    return np.any(np.tril(cosines, -1) > SAME_DIRECTION, axis=1)


def replace_unused_atoms(D: NDArray, uses: NDArray, candidates: NDArray) -> NDArray:
    """D with unused and repeated atoms replaced by the candidates (samples), as far as they go.

    Candidates that are zero, or have the direction of an atom already there, are passed over.
    """
    idle = np.flatnonzero((uses == 0) | duplicate_atoms(D))
    if len(idle) == 0 or len(candidates) == 0:
        return D
    D = D.copy()
    fresh = normalise(candidates)
    fresh = fresh[fresh.any(axis=1)]
    fresh = fresh[~duplicate_atoms(fresh)]
    fresh = fresh[np.abs(fresh @ D.T).max(axis=1, initial=0) <= SAME_DIRECTION]
    n_replaced = min(len(idle), len(fresh))
    D[idle[:n_replaced]] = fresh[:n_replaced]
    return D
