"""How much of what patients differ in lies between groups of them, or of their images.

A use that tells sites apart beyond the class is a leak. Two things are said of it: how large it is,
with an interval, for groups of any kind; and, of sites, whether chance alone could make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import t

_LEVEL = 0.95
_MAX_BUNDLES = 60  # of patients that are left out in turn
_MIN_PATIENTS = 8  # for an interval
_NONE = 1e-12  # of a variance
_SHUFFLES = 50  # at once
_BATCH = 10  # of the largest η², where many are asked at once

Groups = NDArray[np.int64]


def arcsine_sqrt(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """arcsin √share: so rare shares vary as much as others do."""
    return np.arcsin(np.sqrt(shares.clip(0, 1)))


@dataclass(frozen=True)
class IntraclassCorrelation:
    """Per measurement (n,): the share of its variance that lies between groups, and its interval.

    NaN where it does not vary, or where no block has two groups, one of them of two units; the
    interval also with fewer than eight patients.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def intraclass_correlation(
    shares: NDArray[np.float64], blocks: Groups, groups: Groups, patients: Groups
) -> IntraclassCorrelation:
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
        return IntraclassCorrelation(nothing, nothing, nothing)
    values, own = arcsine_sqrt(shares[telling]), (blocks[telling], groups[telling])
    whole = _log_within(values, *own)
    bundles = _bundles(own[1], patients[telling])
    kept = [np.flatnonzero(bundles != bundle) for bundle in np.unique(bundles)]
    parts = [_log_within(values[rows], own[0][rows], own[1][rows]) for rows in kept]
    n = len(parts)
    if n < _MIN_PATIENTS:
        return IntraclassCorrelation(np.clip(1 - np.exp(whole), 0, 1), nothing, nothing)
    reach = np.std(parts, axis=0) * np.sqrt(n - 1) * t.ppf((1 + _LEVEL) / 2, n - 1)
    value, low, high = (1 - np.exp(at) for at in (whole, whole + reach, whole - reach))
    return IntraclassCorrelation(*(np.clip(each, 0, 1) for each in (value, low, high)))


def _with_several(blocks: Groups, groups: Groups) -> Groups:
    """Units of blocks that have several groups."""
    pairs = np.unique(np.stack([blocks, groups]), axis=1)
    names, counts = np.unique(pairs[0], return_counts=True)
    return np.flatnonzero(np.isin(blocks, names[counts > 1]))


def _log_within(values: NDArray[np.float64], blocks: Groups, groups: Groups) -> NDArray[np.float64]:
    """log σ² / (σ² + σ²_b) of every column; NaN where it is not defined."""
    nothing = np.full(values.shape[1], np.nan)
    sizes, n = np.unique(groups, return_counts=True)[1], len(values)
    totals = np.unique(blocks, return_counts=True)[1]
    of_group = _group_indices(blocks)[np.unique(groups, return_index=True)[1]]
    # A group's say in the variance about a block's mean: less than 1, as the mean follows it.
    say = (totals - np.bincount(of_group, sizes**2) / totals).sum()
    if n == len(sizes) or say < _NONE:
        return nothing
    within = _squares(values, groups) / (n - len(sizes))
    between = (_squares(values, blocks) - (n - len(totals)) * within) / say
    found = np.divide(within, within + between, out=nothing, where=within + between > _NONE)
    return np.log(np.maximum(found, _NONE))


def _squares(values: NDArray[np.float64], groups: Groups) -> NDArray[np.float64]:
    """Σ of squares about the groups' means."""
    places = _group_indices(groups)
    found: NDArray[np.float64] = ((values - _means(values, places)[places]) ** 2).sum(axis=0)
    return found


def _group_indices(groups: Groups) -> Groups:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _means(values: NDArray[np.float64], places: Groups) -> NDArray[np.float64]:
    sizes = np.bincount(places)
    member = csr_array((np.ones(len(places)), (places, np.arange(len(places)))))
    means: NDArray[np.float64] = (member @ values) / sizes[:, None]
    return means


def _bundles(groups: Groups, patients: Groups) -> Groups:
    """Of every unit the number of its patient, or of some patients of all groups together."""
    order = patients[np.argsort(groups, kind="stable")]
    first = np.sort(np.unique(order, return_index=True)[1])
    number = {patient: place % _MAX_BUNDLES for place, patient in enumerate(order[first].tolist())}
    return np.array([number[patient] for patient in patients.tolist()], np.int64)


