"""Unit-norm atom updates in plain torch, one atom after the other: see `cpu_atoms`.

It runs on any device; the tests hold `gpu_atoms_triton`, which is faster, against it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sweep(D: Tensor, E: Tensor, F: Tensor) -> None:
    """One pass over all atoms, in place: d_j ∝ u_j = e_j − Σ_{i≠j} F_ji d_i; unused ones stay."""
    limit = (16 * torch.finfo(D.dtype).eps) ** 2
    for j in range(len(D)):
        u = E[j] - F[j] @ D + F[j, j] * D[j]
        norm2 = u @ u
        if norm2 > limit * F[j, j] ** 2:  # else u is the rounding of two equal terms
            D[j] = u / norm2.sqrt()
