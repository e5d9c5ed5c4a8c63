"""Atoms to start from, atoms to replace, and one order and sign for the same dictionary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.idle_atoms import duplicate_atoms, normalise, replace_unused_atoms

__all__ = ["canonicalize", "duplicate_atoms", "initial_atoms", "normalise", "replace_unused_atoms"]


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
