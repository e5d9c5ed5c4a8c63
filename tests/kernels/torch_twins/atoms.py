"""Unit-norm atom updates in plain torch, one atom after the other: see `cpu_atoms`.

It stands in for `gpu_atoms_triton` where there is no GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sweep(D: Tensor, E: Tensor, F: Tensor) -> None:
    """As `gpu_atoms_triton.sweep`."""
    limit = (16 * torch.finfo(D.dtype).eps) ** 2
    for j in range(len(D)):
        u = E[j] - F[j] @ D + F[j, j] * D[j]
        norm2 = u @ u
        if norm2 > limit * F[j, j] ** 2:  # else u is the rounding of two equal terms
            D[j] = u / norm2.sqrt()
