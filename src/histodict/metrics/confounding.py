"""Tests for association of image properties and measurements with class or site.

If the site or scanner is associated with the class, a model may learn the site instead of the
tissue, and evaluation by patient does not reveal that. `find_confounders` tests properties of the
images. The statistic of a property is the balanced accuracy over patients of the best classifier
that uses this property alone; its null distribution is computed with permuted classes of patients.
p-values are adjusted for the number of properties.

`intraclass_correlation` and `confounding_test` measure how much of the variance between patients
lies between groups such as sites. The unit of all tests is the patient, because patches of one
patient are not independent.

Reference: Westfall, Young, "Resampling-based multiple testing", 1993 (minP adjustment).
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

_LEVEL = 0.95
_MAX_GROUPS = 60  # groups of patients in the jackknife
_MIN_PATIENTS = 8  # for an interval
_VARIANCE_TOLERANCE = 1e-12  # tolerance of variances and of their fractions
_PERMUTATION_BATCH = 50  # permutations computed at once
_N_AVERAGED = 10  # number of largest η² that are averaged

Groups = NDArray[np.int64]  # index of the group of each unit, (n_units,)


def arcsine_sqrt(fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the arcsine square-root transform of fractions, which stabilises their variance.

    Parameters
    ----------
    fractions : fractions between 0 and 1, of any shape

    Returns
    -------
    ndarray
    """
    return np.arcsin(np.sqrt(fractions.clip(0, 1)))


