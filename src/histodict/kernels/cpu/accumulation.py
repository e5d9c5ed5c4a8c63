"""What a learner keeps of a block of coded samples: E = Σ w·sᵀy and F = Σ w·sᵀs.

Norms of samples, and of what each class's share of a code leaves of them.
"""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import aligned, load, splat, store, subtract_product


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


@jit()
def accumulate(Y, weights, indptr, indices, codes, W, E, F):
    """Put a block's weighted sums into E (k, d), and add them to F (k, k) once per pair of uses.

    The wanted sum of sᵀs is F + Fᵀ with the diagonal counted once.
    """
    k, d = E.shape
    n_rows = Y.shape[0]
    first = np.zeros(k + 1, np.int64)  # the uses of atom j are entries first[j] … first[j + 1] − 1
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
    # By strips of W features, which stay in a near cache while all atoms gather their samples.
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
    """Add a block's sᵀs to F (k, k), once per unordered pair of uses: see `accumulate`."""
    for row in range(len(indptr) - 1):
        for a in range(indptr[row], indptr[row + 1]):
            use = F[indices[a]]
            for b in range(indptr[row], a + 1):
                use[indices[b]] += codes[a] * codes[b]


@jit()
def symmetrize(F):
    """F becomes F + Fᵀ with the diagonal counted once; by squares, which stay in a near cache."""
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
    """The lane at offset + j·stride of `sums` becomes −Σ factor·(lane of the strip at place).

    Over the uses of atom j, in their order.
    """
    zero = splat(strip, 0.0)
    for j in range(first.shape[0] - 1):
        total = zero
        for p in range(first[j], first[j + 1]):
            total = subtract_product(total, splat(strip, factors[p]), load(strip, places[p]))
        store(sums, offset + j * stride, total)
