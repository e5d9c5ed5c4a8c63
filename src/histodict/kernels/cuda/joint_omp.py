"""Greedy pursuit with one support for several channels, in PyTorch; see `kernels.cpu.joint_omp`.

In each channel, atoms whose norm outside the span of the selected atoms is small are excluded from
the selection, for all samples at once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pursue(
    B: Tensor, G: Tensor, squared_norms: Tensor, tols: Tensor, n_nonzero: int, order_recursive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Select and orthogonalise atoms, as `kernels.cuda.omp.pursue`, jointly for several channels.

    Parameters
    ----------
    B : (n_channels, n, k), products ⟨y_c, d_cj⟩ of n samples and k atoms
    G : (n_channels, k, k), Gram matrices
    squared_norms : (n,), squared norms of the samples over all channels
    tols : (n,), squared residuals at which a sample is finished
    n_nonzero : maximum number of atoms per sample (L)
    order_recursive : whether to select the atom with the largest Σ ⟨r, d⟩²/p over the channels,
        where r is the residual and p the squared norm of atom d outside the span of the selected
        atoms; otherwise the atom with the largest Σ ⟨r, d⟩²

    Returns
    -------
    selected, sizes, remaining : (n, L), (n,) and (n,), as in `kernels.cuda.omp.pursue`
    alphas, R : (n_channels, n, L) and (n_channels, n, L, L). If an atom depends on the
        atoms selected before in a channel, its entry of alphas is 0 there
    """
    n_channels, n_rows, k = B.shape
    epsilon = torch.finfo(B.dtype).eps
    min_pivot = epsilon**0.5
    c = B.clone()
    outside = torch.ones_like(B)
    V = B.new_zeros(n_channels, n_rows, n_nonzero, k)
    R = torch.eye(n_nonzero, dtype=B.dtype, device=B.device).repeat(n_channels, n_rows, 1, 1)
    alphas = B.new_zeros(n_channels, n_rows, n_nonzero)
    selected = torch.zeros(n_rows, n_nonzero, dtype=torch.int32, device=B.device)
    sizes = torch.zeros(n_rows, dtype=torch.int64, device=B.device)
    remaining = squared_norms.double().clone()
    noise = remaining * max(epsilon, 1e-12)

    rows = torch.nonzero(remaining > tols)[:, 0]
    while len(rows):
        divisor = outside[:, rows] if order_recursive else 1
        scores = torch.where(outside[:, rows] > min_pivot, c[:, rows] ** 2 / divisor, 0)
        best, s = scores.sum(dim=0).max(dim=1)
        is_significant = best.double() > noise[rows]
        rows, s = rows[is_significant], s[is_significant]
        coefficients = V[:, rows, :, s].transpose(0, 1)  # indexed dimensions come first
        pivot = G[:, s, s] - (coefficients**2).sum(dim=2)
        is_independent = pivot > min_pivot
        # The score included a channel in which the atom is dependent: repeat the selection.
        must_repeat = (~is_independent & (outside[:, rows, s] > min_pivot)).any(dim=0)
        outside[:, rows, s] = torch.where(is_independent & must_repeat, outside[:, rows, s], 0)

        new, atom, is_independent_new = (
            rows[~must_repeat],
            s[~must_repeat],
            is_independent[:, ~must_repeat],
        )
        size = sizes[new]
        nu = torch.where(is_independent_new, pivot[:, ~must_repeat], 1).sqrt()
        coefficients = torch.where(is_independent_new[:, :, None], coefficients[:, ~must_repeat], 0)
        alpha = torch.where(is_independent_new, c[:, new, atom] / nu, 0)
        v = G[:, atom] - torch.einsum("cnl,cnlk->cnk", coefficients, V[:, new])
        v = torch.where(is_independent_new[:, :, None], v / nu[:, :, None], 0)
        R[:, new, size] = coefficients
        R[:, new, size, size] = nu
        V[:, new, size] = v
        alphas[:, new, size] = alpha
        selected[new, size] = atom.int()
        remaining[new] -= (alpha.double() ** 2).sum(dim=0)
        c[:, new] -= alpha[:, :, None] * v
        outside[:, new] -= v**2
        outside[:, new, atom] = 0
        sizes[new] += 1
        rows = rows[(sizes[rows] < n_nonzero) & (remaining[rows] > tols[rows])]
    return selected, alphas, R, sizes, remaining.clamp(min=0)