@dataclass(frozen=True)
class IntraclassCorrelation:
    """Intraclass correlation of each of n measurements, (n,), with limits of its interval.

    The value is NaN for constant measurements. All values are NaN unless a block has two groups,
    one of them with two or more units. The limits are NaN with fewer than eight patients.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def intraclass_correlation(
    fractions: NDArray[np.float64], blocks: Groups, groups: Groups, patients: Groups
) -> IntraclassCorrelation:
    """Return the intraclass correlation σ²_b / (σ²_b + σ²) of fractions within blocks.

    σ² is the variance within groups and σ²_b the variance component between groups of the analysis
    of variance. Unlike η², it is 0 on average for random groups of any size. Intervals of 95 % are
    computed with the jackknife over patients, the logarithm and Student's t.

    Parameters
    ----------
    fractions : (n_units, n), n fractions of each unit, to which `arcsine_sqrt` is applied
    blocks : (n_units,), block index of each unit, such as its class
    groups : (n_units,), group index of each unit, such as its site within the class. A group lies
        in one block; blocks with a single group are ignored
    patients : (n_units,), patient index of each unit

    Returns
    -------
    IntraclassCorrelation

    References
    ----------
    Arvesen, Schmitz, "Robust procedures for variance component problems using the jackknife",
    Biometrics 26 (1970) 677-686.
    """
    undefined = np.full(fractions.shape[1], np.nan)
    rows = _units_of_multigroup_blocks(blocks, groups)
    if not len(rows):
        return IntraclassCorrelation(undefined, undefined, undefined)
    values, keys = arcsine_sqrt(fractions[rows]), (blocks[rows], groups[rows])
    estimate = _log_within_fraction(values, *keys)
    left_out = _jackknife_groups(keys[1], patients[rows])
    subsets = [np.flatnonzero(left_out != number) for number in np.unique(left_out)]
    estimates = [
        _log_within_fraction(values[subset], keys[0][subset], keys[1][subset]) for subset in subsets
    ]
    n = len(estimates)
    if n < _MIN_PATIENTS:
        return IntraclassCorrelation(np.clip(1 - np.exp(estimate), 0, 1), undefined, undefined)
    margin = np.std(estimates, axis=0) * np.sqrt(n - 1) * t.ppf((1 + _LEVEL) / 2, n - 1)
    value, low, high = (1 - np.exp(x) for x in (estimate, estimate + margin, estimate - margin))
    return IntraclassCorrelation(*(np.clip(each, 0, 1) for each in (value, low, high)))


def _units_of_multigroup_blocks(blocks: Groups, groups: Groups) -> Groups:
    """Return the indices of the units in blocks that have several groups."""
    pairs = np.unique(np.stack([blocks, groups]), axis=1)
    names, counts = np.unique(pairs[0], return_counts=True)
    return np.flatnonzero(np.isin(blocks, names[counts > 1]))


def _log_within_fraction(
    values: NDArray[np.float64], blocks: Groups, groups: Groups
) -> NDArray[np.float64]:
    """Return log(σ² / (σ² + σ²_b)) of each column (`intraclass_correlation`); NaN if undefined."""
    undefined = np.full(values.shape[1], np.nan)
    sizes, n = np.unique(groups, return_counts=True)[1], len(values)
    totals = np.unique(blocks, return_counts=True)[1]
    block_of_group = _group_indices(blocks)[np.unique(groups, return_index=True)[1]]
    # Coefficient of σ²_b in the expected sum of squares around the block means.
    coefficient = (totals - np.bincount(block_of_group, sizes**2) / totals).sum()
    if n == len(sizes) or coefficient < _VARIANCE_TOLERANCE:
        return undefined
    within = _sum_of_squares(values, groups) / (n - len(sizes))
    between = (_sum_of_squares(values, blocks) - (n - len(totals)) * within) / coefficient
    fraction = np.divide(
        within, within + between, out=undefined, where=within + between > _VARIANCE_TOLERANCE
    )
    return np.log(np.maximum(fraction, _VARIANCE_TOLERANCE))


def _sum_of_squares(values: NDArray[np.float64], groups: Groups) -> NDArray[np.float64]:
    """Return for each column the sum of squared deviations from the group means."""
    indices = _group_indices(groups)
    total: NDArray[np.float64] = ((values - _group_means(values, indices)[indices]) ** 2).sum(
        axis=0
    )
    return total


def _group_indices(groups: Groups) -> Groups:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _group_means(values: NDArray[np.float64], indices: Groups) -> NDArray[np.float64]:
    sizes = np.bincount(indices)
    membership = csr_array((np.ones(len(indices)), (indices, np.arange(len(indices)))))
    means: NDArray[np.float64] = (membership @ values) / sizes[:, None]
    return means


def _jackknife_groups(groups: Groups, patients: Groups) -> Groups:
    """Return the index of the jackknife group of each unit, (n_units,).

    A jackknife group is one patient. If there are more than 60, it consists of patients at regular
    intervals in the order of `groups`.
    """
    order = patients[np.argsort(groups, kind="stable")]
    first = np.sort(np.unique(order, return_index=True)[1])
    group_of_patient = {patient: i % _MAX_GROUPS for i, patient in enumerate(order[first].tolist())}
    return np.array([group_of_patient[patient] for patient in patients.tolist()], np.int64)


# --- permutation test ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfoundingTest:
    """Result of `confounding_test` for n measurements.

    Attributes
    ----------
    variance_fractions : (n,), η²: fraction of the variance between the units of a class that lies
        between groups; maximum over classes and transforms
    p_value : p-value of the hypothesis that no measurement differs between groups
    adjusted_p_values : (n,), smaller of the family-wise p-value and the false discovery rate
        (Benjamini and Hochberg)
    n_groups : number of groups

    Without a class that has two groups, all fractions and p-values are NaN.
    """

    variance_fractions: NDArray[np.float64]
    p_value: float
    adjusted_p_values: NDArray[np.float64]
    n_groups: int


def confounding_test(
    transforms: Sequence[NDArray[np.float64]],
    classes: Groups,
    groups: Groups,
    *,
    n_permutations: int = 1999,
    random_state: int = 0,
) -> ConfoundingTest:
    """Test by permutation whether measurements differ between groups of units of the same class.

    Groups are permuted among the units of each class. The largest η² detects an effect on one
    measurement, the mean of the ten largest η² an effect on many. The test uses the smaller of the
    two p-values, calibrated by the same permutations.

    Parameters
    ----------
    transforms : one or more arrays (n_units, n) of the same n measurements, each transformed in
        another way; the maximum of η² over these arrays is used
    classes : (n_units,), class index
    groups : (n_units,), group index, such as the site
    n_permutations : number of permutations
    random_state : seed

    Returns
    -------
    ConfoundingTest
    """
    undefined, n_groups = np.full(transforms[0].shape[1], np.nan), len(np.unique(groups))
    rows = [np.flatnonzero(classes == index) for index in np.unique(classes)]
    rows = [class_rows for class_rows in rows if len(np.unique(groups[class_rows])) > 1]
    if not rows:
        return ConfoundingTest(undefined, float("nan"), undefined, n_groups)
    scaled = [[_scale_columns(x[class_rows]) for x in transforms] for class_rows in rows]
    fractions = _max_variance_fractions(scaled, [groups[class_rows][None] for class_rows in rows])[
        0
    ]
    rng, n_as_large, statistics = np.random.default_rng(random_state), np.ones(len(fractions)), []
    for start in range(0, n_permutations, _PERMUTATION_BATCH):
        n = min(_PERMUTATION_BATCH, n_permutations - start)
        shuffled = [
            rng.permuted(np.tile(groups[class_rows], (n, 1)), axis=1) for class_rows in rows
        ]
        permuted = _max_variance_fractions(scaled, shuffled)
        n_as_large += (permuted >= fractions - _VARIANCE_TOLERANCE).sum(axis=0)
        statistics += [_summary_statistics(row) for row in permuted]
    columns = np.array([_summary_statistics(fractions), *statistics]).T
    family_wise = _tail_fractions(columns[0], fractions)
    adjusted = np.minimum(family_wise, _false_discovery_rates(n_as_large / (n_permutations + 1)))
    smallest = np.min([_tail_fractions(column, column) for column in columns], axis=0)
    p_value = float(np.mean(smallest <= smallest[0] + _VARIANCE_TOLERANCE))
    return ConfoundingTest(fractions, p_value, adjusted, n_groups)


def _summary_statistics(fractions: NDArray[np.float64]) -> tuple[float, float]:
    """Return the largest fraction and the mean of the ten largest fractions."""
    largest = np.sort(fractions)[-_N_AVERAGED:]
    return float(largest[-1]), float(largest.mean())


def _tail_fractions(
    reference: NDArray[np.float64],
    values: NDArray[np.float64],
    tolerance: float = _VARIANCE_TOLERANCE,
) -> NDArray[np.float64]:
    """Return the fraction of the reference values that are at least as large as each value."""
    n_below = np.searchsorted(np.sort(reference), values - tolerance)
    fractions: NDArray[np.float64] = 1 - n_below / len(reference)
    return fractions


def _false_discovery_rates(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Benjamini-Hochberg adjusted p-values."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    by_rank = p_values[order] * len(p_values) / np.arange(1, len(p_values) + 1)
    adjusted[order] = np.minimum.accumulate(by_rank[::-1])[::-1]
    return adjusted.clip(0, 1)


def _scale_columns(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shift and scale columns to mean 0 and sum of squares 1; constant columns become 0."""
    centred = values - values.mean(axis=0)
    norms = np.sqrt((centred**2).sum(axis=0))
    return np.divide(
        centred, norms, out=np.zeros_like(centred), where=norms > np.sqrt(_VARIANCE_TOLERANCE)
    )


