"""Unit-norm atom updates on a CUDA device, in blocks as in `kernels.cpu.atom_update`.

U = E − F D is computed as one matrix product for the atoms of a block. One program then updates
these atoms one after the other and holds U in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .omp import NO_FP_FUSION

_WARPS = 8
_REGISTER_BYTES = 2**17  # size of U: 512 bytes, or 128 registers, for each of 8 · 32 threads
_MAX_ATOMS = 64


def sweep(D: Tensor, E: Tensor, F: Tensor) -> None:
    """Update all atoms once, in place, from E (k, d) and F (k, k).

    Atom d_j becomes u_j/‖u_j‖ with u_j = e_j − Σ_{i≠j} F_ji d_i, where e_j is row j of E.
    It is not changed if u_j = 0.
    """
    k, d = D.shape
    width = triton.next_power_of_2(d)
    n_atoms = min(_MAX_ATOMS, max(1, _REGISTER_BYTES // (width * D.element_size())))
    limit = (16 * torch.finfo(D.dtype).eps) ** 2
    for start in range(0, k, n_atoms):
        stop = min(start + n_atoms, k)
        U = torch.addmm(E[start:stop], F[start:stop], D, alpha=-1)
        _update_block[(1,)](
            D, U, F, start, stop, k, d, limit, n_atoms, width, num_warps=_WARPS, **NO_FP_FUSION
        )


@triton.jit
def _update_block(D, U, F, start, stop, k, d, limit, ATOMS: tl.constexpr, FEATURES: tl.constexpr):
    """Update the atoms start … stop − 1 of D, one after the other, in place.

    U are the rows e_j − (FD)_j of these atoms; an atom with ‖u_j‖² ≤ limit·F_jj² is not changed.
    """
    row = start + tl.arange(0, ATOMS)
    f = tl.arange(0, FEATURES)
    is_valid = (row < stop)[:, None] & (f < d)[None, :]
    slopes = tl.load(U + (row - start)[:, None] * d + f[None, :], mask=is_valid, other=0.0)
    old, f_j, f_jj = _load_atom(D, F, start, row, f, stop, k, d)
    for j in range(start, stop):
        # Load the next atom while this one is updated.
        next_old, next_f_j, next_f_jj = _load_atom(D, F, j + 1, row, f, stop, k, d)
        u = tl.sum(tl.where((row == j)[:, None], slopes, 0.0), axis=0) + f_jj * old
        norm2 = tl.sum(u * u)
        if norm2 > limit * f_jj * f_jj:
            new = u / tl.sqrt(norm2)
            tl.store(D + j * d + f, new, mask=f < d)
            slopes = tl.fma(-f_j[:, None], (new - old)[None, :], slopes)
        old, f_j, f_jj = next_old, next_f_j, next_f_jj


@triton.jit
def _load_atom(D, F, j, row, f, stop, k, d):
    """Return d_j, the entries of F for atom j and each atom of the block, and F_jj."""
    old = tl.load(D + j * d + f, mask=(f < d) & (j < stop), other=0.0)
    f_j = tl.load(F + j * k + row, mask=(row < stop) & (j < stop), other=0.0)
    return old, f_j, tl.load(F + j * k + j, mask=j < stop, other=0.0)
