"""How good codes are, in double precision: a ratio of times means little without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from histodict.kernels import row_blocks
from histodict.kernels.reference import lasso_gap

from .problem import Problem


@dataclass(frozen=True)
class Quality:
    """Of the rows without NaN: the mean loss, non-zeros per row, and, for l1, the largest gap.

    The loss is ‖y − sD‖² for a pursuit, ½‖y − sD‖² + λ‖s‖₁ for l1 codes.
    """

    loss: float
    nonzeros: float
    nan_rows: int
    n_rows: int
    gap: float | None = None


def omp_quality(problem: Problem, S: csr_array) -> Quality:
    losses = [_squared_residuals(y, s, D) for y, s, D in _blocks(problem.Y, S, problem.D)]
    return Quality(_mean(losses), *_counts(S))


def lasso_quality(problem: Problem, S: csr_array) -> Quality:
    losses, gaps = [], []
    for y, s, D in _blocks(problem.Y, S, problem.all_atoms):
        losses.append(0.5 * _squared_residuals(y, s, D) + problem.penalty * np.abs(s).sum(axis=1))
        gaps.append(lasso_gap(D, y, s, problem.penalty))
    gap = float(np.max(np.concatenate(gaps), initial=0.0))
    return Quality(_mean(losses), *_counts(S), gap)


def _blocks(Y: NDArray, S: csr_array, D: NDArray) -> Iterator[tuple[NDArray, NDArray, NDArray]]:
    """Dense blocks of samples and codes without NaN, with the atoms."""
    atoms = D.astype(np.float64)
    for rows in row_blocks(S.shape[0]):
        codes = S[rows].toarray().astype(np.float64)
        good = np.isfinite(codes).all(axis=1)
        yield Y[rows][good].astype(np.float64), codes[good], atoms


def _squared_residuals(Y: NDArray, S: NDArray, D: NDArray) -> NDArray:
    R = Y - S @ D
    return np.einsum("ij,ij->i", R, R)


def _mean(losses: list[NDArray]) -> float:
    values = np.concatenate(losses)
    return float(values.mean()) if len(values) else float("nan")


def _counts(S: csr_array) -> tuple[float, int, int]:
    """Mean non-zeros of the rows without NaN, number of rows with, number of rows."""
    n_rows = S.shape[0]
    row_of = np.repeat(np.arange(n_rows), np.diff(S.indptr))
    bad = np.bincount(row_of[~np.isfinite(S.data)], minlength=n_rows) > 0
    nonzeros = np.bincount(row_of[S.data != 0], minlength=n_rows)[~bad]
    return _mean([nonzeros]), int(bad.sum()), n_rows