def _max_variance_fractions(
    scaled: list[list[NDArray[np.float64]]], groups: list[Groups]
) -> NDArray[np.float64]:
    """Return η² of each permutation and measurement: the maximum over classes and transforms.

    Parameters
    ----------
    scaled : for each class and transform, the measurements (n_units, n) from `_scale_columns`
    groups : for each class, the permuted groups (n_permutations, n_units)
    """
    pairs = zip(scaled, groups, strict=True)
    return np.max(
        [_variance_fractions(values, each) for transforms, each in pairs for values in transforms],
        axis=0,
    )


def _variance_fractions(scaled: NDArray[np.float64], groups: Groups) -> NDArray[np.float64]:
    """Return η² (n_permutations, n) of scaled columns for groups (n_permutations, n_units)."""
    group_names, sizes = np.unique(groups[0], return_counts=True)
    indicators = (groups[:, None] == group_names[:, None]) / np.sqrt(sizes)[:, None]
    fractions: NDArray[np.float64] = ((indicators @ scaled) ** 2).sum(axis=1)
    return fractions


_MAX_P_VALUE = 0.05  # associations with at most this adjusted p-value are reported
_MIN_RELATIVE_ACCURACY = 0.4  # (accuracy - chance level) / (1 - chance level)
# Number of permutations, and a smaller number that is used with more than `_MANY_UNITS` units.
_N_PERMUTATIONS, _FEW_PERMUTATIONS, _MANY_UNITS = 999, 199, 5000
_ACCURACY_TOLERANCE = 1e-9  # tolerance of accuracies, and of numbers compared with a threshold
# Value of a property per image: a category, or numbers that are tested one by one; None if unknown.
PropertyValues = Sequence[str | tuple[float, ...] | None]


