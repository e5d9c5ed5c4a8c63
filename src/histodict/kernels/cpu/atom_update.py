"""Atom updates: sums over coded samples, residual norms, and the sweep over unit-norm atoms."""

from __future__ import annotations

import numpy as np

from ..compilation import jit
from .simd import aligned, load, splat, store, subtract_product

_ATOMS_PER_BLOCK = 32


def sweep(D, E, F):
    """Update all atoms once, in place, from E = Σ w·sᵀy (k, d) and F = Σ w·sᵀs (k, k).

    Each atom d_j is replaced by the unit vector that, with the other atoms fixed, minimises

        −2·tr(E Dᵀ) + tr(F D Dᵀ)

    This is u_j/‖u_j‖ with u_j = e_j − Σ_{i≠j} F_ji d_i, where e_j is row j of E. An atom with
    u_j = 0 (an unused atom) is not changed.

    The DFDL paper adds a multiple of the identity to F to make it positive semidefinite. This
    changes neither u_j nor the minimiser on unit vectors, so it is not done here.
    """
    for start in range(0, D.shape[0], _ATOMS_PER_BLOCK):
        block = slice(start, start + _ATOMS_PER_BLOCK)
        U = E[block] - F[block] @ D
        F_block = np.ascontiguousarray(F[block, block])
        j = _update_block(D[block], U, F_block, 0)
        while j < len(U):
            _update_atom_safely(D[block], U, F_block, j)
            j = _update_block(D[block], U, F_block, j + 1)


@jit(fastmath={"contract", "nsz", "reassoc"})
def _update_block(D, U, F, start):
    """Update the atoms of a block from index `start` on, one after the other, in place.

    D are the atoms of the block and F the statistics between them. Row j of U is e_j − (FD)_j and
    is kept up to date. The update stops at the first atom whose squares overflow or lose precision.
    Return the index of this atom, or the number of atoms in the block if there is none.
    """
    n_atoms, d = D.shape
    change = np.empty(d, D.dtype)
    max_norm2 = np.float64(np.finfo(D.dtype).max) / 1024
    min_norm2 = np.float64(np.finfo(D.dtype).tiny) / np.finfo(D.dtype).eps * 1024
    for j in range(start, n_atoms):
        norm2 = 0.0
        scale2 = 0.0
        for f in range(d):
            u = U[j, f] + F[j, j] * D[j, f]
            change[f] = u
            norm2 += u * u
            scale2 += U[j, f] * U[j, f]
        scale2 += F[j, j] * F[j, j]
        if not min_norm2 < norm2 < max_norm2 or not scale2 < max_norm2:
            return j
        if norm2 <= (16 * np.finfo(D.dtype).eps) ** 2 * scale2:
            continue
        factor = 1 / np.sqrt(norm2)
        for f in range(d):
            new = change[f] * factor
            change[f] = new - D[j, f]
            D[j, f] = new
        for m in range(j + 1, n_atoms):
            coefficient = F[m, j]
            for f in range(d):
                U[m, f] -= coefficient * change[f]
    return n_atoms


@jit()
def _update_atom_safely(D, U, F, j):
    """Update atom j of a block; squares cannot overflow.

    Values are divided by the largest one, in double precision. This is a separate function because
    as a part of `_update_block` it would make that function a quarter slower.
    """
    n_atoms, d = D.shape
    F_jj = np.float64(F[j, j])
    largest = abs(F_jj)
    for f in range(d):
        u = np.float64(U[j, f]) + F_jj * D[j, f]
        largest = max(largest, abs(u), abs(np.float64(U[j, f])))
    norm2 = 0.0
    scale2 = (F_jj / largest) ** 2
    for f in range(d):
        norm2 += ((np.float64(U[j, f]) + F_jj * D[j, f]) / largest) ** 2
        scale2 += (np.float64(U[j, f]) / largest) ** 2
    if largest == 0 or norm2 <= (16 * np.finfo(D.dtype).eps) ** 2 * scale2:
        return
    for f in range(d):
        new = (np.float64(U[j, f]) + F_jj * D[j, f]) / largest / np.sqrt(norm2)
        change = new - D[j, f]
        D[j, f] = new
        for m in range(j + 1, n_atoms):
            U[m, f] -= F[m, j] * change


