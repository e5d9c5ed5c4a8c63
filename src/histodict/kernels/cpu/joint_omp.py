"""Greedy pursuit with one support for several channels (simultaneous order-recursive pursuit).

For one sample with channels y_c over channel dictionaries D_c, each channel has the state of a
separate pursuit as in `kernels.cpu.omp`: the correlations c, the squared norms n outside the
selected span, and the products v_i of its orthonormal basis with its atoms. Only the selection is
joint. It takes the atom with the largest Σ_c c_j²/n_j, which is the decrease of the squared
residual over all channels, or with classical selection the largest Σ_c c_j².

An atom may lie in the span of the selected ones in some channels only (a grey patch, an empty
channel). There ν is set to infinity, so the basis gets a zero vector and the code a zero.

The functions share c and n (n_channels, k_padded); V, the vectors v_i; R, triangles whose rows are
the v_i[s] and ν; `scores`, Σ_c c²/n of each atom; W, the number of elements of a SIMD vector; and
tile_bounds, the bit pattern of the largest score of each tile of W atoms.

References: Tropp, Gilbert, Strauss (2006), simultaneous pursuit by correlation; Rebollo-Neira, Lowe
(2002), the order-recursive selection.
"""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import (
    add,
    bits,
    divide,
    load,
    maximum,
    multiply,
    reduce_max,
    splat,
    store,
    subtract_product,
)


