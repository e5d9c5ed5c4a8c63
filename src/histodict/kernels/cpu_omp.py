"""Greedy pursuit on blocks of samples: order-recursive (OLS) or by correlation (OMP).

For one sample y the state after l picks is the orthonormal basis q_1 … q_l of the chosen atoms,
seen only through its products with all atoms, v_i = q_i Dᵀ. One more pick s is one pass over them:

    v_l = (G_s − Σ_{i<l} v_i[s] v_i) / ν,   ν² = ‖d_s‖² − Σ_{i<l} v_i[s]²
    c  ← c − α v_l,   n ← n − v_l²,         α = c_s / ν

with c_j = ⟨d_j, residual⟩ and n_j the squared norm of d_j outside the chosen span. The
order-recursive rule takes the largest c_j²/n_j, the drop of the squared residual; the classical one
the largest c_j²/‖d_j‖². Codes follow from the triangular system whose rows are the v_i[s].

References: Rubinstein, Zibulevsky, Elad (2008), batch OMP; Rebollo-Neira, Lowe (2002), the
order-recursive selection; it is what SPAMS calls OMP.
"""

from __future__ import annotations

import numpy as np

from .compiling import compiled
from .lanes import (
    bits,
    divide,
    largest,
    load,
    maximum,
    multiply,
    splat,
    store,
    subtract_integers,
    subtract_product,
)


@compiled()
def pursue(
    B,
    G,
    tols,
    order_recursive,
    lane_bits,
    n_nonzero,
    indptr,
    indices,
    codes,
    squared_residuals,
):
    """Code the rows of a block.

    Atoms and samples are of unit norm, or zero. B (n, k): products ⟨y, d_j⟩. G: the Gram matrix,
    rows padded with zeros to whole lanes, flat. tols (n,): stop at such a squared residual.
    squared_residuals (n,): ‖y‖² on entry, ‖y − sD‖² on return. lane_bits: scratch, one lane of
    integers. The codes go to `indptr`, `indices` and `codes`, as in a CSR matrix, in the order of
    the picks.
    """
    k = B.shape[1]
    k_padded = G.shape[0] // k
    W = lane_bits.shape[0]
    n_tiles = k_padded // W
    L = n_nonzero
    epsilon = np.finfo(B.dtype).eps
    # An atom with less of its norm² outside the span would fill the basis with rounding errors.
    dependent = np.sqrt(epsilon)
    floor = splat(G, dependent)
    shrink = splat(G, order_recursive)
    # The log-ratio of bit patterns is within ±0.0861; pairs may differ by twice that.
    slack = np.int64(0.173 / epsilon)

    c = np.zeros(k_padded, B.dtype)
    n = np.empty(k_padded, B.dtype)
    V = np.empty(k_padded * L, B.dtype)  # tile by tile: V[tile, i, lane]
    R = np.empty((L, L), B.dtype)
    alphas = np.empty(L, B.dtype)
    picks = np.empty(L, np.int64)
    tile_bounds = np.empty(n_tiles, np.int64)

    for row in range(B.shape[0]):
        for j in range(k):
            c[j] = B[row, j]
        n[:] = 1
        for t in range(n_tiles):
            tile_bounds[t] = _tile_bound(c, n, t, floor, W)
        remaining = np.float64(squared_residuals[row])
        noise = remaining * max(epsilon, 1e-12)  # a smaller drop of the residual may be rounding

        size = 0
        while size < L and remaining > tols[row]:
            s = _best_atom(c, n, tile_bounds, slack, floor, lane_bits, W)
            if np.float64(c[s]) ** 2 <= noise * n[s]:
                break
            pivot = G[s * k_padded + s]
            offset = (s // W) * L * W + s % W
            for i in range(size):
                R[size, i] = V[offset + i * W]
                pivot -= R[size, i] * R[size, i]
            if pivot <= dependent:  # in the span already: never look at it again
                c[s] = 0
                n[s] = 1
                tile_bounds[s // W] = _tile_bound(c, n, s // W, floor, W)
                continue
            nu = np.sqrt(pivot)
            R[size, size] = nu
            alpha = c[s] / nu
            alphas[size] = alpha
            picks[size] = s
            remaining -= np.float64(alpha) * np.float64(alpha)
            size += 1
            if size == L or remaining <= tols[row]:
                break
            _orthogonalise(
                G, V, R[size - 1], c, n, tile_bounds, s, size - 1, alpha, nu, floor, shrink, W
            )
            c[s] = 0  # exact zeros instead of rounding; the tile's bound stays a bound
            n[s] = 1

        squared_residuals[row] = max(remaining, 0.0)
        for i in range(size - 1, -1, -1):
            alphas[i] /= R[i, i]
            for m in range(i):
                alphas[m] -= R[i, m] * alphas[i]
        first = indptr[row]
        indptr[row + 1] = first + size
        for i in range(size):
            indices[first + i] = picks[i]
            codes[first + i] = alphas[i]


@compiled()
def _tile_bound(c, n, t, floor, W):
    ct = load(c, t * W)
    ratio = subtract_integers(bits(multiply(ct, ct)), bits(maximum(load(n, t * W), floor)))
    return largest(ratio)


@compiled()
def _orthogonalise(G, V, coefficients, c, n, tile_bounds, s, size, alpha, nu, floor, shrink, W):
    """Append v_l and update c, n and the bound on the best score of every tile."""
    n_tiles = tile_bounds.shape[0]
    k_padded = n_tiles * W
    rows = V.shape[0] // k_padded
    step = splat(V, alpha)
    scale = splat(V, 1 / nu)
    for t in range(n_tiles):
        v = load(G, s * k_padded + t * W)
        base = t * rows * W
        for i in range(size):
            v = subtract_product(v, splat(V, coefficients[i]), load(V, base + i * W))
        v = multiply(v, scale)
        store(V, base + size * W, v)
        ct = subtract_product(load(c, t * W), step, v)
        nt = subtract_product(load(n, t * W), multiply(v, shrink), v)
        store(c, t * W, ct)
        store(n, t * W, nt)
        ratio = subtract_integers(bits(multiply(ct, ct)), bits(maximum(nt, floor)))
        tile_bounds[t] = largest(ratio)


@compiled()
def _best_atom(c, n, tile_bounds, slack, floor, lane_bits, W):
    """The first atom with the largest c²/n; exact division only in tiles that can hold it."""
    best_bound = tile_bounds[0]
    for t in range(1, tile_bounds.shape[0]):
        best_bound = max(best_bound, tile_bounds[t])
    best_tile = 0
    best = np.int64(-1)
    for t in range(tile_bounds.shape[0]):
        if tile_bounds[t] >= best_bound - slack:
            ct = load(c, t * W)
            exact = divide(multiply(ct, ct), maximum(load(n, t * W), floor))
            top = np.int64(largest(bits(exact)))
            if top > best:
                best = top
                best_tile = t
                store(lane_bits, 0, bits(exact))
    for lane in range(W):
        if lane_bits[lane] == best:
            return best_tile * W + lane
    return 0