@jit(fastmath=True)
def residual_norms(Y, D, atom_classes, indptr, indices, codes, norms):
    """Store in norms[i, c] the residual norm of sample i with the atoms of class c only.

    `atom_classes` are the class indices of the atoms D. `indptr`, `indices` and `codes` are the
    codes of the samples Y as in a CSR matrix.
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
    """Store the squared norm of each row of Y in `norms`, summed in double precision."""
    for row in range(Y.shape[0]):
        total = 0.0
        for f in range(Y.shape[1]):
            y = np.float64(Y[row, f])
            total += y * y
        norms[row] = total


@jit()
def accumulate(Y, weights, indptr, indices, codes, W, E, F):
    """Set E (k, d) to Σ w·sᵀy and add a triangle of Σ w·sᵀs to F (k, k), over samples of a block.

    Y (n, d) are the samples, `weights` (n,) w, and `indptr`, `indices` and `codes` s as in a CSR
    matrix. Each unordered pair of coefficients is added to F once; call `add_transpose` afterwards.
    """
    k, d = E.shape
    n_rows = Y.shape[0]
    first = np.zeros(k + 1, np.int64)  # coefficients of atom j: first[j] … first[j + 1] − 1
    for a in range(indptr[0], indptr[n_rows]):
        first[indices[a] + 1] += 1
    for j in range(k):
        first[j + 1] += first[j]
    next_index = first.copy()
    offsets = np.empty(first[k], np.int64)
    coefficients = np.empty(first[k], Y.dtype)
    for row in range(n_rows):
        for a in range(indptr[row], indptr[row + 1]):
            value = weights[row] * codes[a]
            p = next_index[indices[a]]
            next_index[indices[a]] += 1
            offsets[p] = row * W
            coefficients[p] = -value
            F_row = F[indices[a]]
            for b in range(indptr[row], a + 1):
                F_row[indices[b]] += value * codes[b]
    # Strips of W features stay in the L1 or L2 cache while all atoms gather their samples.
    samples, sums = Y.reshape(-1), E.reshape(-1)
    strip = aligned(np.zeros(n_rows * W + W, Y.dtype), W)
    whole = d - d % W
    for start in range(0, whole, W):
        for row in range(n_rows):
            store(strip, row * W, load(samples, row * d + start))
        _gather(strip, first, offsets, coefficients, sums, start, d)
    if whole < d:
        for row in range(n_rows):
            for f in range(whole, d):
                strip[row * W + f - whole] = Y[row, f]
        rest = np.empty(k * W, Y.dtype)
        _gather(strip, first, offsets, coefficients, rest, np.int64(0), W)
        for j in range(k):
            for f in range(whole, d):
                E[j, f] = rest[j * W + f - whole]


@jit()
def accumulate_products(indptr, indices, codes, F):
    """Add a triangle of Σ sᵀs over the codes s of a block to F (k, k), as in `accumulate`."""
    for row in range(len(indptr) - 1):
        for a in range(indptr[row], indptr[row + 1]):
            F_row = F[indices[a]]
            for b in range(indptr[row], a + 1):
                F_row[indices[b]] += codes[a] * codes[b]


@jit()
def add_transpose(F):
    """Replace F by F + Fᵀ, with the diagonal counted once, in tiles that fit into the cache."""
    k = F.shape[0]
    for top in range(0, k, 32):
        for left in range(0, top + 1, 32):
            for i in range(top, min(top + 32, k)):
                for j in range(left, min(left + 32, i)):
                    total = F[i, j] + F[j, i]
                    F[i, j] = total
                    F[j, i] = total


@jit()
def _gather(strip, first, offsets, coefficients, sums, offset, stride):
    """Store Σ_p −coefficients[p]·v_p of each atom j as the SIMD vector sums[offset + j·stride].

    v_p is the SIMD vector strip[offsets[p]], and p runs from first[j] to first[j + 1] − 1.
    """
    zero = splat(strip, 0.0)
    for j in range(first.shape[0] - 1):
        total = zero
        for p in range(first[j], first[j + 1]):
            total = subtract_product(total, splat(strip, coefficients[p]), load(strip, offsets[p]))
        store(sums, offset + j * stride, total)
