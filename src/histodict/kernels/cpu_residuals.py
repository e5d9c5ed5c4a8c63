"""Norms of samples, and of what each class's share of a code leaves of them."""

from __future__ import annotations

import numpy as np

from .compiling import jit


@jit(fastmath=True)
def residual_norms(Y, D, atom_classes, indptr, indices, codes, norms):
    """norms[row, i] = ‖y − Σ_{j of class i} s_j d_j‖ for the rows of a block."""
    d = Y.shape[1]
    residual = np.empty(d, Y.dtype)
    for row in range(Y.shape[0]):
        for i in range(norms.shape[1]):
            for f in range(d):
                residual[f] = Y[row, f]
            for a in range(indptr[row], indptr[row + 1]):
                j = indices[a]
                if atom_classes[j] == i:
                    value = codes[a]
                    for f in range(d):
                        residual[f] -= value * D[j, f]
            total = 0.0
            for f in range(d):
                total += residual[f] * residual[f]
            norms[row, i] = np.sqrt(total)


@jit(fastmath=True)
def squared_norms(Y, norms):
    """norms[row] = ‖y‖², summed in double precision."""
    for row in range(Y.shape[0]):
        total = 0.0
        for f in range(Y.shape[1]):
            y = np.float64(Y[row, f])
            total += y * y
        norms[row] = total
