"""`SufficientStatistics` whose arrays stay on the device, and the atoms that are made of them
there.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from .code_sums import SufficientStatistics
from .gpu_device import device_context
from .idle_atoms import SAME_DIRECTION


class DeviceStatistics(SufficientStatistics):
    """Sums over coded samples in tensors of the device; `objective` too, until someone asks."""

    def in_double_precision(self) -> SufficientStatistics:
        self.E, self.F = self.E.double(), self.F.double()
        if self.F_own_class is not None:
            self.F_own_class = self.F_own_class.double()
        return self

    def store_worst(self, other: SufficientStatistics, most: int) -> None:
        errors = torch.cat([self.worst_errors, other.worst_errors])
        samples = torch.cat([self.worst_samples, other.worst_samples])
        keep = errors.argsort(descending=True, stable=True)[:most]
        self.worst_errors, self.worst_samples = errors[keep], samples[keep]

    def worst_reconstructed(self) -> Any:
        norms = self.worst_samples.square().sum(dim=1)
        return self.worst_samples[self.worst_errors > 1e-6 * norms]

    def with_tangent(self, D: Tensor, pull: float) -> SufficientStatistics:
        with device_context():
            mu = pull * self.F_own_class.trace() / len(D)
            bent = (self.F_own_class - self.F).to(D.dtype) @ D
            return replace(self, E=self.E + bent + mu * D, F=self.F_own_class)

    def on_host(self) -> SufficientStatistics:
        arrays = {
            field.name: _to_numpy(getattr(self, field.name))
            for field in fields(self)
            if field.name != "objective"
        }
        return SufficientStatistics(**arrays, objective=float(self.objective))


def _to_numpy(array: Tensor | None) -> Any:
    return None if array is None else array.cpu().numpy()


def sum_codes(
    Y: Tensor,
    S: Tensor,
    errors: Tensor,
    labels: Tensor,
    own_label: int,
    class_weights: Tensor,
    n_worst: int,
    split: bool,
) -> DeviceStatistics:
    """The sums of a block with dense codes S (n, k) and squared residuals `errors` (n,)."""
    w = class_weights[labels]
    weighted = S * w[:, None].to(S.dtype)
    own = labels == own_label
    S_own = S * own[:, None]
    uses = (S_own != 0).sum(dim=0)
    # A stable order, so that equal errors come as they do on the host; others' samples last.
    own_errors = torch.where(own, errors, -torch.inf)
    worst = own_errors.argsort(descending=True, stable=True)[:n_worst]
    return DeviceStatistics(
        E=weighted.T @ Y,
        F=_symmetric(weighted.T @ S),
        usage_counts=uses,
        code_sum=2 * (S_own > 0).sum(dim=0) - uses,
        objective=w @ errors,  # becomes a number once it is asked for
        worst_errors=own_errors[worst],
        worst_samples=Y[worst],
        F_own_class=class_weights[own_label].to(S.dtype) * _symmetric(S_own.T @ S)
        if split
        else None,
    )


def _symmetric(F: Tensor) -> Tensor:
    return 0.5 * (F + F.T)


def replace_unused_atoms(D: Tensor, uses: Tensor, candidates: Tensor) -> Tensor:
    """As `idle_atoms.replace_unused_atoms`."""
    idle = torch.nonzero((uses == 0) | _repeated(D))[:, 0]
    if len(idle) == 0 or len(candidates) == 0:
        return D
    fresh = candidates[candidates.any(dim=1)]
    norms = torch.linalg.vector_norm(fresh, dim=1, keepdim=True, dtype=torch.float64)
    fresh = (fresh / norms).to(D.dtype)
    fresh = fresh[~_repeated(fresh)]
    fresh = fresh[~((fresh @ D.T).abs() > SAME_DIRECTION).any(dim=1)]
    n_replaced = min(len(idle), len(fresh))
    D = D.clone()
    D[idle[:n_replaced]] = fresh[:n_replaced]
    return D


def _repeated(D: Tensor) -> Tensor:
    return ((D @ D.T).abs().tril(-1) > SAME_DIRECTION).any(dim=1)
