"""Small problems with known properties for the tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def unit_rows(rows: NDArray) -> NDArray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def gaussian(rng: np.random.Generator, n_atoms: int, n_samples: int, n_features: int, dtype=float):
    """Return incoherent atoms and unrelated samples."""
    D = unit_rows(rng.standard_normal((n_atoms, n_features)))
    return D.astype(dtype), rng.standard_normal((n_samples, n_features)).astype(dtype)


def coherent(rng: np.random.Generator, n_atoms: int, n_samples: int, n_features: int, dtype=float):
    """Return atoms and samples that share a bright mean and few directions, like tissue patches."""
    directions = rng.standard_normal((8, n_features))
    strengths = 0.5 ** np.arange(8)

    def patches(n: int) -> NDArray:
        mixture = (rng.standard_normal((n, 8)) * strengths) @ directions
        return unit_rows(6 + mixture + 0.1 * rng.standard_normal((n, n_features)))

    return patches(n_atoms).astype(dtype), patches(n_samples).astype(dtype)


def planted(
    rng: np.random.Generator, D: NDArray, n_samples: int, n_nonzero: int, noise: float = 0.0
) -> NDArray:
    """Return samples that combine n_nonzero random atoms of D each."""
    Y = np.zeros((n_samples, D.shape[1]))
    for y in Y:
        atoms = rng.choice(len(D), n_nonzero, replace=False)
        weights = rng.uniform(0.5, 1.5, n_nonzero) * rng.choice([-1, 1], n_nonzero)
        y += weights @ D[atoms]
    return Y + noise * rng.standard_normal(Y.shape)
