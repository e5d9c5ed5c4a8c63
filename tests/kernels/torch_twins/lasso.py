"""Exact l1 coding on a block of samples in plain torch: the active sets of `cpu_lasso`, all rows.

It stands in for `gpu_lasso_triton` where there is no GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def solve(
    B: Tensor, yy: Tensor, G: Tensor, penalty: float, tol: float, capacity: int
) -> tuple[Tensor, Tensor, int]:
    """Like `gpu_lasso_triton.solve`, but always with `capacity` positions."""
    block = _ActiveSets(B, yy, G, penalty, tol, capacity)
    rows = torch.arange(len(B), device=B.device)
    round_limit = 20 * capacity + 100
    for round_ in range(round_limit + 1):
        rows, atoms = block.find_violations(rows, last=round_ == round_limit)
        if not len(rows):
            break
        block.activate(rows, atoms)
        block.descend(rows)
        block.correlate(rows)
    return block.atoms.int(), block.s.to(B.dtype), block.n_missed


class _ActiveSets:
    """Active atoms of each row with signs and codes; some positions may be free."""

    def __init__(
        self, B: Tensor, yy: Tensor, G: Tensor, penalty: float, tol: float, capacity: int
    ) -> None:
        self.B, self.yy, self.G = B, yy, G
        self.penalty, self.tol = penalty, tol
        n_rows = len(B)
        self.c = B.clone()
        self.atoms = torch.full((n_rows, capacity), -1, device=B.device)
        self.signs = torch.zeros(n_rows, capacity, dtype=torch.float64, device=B.device)
        self.s = torch.zeros_like(self.signs)
        # too close to the span of the active atoms
        self.refused = torch.zeros_like(B, dtype=torch.bool)
        self.lowest = torch.full_like(yy, torch.inf)
        self.n_stalled = torch.zeros_like(yy)
        self.n_missed = 0
        self._numbers = torch.arange(1, capacity + 1, device=B.device)

    def find_violations(self, rows: Tensor, last: bool) -> tuple[Tensor, Tensor]:
        """Return the unfinished rows, and the atom that violates |c_j| ≤ λ most in each."""
        slopes = self.c[rows].abs()
        n, place = torch.nonzero(self.atoms[rows] >= 0, as_tuple=True)
        slopes[n, self.atoms[rows][n, place]] = 0
        worst, atoms = torch.where(self.refused[rows], 0, slopes).max(dim=1)
        gap, objective = self._gap(rows, worst)
        stalled = objective >= self.lowest[rows]  # impossible in exact arithmetic
        self.n_stalled[rows] = torch.where(stalled, self.n_stalled[rows] + 1, 0)
        self.lowest[rows] = torch.minimum(self.lowest[rows], objective)
        full = (self.atoms[rows] >= 0).all(dim=1)
        ends = (gap <= self.tol) | ~(worst > self.penalty) | full | (self.n_stalled[rows] == 5)
        ends |= last
        true_gap, _ = self._gap(rows, slopes.amax(dim=1))
        self.n_missed += int((ends & ~(true_gap <= self.tol)).sum())
        return rows[~ends], atoms[~ends]

    def _gap(self, rows: Tensor, worst: Tensor) -> tuple[Tensor, Tensor]:
        """Return the relative duality gap and the objective; the dual point is the scaled residual.

        At the optimum for the active signs ⟨s, c⟩ = λ‖s‖₁, so ‖r‖² and ⟨y, r⟩ need no vectors.
        """
        s = self.s[rows]
        l1 = s.abs().sum(dim=1)
        y_r = self.yy[rows] - (s * self._at_atoms(self.B, rows)).sum(dim=1)
        r_r = (y_r - self.penalty * l1).clamp(min=0)
        primal = 0.5 * r_r + self.penalty * l1
        scale = self.penalty / worst.double().clamp(min=self.penalty)
        gap = primal - scale * y_r + 0.5 * scale**2 * r_r
        return gap / primal.clamp(min=1e-300), primal

    def activate(self, rows: Tensor, atoms: Tensor) -> None:
        """Add one atom per row with coefficient 0.

        An atom in the span of the active ones has no pivot. Moving weight onto it along that linear
        dependence changes only the penalty; weight is moved until an active atom reaches 0 and is
        removed. If none does, the atom is refused.
        """
        threshold = max(torch.finfo(self.B.dtype).eps ** 0.7, 1e-9)
        signs = self.c[rows, atoms].double().sign()
        start = torch.zeros_like(signs)
        while len(rows):
            used = self.atoms[rows] >= 0
            g = torch.where(used, self.G[self.atoms[rows].clamp(min=0), atoms[:, None]], 0).double()
            h = self._solve(rows, g)
            norm2 = self.G[atoms, atoms].double()
            fits = norm2 - (g * h).sum(dim=1) > threshold * norm2
            self._place(rows[fits], atoms[fits], signs[fits], start[fits])

            slope = signs[:, None] * h
            shrinks = used & (slope * self.signs[rows] > 0) & ~fits[:, None]
            length, removed = torch.where(shrinks, self.s[rows] / slope, torch.inf).min(dim=1)
            moves = ~fits & length.isfinite()
            refused = ~fits & ~moves
            self.refused[rows[refused], atoms[refused]] = True
            rows, atoms, signs, start = (x[moves] for x in (rows, atoms, signs, start))
            self.s[rows] -= length[moves, None] * slope[moves]
            start = start + length[moves] * signs
            self._drop(rows, removed[moves])

    def descend(self, rows: Tensor) -> None:
        """Minimise over the active atoms with fixed signs; atoms that reach 0 are removed."""
        used = self.atoms[rows] >= 0
        slope = self._at_atoms(self.c, rows) - self.penalty * self.signs[rows]
        slope = torch.where(used, slope, 0)
        while len(rows):
            s, signs = self.s[rows], self.signs[rows]
            step = self._solve(rows, slope)
            target = s + step
            crosses = (self.atoms[rows] >= 0) & (target * signs <= 0)
            reach = torch.where(s == target, 0, s / (s - target))
            length, removed = torch.where(crosses, reach, torch.inf).min(dim=1)
            stays = length.isinf()
            length = torch.where(stays, 1, length)[:, None]
            self.s[rows] = s + length * step
            slope = slope * (1 - length)  # the step solves for it, so it shrinks in proportion
            slope.scatter_(1, removed[:, None], 0)
            rows, removed, slope = (x[~stays] for x in (rows, removed, slope))
            self._drop(rows, removed)

    def correlate(self, rows: Tensor) -> None:
        """Compute c = b − sG over all atoms."""
        S = torch.zeros_like(self.B[rows])
        n, place = torch.nonzero(self.atoms[rows] >= 0, as_tuple=True)
        S[n, self.atoms[rows][n, place]] = self.s[rows][n, place].to(S.dtype)
        self.c[rows] = self.B[rows] - S @ self.G

    def _at_atoms(self, products: Tensor, rows: Tensor) -> Tensor:
        """Return entries of a (n, k) matrix at the active atoms; of atom 0 at free positions."""
        return products[rows[:, None], self.atoms[rows].clamp(min=0)].double()

    def _solve(self, rows: Tensor, right: Tensor) -> Tensor:
        """Solve x·G_active = right for x; 0 at free positions."""
        width = int(((self.atoms[rows] >= 0).any(dim=0) * self._numbers).amax())
        atoms = self.atoms[rows, :width]
        used = atoms >= 0
        at = atoms.clamp(min=0)
        G = self.G[at[:, :, None], at[:, None, :]].double()
        G = torch.where(used[:, :, None] & used[:, None, :], G, 0)
        G = G + torch.diag_embed((~used).double())
        x = torch.zeros_like(right)
        factor = torch.linalg.cholesky(G)
        x[:, :width] = torch.cholesky_solve(right[:, :width, None], factor)[:, :, 0]
        return x

    def _place(self, rows: Tensor, atoms: Tensor, signs: Tensor, start: Tensor) -> None:
        """Put atoms into the first free positions of their rows."""
        place = (self.atoms[rows] < 0).int().argmax(dim=1)
        self.atoms[rows, place] = atoms
        self.signs[rows, place] = signs
        self.s[rows, place] = start

    def _drop(self, rows: Tensor, places: Tensor) -> None:
        self.atoms[rows, places] = -1
        self.s[rows, places] = 0
