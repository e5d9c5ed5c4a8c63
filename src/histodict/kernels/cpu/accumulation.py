"""Sums over a block of coded samples, and norms of samples and class residuals.

The sums are E = Σ w·sᵀy and F = Σ w·sᵀs.
"""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import aligned, load, splat, store, subtract_product


@jit(fastmath=True)
def residual_norms(Y, D, atom_classes, indptr, indices, codes, norms):
    """Set norms[row, i] = ‖y − Σ_{j of class i} s_j d_j‖ for the rows of a block."""
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
    """Set norms[row] = ‖y‖², summed in double precision."""
    for row in range(Y.shape[0]):
        total = 0.0
        for f in range(Y.shape[1]):
            y = np.float64(Y[row, f])
            total += y * y
        norms[row] = total


@jit()
def accumulate(Y, weights, indptr, indices, codes, W, E, F):
    """Set E (k, d) to the weighted sums of a block, and add Σ w·sᵀs to F (k, k) for `symmetrize`.

    Each unordered pair of coefficients is added once: Σ w·sᵀs is F + Fᵀ with the diagonal counted
    once.
    """
    k, d = E.shape
    n_rows = Y.shape[0]
    first = np.zeros(k + 1, np.int64)  # uses of atom j: entries first[j] … first[j + 1] − 1
    for a in range(indptr[0], indptr[n_rows]):
        first[indices[a] + 1] += 1
    for j in range(k):
        first[j + 1] += first[j]
    place = first.copy()
    places = np.empty(first[k], np.int64)
    factors = np.empty(first[k], Y.dtype)
    for row in range(n_rows):
        for a in range(indptr[row], indptr[row + 1]):
            value = weights[row] * codes[a]
            p = place[indices[a]]
            place[indices[a]] += 1
            places[p] = row * W
            factors[p] = -value
            use = F[indices[a]]
            for b in range(indptr[row], a + 1):
                use[indices[b]] += value * codes[b]
    # Strips of W features stay in the L1 or L2 cache while all atoms gather their samples.
    samples, sums = Y.reshape(-1), E.reshape(-1)
    strip = aligned(np.zeros(n_rows * W + W, Y.dtype), W)
    whole = d - d % W
    for start in range(0, whole, W):
        for row in range(n_rows):
            store(strip, row * W, load(samples, row * d + start))
        _gather(strip, first, places, factors, sums, start, d)
    if whole < d:
        for row in range(n_rows):
            for f in range(whole, d):
                strip[row * W + f - whole] = Y[row, f]
        rest = np.empty(k * W, Y.dtype)
        _gather(strip, first, places, factors, rest, np.int64(0), W)
        for j in range(k):
            for f in range(whole, d):
                E[j, f] = rest[j * W + f - whole]


@jit()
def accumulate_products(indptr, indices, codes, F):
    """Add Σ sᵀs of a block to F (k, k), once per unordered pair as in `accumulate`."""
    for row in range(len(indptr) - 1):
        for a in range(indptr[row], indptr[row + 1]):
            use = F[indices[a]]
            for b in range(indptr[row], a + 1):
                use[indices[b]] += codes[a] * codes[b]


@jit()
def symmetrize(F):
    """Replace F by F + Fᵀ with the diagonal counted once, in square tiles that fit into cache."""
    k = F.shape[0]
    for top in range(0, k, 32):
        for left in range(0, top + 1, 32):
            for i in range(top, min(top + 32, k)):
                for j in range(left, min(left + 32, i)):
                    total = F[i, j] + F[j, i]
                    F[i, j] = total
                    F[j, i] = total


@jit()
def _gather(strip, first, places, factors, sums, offset, stride):
    """Set the vector at offset + j·stride of `sums` to −Σ factor·(vector of the strip).

    The sum runs over the uses of atom j, in order.
    """
    zero = splat(strip, 0.0)
    for j in range(first.shape[0] - 1):
        total = zero
        for p in range(first[j], first[j + 1]):
            total = subtract_product(total, splat(strip, factors[p]), load(strip, places[p]))
        store(sums, offset + j * stride, total)
