"""Exact l1 coding on blocks of samples, by an active-set method with a duality gap.

    min_s  ½‖y − sD‖² + λ‖s‖₁

For each sample the method repeats three steps. It activates the atom that violates
|⟨d_j, residual⟩| ≤ λ most. It solves for the active signs with an updated Cholesky factor of the
Gram matrix. If a sign changes on the way, it stops at the first change and removes that atom. Each
round lowers the objective, so the method ends at the minimiser; it stops earlier once the duality
gap is at most `tol` times the objective.

Arguments of several functions, for one sample:

    b, c            products ⟨y, d_j⟩, and correlations c_j = ⟨d_j, residual⟩, of all atoms
    active, m       indices of the active atoms, of which there are m
    s, signs        their coefficients and the signs of these
    G, C            Gram matrix of all atoms; Cholesky factor of that of the active atoms
    mask            0 for atoms that may be selected, −∞ for active, excluded and padding atoms
    tile_bounds     bit pattern of the largest |c| + mask of each tile, that is, of W atoms
    W, lane_bits    number of elements of a SIMD vector; scratch memory, W integers

References: Osborne, Presnell, Turlach (2000) and Lee, Battle, Raina, Ng (2007).
"""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import absolute, add, bits, load, reduce_max, splat, store, subtract_product

# Added to |c| of atoms that must not be selected, so that they never have the maximum.
_EXCLUDED = -np.inf


