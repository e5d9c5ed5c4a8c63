"""Greedy pursuit on blocks of samples: order-recursive (OLS) or by correlation (OMP).

For one sample y the state after l selections is the orthonormal basis q_1 … q_l of the selected
atoms. It is represented by its products with all atoms, v_i = q_i Dᵀ. The selection of another atom
s takes one pass over these vectors:

    v_l = (G_s − Σ_{i<l} v_i[s] v_i) / ν,   ν² = ‖d_s‖² − Σ_{i<l} v_i[s]²
    c  ← c − α v_l,   n ← n − v_l²,         α = c_s / ν

with c_j = ⟨d_j, residual⟩ and n_j the squared norm of d_j outside the selected span. The
order-recursive selection takes the largest c_j²/n_j, which is the decrease of the squared residual;
the classical selection takes the largest c_j²/‖d_j‖². The codes follow from the triangular system
whose rows are the v_i[s].

The functions share V, the vectors v_i; W, the number of elements of a SIMD vector; and `scores`,
integers that approximate log2(c²/n). A tile t consists of the atoms t·W … (t + 1)·W − 1.

References: Rubinstein, Zibulevsky, Elad (2008), batch OMP; Rebollo-Neira, Lowe (2002), the
order-recursive selection, which SPAMS calls OMP.
"""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import (
    aligned,
    bits,
    count_trailing_zeros,
    load,
    mask_ge,
    maximum,
    maximum_integers,
    multiply,
    reduce_max,
    splat,
    store,
    subtract_integers,
    subtract_product,
)


