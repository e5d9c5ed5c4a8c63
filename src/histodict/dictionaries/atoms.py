"""Initial atoms, canonical order and signs of atoms, and similarity of two dictionaries.

The sign, norm and order of atoms are arbitrary: two dictionaries are equivalent if their atoms have
the same directions. Dictionaries are compared by C_ij = |a_i · b_j| / (‖a_i‖ ‖b_j‖):

    match_atoms     one-to-one pairing π of the atoms with the largest Σ_i C_iπ(i)
    best_matches    j with the largest C_ij for each i; atoms of A may share an atom of B

`match_atoms` is stricter, and suitable for dictionaries of the same size. `best_matches` shows
whether B has an atom similar to each atom of A.

Reference: Kuhn, "The Hungarian method for the assignment problem", Naval Research Logistics 1955.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from ..kernels.sufficient_statistics import duplicate_atoms, normalize, replace_unused_atoms

__all__ = [
    "Matching",
    "abs_cosines",
    "best_matches",
    "canonicalize",
    "duplicate_atoms",
    "initial_atoms",
    "match_atoms",
    "normalize",
    "replace_unused_atoms",
]


def initial_atoms(Y: NDArray, n_atoms: int, rng: np.random.Generator) -> NDArray:
    """Choose initial unit-norm atoms: random samples, and random mixtures if these are too few.

    Zero samples and repeated directions are skipped. Random noise is added to mixtures, so that
    there are enough directions even for a single sample. The atoms have the dtype of Y.

    Parameters
    ----------
    Y : (n_samples, n_features)
    n_atoms : number of atoms
    rng : source of randomness

    Returns
    -------
    (n_atoms, n_features)
    """
    samples = normalize(Y[rng.permutation(len(Y))[: 4 * n_atoms]])
    samples = samples[samples.any(axis=1)]
    D = samples[~duplicate_atoms(samples)][:n_atoms]
    missing = n_atoms - len(D)
    if missing:
        mixtures = normalize(rng.standard_normal((missing, len(D))) @ D) if len(D) else 0.0
        noise = normalize(rng.standard_normal((missing, Y.shape[1])))
        D = np.concatenate([D, normalize(mixtures + 0.1 * noise)])
    return np.ascontiguousarray(D, dtype=Y.dtype)


def canonicalize(D: NDArray, usage_counts: NDArray, sign_balance: NDArray) -> NDArray:
    """Return the atoms with fixed signs, sorted by the number of samples that use them.

    Parameters
    ----------
    D : (n_atoms, n_features)
    usage_counts : (n_atoms,), number of samples that use each atom; the largest comes first
    sign_balance : (n_atoms,), number of positive minus number of negative coefficients. An atom is
        negated if this is negative, or if this is 0 and the sum of the atom's entries is negative
    """
    sign_source = np.where(sign_balance == 0, D.sum(axis=1), sign_balance)
    signs = np.where(sign_source < 0, -1, 1).astype(D.dtype)
    order = np.argsort(-usage_counts, kind="stable")
    return np.ascontiguousarray((D * signs[:, None])[order])


@dataclass(frozen=True)
class Matching:
    """Pairing of the atoms of a dictionary A with atoms of a dictionary B.

    Attributes
    ----------
    partners : (n_atoms,), index in B of the partner of each atom of A; -1 for none
    cosines : (n_atoms,), |cos| of each atom of A with its partner; 0 for none
    """

    partners: NDArray[np.int64]
    cosines: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean |cos| over all atoms of A; atoms without a partner count as 0."""
        return float(self.cosines.mean()) if len(self.cosines) else float("nan")


def abs_cosines(A: ArrayLike, B: ArrayLike) -> NDArray[np.float64]:
    """Return the absolute cosines (n, m) between atoms A (n, n_features) and B (m, n_features).

    The cosines of atoms of norm 0 are 0. Raise ValueError if A or B is not a finite matrix, or if
    their numbers of features differ.
    """
    first, second = _check_atoms(A), _check_atoms(B)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"cannot compare atoms of {first.shape[1]} and {second.shape[1]} features")
    return np.minimum(np.abs(_unit_atoms(first) @ _unit_atoms(second).T), 1.0)


def match_atoms(A: ArrayLike, B: ArrayLike) -> Matching:
    """Return the one-to-one pairing of the atoms of A and B with the largest sum of |cosines|."""
    cosines = abs_cosines(A, B)
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    partners = np.full(len(cosines), -1, np.int64)
    partners[rows] = columns
    matched = np.zeros(len(cosines))
    matched[rows] = cosines[rows, columns]
    return Matching(partners, matched)


def best_matches(A: ArrayLike, B: ArrayLike) -> Matching:
    """Return the most similar atom of B for each atom of A; several may have the same partner."""
    cosines = abs_cosines(A, B)
    if not cosines.shape[1]:
        return Matching(np.full(len(cosines), -1, np.int64), np.zeros(len(cosines)))
    partners = cosines.argmax(axis=1)
    return Matching(partners, cosines[np.arange(len(cosines)), partners])


def _check_atoms(D: ArrayLike) -> NDArray[Any]:
    """Return D in double precision; raise ValueError unless it is a finite matrix."""
    atoms = np.asarray(D, np.float64)
    if atoms.ndim != 2:
        raise ValueError(f"a dictionary must have shape (n_atoms, n_features), not {atoms.shape}")
    if not np.isfinite(atoms).all():
        raise ValueError("the dictionary contains NaN or infinity")
    return atoms


def _unit_atoms(atoms: NDArray[Any]) -> NDArray[Any]:
    """Return atoms scaled to unit norm; zero atoms stay zero."""
    lengths = np.linalg.norm(atoms, axis=1, keepdims=True)
    units: NDArray[Any] = np.divide(atoms, lengths, out=np.zeros_like(atoms), where=lengths > 0)
    return units