@dataclass(frozen=True)
class Association:
    """Association of one property with the class, over patients.

    Attributes
    ----------
    name : name of the property
    accuracy : balanced accuracy of the best classifier that uses this property alone
    chance_accuracy : mean balanced accuracy with permuted classes
    p_value : p-value, adjusted for the number of properties
    confounded : whether the property determines the class: each value occurs in one class only, or
        one threshold separates the classes
    """

    name: str
    accuracy: float
    chance_accuracy: float
    p_value: float
    confounded: bool

    @property
    def may_reflect_tissue(self) -> bool:
        """Whether the association may be caused by the tissue itself."""
        return self.name == "mean colour"

    def __str__(self) -> str:
        head = self.name[:1].upper() + self.name[1:]
        if self.confounded and self.name in _RECORDED_PROPERTIES:
            return (
                f"Class and {self.name} are fully confounded: no evaluation on these data can "
                f"separate them, and the model may have been fitted to the {self.name} "
                f"instead of the tissue. Add images of every class from the same {self.name}"
            )
        text = (
            f"{head} alone predicts the class with a balanced accuracy of "
            f"{self.accuracy:.2f} (with shuffled classes {self.chance_accuracy:.2f} on average, "
            f"p = {self.p_value:.3f})"
        )
        if self.confounded and not self.may_reflect_tissue:
            text += "; on these data the two cannot be separated"
        return f"{text}. {_ADVICE.get(self.name, _FILE_ADVICE)}"


_RECORDED_PROPERTIES = ("site", "scanner", "batch")
_FILE_ADVICE = (
    "A model may use it instead of the tissue; prepare images of all classes in the same way"
)
_COLOUR_ADVICE = (
    "The cause may be the tissue, or stain, scanner or exposure, which a model may use instead"
)
_ADVICE = {
    name: f"A model may use the {name} instead of the tissue; test on data in which it varies"
    for name in _RECORDED_PROPERTIES
}
_ADVICE |= {
    "site": "A model may use the site instead of the tissue; evaluate with --protocol site",
    "mean colour": _COLOUR_ADVICE,
    "white point": f"{_COLOUR_ADVICE}; try --set stain=…",
}


def find_confounders(manifest: Manifest) -> list[Association]:
    """Return the image properties that are associated with the class, strongest first.

    The properties are the manifest columns site, scanner and batch, and file format, image size,
    pixel size, mean colour and white point (99th percentile of each channel).

    Parameters
    ----------
    manifest : labelled images

    Returns
    -------
    list of Association
    """
    records = [r for r in manifest.records if r.label and not r.has_regions]
    image_data = [image_properties(record) for record in records]
    properties: dict[str, PropertyValues] = {
        name: [getattr(record, name) for record in records] for name in _RECORDED_PROPERTIES
    }
    properties["file format"] = [each.format if each else None for each in image_data]
    properties["image size"] = [each.size if each else None for each in image_data]
    properties["pixel size"] = [(each.mpp,) if each and each.mpp else None for each in image_data]
    properties["mean colour"] = [each.mean if each else None for each in image_data]
    properties["white point"] = [each.white_point if each else None for each in image_data]
    labels, patients = [r.label for r in records], [r.patient for r in records]
    return [a for a in find_associations(properties, labels, patients) if _is_reported(a)]


