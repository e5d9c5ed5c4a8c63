"""l1 codes of all samples by accelerated proximal gradient steps (FISTA).

    min_S  Σ_s ( ½ s H sᵀ − b sᵀ + penalty·‖s‖₁ ) + ½ Σ_ij n_i C_ij m_i m_jᵀ

S has one row s per sample. The rows are sorted into groups; group i has n_i rows with mean m_i. H
(n_atoms, n_atoms) and b, one row per sample, represent atoms and samples, so a step costs one
product of S with H. The last term is for methods that attract or separate group means. C must be
negative semidefinite: the curvature is then at most the largest eigenvalue L of H, and 1/L is a
safe step size.

Momentum is reset when it increases the objective, which preserves the acceleration for badly
conditioned H.

References: Beck, Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse
problems", SIAM Journal on Imaging Sciences 2009; O'Donoghue, Candès, "Adaptive restart for
accelerated gradient schemes", Foundations of Computational Mathematics 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import row_blocks
from ..utils.parallel import map_blocks, single_blas_thread


@dataclass(frozen=True)
class GroupBlock:
    """Block of consecutive rows of the codes S, all of one group."""

    group: int
    rows: slice


class FistaCodes:
    """Codes S of all samples, which each call of `improve` brings closer to the minimiser.

    Parameters
    ----------
    group_sizes : number of rows of each group; the rows of S are sorted by group
    n_atoms : number of columns of S
    dtype : dtype of S
    n_jobs : number of threads; None for all cores
    """

    def __init__(
        self, group_sizes: Sequence[int], n_atoms: int, dtype: np.dtype[Any], n_jobs: int | None
    ) -> None:
        self.S = np.zeros((int(sum(group_sizes)), n_atoms), dtype)
        self._previous_S = np.zeros_like(self.S)
        self.group_sizes = np.array(group_sizes)
        self.blocks = list(_split_groups(group_sizes))
        self.n_jobs = n_jobs

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean code m_i of each group: (n_groups, n_atoms)."""
        totals = np.zeros((len(self.group_sizes), self.S.shape[1]))
        for block in self.blocks:
            totals[block.group] += self.S[block.rows].sum(axis=0, dtype=np.float64)
        return totals / self.group_sizes[:, None]

    def improve(
        self,
        H: NDArray[Any],
        products: Callable[[GroupBlock], NDArray[Any]],
        penalty: float,
        n_steps: int,
        coupling: NDArray[np.float64] | None = None,
    ) -> None:
        """Take proximal gradient steps with momentum from the current S.

        They lower Σ_s (½ s H sᵀ − b sᵀ + penalty·‖s‖₁) + ½ Σ_ij n_i C_ij m_i m_jᵀ, where s are the
        rows of S, and group i has n_i rows with mean m_i.

        Parameters
        ----------
        H : (n_atoms, n_atoms)
        products : function of a block that returns the vector b of each row, (n_rows, n_atoms)
        penalty : l1 penalty
        n_steps : number of steps
        coupling : (n_groups, n_groups), the matrix C; None for 0
        """
        with single_blas_thread():
            L = float(np.linalg.eigvalsh(H.astype(np.float64))[-1])
        # s − (sH − b)/L = s(I − H/L) + b/L: a step needs a single matrix product.
        T = (np.eye(len(H)) - H / L).astype(self.S.dtype)
        B = list(map_blocks(lambda block: products(block) / L, self.blocks, self.n_jobs))
        C = np.zeros((len(self.group_sizes),) * 2) if coupling is None else coupling
        means = means_previous = self.means
        beta, t = 0.0, 1.0
        for _ in range(n_steps):
            coupling_step = (-C @ (means + beta * (means - means_previous)) / L).astype(
                self.S.dtype
            )
            totals, ascent = self._step(T, B, coupling_step, penalty / L, beta)
            means, means_previous = totals / self.group_sizes[:, None], means
            t_previous, t = (1.0, 1.0) if ascent > 0 else (t, (1 + sqrt(1 + 4 * t * t)) / 2)
            beta = (t_previous - 1) / t

    def compute_sums(
        self,
        Y: NDArray[Any],
        weight_codes: Callable[[NDArray[Any], int], NDArray[Any]] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return E = SᵀY (n_atoms, n_features), F = SᵀS (n_atoms, n_atoms) and ‖S‖₁.

        Parameters
        ----------
        Y : samples, in the order of the rows of S
        weight_codes : function of the codes of a block and their group that returns the codes to
            use in E; it may modify these codes. None to use S itself
        """

        def sum_block(block: GroupBlock) -> tuple[NDArray[Any], NDArray[Any], float]:
            S = self.S[block.rows]
            weighted = S if weight_codes is None else weight_codes(S.copy(), block.group)
            return weighted.T @ Y[block.rows], S.T @ S, float(np.abs(S).sum(dtype=np.float64))

        n_atoms = self.S.shape[1]
        E, F, l1 = np.zeros((n_atoms, Y.shape[1])), np.zeros((n_atoms, n_atoms)), 0.0
        for E_block, F_block, l1_block in map_blocks(sum_block, self.blocks, self.n_jobs):
            E += E_block
            F += F_block
            l1 += l1_block
        return E, F, l1

    def _step(
        self,
        T: NDArray[Any],
        B: list[NDArray[Any]],
        coupling_step: NDArray[Any],
        threshold: float,
        beta: float,
    ) -> tuple[NDArray[np.float64], float]:
        """Take a proximal gradient step from Z = S + β(S − S_previous) with step size 1/L.

        T is I − H/L, B the blocks of b/L, and `threshold` penalty/L. `coupling_step` is minus the
        gradient of the coupling term over L, for each group. Return the sums of the new codes of
        each group, and a number that is positive if the momentum increases the objective.
        """

        def step_block(index: int) -> tuple[NDArray[np.float64], float]:
            block = self.blocks[index]
            S, S_previous = self.S[block.rows], self._previous_S[block.rows]
            Z = S + beta * (S - S_previous)
            U = Z @ T
            U += B[index]
            U += coupling_step[block.group]
            U -= np.clip(U, -threshold, threshold)
            Z -= U
            ascent = float(np.vdot(Z, U - S))
            S_previous[...] = U
            return U.sum(axis=0, dtype=np.float64), ascent

        totals = np.zeros((len(self.group_sizes), self.S.shape[1]))
        ascent = 0.0
        results = map_blocks(step_block, range(len(self.blocks)), self.n_jobs)
        for block, (total, block_ascent) in zip(self.blocks, results, strict=True):
            totals[block.group] += total
            ascent += block_ascent
        self.S, self._previous_S = self._previous_S, self.S
        return totals, ascent


def _split_groups(group_sizes: Sequence[int]) -> Iterator[GroupBlock]:
    """Yield the blocks of consecutive rows, none of which contains rows of two groups."""
    start = 0
    for group, size in enumerate(group_sizes):
        for rows in row_blocks(int(size)):
            yield GroupBlock(group, slice(start + rows.start, start + rows.stop))
        start += int(size)
