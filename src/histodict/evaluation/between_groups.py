"""How much of what patients differ in lies between groups of them, or of their images.

A use that tells sites apart beyond the class is a leak. Two things are said of it: how large it is,
with an interval, for groups of any kind; and, of sites, whether chance alone could make it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import t

_LEVEL = 0.95
_MOST_BUNDLES = 60  # of patients that are left out in turn
_LEAST_PATIENTS = 8  # for an interval
_NONE = 1e-12  # of a variance

Places = NDArray[np.int64]


def made_even(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """arcsin √share: so rare shares vary as much as others do."""
    return np.arcsin(np.sqrt(shares.clip(0, 1)))


@dataclass(frozen=True)
class Between:
    """Per measurement (n,): the share of its variance that lies between groups, and its interval.

    NaN where it does not vary, or where no block has two groups, one of them of two units; the
    interval also with fewer than eight patients.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def between_groups(
    shares: NDArray[np.float64], blocks: Places, groups: Places, patients: Places
) -> Between:
    """Of shares (n_units, n), within blocks: σ²_b / (σ²_b + σ²), an intraclass correlation.

    σ² is the variance within groups, σ²_b that of what groups add to it, as the analysis of
    variance has them: groups that mean nothing have 0 on average, however few units each has (η²
    would have a half, with two units in every group).

    blocks, groups, patients : (n_units,), of every unit; a group lies in one block, as a site's
        patients of a class do. Blocks of one group say nothing and are left out.

    Intervals of 95 % from leaving out patients in turn, by the logarithm and Student's t.

    Reference: Arvesen, Schmitz, "Robust procedures for variance component problems using the
    jackknife", Biometrics 26 (1970) 677-686.
    """
    nothing = np.full(shares.shape[1], np.nan)
    telling = _with_several(blocks, groups)
    if not len(telling):
        return Between(nothing, nothing, nothing)
    values, own = made_even(shares[telling]), (blocks[telling], groups[telling])
    whole = _log_within(values, *own)
    bundles = _bundles(own[1], patients[telling])
    kept = [np.flatnonzero(bundles != bundle) for bundle in np.unique(bundles)]
    parts = [_log_within(values[rows], own[0][rows], own[1][rows]) for rows in kept]
    n = len(parts)
    if n < _LEAST_PATIENTS:
        return Between(np.clip(1 - np.exp(whole), 0, 1), nothing, nothing)
    reach = np.std(parts, axis=0) * np.sqrt(n - 1) * t.ppf((1 + _LEVEL) / 2, n - 1)
    value, low, high = (1 - np.exp(at) for at in (whole, whole + reach, whole - reach))
    return Between(*(np.clip(each, 0, 1) for each in (value, low, high)))


def _with_several(blocks: Places, groups: Places) -> Places:
    """Units of blocks that have several groups."""
    pairs = np.unique(np.stack([blocks, groups]), axis=1)
    names, counts = np.unique(pairs[0], return_counts=True)
    return np.flatnonzero(np.isin(blocks, names[counts > 1]))


def _log_within(values: NDArray[np.float64], blocks: Places, groups: Places) -> NDArray[np.float64]:
    """log σ² / (σ² + σ²_b) of every column; NaN where it is not defined."""
    nothing = np.full(values.shape[1], np.nan)
    sizes, n = np.unique(groups, return_counts=True)[1], len(values)
    totals = np.unique(blocks, return_counts=True)[1]
    of_group = _places(blocks)[np.unique(groups, return_index=True)[1]]
    # A group's say in the variance about a block's mean: less than 1, as the mean follows it.
    say = (totals - np.bincount(of_group, sizes**2) / totals).sum()
    if n == len(sizes) or say < _NONE:
        return nothing
    within = _squares(values, groups) / (n - len(sizes))
    between = (_squares(values, blocks) - (n - len(totals)) * within) / say
    found = np.divide(within, within + between, out=nothing, where=within + between > _NONE)
    return np.log(np.maximum(found, _NONE))


def _squares(values: NDArray[np.float64], groups: Places) -> NDArray[np.float64]:
    """Σ of squares about the groups' means."""
    places = _places(groups)
    found: NDArray[np.float64] = ((values - _means(values, places)[places]) ** 2).sum(axis=0)
    return found


def _places(groups: Places) -> Places:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _means(values: NDArray[np.float64], places: Places) -> NDArray[np.float64]:
    sizes = np.bincount(places)
    member = csr_array((np.ones(len(places)), (places, np.arange(len(places)))))
    means: NDArray[np.float64] = (member @ values) / sizes[:, None]
    return means


def _bundles(groups: Places, patients: Places) -> Places:
    """Of every unit the number of its patient, or of some patients of all groups together."""
    order = patients[np.argsort(groups, kind="stable")]
    first = np.sort(np.unique(order, return_index=True)[1])
    number = {patient: place % _MOST_BUNDLES for place, patient in enumerate(order[first].tolist())}
    return np.array([number[patient] for patient in patients.tolist()], np.int64)


# --- is it chance? ------------------------------------------------------------------------------


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
    classes: Places,
    groups: Places,
    *,
    n_permutations: int = 999,
    random_state: int = 0,
) -> Leaks:
    """Of shares (n_units, n): η² between groups within a class, and a permutation test of it.

    Groups, such as sites, are shuffled among the units of the same class. The largest η² of all
    measurements is taken from every shuffle, so that the chances hold for looking at all of them.

    Reference: Westfall, Young, "Resampling-based multiple testing", 1993.
    """
    nothing, n_groups = np.full(values.shape[1], np.nan), len(np.unique(groups))
    rows = [np.flatnonzero(classes == place) for place in np.unique(classes)]
    rows = [own for own in rows if len(np.unique(groups[own])) > 1]
    if not rows:
        return Leaks(nothing, nothing, n_groups)
    even = made_even(values)
    scaled = [_scaled(even[own]) for own in rows]
    own_places = [_places(groups[own]) for own in rows]
    shares = _largest(scaled, own_places)
    rng, as_large = np.random.default_rng(random_state), np.ones(len(shares))
    for _ in range(n_permutations):
        shuffled = [rng.permutation(places) for places in own_places]
        as_large += _largest(scaled, shuffled).max(initial=0) >= shares - 1e-12
    return Leaks(shares, as_large / (n_permutations + 1), n_groups)


def _largest(scaled: list[NDArray[np.float64]], groups: list[Places]) -> NDArray[np.float64]:
    """η² of every column in the class where it is largest."""
    return np.max([_share(*pair) for pair in zip(scaled, groups, strict=True)], axis=0)


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with a mean of 0 and a Σ of squares of 1; 0 where they do not vary."""
    centred = values - values.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    return np.divide(centred, norms, out=np.zeros_like(centred), where=norms > np.sqrt(_NONE))


def _share(scaled: NDArray[np.float64], places: Places) -> NDArray[np.float64]:
    """Σ over groups of n·mean²."""
    member = np.eye(int(places.max()) + 1)[places].T
    found: NDArray[np.float64] = (1 / member.sum(axis=1)) @ (member @ scaled) ** 2
    return found