def _is_reported(association: Association) -> bool:
    return (
        association.confounded and association.name in _RECORDED_PROPERTIES
    ) or association.p_value <= _MAX_P_VALUE


def find_associations(
    properties: dict[str, PropertyValues],
    labels: Sequence[str],
    patients: Sequence[str],
    *,
    random_state: int = 0,
) -> list[Association]:
    """Return the associations of properties with the class, strongest first.

    An association is strong if (accuracy − chance level) / (1 − chance level) is at least 0.4;
    otherwise it has the p-value 1. The list is empty if no
    association is strong or confounded. Constant properties are omitted.

    Parameters
    ----------
    properties : for each name, the value of the property for each image; None if unknown
    labels : class of each image
    patients : patient of each image
    random_state : seed of the permutations

    Returns
    -------
    list of Association
    """
    rng, tested = np.random.default_rng(random_state), []
    for name, values in properties.items():
        rows = [index for index, value in enumerate(values) if value is not None]
        units = _PatientClassUnits.from_labels(
            [labels[r] for r in rows], [patients[r] for r in rows]
        )
        known = [values[row] for row in rows]
        if len(units.counts) > 1 and len(set(known)) > 1:
            accuracy = float(units.best_accuracies(known, units.classes[None])[0])
            confounded = _is_confounded(
                known, [labels[r] for r in rows], len(units.classes), accuracy
            )
            tested.append((name, known, units, accuracy, confounded))
    if not any(units.is_strong(a) or confounded for *_, units, a, confounded in tested):
        return []
    permuted = [
        units.best_accuracies(known, units.permute_classes(rng)) for _, known, units, *_ in tested
    ]
    n = min(map(len, permuted))
    observed = np.array([accuracy for *_, accuracy, _ in tested])
    p_values = _adjusted_p_values(observed, np.array([values[:n] for values in permuted]))
    result = [
        Association(
            name,
            accuracy,
            float(accuracies.mean()),
            p if units.is_strong(accuracy) else 1.0,
            confounded,
        )
        for (name, _, units, accuracy, confounded), accuracies, p in zip(
            tested, permuted, p_values.tolist(), strict=True
        )
    ]
    return sorted(result, key=lambda association: (association.p_value, -association.accuracy))


def _is_confounded(
    values: PropertyValues, labels: Sequence[str], n_units: int, accuracy: float
) -> bool:
    """Return whether each value occurs in one class only, and in two or more units on average.

    For numbers, it is also sufficient that one threshold separates the classes, so that `accuracy`
    is 1. `n_units` is the number of pairs of patient and class.
    """
    n_values = len(set(values))
    # Values of a continuous property are shared by few patients and have one label by chance.
    determines_class = len(set(zip(values, labels, strict=True))) == n_values <= n_units / 2
    return determines_class or (
        not isinstance(values[0], str) and accuracy > 1 - _ACCURACY_TOLERANCE
    )


