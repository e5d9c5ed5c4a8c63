"""Atom updates: sums over coded samples, residual norms, and the sweep over unit-norm atoms."""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import aligned, load, splat, store, subtract_product

_ATOMS_PER_BLOCK = 32


def sweep(D, E, F):
    """Update all atoms of D once, in place, from the statistics E and F.

    Each atom is replaced by the unit vector that, given the others, minimises

        −2·tr(E Dᵀ) + tr(F D Dᵀ)

    which is d_j ∝ u_j = e_j − Σ_{i≠j} F_ji d_i. An atom with u_j = 0 (an unused one) is not
    changed. The DFDL paper adds a multiple of the identity to F to make it positive semidefinite.
    This changes neither u_j nor the minimiser on unit vectors, so it is not done here.
    """
    for start in range(0, D.shape[0], _ATOMS_PER_BLOCK):
        block = slice(start, start + _ATOMS_PER_BLOCK)
        U = E[block] - F[block] @ D
        inside = np.ascontiguousarray(F[block, block])
        j = _update_block(D[block], U, inside, 0)
        while j < len(U):
            _update_scaled(D[block], U, inside, j)
            j = _update_block(D[block], U, inside, j + 1)


@jit(fastmath={"contract", "nsz", "reassoc"})
def _update_block(D, U, F, start):
    """Update the atoms of a block sequentially, and U = e_j − (FD)_j with them.

    The update stops at the first atom whose squares overflow or lose precision. Return the index of
    this atom, or the number of atoms if there is none.
    """
    n_atoms, d = D.shape
    change = np.empty(d, D.dtype)
    most = np.float64(np.finfo(D.dtype).max) / 1024
    least = np.float64(np.finfo(D.dtype).tiny) / np.finfo(D.dtype).eps * 1024
    for j in range(start, n_atoms):
        norm2 = 0.0
        scale2 = 0.0
        for f in range(d):
            u = U[j, f] + F[j, j] * D[j, f]
            change[f] = u
            norm2 += u * u
            scale2 += U[j, f] * U[j, f]
        scale2 += F[j, j] * F[j, j]
        if not least < norm2 < most or not scale2 < most:
            return j
        if norm2 <= (16 * np.finfo(D.dtype).eps) ** 2 * scale2:
            continue
        factor = 1 / np.sqrt(norm2)
        for f in range(d):
            new = change[f] * factor
            change[f] = new - D[j, f]
            D[j, f] = new
        for m in range(j + 1, n_atoms):
            pull = F[m, j]
            for f in range(d):
                U[m, f] -= pull * change[f]
    return n_atoms


@jit()
def _update_scaled(D, U, F, j):
    """Update one atom with squares in double precision, relative to the largest value.

    It is a separate function because it makes `_update_block` a quarter slower inside it.
    """
    n_atoms, d = D.shape
    F_jj = np.float64(F[j, j])
    unit = abs(F_jj)
    for f in range(d):
        u = np.float64(U[j, f]) + F_jj * D[j, f]
        unit = max(unit, abs(u), abs(np.float64(U[j, f])))
    norm2 = 0.0
    scale2 = (F_jj / unit) ** 2
    for f in range(d):
        norm2 += ((np.float64(U[j, f]) + F_jj * D[j, f]) / unit) ** 2
        scale2 += (np.float64(U[j, f]) / unit) ** 2
    if unit == 0 or norm2 <= (16 * np.finfo(D.dtype).eps) ** 2 * scale2:
        return
    for f in range(d):
        new = (np.float64(U[j, f]) + F_jj * D[j, f]) / unit / np.sqrt(norm2)
        change = new - D[j, f]
        D[j, f] = new
        for m in range(j + 1, n_atoms):
            U[m, f] -= F[m, j] * change


@jit(fastmath=True)
def residual_norms(Y, D, atom_classes, indptr, indices, codes, norms):
    """Compute the class residuals norms[row, i] = ‖y − Σ_{j of class i} s_j d_j‖ of a block.

    `indptr`, `indices` and `codes` are the codes as a CSR matrix; `norms` is the output.
    """
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
    """Compute norms[row] = ‖y‖² (output) for the rows of Y, summed in double precision."""
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
