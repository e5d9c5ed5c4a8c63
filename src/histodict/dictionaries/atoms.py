"""Atoms to start from, atoms to replace, and one order and sign for the same dictionary.

How alike two dictionaries are: |cosines| of their atoms, paired as they fit best.

The sign, length and place of an atom mean nothing: two dictionaries are the same where,
up to these, their atoms point the same ways. With C_ij = |a_i · b_j| / (‖a_i‖ ‖b_j‖)

    matched    max over one-to-one pairings π of Σ_i C_iπ(i), an assignment problem
    best       max over j of C_ij, for every i by itself: atoms of A may share one of B

`matched` is the stricter, and the one to compare dictionaries of the same size by; `best` says
whether something like an atom is there at all.

Reference: Kuhn, "The Hungarian method for the assignment problem", Naval Research Logistics 1955.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from ..kernels.sufficient_statistics import duplicate_atoms, normalise, replace_unused_atoms

__all__ = [
    "Matching",
    "abs_cosines",
    "best_matches",
    "canonicalize",
    "duplicate_atoms",
    "initial_atoms",
    "match_atoms",
    "normalise",
    "replace_unused_atoms",
]


def initial_atoms(Y: NDArray, n_atoms: int, rng: np.random.Generator) -> NDArray:
    """n_atoms different directions: samples of Y in random order, then random mixtures of them.

    Zero samples and repeated directions are passed over. Mixtures get a random part of their own,
    so that there are enough directions even for a single sample.
    """
    samples = normalise(Y[rng.permutation(len(Y))[: 4 * n_atoms]])
    samples = samples[samples.any(axis=1)]
    D = samples[~duplicate_atoms(samples)][:n_atoms]
    missing = n_atoms - len(D)
    if missing:
        mixtures = normalise(rng.standard_normal((missing, len(D))) @ D) if len(D) else 0.0
        noise = normalise(rng.standard_normal((missing, Y.shape[1])))
        D = np.concatenate([D, normalise(mixtures + 0.1 * noise)])
    return np.ascontiguousarray(D, dtype=Y.dtype)


def canonicalize(D: NDArray, uses: NDArray, leaning: NDArray) -> NDArray:
    """The same atoms, most used first, each with the sign in which it is used more often.

    leaning[j] > 0: atom j has more positive weights than negative ones. At 0, its sum is positive.
    """
    direction = np.where(leaning == 0, D.sum(axis=1), leaning)
    signs = np.where(direction < 0, -1, 1).astype(D.dtype)
    order = np.argsort(-uses, kind="stable")
    return np.ascontiguousarray((D * signs[:, None])[order])


@dataclass(frozen=True)
class Matching:
    """For every atom of A: its partner in B, -1 for none, and |cos| with it, 0 for none."""

    partners: NDArray[np.int64]
    cosines: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Of the |cosines| of all atoms of A; those without a partner count as 0."""
        return float(self.cosines.mean()) if len(self.cosines) else float("nan")


def abs_cosines(A: ArrayLike, B: ArrayLike) -> NDArray[np.float64]:
    """|cos| of every atom of A (n, n_features) with every one of B (m, n_features): (n, m).

    An atom of length 0 is like no other: 0.
    """
    first, second = _atoms(A), _atoms(B)
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"atoms of {first.shape[1]} and of {second.shape[1]} numbers cannot be compared"
        )
    return np.minimum(np.abs(_units(first) @ _units(second).T), 1.0)


def match_atoms(A: ArrayLike, B: ArrayLike) -> Matching:
    """The one-to-one pairing of the atoms of A and B with the largest sum of |cosines|."""
    cosines = abs_cosines(A, B)
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    partners = np.full(len(cosines), -1, np.int64)
    partners[rows] = columns
    found = np.zeros(len(cosines))
    found[rows] = cosines[rows, columns]
    return Matching(partners, found)


def best_matches(A: ArrayLike, B: ArrayLike) -> Matching:
    """For every atom of A the atom of B most like it, which several may share."""
    cosines = abs_cosines(A, B)
    if not cosines.shape[1]:
        return Matching(np.full(len(cosines), -1, np.int64), np.zeros(len(cosines)))
    partners = cosines.argmax(axis=1)
    return Matching(partners, cosines[np.arange(len(cosines)), partners])


def _atoms(D: ArrayLike) -> NDArray[Any]:
    atoms = np.asarray(D, np.float64)
    if atoms.ndim != 2:
        raise ValueError(f"a dictionary is (n_atoms, n_features), not of shape {atoms.shape}")
    if not np.isfinite(atoms).all():
        raise ValueError("a dictionary has NaN or infinity")
    return atoms


def _units(atoms: NDArray[Any]) -> NDArray[Any]:
    lengths = np.linalg.norm(atoms, axis=1, keepdims=True)
    units: NDArray[Any] = np.divide(atoms, lengths, out=np.zeros_like(atoms), where=lengths > 0)
    return units
