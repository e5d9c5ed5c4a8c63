"""Updates of unit-norm atoms from the sums E and F, in blocks that use matrix products."""

from __future__ import annotations

import numpy as np

from ..compilation import jit

_ATOMS_PER_BLOCK = 32


def sweep(D, E, F):
    """Update all atoms once, in place.

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
    """Update the atoms of a block sequentially; U = e_j − (FD)_j is kept up to date.

    Stops at an atom whose squares overflow or lose precision, and returns its index. Returns the
    number of atoms if there is none.
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
