"""How splits are made: folds, hold-outs, one site at a time, or as the manifest itself says.

The same manifest, request and random_state give the same splits, in whatever order the manifest
lists its images.

What a method answered for the images it was tested on, put together over the folds.

Groups of images to folds of about equal size and mixture, groups kept whole.

With F (n_folds, n_classes) the images of each class per fold and T their mean over the folds:

    min  Σ ((F − T)/T)²,  as few entries of F as possible 0, which comes first

Equal numbers of groups count a little too. Finding the minimum is hard (it contains the
partition problem); a greedy start and exchanges come close, and every start gives other folds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..datasets.manifest import Manifest
from ..utils.validation import check_whole_number, hint
from .splits import Split, SplitError, Splits, check_splits, image_names, required_classes


@dataclass(frozen=True)
class Repeat:
    """One repeat of an experiment: every image tested in it, once.

    labels, patients : (n_images,)
    answers : predictions or scores, (n_images,) or (n_images, n_classes), as a metric takes them
    """

    labels: NDArray[Any]
    patients: NDArray[Any]
    predictions: NDArray[Any]

    def __post_init__(self) -> None:
        shapes = [np.shape(x)[:1] for x in (self.labels, self.patients, self.predictions)]
        if shapes[0] == (0,) or len(set(shapes)) > 1 or not shapes[0]:
            raise ValueError(
                "labels, patients and answers must have one entry per image, not shapes "
                f"{[np.shape(x) for x in (self.labels, self.patients, self.predictions)]}"
            )


def collect_repeats(
    manifest: Manifest, splits: Iterable[Split], answers: Iterable[ArrayLike]
) -> list[Repeat]:
    """All answers, repeat by repeat; `answers` has an array per split, in order of `split.test`.

    The folds of a repeat are put together before any metric is computed, because a fold of few
    patients may lack a class. Scores of different folds come from different models: they must
    mean the same, such as probabilities, or distances from the border of the decision.
    """
    splits, answers = list(splits), list(answers)
    if len(splits) != len(answers):
        raise ValueError(f"there are {len(splits)} splits, but answers of {len(answers)}")
    repeats: dict[int, list[tuple[Split, NDArray[Any]]]] = {}
    for split, said in zip(splits, answers, strict=True):
        repeats.setdefault(split.repeat, []).append((split, _per_image(split, said)))
    return [_joined(manifest, parts) for _, parts in sorted(repeats.items())]


def _per_image(split: Split, answers: ArrayLike) -> NDArray[Any]:
    said = np.asarray(answers)
    if said.shape[:1] != (len(split.test),):
        raise ValueError(
            f"split {split.name!r} tests {len(split.test)} images, but its answers have the shape "
            f"{said.shape}"
        )
    return said


def _joined(manifest: Manifest, parts: list[tuple[Split, NDArray[Any]]]) -> Repeat:
    tested = [place for split, _ in parts for place in split.test]
    if len(set(tested)) < len(tested):
        names = [split.name for split, _ in parts]
        raise ValueError(
            f"the splits {names} are one repeat, but test some image twice: gather the answers of "
            "one experiment at a time, such as one n_per_class"
        )
    # Sorted by name: rounding of a sum must not depend on the order of rows.
    names = [manifest.name(manifest.records[place]) for place in tested]
    order = sorted(range(len(tested)), key=names.__getitem__)
    chosen = manifest.select([tested[row] for row in order])
    said = np.concatenate([said for _, said in parts])[order]
    return Repeat(np.array(chosen.labels), np.array(chosen.patients), said)


# What a fold without some class costs: far more than evening out the others brings, and small
# enough that costs are exact to 1e-12.
_HOLE = 1e3
# What the imbalance of the number of groups counts, next to that of a class's images.
_GROUP_WEIGHT = 0.05
# Starts, at most, while a class is missing in more folds than must be.
_N_STARTS = 20


def balanced_folds(
    counts: NDArray[np.int64], n_folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The fold of every group, (n_groups,), from its images per class (n_groups, n_classes)."""
    n_needed = np.maximum(0, n_folds - (counts > 0).sum(axis=0)).sum()
    best, fewest = np.empty(0, np.int64), np.inf
    for _ in range(_N_STARTS):
        folds = _Exchange(counts, n_folds, rng).run()
        n_holes = (fold_totals(counts, folds, n_folds) == 0).sum()
        if n_holes < fewest:
            best, fewest = folds, n_holes
        if n_holes <= n_needed:
            break
    return best


