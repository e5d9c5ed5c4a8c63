"""Quality of codes in double precision, which accompanies every ratio of times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from histodict.kernels import row_blocks
from tests.kernels.reference import lasso_gap

from .problem import Problem

GAP_LIMIT = 1e-3


@dataclass(frozen=True)
class Quality:
    """Losses of the rows without NaN: ‖y − sD‖² of a pursuit, ½‖y − sD‖² + λ‖s‖₁ of l1 codes.

    A few rows with large rounding errors hardly change the median but may dominate the mean.
    `missed` counts them: codes of a pursuit with a loss above ‖y‖², and l1 codes with a relative
    duality gap above GAP_LIMIT.
    """

    loss: float
    median_loss: float
    largest_loss: float
    missed: int
    nonzeros: float
    nan_rows: int
    n_rows: int
    largest_gap: float | None = None


def omp_quality(problem: Problem, S: csr_array) -> Quality:
    losses, limits = [], []
    for y, s, D in _blocks(problem.Y, S, problem.D):
        losses.append(_squared_norms(y - s @ D))
        limits.append(_squared_norms(y))
    loss = np.concatenate(losses)
    missed = int((loss > np.concatenate(limits)).sum())
    return Quality(*_summary(loss), missed, *_counts(S))


def lasso_quality(problem: Problem, S: csr_array) -> Quality:
    losses, gaps = [], []
    for y, s, D in _blocks(problem.Y, S, problem.all_atoms):
        l1 = np.abs(s).sum(axis=1)
        losses.append(0.5 * _squared_norms(y - s @ D) + problem.penalty * l1)
        gaps.append(lasso_gap(D, y, s, problem.penalty))
    gap = np.concatenate(gaps)
    missed = int((gap > GAP_LIMIT).sum())
    summary = _summary(np.concatenate(losses))
    return Quality(*summary, missed, *_counts(S), largest_gap=float(gap.max(initial=0.0)))


def _blocks(Y: NDArray, S: csr_array, D: NDArray) -> Iterator[tuple[NDArray, NDArray, NDArray]]:
    """Yield dense blocks of samples and codes without NaN, and the atoms."""
    atoms = D.astype(np.float64)
    for rows in row_blocks(S.shape[0]):
        codes = S[rows].toarray().astype(np.float64)
        good = np.isfinite(codes).all(axis=1)
        yield Y[rows][good].astype(np.float64), codes[good], atoms


def _squared_norms(R: NDArray) -> NDArray:
    return np.einsum("ij,ij->i", R, R)


def _summary(loss: NDArray) -> tuple[float, float, float]:
    """Return mean, median and maximum; NaN without rows."""
    if not len(loss):
        return np.nan, np.nan, np.nan
    return float(loss.mean()), float(np.median(loss)), float(loss.max())


def _counts(S: csr_array) -> tuple[float, int, int]:
    """Return the mean non-zeros of rows without NaN, the number of rows with NaN, and all rows."""
    n_rows = S.shape[0]
    row_of = np.repeat(np.arange(n_rows), np.diff(S.indptr))
    bad = np.bincount(row_of[~np.isfinite(S.data)], minlength=n_rows) > 0
    nonzeros = np.bincount(row_of[S.data != 0], minlength=n_rows)[~bad]
    return _summary(nonzeros)[0], int(bad.sum()), n_rows
