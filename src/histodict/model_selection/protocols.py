"""Evaluation protocols: k-fold, learning curve, leave-one-site-out and predefined split.

The same manifest, parameters and random_state give the same splits, independent of the order of
images in the manifest.

Folds are balanced by a heuristic search that keeps groups of images together. Let F (n_folds,
n_classes) be the number of images of each class per fold, and T the mean of F over the folds. The
search minimises the number of zeros in F and then

    Σ ((F − T)/T)²

to which the number of groups per fold contributes with a small weight. The exact problem is
NP-hard. A greedy assignment is improved by moving and swapping groups; different random orders of
the groups give different folds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..datasets.manifest import Manifest
from ..utils.text_io import pluralize
from ..utils.validation import check_whole_number, hint
from .splits import Split, SplitError, Splits, check_splits, image_names, required_classes


@dataclass(frozen=True)
class Repeat:
    """Predictions of one repeat of an experiment, which tests each image once.

    Attributes
    ----------
    labels : (n_images,), true class of each image
    patients : (n_images,), patient of each image
    predictions : predicted labels or scores, (n_images,) or (n_images, n_classes)
    """

    labels: NDArray[Any]
    patients: NDArray[Any]
    predictions: NDArray[Any]

    def __post_init__(self) -> None:
        shapes = [np.shape(x)[:1] for x in (self.labels, self.patients, self.predictions)]
        if shapes[0] == (0,) or len(set(shapes)) > 1 or not shapes[0]:
            raise ValueError(
                "labels, patients and predictions must have one entry per image, not shapes "
                f"{[np.shape(x) for x in (self.labels, self.patients, self.predictions)]}"
            )


def collect_repeats(
    manifest: Manifest, splits: Iterable[Split], predictions: Iterable[ArrayLike]
) -> list[Repeat]:
    """Collect the predictions of each repeat over its folds.

    Folds are joined before any metric is computed, because a fold of few patients may lack a class.
    Scores of different folds come from different models and must be comparable, such as
    probabilities or distances from the decision boundary.

    Parameters
    ----------
    manifest : images of the splits
    splits : splits of all repeats
    predictions : for each split, the predictions of the images in `split.test`, in this order

    Returns
    -------
    list of Repeat
    """
    splits, predictions = list(splits), list(predictions)
    if len(splits) != len(predictions):
        raise ValueError(f"{len(splits)} splits, but predictions of {len(predictions)}")
    repeats: dict[int, list[tuple[Split, NDArray[Any]]]] = {}
    for split, predicted in zip(splits, predictions, strict=True):
        repeats.setdefault(split.repeat, []).append((split, _check_length(split, predicted)))
    return [_join_folds(manifest, parts) for _, parts in sorted(repeats.items())]


def _check_length(split: Split, predictions: ArrayLike) -> NDArray[Any]:
    values = np.asarray(predictions)
    if values.shape[:1] != (len(split.test),):
        raise ValueError(
            f"split {split.name!r} tests {len(split.test)} images, but its predictions have "
            f"shape {values.shape}"
        )
    return values


def _join_folds(manifest: Manifest, parts: list[tuple[Split, NDArray[Any]]]) -> Repeat:
    tested = [index for split, _ in parts for index in split.test]
    if len(set(tested)) < len(tested):
        names = [split.name for split, _ in parts]
        raise ValueError(
            f"the splits {names} test some images twice within one repeat; collect the "
            "results of one experiment at a time, such as a single n_per_class"
        )
    # Sorted by name, so that rounding of sums does not depend on the order of rows.
    names = [manifest.name(manifest.records[index]) for index in tested]
    order = sorted(range(len(tested)), key=names.__getitem__)
    chosen = manifest.select([tested[row] for row in order])
    predictions = np.concatenate([predictions for _, predictions in parts])[order]
    return Repeat(np.array(chosen.labels), np.array(chosen.patients), predictions)


# Cost of a class that is missing in a fold: larger than any cost of imbalance, and small enough for
# a rounding error of the total cost below 1e-12.
_MISSING_CLASS_COST = 1e3
# Weight of the imbalance in the number of groups, relative to that of the images of a class.
_GROUP_WEIGHT = 0.05
# Maximum number of starts while a class is missing in more folds than necessary.
_MAX_STARTS = 20


def balanced_folds(
    counts: NDArray[np.int64], n_folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Assign groups of images to folds such that each class is distributed evenly.

    Parameters
    ----------
    counts : (n_groups, n_classes), number of images of each group and class
    n_folds : number of folds
    rng : source of the random orders of the groups

    Returns
    -------
    ndarray of shape (n_groups,)
        Fold of each group.
    """
    n_unavoidable = np.maximum(0, n_folds - (counts > 0).sum(axis=0)).sum()
    best, min_missing = np.empty(0, np.int64), np.inf
    for _ in range(_MAX_STARTS):
        folds = _FoldSearch(counts, n_folds, rng).run()
        n_missing = (fold_totals(counts, folds, n_folds) == 0).sum()
        if n_missing < min_missing:
            best, min_missing = folds, n_missing
        if n_missing <= n_unavoidable:
            break
    return best


