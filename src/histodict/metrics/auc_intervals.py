"""AUC of single measurements, with bootstrap intervals by patient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .intervals import BootstrapReplicates

_LEVEL = 0.95
_AT_ONCE = 2**15  # values that are ranked together, to fit into the cache
_MANY_PATIENTS = 100  # patients, above which fewer replicates are drawn


@dataclass(frozen=True)
class AucIntervals:
    """AUC of each measurement (n,) with its interval; NaN where patients are too few."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def auc_per_feature(
    values: NDArray[np.float64],
    positive: NDArray[np.bool_],
    patients: NDArray[np.int64],
    *,
    n_replicates: int = 500,
    random_state: int = 0,
) -> AucIntervals:
    """Return the AUC of every measurement for the positive units, with intervals by patient.

    Intervals of 95 % are computed by resampling patients, as in `intervals`. Columns are processed
    in batches, so memory does not grow with the number of pairs of patients.

    Parameters
    ----------
    values : (n_units, n), measurements
    positive : (n_units,), whether a unit is positive
    patients : (n_units,), patient index
    n_replicates : number of bootstrap replicates
    random_state : seed

    Returns
    -------
    AucIntervals
    """
    undefined = np.full(values.shape[1], np.nan)
    sizes = [len(np.unique(patients[each])) for each in (positive, ~positive)]
    if min(sizes) < 1:
        return AucIntervals(undefined, undefined, undefined)
    rng = np.random.default_rng(random_state)
    patient_names, indices = np.unique(patients, return_inverse=True)
    if len(patient_names) > _MANY_PATIENTS:
        n_replicates = max(100, n_replicates // 4)
    n_draws = n_replicates if min(sizes) > 1 else 0
    draws = [_draw(rng, indices, positive, len(patient_names)) for _ in range(n_draws)]
    step = max(1, _AT_ONCE // len(values))
    parts = [
        _column_aucs(values[:, start : start + step], positive, indices, len(patient_names), draws)
        for start in range(0, values.shape[1], step)
    ]
    return AucIntervals(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _column_aucs(
    values: NDArray[np.float64],
    positive: NDArray[np.bool_],
    indices: NDArray[np.int64],
    n_patients: int,
    draws: list[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return AUC, low and high of each column."""
    ranks = _Ranks(values, positive)
    aucs = ranks.aucs(np.ones(len(values)))
    if not draws:
        return aucs, np.full(len(aucs), np.nan), np.full(len(aucs), np.nan)
    replicates = np.stack([ranks.aucs(times[indices]) for times in draws])
    intervals = [
        BootstrapReplicates(float(auc), column, n_patients, 0).interval(_LEVEL)
        for auc, column in zip(aucs, replicates.T, strict=True)
    ]
    low, high = np.array(intervals).T
    return aucs, np.clip(low, 0, 1), np.clip(high, 0, 1)


class _Ranks:
    """Sorted columns of values, for fast computation of AUCs with any weights of units."""

    def __init__(self, values: NDArray[np.float64], positive: NDArray[np.bool_]) -> None:
        self._positive = positive
        above, below = values[positive].T, values[~positive].T
        self._order = np.argsort(below, axis=1, kind="stable")
        # Per column and positive unit: number of others below, and of others not above.
        pairs = list(zip(above, np.sort(below, axis=1), strict=True))
        first, last = (
            np.stack([np.searchsorted(others, column, side) for column, others in pairs])
            for side in ("left", "right")
        )
        self._ends = [first] if np.array_equal(first, last) else [first, last]

    def aucs(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the fraction of correctly ordered pairs of each column; ties count half."""
        above, below = weights[self._positive], weights[~self._positive]
        sums = np.zeros((len(self._order), len(below) + 1))
        np.cumsum(below[self._order], axis=1, out=sums[:, 1:])
        n_ordered = [np.take_along_axis(sums, ends, axis=1) @ above for ends in self._ends]
        aucs: NDArray[np.float64] = np.mean(n_ordered, axis=0) / (above.sum() * below.sum())
        return aucs


def _draw(
    rng: np.random.Generator,
    indices: NDArray[np.int64],
    positive: NDArray[np.bool_],
    n_patients: int,
) -> NDArray[np.float64]:
    """Return how often each patient is drawn, such that both classes are present."""
    while True:
        times = np.bincount(rng.integers(n_patients, size=n_patients), minlength=n_patients)
        if times[indices[positive]].any() and times[indices[~positive]].any():
            return times.astype(np.float64)
