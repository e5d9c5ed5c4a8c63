"""What a learner keeps of a block of coded samples: E = Σ w·sᵀy and F = Σ w·sᵀs."""

from __future__ import annotations

import numpy as np

from .compiling import compiled
from .lanes import load, splat, store, subtract_product


@compiled()
def accumulate(Y, weights, indptr, indices, codes, W, E, F):
    """Add a block's weighted sums to E (k, d), and to F (k, k) once per unordered pair of uses.

    The wanted sum of sᵀs is F + Fᵀ with the diagonal counted once.
    """
    k, d = E.shape
    n_strips = -(-d // W)
    sums = np.zeros(n_strips * k * W, Y.dtype)  # E by strips of W features: read in order, in cache
    for start in range(0, Y.shape[0], 256):  # as many rows as a first-level cache holds strips of
        stop = min(start + 256, Y.shape[0])
        _add_products(Y, weights, indptr, indices, codes, W, sums, start, stop)
        for row in range(start, stop):
            for a in range(indptr[row], indptr[row + 1]):
                value = weights[row] * codes[a]
                use = F[indices[a]]
                for b in range(indptr[row], a + 1):
                    use[indices[b]] += value * codes[b]
    for j in range(k):
        for f in range(d):
            E[j, f] += sums[((f // W) * k + j) * W + f % W]


@compiled()
def accumulate_products(indptr, indices, codes, F):
    """Add a block's sᵀs to F (k, k), once per unordered pair of uses: see `accumulate`."""
    for row in range(len(indptr) - 1):
        for a in range(indptr[row], indptr[row + 1]):
            use = F[indices[a]]
            for b in range(indptr[row], a + 1):
                use[indices[b]] += codes[a] * codes[b]


@compiled()
def _add_products(Y, weights, indptr, indices, codes, W, sums, start, stop):
    """sums += Σ w·sᵀy over some rows, atom by atom inside each strip."""
    d = Y.shape[1]
    n_strips = -(-d // W)
    k = sums.shape[0] // (n_strips * W)
    first = np.zeros(k + 1, np.int64)  # the uses of atom j are entries first[j] … first[j + 1] − 1
    for a in range(indptr[start], indptr[stop]):
        first[indices[a] + 1] += 1
    for j in range(k):
        first[j + 1] += first[j]
    place = first.copy()
    rows = np.empty(first[k], np.int64)
    factors = np.empty(first[k], Y.dtype)
    for row in range(start, stop):
        for a in range(indptr[row], indptr[row + 1]):
            p = place[indices[a]]
            place[indices[a]] += 1
            rows[p] = (row - start) * W
            factors[p] = -weights[row] * codes[a]

    strip = np.zeros((stop - start) * W, Y.dtype)
    for t in range(n_strips):
        inside = min(W, d - t * W)
        for row in range(start, stop):
            for f in range(inside):
                strip[(row - start) * W + f] = Y[row, t * W + f]
        for j in range(k):
            total = load(sums, (t * k + j) * W)
            for p in range(first[j], first[j + 1]):
                total = subtract_product(total, splat(sums, factors[p]), load(strip, rows[p]))
            store(sums, (t * k + j) * W, total)
