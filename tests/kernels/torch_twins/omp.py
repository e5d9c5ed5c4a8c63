"""Greedy pursuit on a block of samples in plain torch: the recursion of `cpu_omp` for all rows.

Atoms with too small a norm outside the span are excluded all at once; the CPU kernel tests them one
by one. On smooth patches these are most atoms in the end. This module replaces `gpu_omp_triton`
without a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pursue(
    B: Tensor, G: Tensor, squared_norms: Tensor, tols: Tensor, n_nonzero: int, order_recursive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Like `gpu_omp_triton.pursue`."""
    n_rows, k = B.shape
    epsilon = torch.finfo(B.dtype).eps
    dependent = epsilon**0.5
    c = B.clone()
    outside = torch.ones_like(B)  # squared norm of each atom outside the span of the selected atoms
    V = B.new_zeros(n_rows, n_nonzero, k)
    R = torch.eye(n_nonzero, dtype=B.dtype, device=B.device).repeat(n_rows, 1, 1)
    alphas = B.new_zeros(n_rows, n_nonzero)
    picks = torch.zeros(n_rows, n_nonzero, dtype=torch.int32, device=B.device)
    sizes = torch.zeros(n_rows, dtype=torch.int64, device=B.device)
    remaining = squared_norms.double().clone()
    noise = remaining * max(epsilon, 1e-12)

    rows = torch.nonzero(remaining > tols)[:, 0]
    while len(rows):
        free = outside[rows] > dependent
        divisor = outside[rows] if order_recursive else 1
        best, s = torch.where(free, c[rows] ** 2 / divisor, 0).max(dim=1)
        going = best.double() > noise[rows]
        rows, s = rows[going], s[going]
        coefficients = V[rows, :, s]
        pivot = G[s, s] - (coefficients**2).sum(dim=1)
        fit = pivot > dependent
        new, atom, size = rows[fit], s[fit], sizes[rows[fit]]
        nu = pivot[fit].sqrt()
        alpha = c[new, atom] / nu
        v = G[atom] - torch.einsum("nl,nlk->nk", coefficients[fit], V[new])
        v /= nu[:, None]
        R[new, size] = coefficients[fit]
        R[new, size, size] = nu
        V[new, size] = v
        alphas[new, size] = alpha
        picks[new, size] = atom.int()
        remaining[new] -= alpha.double() ** 2
        c[new] -= alpha[:, None] * v
        outside[new] -= v**2
        sizes[new] += 1
        outside[rows, s] = 0  # selected, or in the span: never selected again
        rows = rows[(sizes[rows] < n_nonzero) & (remaining[rows] > tols[rows])]
    return picks, alphas, R, sizes, remaining.clamp(min=0)