# --- is it chance? ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfoundingTest:
    """How well measurements (n,) tell groups of patients apart beyond their class.

    shares : of its variance between patients of a class, what lies between the groups (η²), in the
        class where that is most
    chance : that the largest share of all measurements, or the ten largest together, are as large,
        if groups meant nothing; NaN if no class has two groups, as are the others
    doubts : per measurement, what speaks against taking it for one that tells groups apart: the
        chance of a share as large in any of them or, if that is less, the share of those that stand
        out as much that is expected to do so by chance (Benjamini and Hochberg)
    n_groups : how many there are
    """

    variance_fractions: NDArray[np.float64]
    p_value: float
    adjusted_p_values: NDArray[np.float64]
    n_groups: int


def confounding_test(
    looks: Sequence[NDArray[np.float64]],
    classes: Groups,
    groups: Groups,
    *,
    n_permutations: int = 1999,
    random_state: int = 0,
) -> ConfoundingTest:
    """η² between groups within a class, and permutation tests of it: of all, and of each.

    looks : values (n_units, n) of the same measurements, seen in several ways; the one that tells
        most counts

    Groups, such as sites, are shuffled among the units of the same class. What is spread over many
    measurements stands out in none of them, and what is in one is lost among ten; so both the
    largest η² and the mean of the ten largest say whether there is anything at all, by the smaller
    of their chances, itself held against shuffles.

    References: Westfall, Young, "Resampling-based multiple testing", 1993; Benjamini, Hochberg,
    J. R. Stat. Soc. B 57 (1995) 289-300.
    """
    nothing, n_groups = np.full(looks[0].shape[1], np.nan), len(np.unique(groups))
    rows = [np.flatnonzero(classes == place) for place in np.unique(classes)]
    rows = [own for own in rows if len(np.unique(groups[own])) > 1]
    if not rows:
        return ConfoundingTest(nothing, float("nan"), nothing, n_groups)
    scaled = [[_scaled(values[own]) for values in looks] for own in rows]
    shares = _largest(scaled, [groups[own][None] for own in rows])[0]
    rng, as_large, totals = np.random.default_rng(random_state), np.ones(len(shares)), []
    for start in range(0, n_permutations, _SHUFFLES):
        n = min(_SHUFFLES, n_permutations - start)
        shuffled = [rng.permuted(np.tile(groups[own], (n, 1)), axis=1) for own in rows]
        by_chance = _largest(scaled, shuffled)
        as_large += (by_chance >= shares - _NONE).sum(axis=0)
        totals += [_totals(row) for row in by_chance]
    columns = np.array([_totals(shares), *totals]).T
    in_any = _chances(columns[0], shares)
    doubts = np.minimum(in_any, _false_discovery_rates(as_large / (n_permutations + 1)))
    least = np.min([_chances(column, column) for column in columns], axis=0)
    chance = float(np.mean(least <= least[0] + _NONE))
    return ConfoundingTest(shares, chance, doubts, n_groups)


def _totals(shares: NDArray[np.float64]) -> tuple[float, float]:
    """The largest, and the mean of the largest ten."""
    most = np.sort(shares)[-_BATCH:]
    return float(most[-1]), float(most.mean())


def _chances(known: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every value: how many of those known are as large."""
    below = np.searchsorted(np.sort(known), values - _NONE)
    found: NDArray[np.float64] = 1 - below / len(known)
    return found


def _false_discovery_rates(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest expected share of false ones among lists that end with each."""
    order = np.argsort(chances)
    found = np.empty(len(chances))
    by_rank = chances[order] * len(chances) / np.arange(1, len(chances) + 1)
    found[order] = np.minimum.accumulate(by_rank[::-1])[::-1]
    return found.clip(0, 1)


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with a mean of 0 and a Σ of squares of 1; 0 where they do not vary."""
    centred = values - values.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    return np.divide(centred, norms, out=np.zeros_like(centred), where=norms > np.sqrt(_NONE))


def _largest(scaled: list[list[NDArray[np.float64]]], groups: list[Groups]) -> NDArray[np.float64]:
    """(n_shuffles, n): η² of every measurement, in the class and by the look where it is largest.

    Of every class, what was measured, and the groups (n_shuffles, n_units).
    """
    pairs = zip(scaled, groups, strict=True)
    return np.max([_fractions(values, own) for looks, own in pairs for values in looks], axis=0)


def _fractions(scaled: NDArray[np.float64], groups: Groups) -> NDArray[np.float64]:
    """Σ over groups of n·mean², for every shuffle."""
    names, sizes = np.unique(groups[0], return_counts=True)
    member = (groups[:, None] == names[:, None]) / np.sqrt(sizes)[:, None]
    found: NDArray[np.float64] = ((member @ scaled) ** 2).sum(axis=1)
    return found
