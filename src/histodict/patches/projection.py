"""Fewer, decorrelated features: principal components of the training vectors, unit norm after.

Fitted on training patches only. Whitening gives every component the same variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..execution.local import single_blas_thread

# A component with less than this share of the first one's variance is noise: whitening must not
# blow it up.
_MIN_VARIANCE = 1e-6


@dataclass(frozen=True)
class Projection:
    """mean (n_features,), components (n_components, n_features)."""

    mean: NDArray[np.float32]
    components: NDArray[np.float32]

    @classmethod
    def fit(cls, X: NDArray[np.float32], n_components: int, *, whiten: bool = False) -> Projection:
        """The leading components; as many as there are, where there are fewer."""
        mean = X.mean(axis=0, dtype=np.float64)
        with single_blas_thread():
            covariance = _covariance(X, mean)
            variances, vectors = np.linalg.eigh(covariance)
        order = np.argsort(variances)[::-1][:n_components]
        variances, components = variances[order], vectors[:, order].T
        kept = variances > _MIN_VARIANCE * max(variances[0], np.finfo(np.float64).tiny)
        if not kept.any():
            raise ValueError("all training vectors are equal: there are no components to find")
        components = components[kept]
        components *= np.sign(components.sum(axis=1, keepdims=True) + 1e-300)
        if whiten:
            components /= np.sqrt(variances[kept])[:, None]
        return cls(mean.astype(np.float32), np.ascontiguousarray(components, dtype=np.float32))

    def __call__(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Components of unit norm; a vector at the mean stays zero."""
        with single_blas_thread():
            projected = np.asarray((X - self.mean) @ self.components.T, dtype=np.float32)
        norms = np.linalg.norm(projected, axis=1, keepdims=True)
        return (projected / np.where(norms > 0, norms, 1)).astype(np.float32)


def _covariance(X: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """In blocks, so that no copy of X is made in double precision."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), 4096):
        centred = X[start : start + 4096] - mean
        total += centred.T @ centred
    return total / len(X)
