"""Atoms that do no work, and samples in their place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .inputs import check_range

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