@dataclass(frozen=True)
class _PatientClassUnits:
    """Units that are permuted: pairs of patient and class.

    Attributes
    ----------
    unit_of_image : (n_images,), index of the unit of each image
    classes : (n_units,), class index of each unit
    counts : (n_classes,), number of units of each class
    """

    unit_of_image: Groups
    classes: Groups
    counts: Groups

    @classmethod
    def from_labels(cls, labels: Sequence[str], patients: Sequence[str]) -> _PatientClassUnits:
        pairs = list(zip(patients, labels, strict=True))
        names = sorted(set(pairs))
        index_of = {pair: index for index, pair in enumerate(names)}
        _, classes, counts = np.unique(
            [label for _, label in names] or [""], return_inverse=True, return_counts=True
        )
        return cls(np.array([index_of[pair] for pair in pairs], np.int64), classes, counts)

    def permute_classes(self, rng: np.random.Generator) -> Groups:
        """Return random permutations of the class indices, (n_permutations, n_units)."""
        n = _N_PERMUTATIONS if len(self.classes) <= _MANY_UNITS else _FEW_PERMUTATIONS
        return rng.permuted(np.tile(self.classes, (n, 1)), axis=1)

    def is_strong(self, accuracy: float) -> bool:
        """Return whether an accuracy is far above the chance level; see `find_associations`."""
        chance_level = 1 / len(self.counts)
        return accuracy >= chance_level + _MIN_RELATIVE_ACCURACY * (1 - chance_level)

    def best_accuracies(self, values: PropertyValues, permuted: Groups) -> NDArray[np.float64]:
        """Return the balanced accuracy of the best classifier for each permutation of the classes.

        Classifiers assign each category to a class, or compare one number with a threshold.

        Parameters
        ----------
        values : for each image, a category or a tuple of numbers
        permuted : (n_permutations, n_units), permuted class indices
        """
        if isinstance(values[0], str):
            return self._category_accuracies([str(value) for value in values], permuted)
        columns = np.array(values, np.float64).T
        best: NDArray[np.float64]
        best = np.max([self._threshold_accuracies(column, permuted) for column in columns], axis=0)
        return best

    def _category_accuracies(
        self, categories: Sequence[str], permuted: Groups
    ) -> NDArray[np.float64]:
        """Return the balanced accuracy of the best assignment of categories to classes."""
        names, indices = np.unique(categories, return_inverse=True)
        # Sparse: there may be as many categories as patients.
        n_images = np.bincount(self.unit_of_image)
        entries = 1.0 / n_images[self.unit_of_image], (self.unit_of_image, indices)
        fractions = csr_array(entries, shape=(len(self.classes), len(names)))
        by_class = [
            (fractions.T @ (permuted == class_index).T.astype(np.float64)).T / count
            for class_index, count in enumerate(self.counts.tolist())
        ]
        accuracies: NDArray[np.float64] = np.max(by_class, axis=0).sum(axis=1) / len(self.counts)
        return accuracies

    def _threshold_accuracies(
        self, numbers: NDArray[np.float64], permuted: Groups
    ) -> NDArray[np.float64]:
        """Return the balanced accuracy of the best threshold for one class against the others.

        This accuracy is (1 + D) / 2, where D is the Kolmogorov-Smirnov statistic.
        """
        totals = np.bincount(self.unit_of_image, numbers, len(self.classes))
        means = totals / np.bincount(self.unit_of_image, minlength=len(self.classes))
        order = np.argsort(means, kind="stable")
        ends = np.append(np.diff(means[order]) > _ACCURACY_TOLERANCE, True)
        n, best = len(means), np.zeros(len(permuted))
        # For two classes, both comparisons are the same.
        for class_index, count in list(enumerate(self.counts.tolist()))[len(self.counts) == 2 :]:
            is_in_class = permuted[:, order] == class_index
            steps = np.where(is_in_class, 1 / count, -1 / (n - count))
            gaps = np.abs(np.cumsum(steps, axis=1)[:, ends]).max(axis=1)
            best = np.maximum(best, gaps)
        return (1 + best) / 2


def _adjusted_p_values(
    observed: NDArray[np.float64], permuted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return minP-adjusted p-values (n,) from observed (n,) and permuted (n, m) statistics."""
    rows = np.column_stack([observed, permuted])
    p = np.array([_tail_fractions(row, row, _ACCURACY_TOLERANCE) for row in rows])
    smallest = p.min(axis=0)
    adjusted: NDArray[np.float64] = (smallest[None] <= p[:, :1] + _ACCURACY_TOLERANCE).mean(axis=1)
    return adjusted
