"""What many measurements of patients tell, all at once: of classes by AUC, of sites by a test.

Both count patients, not patches: patches of a patient are alike, and say little new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .intervals import Replicates

_LEVEL = 0.95
_MANY_PAIRS = 2500  # of patients, beyond which fewer draws are taken


@dataclass(frozen=True)
class ManyAucs:
    """Per measurement (n,): AUC and its interval; NaN where a class has fewer than two patients."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def aucs_by_patient(
    values: NDArray[np.float64],
    positive: NDArray[np.bool_],
    patients: NDArray[np.int64],
    *,
    n_replicates: int = 500,
    random_state: int = 0,
) -> ManyAucs:
    """How well each column of values (n_units, n) puts units that are `positive` above the others.

    `patients`: whose a unit is. Intervals of 95 % from draws of patients, as in `intervals`.
    """
    nothing = np.full(values.shape[1], np.nan)
    sizes = [len(np.unique(patients[own])) for own in (positive, ~positive)]
    if min(sizes) < 1:
        return ManyAucs(nothing, nothing, nothing)
    above, below = values[positive], values[~positive]
    if above.shape[0] * below.shape[0] > _MANY_PAIRS:
        n_replicates = max(100, n_replicates // 4)
    wins = (above[:, None] > below[None]) + 0.5 * (above[:, None] == below[None])
    value = wins.mean(axis=(0, 1))
    if min(sizes) < 2:
        return ManyAucs(value, nothing, nothing)
    rng = np.random.default_rng(random_state)
    names, places = np.unique(patients, return_inverse=True)
    drawn = np.empty((n_replicates, values.shape[1]))
    for row in range(n_replicates):
        times = _draw(rng, places, positive, len(names))
        w_above, w_below = times[places[positive]], times[places[~positive]]
        sums = np.tensordot(w_above, wins, 1)
        drawn[row] = w_below @ sums / (w_above.sum() * w_below.sum())
    ends = [
        Replicates(float(v), column, len(names), 0).interval(_LEVEL)
        for v, column in zip(value, drawn.T, strict=True)
    ]
    low, high = np.array(ends).T
    return ManyAucs(value, np.clip(low, 0, 1), np.clip(high, 0, 1))


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


@dataclass(frozen=True)
class Leaks:
    """Per measurement (n,), how well it tells groups of patients apart beyond their class.

    shares : of its variance between patients of a class, what lies between the groups (η²), in the
        class where that is most
    chances : of a share as large in any of the measurements, if groups meant nothing
    n_groups : how many there are; without two in any class nothing is known, and all are NaN
    """

    shares: NDArray[np.float64]
    chances: NDArray[np.float64]
    n_groups: int


def leaks(
    values: NDArray[np.float64],
    classes: NDArray[np.int64],
    groups: NDArray[np.int64],
    *,
    n_permutations: int = 999,
    random_state: int = 0,
) -> Leaks:
    """Of shares (n_units, n): η² between groups within a class, and a permutation test of it.

    Shares enter by arcsin √share, so that rare ones vary as much as others do. Groups, such as
    sites, are shuffled among the units of the same class. The largest η² of all measurements is
    taken from every shuffle, so that the chances hold for looking at all of them.

    Reference: Westfall, Young, "Resampling-based multiple testing", 1993.
    """
    nothing, n_groups = np.full(values.shape[1], np.nan), len(np.unique(groups))
    rows = [np.flatnonzero(classes == place) for place in np.unique(classes)]
    rows = [own for own in rows if len(np.unique(groups[own])) > 1]
    if not rows:
        return Leaks(nothing, nothing, n_groups)
    even = np.arcsin(np.sqrt(values.clip(0, 1)))
    centred = [even[own] - even[own].mean(axis=0) for own in rows]
    shares = _largest(centred, [groups[own] for own in rows])
    rng, as_large = np.random.default_rng(random_state), np.ones(len(shares))
    for _ in range(n_permutations):
        shuffled = [rng.permutation(groups[own]) for own in rows]
        as_large += _largest(centred, shuffled).max(initial=0) >= shares - 1e-12
    return Leaks(shares, as_large / (n_permutations + 1), n_groups)


def _largest(
    centred: list[NDArray[np.float64]], groups: list[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """η² of every column in the class where it is largest."""
    return np.max([_between(*pair) for pair in zip(centred, groups, strict=True)], axis=0)


def _between(centred: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Σ over groups of n·mean² of what is centred, over its Σ of squares."""
    total, between = (centred**2).sum(axis=0), np.zeros(centred.shape[1])
    for group in np.unique(groups):
        own = centred[groups == group]
        between += len(own) * own.mean(axis=0) ** 2
    return np.divide(between, total, out=np.zeros(len(total)), where=total > 1e-12)
