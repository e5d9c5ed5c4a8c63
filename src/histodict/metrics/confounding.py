"""Test for properties of the images, such as the site, that are associated with the class.

If site or scanner are associated with the class, a model may learn them instead of the tissue, and
no split by patient reveals it. The test statistic of a property is the balanced accuracy over
patients of the best classifier that uses this property alone; its null distribution is that of
permuted classes of patients. p-values are adjusted for the number of properties.

Reference: Westfall, Young, "Resampling-based multiple testing", 1993 (minP adjustment).

How much of what patients differ in lies between groups of them, or of their images.

A use that tells sites apart beyond the class is a leak. Two things are said of it: how large it is,
with an interval, for groups of any kind; and, of sites, whether chance alone could make it.

How well many measurements of patients tell classes apart, all at once.

Patients are counted, not patches: patches of a patient are alike, and say little new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import t

from ..datasets.manifest import Manifest
from ..datasets.survey import image_properties
from .intervals import BootstrapReplicates

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


_ALPHA = 0.05  # associations with at most this adjusted p-value are reported
_MIN_GAIN = 0.4  # fraction of the difference between chance level and accuracy 1
_N_PERMUTATIONS, _FEWER, _MANY_VALUES = 999, 199, 5000
_TOLERANCE = 1e-9
# Per image: a category, or numbers that are tested one by one; None if unknown.
Values = Sequence[str | tuple[float, ...] | None]


@dataclass(frozen=True)
class Association:
    """Association of one property with the class, over patients.

    accuracy : balanced accuracy of the best classifier on these patients; by_chance : its mean
    with permuted classes; p_value : adjusted for the number of properties
    confounded : whether every value of the property occurs in one class only
    """

    name: str
    accuracy: float
    chance_accuracy: float
    p_value: float
    confounded: bool

    @property
    def may_reflect_tissue(self) -> bool:
        """Whether the tissue itself may be the cause."""
        return self.name == "mean colour"

    def __str__(self) -> str:
        head = self.name[:1].upper() + self.name[1:]
        if self.confounded and self.name in _RECORDED:
            return (
                f"Class and {self.name} are fully confounded: no evaluation on these data can tell "
                f"them apart, and a model may have learnt the {self.name} instead of the tissue. "
                f"Add images of every class from the same {self.name}"
            )
        words = (
            f"{head} alone gives the class of patients with a balanced accuracy of "
            f"{self.accuracy:.2f} (by chance {self.chance_accuracy:.2f}, p = {self.p_value:.3f})"
        )
        if self.confounded and not self.may_reflect_tissue:
            words += ": on these data the two cannot be told apart"
        return f"{words}. {_ADVICE.get(self.name, _OF_FILES)}"


_RECORDED = ("site", "scanner", "batch")
_OF_FILES = "A model may use it instead of the tissue: prepare images of all classes alike"
_OF_COLOUR = (
    "The cause may be the tissue itself, or stain, scanner or exposure, which a model may learn "
    "instead"
)
_ADVICE = {name: f"A model may have learnt the {name}: test where it varies" for name in _RECORDED}
_ADVICE |= {
    "site": "A model may have learnt the site: test with --protocol site",
    "mean colour": _OF_COLOUR,
    "white point": f"{_OF_COLOUR}; see --set stain=…",
}


def find_confounders(manifest: Manifest) -> list[Association]:
    """Return properties that are associated with the class, the strongest first.

    Tested are the columns site, scanner and batch, and properties of the files: file format, image
    size, pixel size, mean colour and white point (99th percentile of each channel).
    """
    records = [r for r in manifest.records if r.label and not r.is_mapped]
    known = [image_properties(record) for record in records]
    properties: dict[str, Values] = {
        name: [getattr(record, name) for record in records] for name in _RECORDED
    }
    properties["file format"] = [own.format if own else None for own in known]
    properties["image size"] = [own.size if own else None for own in known]
    properties["pixel size"] = [(own.mpp,) if own and own.mpp else None for own in known]
    properties["mean colour"] = [own.mean if own else None for own in known]
    properties["white point"] = [own.white if own else None for own in known]
    labels, patients = [r.label for r in records], [r.patient for r in records]
    return [a for a in associations(properties, labels, patients) if _is_reported(a)]


def _is_reported(found: Association) -> bool:
    return (found.confounded and found.name in _RECORDED) or found.p_value <= _ALPHA


def associations(
    properties: dict[str, Values],
    labels: Sequence[str],
    patients: Sequence[str],
    *,
    random_state: int = 0,
) -> list[Association]:
    """Return the associations of all properties that vary, the strongest first.

    Empty if none is strong or confounded. An association below the minimum accuracy (0.4 of the
    difference between chance level and 1) has the p-value 1.
    """
    rng, tested = np.random.default_rng(random_state), []
    for name, values in properties.items():
        rows = [place for place, value in enumerate(values) if value is not None]
        units = _Units.of([labels[r] for r in rows], [patients[r] for r in rows])
        own = [values[row] for row in rows]
        if len(units.counts) > 1 and len(set(own)) > 1:
            accuracy = float(units.accuracies(own, units.classes[None])[0])
            confounded = _is_confounded(
                own, [labels[r] for r in rows], len(units.classes), accuracy
            )
            tested.append((name, own, units, accuracy, confounded))
    if not any(units.is_strong(a) or confounded for *_, units, a, confounded in tested):
        return []
    by_chance = [units.accuracies(own, units.permuted(rng)) for _, own, units, *_ in tested]
    n = min(map(len, by_chance))
    observed = np.array([accuracy for *_, accuracy, _ in tested])
    p_values = _adjusted(observed, np.array([values[:n] for values in by_chance]))
    found = [
        Association(
            name,
            accuracy,
            float(chance.mean()),
            p if units.is_strong(accuracy) else 1.0,
            confounded,
        )
        for (name, _, units, accuracy, confounded), chance, p in zip(
            tested, by_chance, p_values.tolist(), strict=True
        )
    ]
    return sorted(found, key=lambda each: (each.p_value, -each.accuracy))


def _is_confounded(own: Values, labels: Sequence[str], n_units: int, accuracy: float) -> bool:
    """Return whether each value occurs with one label only, and patients share values."""
    n_values = len(set(own))
    # Values that hardly any patients share, as of a continuous property, have one label by chance.
    decides = len(set(zip(own, labels, strict=True))) == n_values <= n_units / 2
    return decides or (not isinstance(own[0], str) and accuracy > 1 - _TOLERANCE)


@dataclass(frozen=True)
class _Units:
    """Patients of each class, as the units of permutation.

    of_row : unit of every image; classes : class index of every unit; counts : units per class
    """

    of_row: Groups
    classes: Groups
    counts: Groups

    @classmethod
    def of(cls, labels: Sequence[str], patients: Sequence[str]) -> _Units:
        pairs = list(zip(patients, labels, strict=True))
        names = sorted(set(pairs))
        place_of = {pair: place for place, pair in enumerate(names)}
        _, classes, counts = np.unique(
            [label for _, label in names] or [""], return_inverse=True, return_counts=True
        )
        return cls(np.array([place_of[pair] for pair in pairs], np.int64), classes, counts)

    def permuted(self, rng: np.random.Generator) -> Groups:
        """Return permutations (n, n_units) of the classes."""
        n = _N_PERMUTATIONS if len(self.classes) <= _MANY_VALUES else _FEWER
        return rng.permuted(np.tile(self.classes, (n, 1)), axis=1)

    def is_strong(self, accuracy: float) -> bool:
        least = 1 / len(self.counts)
        return accuracy >= least + _MIN_GAIN * (1 - least)

    def accuracies(self, values: Values, permuted: Groups) -> NDArray[np.float64]:
        """Return the accuracy of the best classifier for each row of permuted classes."""
        if isinstance(values[0], str):
            return self._from_labels([str(value) for value in values], permuted)
        columns = np.array(values, np.float64).T
        found: NDArray[np.float64]
        found = np.max([self._of_numbers(column, permuted) for column in columns], axis=0)
        return found

    def _from_labels(self, words: Sequence[str], permuted: Groups) -> NDArray[np.float64]:
        """Return the balanced accuracy of predicting the majority class of each category."""
        names, places = np.unique(words, return_inverse=True)
        # Sparse: there may be as many words as patients.
        n_images = np.bincount(self.of_row)
        entries = 1.0 / n_images[self.of_row], (self.of_row, places)
        shares = csr_array(entries, shape=(len(self.classes), len(names)))
        by_class = [
            (shares.T @ (permuted == place).T.astype(np.float64)).T / count
            for place, count in enumerate(self.counts.tolist())
        ]
        found: NDArray[np.float64] = np.max(by_class, axis=0).sum(axis=1) / len(self.counts)
        return found

    def _of_numbers(self, numbers: NDArray[np.float64], permuted: Groups) -> NDArray[np.float64]:
        """Return the balanced accuracy of the best threshold between any class and the others.

        (1 + D) / 2, where D is the Kolmogorov-Smirnov statistic.
        """
        sums = np.bincount(self.of_row, numbers, len(self.classes))
        means = sums / np.bincount(self.of_row, minlength=len(self.classes))
        order = np.argsort(means, kind="stable")
        ends = np.append(np.diff(means[order]) > _TOLERANCE, True)
        n, best = len(means), np.zeros(len(permuted))
        # For two classes, both comparisons are the same.
        for place, count in list(enumerate(self.counts.tolist()))[len(self.counts) == 2 :]:
            inside = permuted[:, order] == place
            steps = np.where(inside, 1 / count, -1 / (n - count))
            gaps = np.abs(np.cumsum(steps, axis=1)[:, ends]).max(axis=1)
            best = np.maximum(best, gaps)
        return (1 + best) / 2


def _adjusted(observed: NDArray[np.float64], by_chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p-values of n properties from their statistics, observed (n,) and permuted (n, m)."""
    p = np.array([_as_large(row) for row in np.column_stack([observed, by_chance])])
    least = p.min(axis=0)
    found: NDArray[np.float64] = (least[None] <= p[:, :1] + _TOLERANCE).mean(axis=1)
    return found


def _as_large(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for every value the fraction of all values that are at least as large."""
    below = np.searchsorted(np.sort(values), values - _TOLERANCE)
    found: NDArray[np.float64] = 1 - below / len(values)
    return found
