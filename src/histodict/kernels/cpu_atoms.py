"""Unit-norm atom updates from the sums E and F, blocked so that the bulk is matrix products."""

from __future__ import annotations

import numpy as np

from .compiling import compiled

_ATOMS_PER_BLOCK = 32


def sweep(D, E, F):
    """One pass over all atoms, in place: each becomes the unit vector that minimises

        −2·tr(E Dᵀ) + tr(F D Dᵀ)

    given the others, d_j ∝ u_j = e_j − Σ_{i≠j} F_ji d_i. An atom whose u_j vanishes (it is unused)
    stays. Adding a multiple of the identity to F, as the paper does to make it positive
    semidefinite, changes neither u_j nor the minimiser on unit vectors, so it is not done here.
    """
    for start in range(0, D.shape[0], _ATOMS_PER_BLOCK):
        block = slice(start, start + _ATOMS_PER_BLOCK)
        U = E[block] - F[block] @ D
        _update_block(D[block], U, np.ascontiguousarray(F[block, block]))


@compiled(fastmath={"contract", "nsz", "reassoc"})
def _update_block(D, U, F):
    """Sequential updates inside a block: U holds e_j − (FD)_j and follows each changed atom."""
    n_atoms, d = D.shape
    change = np.empty(d, D.dtype)
    # Between these, squares neither overflow nor lose digits.
    most = np.float64(np.finfo(D.dtype).max) / 1024
    least = np.float64(np.finfo(D.dtype).tiny) / np.finfo(D.dtype).eps * 1024
    for j in range(n_atoms):
        norm2 = 0.0
        scale2 = 0.0
        for f in range(d):
            u = U[j, f] + F[j, j] * D[j, f]
            change[f] = u
            norm2 += u * u
            scale2 += U[j, f] * U[j, f]
        scale2 += F[j, j] * F[j, j]
        unit = 1.0
        if not least < norm2 < most or not scale2 < most:
            unit, norm2, scale2 = _scaled_squares(change, U[j], F[j, j])
        if norm2 <= (16 * np.finfo(D.dtype).eps) ** 2 * scale2 or norm2 == 0.0:
            continue
        factor = 1 / np.sqrt(norm2) / unit
        for f in range(d):
            new = change[f] * factor
            change[f] = new - D[j, f]
            D[j, f] = new
        for m in range(j + 1, n_atoms):
            pull = F[m, j]
            for f in range(d):
                U[m, f] -= pull * change[f]


@compiled()
def _scaled_squares(u, rest, f_jj):
    """The largest value, and ‖u‖² and ‖rest‖² + f_jj² over its square, where squares do not fit."""
    unit = abs(np.float64(f_jj))
    for f in range(u.shape[0]):
        unit = max(unit, abs(np.float64(u[f])), abs(np.float64(rest[f])))
    if unit == 0:
        return 1.0, 0.0, 0.0
    norm2 = 0.0
    scale2 = (np.float64(f_jj) / unit) ** 2
    for f in range(u.shape[0]):
        norm2 += (np.float64(u[f]) / unit) ** 2
        scale2 += (np.float64(rest[f]) / unit) ** 2
    return unit, norm2, scale2