def fold_totals(
    counts: NDArray[np.int64], folds: NDArray[np.int64], n_folds: int
) -> NDArray[np.int64]:
    """Return the number of images of each class in each fold.

    Parameters
    ----------
    counts : (n_groups, n_classes), number of images of each group and class
    folds : (n_groups,), fold of each group
    n_folds : number of folds

    Returns
    -------
    ndarray of shape (n_folds, n_classes)
    """
    F = np.zeros((n_folds, counts.shape[1]), np.int64)
    np.add.at(F, folds, counts)
    return F


class _FoldSearch:
    """Local search from one random start: greedy assignment of groups, then moves and swaps."""

    def __init__(self, counts: NDArray[np.int64], n_folds: int, rng: np.random.Generator) -> None:
        n_groups, self.n_classes = counts.shape
        # The last column counts the groups themselves.
        self.group_counts = np.column_stack([counts, np.ones(n_groups, np.int64)]).astype(float)
        self.target = self.group_counts.sum(axis=0) / n_folds
        self.weights = np.append(np.ones(self.n_classes), _GROUP_WEIGHT) / self.target**2
        self.order = rng.permutation(n_groups)
        self.folds = np.full(n_groups, -1)
        self.totals = np.zeros((n_folds, self.n_classes + 1))

    def run(self) -> NDArray[np.int64]:
        """Return the fold of each group."""
        for group in self.order:
            gains = self._costs(self.totals + self.group_counts[group]) - self._costs(self.totals)
            self._assign(group, int(gains.argmin()))
        better = True
        while better and not self._is_balanced():
            better = any([self._improve(group) for group in self.order])
        return self.folds

    def _costs(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cost of each fold from its `totals` (..., n_classes + 1).

        The columns are the number of images of each class, and the number of groups.
        """
        imbalance = ((totals - self.target) ** 2 * self.weights).sum(axis=-1)
        costs: NDArray[np.float64] = imbalance + _MISSING_CLASS_COST * (totals == 0).sum(axis=-1)
        return costs

    def _assign(self, group: int, fold: int) -> None:
        if self.folds[group] >= 0:
            self.totals[self.folds[group]] -= self.group_counts[group]
        self.totals[fold] += self.group_counts[group]
        self.folds[group] = fold

    def _is_balanced(self) -> bool:
        """Return whether the counts of all folds differ from the mean by less than one image."""
        return bool(np.all(np.abs(self.totals - self.target)[:, : self.n_classes] < 1))

    def _improve(self, group: int) -> bool:
        """Move a group to another fold, or swap it with a group there, if this reduces the cost.

        Return whether the folds have changed.
        """
        current, row = self.folds[group], self.group_counts[group]
        costs, rest = self._costs(self.totals), self.totals[current] - row
        moves = self._costs(rest) + self._costs(self.totals + row) - costs[current] - costs
        moves[current] = 0
        swaps = self._costs(rest + self.group_counts) - costs[current]
        swaps += self._costs(self.totals[self.folds] + row - self.group_counts) - costs[self.folds]
        swaps[self.folds == current] = 0
        # Smaller gains may be rounding errors and could cause an endless loop.
        if min(moves.min(), swaps.min()) > -1e-9:
            return False
        if moves.min() <= swaps.min():
            self._assign(group, int(moves.argmin()))
        else:
            other = int(swaps.argmin())
            self._assign(group, int(self.folds[other]))
            self._assign(other, int(current))
        return True


# Maximum number of attempts per repeat to find a division that differs from all previous ones.
_MAX_TRIES = 50


def k_folds(
    manifest: Manifest,
    n_folds: int = 5,
    *,
    n_repeats: int = 1,
    random_state: int = 0,
    unit: str = "patient",
) -> Splits:
    """Return k-fold splits, in which every image is in one test set per repeat.

    Each class is distributed as evenly over the folds as whole patients allow. Every training set
    has every class; a test set lacks a class only if the class has fewer patients than there are
    folds, or the search found no better division. All repeats differ.

    Parameters
    ----------
    manifest : labelled images
    n_folds : number of folds
    n_repeats : number of repeats, each with another division
    random_state : seed
    unit : unit that is not divided, "patient" or "image"

    Returns
    -------
    Splits

    Raises
    ------
    SplitError
        If there are too few patients, or too few different divisions.
    """
    n_repeats = check_whole_number(hint(python="n_repeats", cli="--repeats"), n_repeats, 1)
    groups = _Groups.from_manifest(manifest, unit)
    splits: list[Split] = []
    seen: set[tuple[int, ...]] = set()
    for repeat in range(n_repeats):
        rng = _make_generator(random_state, repeat)
        candidates = (groups.divide(n_folds, rng) for _ in range(_MAX_TRIES))
        folds = next((folds for folds in candidates if _canonical_labels(folds) not in seen), None)
        if folds is None:
            raise SplitError(
                f"only {repeat} different divisions of {len(groups.names)} {unit}s into "
                f"{n_folds} folds were found; use "
                f"{hint(python='n_repeats=', cli='--repeats ')}{repeat} instead of {n_repeats}"
            )
        seen.add(_canonical_labels(folds))
        for fold in range(n_folds):
            test = folds[groups.group_of_image] == fold
            name = f"repeat {repeat + 1}, fold {fold + 1}"
            splits.append(
                Split(name, _selected_indices(~test), _selected_indices(test), unit, repeat)
            )
    protocol = {"n_folds": n_folds, "n_repeats": n_repeats, "random_state": random_state}
    return _validated_splits(manifest, splits, kind="k-fold", **protocol)


def learning_curve_splits(
    manifest: Manifest,
    n_per_class: Sequence[int],
    *,
    n_repeats: int = 1,
    random_state: int = 0,
    unit: str = "patient",
) -> Splits:
    """Return splits with nested training sets of increasing size, and one test set per repeat.

    The patients are divided into a training half and a test half. For every n in `n_per_class`, n
    images of each class are drawn from the training half; smaller sets are subsets of larger sets.

    Parameters
    ----------
    manifest : labelled images
    n_per_class : numbers of training images per class
    n_repeats : number of repeats, each with another division
    random_state : seed
    unit : unit that is not divided, "patient" or "image"

    Returns
    -------
    Splits

    Raises
    ------
    SplitError
        If a class has too few training images.
    """
    option = hint(python="n_per_class", cli="--per-class")
    sizes = [check_whole_number(option, n, 1) for n in n_per_class]
    if not sizes:
        raise SplitError(
            "n_per_class is empty; use a list of numbers of images, such as (3, 5, 10)"
        )
    n_repeats = check_whole_number(hint(python="n_repeats", cli="--repeats"), n_repeats, 1)
    groups = _Groups.from_manifest(manifest, unit)
    splits = []
    for repeat in range(n_repeats):
        rng = _make_generator(random_state, repeat)
        test = groups.divide(2, rng)[groups.group_of_image] == 1
        queues = _shuffled_by_class(manifest, ~test, rng)
        for n in sizes:
            name = f"repeat {repeat + 1}, {n} per class"
            train = _take_first(queues, n, name)
            splits.append(Split(name, train, _selected_indices(test), unit, repeat, n))
    protocol = {"n_per_class": sizes, "n_repeats": n_repeats, "random_state": random_state}
    return _validated_splits(manifest, splits, kind="hold-out", **protocol)


def leave_one_site_out(manifest: Manifest) -> Splits:
    """Return one split per site: the images of the site are tested, all others are for training.

    Parameters
    ----------
    manifest : labelled images with sites

    Returns
    -------
    Splits

    Raises
    ------
    SplitError
        If an image has no site, or all images are from one site.
    """
    sites = [record.site for record in manifest.records]
    missing = [manifest.name(record) for record in manifest.records if not record.site]
    if missing and not any(sites):
        table = hint(
            python="set the field site of the records or read a table with a column site",
            cli="use a CSV file with a column site, or give --column site=COLUMN",
        )
        raise SplitError(f"no image has a site; {table}")
    if missing:
        raise SplitError(
            f"{len(missing)} images have no site, such as {missing[0]}; complete the column 'site'"
        )
    names = sorted({site for site in sites if site})
    if len(names) < 2:
        raise SplitError(
            f"all images are from the site {names[0]!r}; at least two sites are needed"
        )
    tests = {f"site {name}": np.array([site == name for site in sites]) for name in names}
    splits = [
        Split(name, _selected_indices(~test), _selected_indices(test))
        for name, test in tests.items()
    ]
    return _validated_splits(manifest, splits, kind="leave-one-site-out")


def predefined_split(
    manifest: Manifest,
    *,
    train: Sequence[str] = ("train",),
    test: Sequence[str] = ("test",),
    leave_out: Sequence[str] = (),
    unit: str = "patient",
) -> Splits:
    """Return the split that the column `split` of the manifest defines.

    Parameters
    ----------
    manifest : labelled images with a column `split`
    train : values of the column for training images; an empty cell has the value ""
    test : values of the column for test images
    leave_out : values of the column for images that are not used
    unit : unit that must not be divided, "patient" or "image"

    Returns
    -------
    Splits

    Raises
    ------
    SplitError
        If the column has a value that is not listed.
    """
    values = [record.split or "" for record in manifest.records]
    unknown = Counter(value for value in values if value not in {*train, *test, *leave_out})
    if unknown and not any(values):
        column = hint(python="", cli=" (or give --column split=COLUMN)")
        raise SplitError(
            "no image has a value in the column 'split'; fill in the column with the values "
            f"{' and '.join(map(repr, [*train, *test]))}{column}"
        )
    if unknown:
        listed = ", ".join(
            f"{value!r} ({count} images)" for value, count in sorted(unknown.items())
        )
        how = hint(python="rename them, list them in train, test or leave_out,", cli="rename them")
        raise SplitError(
            f"the column 'split' has unknown values {listed}, known are "
            f"{sorted({*train, *test})}; {how} or remove the rows"
        )
    trained, tested = (
        [index for index, value in enumerate(values) if value in names] for names in (train, test)
    )
    protocol = {"train": [*train], "test": [*test], "leave_out": [*leave_out]}
    return _validated_splits(
        manifest, [Split("predefined", trained, tested, unit)], kind="predefined", **protocol
    )


def _validated_splits(manifest: Manifest, splits: Sequence[Split], **protocol: Any) -> Splits:
    checked = Splits(tuple(splits), tuple(image_names(manifest)), manifest.digest(), protocol)
    check_splits(manifest, checked)
    return checked


# --- groups of images ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """Groups of images that are not divided between folds.

    Attributes
    ----------
    unit : unit of the groups, "patient" or "image"
    names : names of the groups, such as patients
    classes : class names
    group_of_image : (n_images,), index of the group of each image
    counts : (n_groups, n_classes), number of images of each group and class
    required : (n_classes,), whether every training set must have the class
    """

    unit: str
    names: list[str]
    classes: list[str]
    group_of_image: NDArray[np.int64]
    counts: NDArray[np.int64]
    required: NDArray[np.bool_]

    @classmethod
    def from_manifest(cls, manifest: Manifest, unit: str) -> _Groups:
        if not manifest.records:
            raise SplitError("no images to split")
        keys = manifest.patients if unit == "patient" else image_names(manifest)
        names, group_of_image = np.unique(keys, return_inverse=True)
        classes, of_label = np.unique(manifest.labels, return_inverse=True)
        counts = np.zeros((len(names), len(classes)), np.int64)
        np.add.at(counts, (group_of_image, of_label), 1)
        required = np.isin(classes, list(required_classes(manifest.records)))
        return cls(unit, names.tolist(), classes.tolist(), group_of_image, counts, required)

    def divide(self, n_folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the fold of each group; raise SplitError if a class is in one fold only."""
        n_folds = check_whole_number(hint(python="n_folds", cli="--folds"), n_folds, 2)
        n_groups = len(self.names)
        if n_groups < 2:
            raise SplitError(
                f"all images are of a single {self.unit}, so none is left for the test; add "
                "images of others"
            )
        for class_index in np.flatnonzero(self.required).tolist():
            name, column = self.classes[class_index], self.counts[:, class_index]
            members = np.flatnonzero(column)
            if len(members) == 1:
                raise SplitError(
                    f"all images of class {name!r} are of a single {self.unit}, "
                    f"{self.names[members[0]]!r}, so the class cannot be in both training and "
                    "test sets; add images of others or exclude the class"
                )
        if n_folds > n_groups:
            raise SplitError(
                f"{n_folds} folds need at least {n_folds} {self.unit}s, but there are "
                f"{n_groups}; use at most {hint(python='n_folds=', cli='--folds ')}{n_groups}"
            )
        folds = balanced_folds(self.counts, n_folds, rng)
        alone = (fold_totals(self.counts, folds, n_folds) > 0).sum(axis=0) == 1
        alone &= self.required
        if alone.any():
            raise SplitError(
                f"no division of the {self.unit}s into {n_folds} folds has class "
                f"{self.classes[int(alone.argmax())]!r} in every training set; use more folds"
            )
        return folds


def _shuffled_by_class(
    manifest: Manifest, chosen: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, list[int]]:
    """Return the indices of the selected images of each class in random order.

    The result does not depend on the order of the manifest.
    """
    labels, names = manifest.labels, image_names(manifest)
    indices = sorted(_selected_indices(chosen), key=names.__getitem__)
    queues = {
        name: [i for i in indices if labels[i] == name] for name in np.unique(labels).tolist()
    }
    return {name: rng.permutation(queue).tolist() for name, queue in queues.items() if queue}


def _take_first(queues: Mapping[str, Sequence[int]], n: int, split_name: str) -> list[int]:
    """Return the first n image indices of each class, sorted.

    `queues` are the indices of the images of each class, `split_name` is for messages.
    """
    for name, queue in queues.items():
        if len(queue) < n:
            raise SplitError(
                f"split {split_name!r}: the training half has {pluralize(len(queue), 'image')} of "
                f"class {name!r}; use at most "
                f"{hint(python='n_per_class=', cli='--per-class ')}{len(queue)}"
            )
    return sorted(index for queue in queues.values() for index in queue[:n])


def _make_generator(random_state: int, repeat: int) -> np.random.Generator:
    """Return the random generator for a repeat, independent of those of other repeats."""
    return np.random.default_rng([check_whole_number("random_state", random_state, 0), repeat])


def _canonical_labels(folds: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the folds, numbered by first occurrence, so that equal divisions give equal tuples."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(fold, len(numbers)) for fold in folds.tolist())


def _selected_indices(chosen: NDArray[np.bool_]) -> list[int]:
    indices: list[int] = np.flatnonzero(chosen).tolist()
    return indices