def fold_totals(
    counts: NDArray[np.int64], folds: NDArray[np.int64], n_folds: int
) -> NDArray[np.int64]:
    """Images of each class in each fold: F, (n_folds, n_classes)."""
    F = np.zeros((n_folds, counts.shape[1]), np.int64)
    np.add.at(F, folds, counts)
    return F


class _Exchange:
    """One start: groups one by one to the fold they suit best, then moves and swaps."""

    def __init__(self, counts: NDArray[np.int64], n_folds: int, rng: np.random.Generator) -> None:
        n_groups, self.n_classes = counts.shape
        # The last column counts the groups themselves.
        self.members = np.column_stack([counts, np.ones(n_groups, np.int64)]).astype(float)
        self.target = self.members.sum(axis=0) / n_folds
        self.weights = np.append(np.ones(self.n_classes), _GROUP_WEIGHT) / self.target**2
        self.order = rng.permutation(n_groups)
        self.folds = np.full(n_groups, -1)
        self.totals = np.zeros((n_folds, self.n_classes + 1))

    def run(self) -> NDArray[np.int64]:
        for group in self.order:
            gains = self._costs(self.totals + self.members[group]) - self._costs(self.totals)
            self._put(group, int(gains.argmin()))
        better = True
        while better and not self._even():
            better = any([self._improve(group) for group in self.order])
        return self.folds

    def _costs(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """What folds with these totals (..., n_classes + 1) cost, each."""
        uneven = ((totals - self.target) ** 2 * self.weights).sum(axis=-1)
        costs: NDArray[np.float64] = uneven + _HOLE * (totals == 0).sum(axis=-1)
        return costs

    def _put(self, group: int, fold: int) -> None:
        if self.folds[group] >= 0:
            self.totals[self.folds[group]] -= self.members[group]
        self.totals[fold] += self.members[group]
        self.folds[group] = fold

    def _even(self) -> bool:
        """No fold can come closer in whole images."""
        return bool(np.all(np.abs(self.totals - self.target)[:, : self.n_classes] < 1))

    def _improve(self, group: int) -> bool:
        """Move the group to another fold, or swap it with another group, if that is better."""
        home, row = self.folds[group], self.members[group]
        now, rest = self._costs(self.totals), self.totals[home] - row
        moves = self._costs(rest) + self._costs(self.totals + row) - now[home] - now
        moves[home] = 0
        swaps = self._costs(rest + self.members) - now[home]
        swaps += self._costs(self.totals[self.folds] + row - self.members) - now[self.folds]
        swaps[self.folds == home] = 0
        # Less than this may be rounding, which would go in circles.
        if min(moves.min(), swaps.min()) > -1e-9:
            return False
        if moves.min() <= swaps.min():
            self._put(group, int(moves.argmin()))
        else:
            other = int(swaps.argmin())
            self._put(group, int(self.folds[other]))
            self._put(other, int(home))
        return True


# Divisions tried, per repeat, to find one that no earlier repeat has.
_N_TRIES = 50


def k_folds(
    manifest: Manifest,
    n_folds: int = 5,
    *,
    n_repeats: int = 1,
    random_state: int = 0,
    by: str = "patient",
) -> Splits:
    """Every image is tested once per repeat, by a model that never saw its patient.

    Each class is spread over the folds as evenly as whole patients allow. Every training side has
    every class; a test side lacks one only where the class has fewer patients than there are
    folds, or the search found no better division. No two repeats are the same.
    """
    n_repeats = check_whole_number("n_repeats", n_repeats, 1)
    groups = _Groups.of(manifest, by)
    made: list[Split] = []
    seen: set[tuple[int, ...]] = set()
    for repeat in range(n_repeats):
        rng = _generator(random_state, repeat)
        tries = (groups.divide(n_folds, rng) for _ in range(_N_TRIES))
        folds = next((folds for folds in tries if _numbered(folds) not in seen), None)
        if folds is None:
            raise SplitError(
                f"n_repeats is {n_repeats}, but only {repeat} different divisions of "
                f"{len(groups.names)} {by}s into {n_folds} folds were found: ask for at most "
                f"n_repeats={repeat}"
            )
        seen.add(_numbered(folds))
        for fold in range(n_folds):
            test = folds[groups.of_image] == fold
            name = f"repeat {repeat + 1}, fold {fold + 1}"
            made.append(Split(name, _indices(~test), _indices(test), by, repeat))
    protocol = {"n_folds": n_folds, "n_repeats": n_repeats, "random_state": random_state}
    return _checked(manifest, made, kind="k-fold", **protocol)


def learning_curve_splits(
    manifest: Manifest,
    n_per_class: Sequence[int],
    *,
    n_repeats: int = 1,
    random_state: int = 0,
    by: str = "patient",
) -> Splits:
    """How much do more training images help? Per repeat one test half, and training sets that grow.

    The patients are divided into halves first. The training half then gives n images of each
    class, for every n of `n_per_class`; a smaller set is part of a larger one.
    """
    sizes = [check_whole_number("n_per_class", n, 1) for n in n_per_class]
    if not sizes:
        raise SplitError("n_per_class is empty: name numbers of images, such as (3, 5, 10)")
    n_repeats = check_whole_number("n_repeats", n_repeats, 1)
    groups = _Groups.of(manifest, by)
    made = []
    for repeat in range(n_repeats):
        rng = _generator(random_state, repeat)
        test = groups.divide(2, rng)[groups.of_image] == 1
        queues = _queues(manifest, ~test, rng)
        for n in sizes:
            name = f"repeat {repeat + 1}, {n} per class"
            train = _first(queues, n, name)
            made.append(Split(name, train, _indices(test), by, repeat, n))
    protocol = {"n_per_class": sizes, "n_repeats": n_repeats, "random_state": random_state}
    return _checked(manifest, made, kind="hold-out", **protocol)


def leave_one_site_out(manifest: Manifest) -> Splits:
    """One split per site: test on its images, train on those of all other sites."""
    sites = [record.site for record in manifest.records]
    nowhere = [manifest.name(record) for record in manifest.records if not record.site]
    if nowhere:
        raise SplitError(
            f"{len(nowhere)} images have no site, {nowhere[0]} for one: fill the column 'site'"
        )
    names = sorted({site for site in sites if site})
    if len(names) < 2:
        raise SplitError(f"all images come from the site {names[0]!r}: there must be two or more")
    tests = {f"site {name}": np.array([site == name for site in sites]) for name in names}
    made = [Split(name, _indices(~test), _indices(test)) for name, test in tests.items()]
    return _checked(manifest, made, kind="leave one site out")


def predefined_split(
    manifest: Manifest,
    *,
    train: Sequence[str] = ("train",),
    test: Sequence[str] = ("test",),
    leave_out: Sequence[str] = (),
    by: str = "patient",
) -> Splits:
    """The split of the manifest's own column `split`; says which of its values mean what.

    A value that is in none of the three lists is an error, and so is an empty cell unless
    `leave_out` has "".
    """
    values = [record.split or "" for record in manifest.records]
    unknown = Counter(value for value in values if value not in {*train, *test, *leave_out})
    if unknown:
        found = ", ".join(f"{value!r} ({count} images)" for value, count in sorted(unknown.items()))
        how = hint(python="rename them, name them in train, test or leave_out,", cli="rename them")
        raise SplitError(
            f"the column 'split' holds {found}, and known are {sorted({*train, *test})}: "
            f"{how} or remove the rows"
        )
    trained, tested = (
        [place for place, value in enumerate(values) if value in side] for side in (train, test)
    )
    protocol = {"train": [*train], "test": [*test], "leave_out": [*leave_out]}
    return _checked(
        manifest, [Split("predefined", trained, tested, by)], kind="predefined", **protocol
    )


def _checked(manifest: Manifest, splits: Sequence[Split], **protocol: Any) -> Splits:
    made = Splits(tuple(splits), tuple(image_names(manifest)), manifest.digest(), protocol)
    check_splits(manifest, made)
    return made


# --- groups of images ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """Images that stay together: sorted names, group of each image, images per group and class.

    needed : (n_classes,), those that every training side must have
    """

    by: str
    names: list[str]
    classes: list[str]
    of_image: NDArray[np.int64]
    counts: NDArray[np.int64]
    needed: NDArray[np.bool_]

    @classmethod
    def of(cls, manifest: Manifest, by: str) -> _Groups:
        if not manifest.records:
            raise SplitError("there are no images to split")
        together = manifest.patients if by == "patient" else image_names(manifest)
        names, of_image = np.unique(together, return_inverse=True)
        classes, of_label = np.unique(manifest.labels, return_inverse=True)
        counts = np.zeros((len(names), len(classes)), np.int64)
        np.add.at(counts, (of_image, of_label), 1)
        needed = np.isin(classes, list(required_classes(manifest.records)))
        return cls(by, names.tolist(), classes.tolist(), of_image, counts, needed)

    def divide(self, n_folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The fold of every group, such that no class is in one fold alone."""
        n_folds = check_whole_number("n_folds", n_folds, 2)
        n_groups = len(self.names)
        if n_groups < 2:
            raise SplitError(
                f"all images are of one {self.by}: none is left to be tested. Add images of others"
            )
        if n_folds > n_groups:
            raise SplitError(
                f"{n_folds} folds need as many {self.by}s, but there are {n_groups}: ask for fewer "
                f"({hint(python='n_folds=', cli='--folds ')}{n_groups})"
            )
        for place in np.flatnonzero(self.needed).tolist():
            name, column = self.classes[place], self.counts[:, place]
            holders = np.flatnonzero(column)
            if len(holders) == 1:
                raise SplitError(
                    f"class {name!r} comes from one {self.by} only, {self.names[holders[0]]!r}: "
                    "it cannot be both trained on and tested. Add images of others, or leave "
                    "the class out"
                )
        folds = balanced_folds(self.counts, n_folds, rng)
        alone = (fold_totals(self.counts, folds, n_folds) > 0).sum(axis=0) == 1
        alone &= self.needed
        if alone.any():
            raise SplitError(
                f"no division of the {self.by}s into {n_folds} folds was found that leaves class "
                f"{self.classes[int(alone.argmax())]!r} on every training side: ask for more folds"
            )
        return folds


def _queues(
    manifest: Manifest, chosen: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, list[int]]:
    """Chosen images of each class in random order, which does not depend on the manifest's."""
    labels, places = (
        manifest.labels,
        sorted(_indices(chosen), key=image_names(manifest).__getitem__),
    )
    queues = {name: [i for i in places if labels[i] == name] for name in np.unique(labels).tolist()}
    return {name: rng.permutation(queue).tolist() for name, queue in queues.items() if queue}


def _first(queues: Mapping[str, Sequence[int]], n: int, split: str) -> list[int]:
    for name, queue in queues.items():
        if len(queue) < n:
            raise SplitError(
                f"split {split!r}: the training half has {len(queue)} images of class {name!r}: "
                f"ask for at most n_per_class={len(queue)}"
            )
    return sorted(place for queue in queues.values() for place in queue[:n])


def _generator(random_state: int, repeat: int) -> np.random.Generator:
    """A generator for each repeat: more repeats leave the first ones as they are."""
    return np.random.default_rng([check_whole_number("random_state", random_state, 0), repeat])


def _numbered(folds: NDArray[np.int64]) -> tuple[int, ...]:
    """Folds numbered as they come up, to tell whether two divisions are the same."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(fold, len(numbers)) for fold in folds.tolist())


def _indices(chosen: NDArray[np.bool_]) -> list[int]:
    places: list[int] = np.flatnonzero(chosen).tolist()
    return places
