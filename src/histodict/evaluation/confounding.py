"""Test for properties of the images, such as the site, that are associated with the class.

If site or scanner are associated with the class, a model may learn them instead of the tissue, and
no split by patient reveals it. The test statistic of a property is the balanced accuracy over
patients of the best classifier that uses this property alone; its null distribution is that of
permuted classes of patients. p-values are adjusted for the number of properties.

Reference: Westfall, Young, "Resampling-based multiple testing", 1993 (minP adjustment).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..images.manifest import Manifest
from ..images.survey import image_properties

_ALPHA = 0.05  # associations with at most this adjusted p-value are reported
_MIN_GAIN = 0.4  # fraction of the difference between chance level and accuracy 1
_N_PERMUTATIONS, _FEWER, _MANY = 999, 199, 5000
_TOLERANCE = 1e-9

Groups = NDArray[np.int64]
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
        n = _N_PERMUTATIONS if len(self.classes) <= _MANY else _FEWER
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
