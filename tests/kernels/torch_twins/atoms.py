"""Unit-norm atom updates in plain torch, one atom after the other: see `cpu_atoms`.

This module replaces `gpu_atoms_triton` without a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sweep(D: Tensor, E: Tensor, F: Tensor) -> None:
    """Like `gpu_atoms_triton.sweep`."""
    limit = (16 * torch.finfo(D.dtype).eps) ** 2
    for j in range(len(D)):
        u = E[j] - F[j] @ D + F[j, j] * D[j]
        norm2 = u @ u
        if norm2 > limit * F[j, j] ** 2:  # otherwise u is the rounding error of two equal terms
            D[j] = u / norm2.sqrt()