@jit()
def pursue(B, G, tols, order_recursive, n_nonzero, W, indptr, indices, codes, squared_residuals):
    """Encode the samples of a block by greedy pursuit with one support for all channels.

    Atoms have unit norm, or are zero, in every channel; samples have unit norm over all channels.

    Parameters
    ----------
    B : (n_channels, n, k), products ⟨y_c, d_cj⟩ of n samples and k atoms
    G : (n_channels, k, k_padded), Gram matrices, rows padded with zeros to multiples of W
    tols : (n,), squared residuals at which a sample is finished
    order_recursive : whether to select the atom with the largest Σ ⟨r, d⟩²/p over the channels,
        where r is the residual and p the squared norm of atom d outside the span of the selected
        atoms; otherwise the atom with the largest Σ ⟨r, d⟩²
    n_nonzero : maximum number of atoms per sample
    W : number of elements of a SIMD vector
    indptr, indices : output, the support as in a CSR matrix, in the order of selection
    codes : output, (n_channels, n · n_nonzero), the coefficients
    squared_residuals : (n,), Σ_c ‖y_c‖² on entry, Σ_c ‖y_c − s_c D_c‖² on return
    """
    n_channels, n_rows, _ = B.shape
    k_padded = G.shape[2]
    L = n_nonzero
    epsilon = np.finfo(B.dtype).eps
    # An atom with a smaller norm² outside the span would add rounding errors to the basis.
    min_pivot = np.sqrt(epsilon)
    n_factor = 1.0 if order_recursive else 0.0

    c = np.zeros((n_channels, k_padded), B.dtype)
    n = np.empty((n_channels, k_padded), B.dtype)
    V = np.empty((n_channels, k_padded // W, L, W), B.dtype)
    R = np.empty((n_channels, L, L), B.dtype)
    alphas = np.empty((n_channels, L), B.dtype)
    scores = np.empty(k_padded, B.dtype)
    tile_bounds = np.empty(k_padded // W, np.int64)

    for row in range(n_rows):
        _reset(B, row, c, n)
        for t in range(tile_bounds.shape[0]):
            tile_bounds[t] = _score_tile(c, n, scores, t, min_pivot, W)
        remaining = np.float64(squared_residuals[row])
        noise = remaining * max(epsilon, 1e-12)  # a smaller decrease may be rounding
        first = indptr[row]
        size = np.int64(0)
        while size < L and remaining > tols[row]:
            s = _best_atom(scores, tile_bounds, W)
            if scores[s] <= noise:
                break
            if _project(G, V, R, c, n, s, size, min_pivot, W):
                tile_bounds[s // W] = _score_tile(c, n, scores, s // W, min_pivot, W)
                continue
            for channel in range(n_channels):
                alpha = c[channel, s] / R[channel, size, size]
                alphas[channel, size] = alpha
                remaining -= np.float64(alpha) ** 2
            indices[first + size] = s
            size += 1
            if size == L or remaining <= tols[row]:
                break
            _orthogonalise(
                G, V, R, alphas, c, n, scores, tile_bounds, s, size - 1, min_pivot, n_factor, W
            )
        squared_residuals[row] = max(remaining, 0.0)
        indptr[row + 1] = first + size
        _solve_triangles(R, alphas, size, codes, first)


@jit()
def _reset(B, row, c, n):
    """Set c and n to their initial values for a sample; the padding of c stays zero."""
    for channel in range(c.shape[0]):
        for j in range(B.shape[2]):
            c[channel, j] = B[channel, row, j]
        for j in range(n.shape[1]):
            n[channel, j] = 1


@jit()
def _score_tile(c, n, scores, t, min_squared_norm, W):
    """Store Σ_c c²/max(n, min_squared_norm) of the atoms of tile t in `scores`.

    Return the bit pattern of the largest of these scores.
    """
    min_squared_norms = splat(c, min_squared_norm)
    ct = load(c, t * W)
    total = divide(multiply(ct, ct), maximum(load(n, t * W), min_squared_norms))
    for channel in range(1, c.shape[0]):
        offset = channel * c.shape[1] + t * W
        ct = load(c, offset)
        total = add(total, divide(multiply(ct, ct), maximum(load(n, offset), min_squared_norms)))
    store(scores, t * W, total)
    return reduce_max(bits(total))


@jit()
def _best_atom(scores, tile_bounds, W):
    """Return the index of the (first) atom with the largest score."""
    tile = 0
    for t in range(1, tile_bounds.shape[0]):
        if tile_bounds[t] > tile_bounds[tile]:
            tile = t
    best = tile * W
    for j in range(tile * W + 1, tile * W + W):
        if scores[j] > scores[best]:
            best = j
    return best


@jit()
def _project(G, V, R, c, n, s, size, min_pivot, W):
    """Store the products of atom s with the basis vectors, and ν, in row `size` of R.

    Return True if atom s depends on the selected atoms in a channel that contributes to its score.
    This contribution is removed, and the caller must repeat the selection. `min_pivot` is the
    smallest ν² of an independent atom.
    """
    is_dependent = False
    for channel in range(G.shape[0]):
        pivot = G[channel, s, s]
        for i in range(size):
            x = V[channel, s // W, i, s % W]
            R[channel, size, i] = x
            pivot -= x * x
        if pivot <= min_pivot:
            is_dependent |= c[channel, s] != 0
            c[channel, s] = 0
            n[channel, s] = 1
            pivot = np.inf
        R[channel, size, size] = np.sqrt(pivot)
    return is_dependent


@jit()
def _orthogonalise(
    G, V, R, alphas, c, n, scores, tile_bounds, s, size, min_squared_norm, n_factor, W
):
    """Append a basis vector to V for the selected atom s, and update c, n and the scores.

    `size` is the number of atoms selected before; n is not updated if `n_factor` is 0.
    """
    n_channels, k, k_padded = G.shape
    L = R.shape[1]
    n_factor_vector = splat(c, n_factor)
    for t in range(tile_bounds.shape[0]):
        for channel in range(n_channels):
            v = load(G, (channel * k + s) * k_padded + t * W)
            base = (channel * k_padded + t * W) * L
            for i in range(size):
                v = subtract_product(v, splat(V, R[channel, size, i]), load(V, base + i * W))
            v = multiply(v, splat(V, 1 / R[channel, size, size]))
            store(V, base + size * W, v)
            offset = channel * k_padded + t * W
            step = splat(c, alphas[channel, size])
            store(c, offset, subtract_product(load(c, offset), step, v))
            store(n, offset, subtract_product(load(n, offset), multiply(v, n_factor_vector), v))
        tile_bounds[t] = _score_tile(c, n, scores, t, min_squared_norm, W)


@jit()
def _solve_triangles(R, alphas, size, codes, first):
    """Compute codes[channel, first : first + size] of the selected atoms from R and alphas."""
    for channel in range(R.shape[0]):
        for i in range(size - 1, -1, -1):
            alphas[channel, i] /= R[channel, i, i]
            for m in range(i):
                alphas[channel, m] -= R[channel, i, m] * alphas[channel, i]
            codes[channel, first + i] = alphas[channel, i]