@jit()
def solve(B, yy, G, penalty, tol, lane_bits, indptr, indices, codes):
    """Encode the samples of a block and return the number of samples that did not converge.

    Parameters
    ----------
    B : (n, k), products ⟨y, d_j⟩ of n samples and k atoms
    yy : (n,), ‖y‖²
    G : (k, k_padded), Gram matrix, rows padded with zeros to whole SIMD vectors
    penalty : λ
    tol : maximum duality gap relative to the objective
    lane_bits : scratch memory, (W,), integers as wide as the elements of B
    indptr, indices, codes : output, the codes as in a CSR matrix
    """
    k = B.shape[1]
    W = lane_bits.shape[0]
    n_tiles = -(-k // W)
    capacity = codes.shape[0] // B.shape[0]
    round_limit = 20 * capacity + 100
    n_unfinished = 0

    b = np.zeros(n_tiles * W, B.dtype)
    c = np.zeros(n_tiles * W, B.dtype)
    mask = np.full(n_tiles * W, _EXCLUDED, B.dtype)  # 0 for atoms that may be selected
    excluded = np.empty(k, np.int64)  # atoms too close to the span of the active ones
    tile_bounds = np.empty(n_tiles, np.int64)
    active = np.empty(capacity, np.int64)
    signs = np.empty(capacity, np.float64)
    s = np.empty(capacity, np.float64)
    C = np.empty((capacity, capacity), np.float64)  # Cholesky factor of the active Gram matrix
    z = np.empty(capacity, np.float64)  # C⁻¹ (b − λ·signs)
    target = np.empty(capacity, np.float64)

    for row in range(B.shape[0]):
        for j in range(k):
            b[j] = B[row, j]
            mask[j] = 0
        m = np.int64(0)
        n_excluded = 0
        rounds = 0
        stalled = 0
        lowest = np.inf
        _correlate(b, G, active, s, m, mask, c, tile_bounds, W)
        while True:
            j = _most_correlated_atom(c, mask, tile_bounds, lane_bits)
            max_correlation = abs(c[j]) + mask[j]
            gap, objective = _relative_gap(yy[row], b, active, s, m, max_correlation, penalty)
            if gap <= tol:
                for i in range(n_excluded):
                    max_correlation = max(max_correlation, abs(c[excluded[i]]))
                gap, _ = _relative_gap(yy[row], b, active, s, m, max_correlation, penalty)
                n_unfinished += not gap <= tol
                break
            stalled = stalled + 1 if objective >= lowest else 0  # in exact arithmetic, never
            lowest = min(lowest, objective)
            # The negated comparison is also true for NaN, from an overflow. An atom that is active,
            # excluded or padding has max_correlation = −∞ or NaN, and is never selected.
            out_of_atoms = not max_correlation > penalty or m == capacity
            if out_of_atoms or stalled == 5 or rounds == round_limit:
                n_unfinished += 1
                break
            rounds += 1
            m, unchanged, added = _activate_several(
                j, penalty, m, active, signs, s, target, C, G, c, mask, tile_bounds, lane_bits
            )
            if not added:
                excluded[n_excluded] = j
                n_excluded += 1
            m = _descend(b, penalty, m, unchanged, active, signs, s, z, target, C, mask)
            _correlate(b, G, active, s, m, mask, c, tile_bounds, W)

        first = indptr[row]
        indptr[row + 1] = first + m
        for i in range(m):
            indices[first + i] = active[i]
            codes[first + i] = s[i]
    return n_unfinished


@jit()
def _correlate(b, G, active, s, m, mask, c, tile_bounds, W):
    """Store b − sG of all atoms in c, and the largest |c| + mask of each tile in `tile_bounds`."""
    flat = G.reshape(-1)
    stride = G.shape[1]
    for t in range(tile_bounds.shape[0]):
        v = load(b, t * W)
        for i in range(m):
            v = subtract_product(v, splat(b, s[i]), load(flat, active[i] * stride + t * W))
        store(c, t * W, v)
        tile_bounds[t] = reduce_max(bits(add(absolute(v), load(mask, t * W))))


@jit()
def _most_correlated_atom(c, mask, tile_bounds, lane_bits):
    """Return the index of the (first) atom with the largest |c| + mask."""
    W = lane_bits.shape[0]
    tile = 0
    for t in range(1, tile_bounds.shape[0]):
        if tile_bounds[t] > tile_bounds[tile]:
            tile = t
    store(lane_bits, 0, bits(add(absolute(load(c, tile * W)), load(mask, tile * W))))
    lane = 0
    while lane < W - 1 and lane_bits[lane] != tile_bounds[tile]:
        lane += 1
    return tile * W + lane


@jit()
def _relative_gap(yy, b, active, s, m, max_correlation, penalty):
    """Return the duality gap relative to the objective, and the objective.

    The dual point is r·min(1, λ / max_correlation) with the residual r. As ⟨s, c⟩ = λ‖s‖₁ if s is
    optimal for its signs, ‖r‖² and ⟨y, r⟩ follow from ‖y‖² (`yy`), s and b.
    """
    fit = 0.0
    l1 = 0.0
    for i in range(m):
        fit += s[i] * b[active[i]]
        l1 += abs(s[i])
    y_r = yy - fit
    r_r = max(y_r - penalty * l1, 0.0)
    primal = 0.5 * r_r + penalty * l1
    scale = penalty / max(max_correlation, penalty)
    gap = (primal - scale * y_r + 0.5 * scale * scale * r_r) / max(primal, 1e-300)
    return gap, primal


@jit()
def _activate_several(
    j, penalty, m, active, signs, s, target, C, G, c, mask, tile_bounds, lane_bits
):
    """Activate atom j and, from other tiles, up to two atoms whose |c| is nearly as large.

    This saves passes over all atoms; `_descend` removes atoms added needlessly. Return the new m,
    how many atoms at the start of `active` are unchanged, and whether j was added.
    """
    W = lane_bits.shape[0]
    unchanged = m
    min_correlation = penalty + 0.3 * (abs(c[j]) - penalty)
    for extra in range(3):
        sign = 1.0 if c[j] > 0 else -1.0
        size = m
        m, added = _activate(j, sign, m, active, signs, s, target, C, G, mask)
        if added or extra == 0:
            mask[j] = _EXCLUDED
        if not added or m != size + 1:
            return m, 0, added or extra > 0
        if m == active.shape[0]:
            break
        tile_bounds[j // W] = 0
        j = _most_correlated_atom(c, mask, tile_bounds, lane_bits)
        if not abs(c[j]) + mask[j] >= min_correlation:
            break
    return m, unchanged, True


@jit()
def _activate(j, sign, m, active, signs, s, target, C, G, mask):
    """Add atom j to the active atoms; return the new m and whether the atom was added.

    The coefficient of atom j is 0, unless it is in the span of the active atoms. Such an atom would
    make their Gram matrix singular. Moving weight to it along the linear dependence changes only
    the penalty. Weight is moved until the coefficient of an active atom is 0, and this active atom
    is removed. If no coefficient becomes 0, atom j is not added.
    """
    start = 0.0
    while True:
        pivot = np.float64(G[j, j])
        for i in range(m):
            x = np.float64(G[j, active[i]])
            for q in range(i):
                x -= C[i, q] * C[m, q]
            C[m, i] = x / C[i, i]
            pivot -= C[m, i] * C[m, i]
        if pivot > max(np.finfo(G.dtype).eps ** 0.7, 1e-9) * G[j, j]:
            active[m] = j
            signs[m] = sign
            s[m] = start
            C[m, m] = np.sqrt(pivot)
            return m + 1, True
        for i in range(m):
            target[i] = C[m, i]
        _back_substitute(C, m, target)
        length = np.inf
        removed = np.int64(-1)
        for i in range(m):
            slope = sign * target[i]
            if slope * signs[i] > 0 and s[i] / slope < length:
                length = s[i] / slope
                removed = np.int64(i)
        if removed < 0:
            return m, False
        for i in range(m):
            s[i] -= length * sign * target[i]
        start += length * sign
        m = _drop(removed, m, active, signs, s, C, mask)


@jit()
def _descend(b, penalty, m, unchanged, active, signs, s, z, target, C, mask):
    """Minimise over the active atoms with fixed signs, and return the new m.

    Atoms whose coefficient becomes 0 are removed.

    The first `unchanged` entries of z = C⁻¹(b − λ·signs) are valid from the last call.
    """
    while m > 0:
        for i in range(unchanged, m):
            x = b[active[i]] - penalty * signs[i]
            for q in range(i):
                x -= C[i, q] * z[q]
            z[i] = x / C[i, i]
        for i in range(m):
            target[i] = z[i]
        _back_substitute(C, m, target)
        length = 1.0
        removed = np.int64(-1)
        for i in range(m):
            if target[i] * signs[i] <= 0:
                reach = s[i] / (s[i] - target[i]) if s[i] != target[i] else 0.0
                if removed < 0 or reach < length:
                    length = reach
                    removed = np.int64(i)
        for i in range(m):
            s[i] += length * (target[i] - s[i])
        if removed < 0:
            return m
        m = _drop(removed, m, active, signs, s, C, mask)
        unchanged = removed
    return m


@jit()
def _back_substitute(C, m, x):
    """Replace the first m entries x by C⁻ᵀx, with C limited to the first m rows and columns.

    C is lower triangular.
    """
    for i in range(m - 1, -1, -1):
        x[i] /= C[i, i]
        for q in range(i):
            x[q] -= C[i, q] * x[i]


@jit()
def _drop(removed, m, active, signs, s, C, mask):
    """Remove the active atom at index `removed`, update its factor C, and return the new m."""
    mask[active[removed]] = 0
    for i in range(removed, m - 1):
        active[i] = active[i + 1]
        signs[i] = signs[i + 1]
        s[i] = s[i + 1]
        for q in range(i + 2):
            C[i, q] = C[i + 1, q]
    for q in range(removed, m - 1):
        radius = np.hypot(C[q, q], C[q, q + 1])
        cosine = C[q, q] / radius
        sine = C[q, q + 1] / radius
        C[q, q] = radius
        for i in range(q + 1, m - 1):
            x = C[i, q]
            y = C[i, q + 1]
            C[i, q] = cosine * x + sine * y
            C[i, q + 1] = cosine * y - sine * x
    return m - 1