@jit()
def pursue(
    B, G, tols, order_recursive, W, scores, n_nonzero, indptr, indices, codes, squared_residuals
):
    """Encode the samples of a block by greedy pursuit.

    Atoms and samples have unit norm, or are zero.

    Parameters
    ----------
    B : (n, k), products ⟨y, d_j⟩ of n samples and k atoms
    G : flat Gram matrix, rows padded with zeros to multiples of 2·W
    tols : (n,), squared residuals at which a sample is finished
    order_recursive : whether to select the atom with the largest ⟨r, d⟩²/p, where r is the residual
        and p the squared norm of atom d outside the span of the selected atoms; otherwise the atom
        with the largest ⟨r, d⟩²/‖d‖²
    W : number of elements of a SIMD vector
    scores : scratch memory, integers as wide as the elements of B, as many as in a row of G
    n_nonzero : maximum number of atoms per sample
    indptr, indices, codes : output, the codes as in a CSR matrix, in the order of selection
    squared_residuals : (n,), ‖y‖² on entry, ‖y − sD‖² on return
    """
    k = B.shape[1]
    k_padded = G.shape[0] // k
    n_tiles = k_padded // W
    L = n_nonzero
    epsilon = np.finfo(B.dtype).eps
    # An atom with a smaller norm² outside the span would add rounding errors to the basis.
    min_pivot = np.sqrt(epsilon)
    min_squared_norm = np.full(1, min_pivot, B.dtype)
    min_squared_norms = splat(G, min_pivot)
    n_factor = splat(G, order_recursive)
    # The approximate logarithm has an error of ±0.0861; two scores may differ by twice that.
    tolerance = np.int64(0.173 / epsilon)

    c = aligned(np.zeros(k_padded + W, B.dtype), W)
    n = aligned(np.empty(k_padded + W, B.dtype), W)
    V = aligned(np.empty(k_padded * L + W, B.dtype), W)  # tile by tile: V[tile, i, lane]
    R = np.empty((L, L), B.dtype)
    alphas = np.empty(L, B.dtype)
    selected = np.empty(L, np.int64)

    for row in range(B.shape[0]):
        for j in range(k):
            c[j] = B[row, j]
        for j in range(k_padded):
            n[j] = 1
        for t in range(n_tiles):
            _score_tile(c, n, scores, t, min_squared_norms, W)
        remaining = np.float64(squared_residuals[row])
        noise = remaining * max(epsilon, 1e-12)  # a smaller decrease may be rounding

        size = np.int64(0)
        while size < L and remaining > tols[row]:
            s = _best_atom(c, n, scores, tolerance, min_squared_norm[0], W)
            if np.float64(c[s]) ** 2 <= noise * n[s]:
                break
            pivot = G[s * k_padded + s]
            offset = (s // W) * L * W + s % W
            for i in range(size):
                R[size, i] = V[offset + i * W]
                pivot -= R[size, i] * R[size, i]
            if pivot <= min_pivot:  # already in the span: exclude it
                c[s] = 0
                n[s] = 1
                _score_tile(c, n, scores, s // W, min_squared_norms, W)
                continue
            nu = np.sqrt(pivot)
            R[size, size] = nu
            alpha = c[s] / nu
            alphas[size] = alpha
            selected[size] = s
            remaining -= np.float64(alpha) * np.float64(alpha)
            size += 1
            if size == L or remaining <= tols[row]:
                break
            last = size - 1
            _orthogonalise(
                G, V, R[last], c, n, scores, s, last, alpha, nu, min_squared_norms, n_factor, W
            )
            c[s] = 0  # exact zeros instead of rounding
            n[s] = 1
            _score_tile(c, n, scores, s // W, min_squared_norms, W)

        squared_residuals[row] = max(remaining, 0.0)
        for i in range(size - 1, -1, -1):
            alphas[i] /= R[i, i]
            for m in range(i):
                alphas[m] -= R[i, m] * alphas[i]
        first = indptr[row]
        indptr[row + 1] = first + size
        for i in range(size):
            indices[first + i] = selected[i]
            codes[first + i] = alphas[i]


@jit()
def _score_tile(c, n, scores, t, min_squared_norms, W):
    """Store the bit patterns of c²/max(n, min_squared_norms) of tile t in `scores`.

    They approximate the base-2 logarithm with an error of at most ±0.0861; see `simd.bits`.
    """
    ct = load(c, t * W)
    nt = maximum(load(n, t * W), min_squared_norms)
    store(scores, t * W, subtract_integers(bits(multiply(ct, ct)), bits(nt)))


@jit()
def _orthogonalise(
    G, V, coefficients, c, n, scores, s, size, alpha, nu, min_squared_norms, n_factor, W
):
    """Append v_l to V and update c, n and the scores after the selection of atom s.

    `coefficients` are the v_i[s] of the `size` atoms selected before; `n_factor` is 1 to update n,
    and 0 for classical selection. Two tiles at a time hide the latency of the sums.
    """
    k_padded = c.shape[0]
    n_pairs = k_padded // (2 * W)
    stride = V.shape[0] // k_padded * W
    step = splat(V, alpha)
    scale = splat(V, 1 / nu)
    for count in range(n_pairs):
        # Alternating direction: the last tiles of the previous selection are still in cache.
        t = 2 * (count if size % 2 == 0 else n_pairs - 1 - count)
        v = load(G, s * k_padded + t * W)
        w = load(G, s * k_padded + t * W + W)
        base = t * stride
        for i in range(size):
            coefficient = splat(V, coefficients[i])
            v = subtract_product(v, coefficient, load(V, base + i * W))
            w = subtract_product(w, coefficient, load(V, base + stride + i * W))
        v = multiply(v, scale)
        w = multiply(w, scale)
        store(V, base + size * W, v)
        store(V, base + stride + size * W, w)
        store(c, t * W, subtract_product(load(c, t * W), step, v))
        store(n, t * W, subtract_product(load(n, t * W), multiply(v, n_factor), v))
        _score_tile(c, n, scores, t, min_squared_norms, W)
        store(c, t * W + W, subtract_product(load(c, t * W + W), step, w))
        store(n, t * W + W, subtract_product(load(n, t * W + W), multiply(w, n_factor), w))
        _score_tile(c, n, scores, t + 1, min_squared_norms, W)


@jit()
def _best_atom(c, n, scores, tolerance, min_squared_norm, W):
    """Return the index of the (first) atom with the largest c²/max(n, min_squared_norm).

    Only atoms whose approximate score is within `tolerance` of the maximum are compared exactly.
    """
    n_tiles = scores.shape[0] // W
    top = load(scores, 0)
    for t in range(1, n_tiles):
        top = maximum_integers(top, load(scores, t * W))
    bound = reduce_max(top) - tolerance
    best = 0
    best_score = c[0] * c[0] / max(n[0], min_squared_norm)
    for t in range(0, n_tiles, 2):
        candidates = mask_ge(load(scores, t * W), bound)
        candidates |= mask_ge(load(scores, t * W + W), bound) << W
        while candidates:
            j = t * W + count_trailing_zeros(candidates)
            candidates &= candidates - 1
            score = c[j] * c[j] / max(n[j], min_squared_norm)
            if score > best_score:
                best_score = score
                best = j
    return best
