"""Atoms to start from, atoms to replace, and one order and sign for the same dictionary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.inputs import check_range

# Two atoms closer than this in cosine do the work of one.
_SAME_DIRECTION = 1 - 1e-4


def normalise(rows: NDArray) -> NDArray:
    """Rows scaled to unit norm; zero rows stay zero."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    check_range("X", squares, rows.dtype)
    norms = np.sqrt(squares)[:, None]
    return (rows / np.where(norms > 0, norms, 1)).astype(rows.dtype)


def initial_atoms(Y: NDArray, n_atoms: int, rng: np.random.Generator) -> NDArray:
    """n_atoms different directions: samples of Y in random order, then random mixtures of them.

    Zero samples and repeated directions are passed over. Mixtures get a random part of their own,
    so that there are enough directions even for a single sample.
    """
    samples = normalise(Y[rng.permutation(len(Y))[: 4 * n_atoms]])
    samples = samples[samples.any(axis=1)]
    D = samples[~repeated(samples)][:n_atoms]
    missing = n_atoms - len(D)
    if missing:
        mixtures = normalise(rng.standard_normal((missing, len(D))) @ D) if len(D) else 0.0
        noise = normalise(rng.standard_normal((missing, Y.shape[1])))
        D = np.concatenate([D, normalise(mixtures + 0.1 * noise)])
    return np.ascontiguousarray(D, dtype=Y.dtype)


def repeated(D: NDArray) -> NDArray[np.bool_]:
    """Which rows (unit norm) have the direction, up to sign, of a row before them."""
    cosines = np.abs(D @ D.T)
    return np.any(np.tril(cosines, -1) > _SAME_DIRECTION, axis=1)


def replace_idle(D: NDArray, uses: NDArray, candidates: NDArray) -> NDArray:
    """D with unused and repeated atoms replaced by the candidates (samples), as far as they go.

    Candidates that are zero, or have the direction of an atom already there, are passed over.
    """
    idle = np.flatnonzero((uses == 0) | repeated(D))
    if len(idle) == 0 or len(candidates) == 0:
        return D
    D = D.copy()
    fresh = normalise(candidates)
    fresh = fresh[fresh.any(axis=1)]
    fresh = fresh[~repeated(fresh)]
    fresh = fresh[np.abs(fresh @ D.T).max(axis=1, initial=0) <= _SAME_DIRECTION]
    n_replaced = min(len(idle), len(fresh))
    D[idle[:n_replaced]] = fresh[:n_replaced]
    return D


def canonical_order(D: NDArray, uses: NDArray, leaning: NDArray) -> NDArray:
    """The same atoms, most used first, each with the sign in which it is used more often.

    leaning[j] > 0: atom j has more positive weights than negative ones. At 0, its sum is positive.
    """
    direction = np.where(leaning == 0, D.sum(axis=1), leaning)
    signs = np.where(direction < 0, -1, 1).astype(D.dtype)
    order = np.argsort(-uses, kind="stable")
    return np.ascontiguousarray((D * signs[:, None])[order])
