"""How well many measurements of patients tell classes apart, all at once.

Patients are counted, not patches: patches of a patient are alike, and say little new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .intervals import BootstrapReplicates

_LEVEL = 0.95
_AT_ONCE = 2**15  # values of units and measurements that are ranked together: of a cache
_MANY = 100  # patients, beyond which fewer draws are taken


@dataclass(frozen=True)
class AucIntervals:
    """Per measurement (n,): AUC and its interval; NaN where a class has fewer than two patients."""

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
    """How well each column of values (n_units, n) puts units that are `positive` above the others.

    `patients`: whose a unit is. Intervals of 95 % from draws of patients, as in `intervals`.
    Memory is that of some columns' ranks, not of pairs of patients.
    """
    nothing = np.full(values.shape[1], np.nan)
    sizes = [len(np.unique(patients[own])) for own in (positive, ~positive)]
    if min(sizes) < 1:
        return AucIntervals(nothing, nothing, nothing)
    rng = np.random.default_rng(random_state)
    names, places = np.unique(patients, return_inverse=True)
    if len(names) > _MANY:
        n_replicates = max(100, n_replicates // 4)
    n_draws = n_replicates if min(sizes) > 1 else 0
    draws = [_draw(rng, places, positive, len(names)) for _ in range(n_draws)]
    step = max(1, _AT_ONCE // len(values))
    parts = [
        _of_columns(values[:, start : start + step], positive, places, len(names), draws)
        for start in range(0, values.shape[1], step)
    ]
    return AucIntervals(*(np.concatenate(own) for own in zip(*parts, strict=True)))


def _of_columns(
    values: NDArray[np.float64],
    positive: NDArray[np.bool_],
    places: NDArray[np.int64],
    n_patients: int,
    draws: list[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """AUC, low and high of each column."""
    ranks = _Ranks(values, positive)
    value = ranks.aucs(np.ones(len(values)))
    if not draws:
        return value, np.full(len(value), np.nan), np.full(len(value), np.nan)
    drawn = np.stack([ranks.aucs(times[places]) for times in draws])
    ends = [
        BootstrapReplicates(float(v), column, n_patients, 0).interval(_LEVEL)
        for v, column in zip(value, drawn.T, strict=True)
    ]
    low, high = np.array(ends).T
    return value, np.clip(low, 0, 1), np.clip(high, 0, 1)


class _Ranks:
    """Columns of values, sorted once, so that AUCs by any weights of their units are sums."""

    def __init__(self, values: NDArray[np.float64], positive: NDArray[np.bool_]) -> None:
        self._positive = positive
        above, below = values[positive].T, values[~positive].T
        self._order = np.argsort(below, axis=1, kind="stable")
        # Per column and positive unit: how many others lie below it, and below or beside it.
        pairs = list(zip(above, np.sort(below, axis=1), strict=True))
        first, last = (
            np.stack([np.searchsorted(others, own, side) for own, others in pairs])
            for side in ("left", "right")
        )
        self._ends = [first] if np.array_equal(first, last) else [first, last]

    def aucs(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of every column: the share of pairs that are in order, a tie counting half."""
        above, below = weights[self._positive], weights[~self._positive]
        sums = np.zeros((len(self._order), len(below) + 1))
        np.cumsum(below[self._order], axis=1, out=sums[:, 1:])
        passed = [np.take_along_axis(sums, ends, axis=1) @ above for ends in self._ends]
        found: NDArray[np.float64] = np.mean(passed, axis=0) / (above.sum() * below.sum())
        return found


def _draw(
    rng: np.random.Generator,
    places: NDArray[np.int64],
    positive: NDArray[np.bool_],
    n_patients: int,
) -> NDArray[np.float64]:
    """How often every patient is drawn; again if a class has none."""
    while True:
        times = np.bincount(rng.integers(n_patients, size=n_patients), minlength=n_patients)
        if times[places[positive]].any() and times[places[~positive]].any():
            return times.astype(np.float64)
