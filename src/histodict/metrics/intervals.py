"""Confidence intervals of metrics and proportions from resampling of patients, and paired tests.

Images of one patient are not independent, so the bootstrap resamples patients. A replicate consists
of all images of n patients, drawn with replacement from the n patients. The interval describes the
variation over test patients; the trained models are fixed.

Repeats of an experiment test the same images again and add no patients. A replicate therefore draws
patients once for all repeats and takes the mean of the metric over the repeats, which is also the
reported value. Repeats narrow the interval only as much as they reduce the variance of this mean.

In cross-validation the patients tested in one fold train the models of the others, so predictions
of different patients are not independent: without any signal, the standard deviation of a score is
√2 times the one estimated by a bootstrap of patients. Intervals of such scores are widened by this
factor; with a strong signal they are then slightly too wide (`benchmarks/null_intervals.py`).

A draw of patients may lack a class, so that the metric is undefined. A repeat whose images lack a
class is left out of the mean of that replicate; if no repeat is left, patients are drawn again, and
such draws are counted. The distribution is thus conditional on the presence of every class.

A bootstrap of patients gives an interval of zero width if all predictions are correct. The Wilson
interval of `proportion_interval` does not; it is computed with the effective number of images,
given the correlation within patients.

References
----------
Field and Welsh, "Bootstrapping clustered data", JRSS B 69 (2007) 369-390.
Korn and Graubard, "Confidence intervals for proportions with small expected number of positive
counts estimated from survey data", Survey Methodology 24 (1998) 193-201.
Zou and Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27
(2008) 1693-1702.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, t

from ..model_selection.protocols import Repeat
from ..utils.validation import check_number, check_whole_number

# metric(labels, predictions), as in `scores`.
Metric = Callable[[NDArray[Any], NDArray[Any]], float]
# statistic(repeat, rows): value computed from these rows of the repeat.
Statistic = Callable[[int, NDArray[np.int64]], float]

# Factor by which bootstrap intervals of cross-validated scores are widened.
CROSS_VALIDATION_WIDENING = 2**0.5
# Maximum number of rejected draws per replicate.
_MAX_REDRAWS = 20


class UndefinedMetricError(ValueError):
    """Exception raised by a metric that is undefined for a bootstrap sample."""


@dataclass(frozen=True)
class Interval:
    """Value of a metric, limits of its confidence interval, and confidence level.

    `n_redrawn` is the number of rejected draws of patients, for which the metric was undefined.
    """

    value: float
    low: float
    high: float
    level: float
    n_patients: int
    n_replicates: int
    n_redrawn: int


def bootstrap_interval(
    metric: Metric,
    repeats: Sequence[Repeat],
    *,
    level: float = 0.95,
    n_replicates: int = 2000,
    random_state: int = 0,
    cross_validated: bool = False,
) -> Interval:
    """Return the mean of a metric over the repeats, with a bootstrap interval over patients.

    Parameters
    ----------
    metric : function metric(labels, predictions) that returns a float
    repeats : labels, predictions and patients of the test images of each repeat
    level : confidence level
    n_replicates : number of bootstrap replicates
    random_state : seed
    cross_validated : whether test patients of one model are training patients of another. The
        interval is then widened by √2, and the metric must lie between 0 and 1

    Returns
    -------
    Interval
    """
    level = check_level(level)
    bootstrap = PatientBootstrap(repeats)

    def statistic(repeat: int, rows: NDArray[np.int64]) -> float:
        return metric(repeats[repeat].labels[rows], repeats[repeat].predictions[rows])

    sample = bootstrap.draw_replicates(statistic, n_replicates, random_state)
    low, high = sample.interval(level, CROSS_VALIDATION_WIDENING if cross_validated else 1.0)
    n_replicates = len(sample.values)
    return Interval(
        sample.estimate, low, high, level, sample.n_patients, n_replicates, sample.n_redrawn
    )


def check_level(level: float) -> float:
    """Return the confidence level; raise a ValueError unless it lies between 0 and 1.

    Parameters
    ----------
    level : confidence level, such as 0.95

    Returns
    -------
    float
    """
    if not 0 < check_number("level", level) < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, not {level!r}")
    return float(level)


# --- bootstrap of patients ----------------------------------------------------------------------


@dataclass(frozen=True)
class BootstrapReplicates:
    """Statistic of all patients (`estimate`), and of the replicates (`values`, (n_replicates,))."""

    estimate: float
    values: NDArray[np.float64]
    n_patients: int
    n_redrawn: int

    def interval(self, level: float, widening: float = 1.0) -> tuple[float, float]:
        """Return the limits (low, high) of the percentile interval, corrected for few patients.

        The tail probabilities are changed from the normal to Student's t distribution. If
        `widening` is not 1, the distances of the limits from `estimate` are multiplied by
        `widening`, and the limits are clipped to 0 … 1.

        Reference: Hesterberg, The American Statistician 69 (2015) 371-386.
        """
        n = self.n_patients
        # √(n/(n−1)) because the variance of a bootstrap draw divides by n, not by n − 1.
        tail = float(norm.cdf(np.sqrt(n / (n - 1)) * t.ppf((1 - level) / 2, n - 1)))
        ends = np.quantile(self.values, (tail, 1 - tail))
        if widening != 1:
            ends = np.clip(self.estimate + widening * (ends - self.estimate), 0, 1)
        low, high = ends.tolist()
        return low, high


class PatientBootstrap:
    """Bootstrap over the patients of all repeats; each class needs two or more patients."""

    def __init__(self, repeats: Sequence[Repeat]) -> None:
        if not repeats:
            raise ValueError("no predictions to evaluate")
        self.patients = np.unique(np.concatenate([repeat.patients for repeat in repeats]))
        classes = np.unique(np.concatenate([repeat.labels for repeat in repeats]))
        self.patient_of_row = [np.searchsorted(self.patients, r.patients) for r in repeats]
        self.rows = [np.arange(len(patient_indices)) for patient_indices in self.patient_of_row]
        # (n_repeats, n_patients, n_classes): whether a patient has images of a class in a repeat.
        self.has_images = np.zeros((len(repeats), len(self.patients), len(classes)), bool)
        for has_images, patient_indices, repeat in zip(
            self.has_images, self.patient_of_row, repeats, strict=True
        ):
            has_images[patient_indices, np.searchsorted(classes, repeat.labels)] = True
        self._check_classes(classes)

    def _check_classes(self, classes: NDArray[Any]) -> None:
        """Raise ValueError if a repeat lacks a class, or if a class has fewer than two patients."""
        for repeat, has_images in enumerate(self.has_images, start=1):
            is_tested = np.any(has_images, axis=0)
            if not np.all(is_tested):
                raise ValueError(
                    f"repeat {repeat} has no test image of class "
                    f"{str(classes[is_tested.argmin()])!r}; merge the folds of a repeat "
                    "(collect_repeats) or omit the repeat"
                )
        n_patients = np.sum(np.any(self.has_images, axis=0), axis=0)
        if n_patients.min() < 2:
            raise ValueError(
                f"all images of class {str(classes[n_patients.argmin()])!r} are of a single "
                "patient, so the variation between patients is unknown; test more patients"
            )

    def mean_statistic(self, statistic: Statistic, draw_counts: NDArray[np.int64]) -> float:
        """Return the mean of a statistic over the repeats, for one draw of patients.

        Repeats in which the drawn patients lack a class are left out. The mean is NaN if no repeat
        is left.

        Parameters
        ----------
        statistic : function of the index of a repeat and the indices of its rows
        draw_counts : (n_patients,), how often each patient was drawn
        """
        # Ufuncs are called directly because this runs for thousands of draws.
        has_class = np.logical_or.reduce(self.has_images[:, draw_counts > 0], axis=1)
        complete = np.logical_and.reduce(has_class, axis=1)
        values = []
        for repeat in complete.nonzero()[0].tolist():
            row_counts = draw_counts[self.patient_of_row[repeat]]
            with suppress(UndefinedMetricError):
                values.append(float(statistic(repeat, self.rows[repeat].repeat(row_counts))))
        if not all(map(isfinite, values)):
            raise ValueError("the metric is not finite for a bootstrap sample of patients")
        if len(values) == 1:
            return values[0]
        return float(np.mean(values)) if values else nan

    def draw_replicates(
        self, statistic: Statistic, n_replicates: int, random_state: int
    ) -> BootstrapReplicates:
        """Return the values of a statistic on all patients and on bootstrap replicates."""
        n_replicates = check_whole_number("n_replicates", n_replicates, 100)
        rng = np.random.default_rng(check_whole_number("random_state", random_state, 0))
        n = len(self.patients)
        values: list[float] = []
        n_redrawn = 0
        while len(values) < n_replicates:
            draw_counts = np.bincount(rng.integers(n, size=n), minlength=n)
            value = self.mean_statistic(statistic, draw_counts)
            if isfinite(value):
                values.append(value)
                continue
            n_redrawn += 1
            if n_redrawn > _MAX_REDRAWS * n_replicates:
                raise ValueError(
                    "nearly all bootstrap samples lack a class; test more patients of the "
                    "rare classes"
                )

        estimate = self.mean_statistic(statistic, np.ones(n, int))
        return BootstrapReplicates(estimate, np.array(values), n, n_redrawn)


@dataclass(frozen=True)
class Comparison:
    """Values of two methods, and limits and p-value of their difference (first − second)."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float
    n_patients: int


def paired_bootstrap(
    metric: Metric,
    first: Sequence[Repeat],
    second: Sequence[Repeat],
    *,
    level: float = 0.95,
    n_replicates: int = 2000,
    random_state: int = 0,
) -> Comparison:
    """Compare two methods on the same images by a bootstrap with the same patients for both.

    The interval of the difference is computed as in `bootstrap_interval`. The p-value is 1 minus
    the largest level at which the interval excludes 0; its minimum depends on the numbers of
    patients and of replicates.

    Parameters
    ----------
    metric : function metric(labels, predictions) that returns a float
    first : labels, predictions and patients of the test images of each repeat, for one method
    second : the same for the other method
    level : confidence level
    n_replicates : number of bootstrap replicates
    random_state : seed

    Returns
    -------
    Comparison
    """
    level = check_level(level)
    _check_same_images(first, second)

    def difference(repeat: int, rows: NDArray[np.int64]) -> float:
        labels = first[repeat].labels[rows]
        a, b = (metric(labels, method[repeat].predictions[rows]) for method in (first, second))
        return a - b

    sample = PatientBootstrap(first).draw_replicates(difference, n_replicates, random_state)
    low, high = sample.interval(level)
    a, b = (
        float(np.mean([metric(method.labels, method.predictions) for method in repeats]))
        for repeats in (first, second)
    )
    return Comparison(a, b, sample.estimate, low, high, _p_value(sample), level, sample.n_patients)


def _p_value(sample: BootstrapReplicates) -> float:
    """Return 1 minus the confidence level at which a limit of the interval is 0."""
    n, n_beyond = sample.n_patients, min((sample.values <= 0).sum(), (sample.values >= 0).sum())
    tail = (n_beyond + 1) / (len(sample.values) + 1)
    return min(1.0, float(2 * t.cdf(norm.ppf(tail) * np.sqrt((n - 1) / n), n - 1)))


def _check_same_images(first: Sequence[Repeat], second: Sequence[Repeat]) -> None:
    is_same = len(first) == len(second) and all(
        np.array_equal(a.labels, b.labels) and np.array_equal(a.patients, b.patients)
        for a, b in zip(first, second, strict=True)
    )
    if not is_same:
        raise ValueError(
            "the two methods were not tested on the same images in the same order; use the "
            "same splits for both"
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple testing by Holm's method.

    If hypotheses with adjusted p-values below α are rejected, the family-wise error rate is at most
    α. The i-th smallest of m p-values is multiplied by m − i + 1; the results are made monotone.

    Parameters
    ----------
    p_values : p-values of m tests

    Returns
    -------
    list of float
        Adjusted p-values, in the order of `p_values`.
    """
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"p-values must be between 0 and 1, not {p_values!r}")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(value) for value in corrected]


MIN_PATIENTS = 3  # with fewer there is no interval
# With fewer patients of a class, intervals by patient are too narrow.
MIN_RELIABLE_PATIENTS = 10


def few_patients_warning(labels: Iterable[object], patients: Iterable[object]) -> str:
    """Return a warning about classes with few patients, whose intervals are unreliable.

    Parameters
    ----------
    labels : true class of each image
    patients : patient of each image

    Returns
    -------
    str
        Empty if every class has enough patients.
    """
    patients_by_class: dict[str, set[object]] = {}
    for label, patient in zip(labels, patients, strict=True):
        patients_by_class.setdefault(str(label), set()).add(patient)
    few = [
        f"{len(class_patients)} with images of {name!r}"
        for name, class_patients in sorted(patients_by_class.items())
        if len(class_patients) < MIN_RELIABLE_PATIENTS
    ]
    if not few:
        return ""
    return (
        f"few patients ({', '.join(few)}): the 95 % intervals are unreliable, usually too narrow. "
        f"Test at least {MIN_RELIABLE_PATIENTS} patients of each class"
    )


@dataclass(frozen=True)
class Proportion:
    """Proportion of correct predictions; limits are None with fewer than 3 patients."""

    n_correct: int
    n_images: int
    n_patients: int
    low: float | None
    high: float | None

    @property
    def value(self) -> float:
        """Proportion of correct predictions."""
        return self.n_correct / self.n_images


def proportion_interval(
    is_correct: ArrayLike, patients: Sequence[str], *, level: float = 0.95
) -> Proportion:
    """Return the proportion of correct predictions, with a Wilson interval.

    The interval accounts for the correlation of images of one patient.

    Parameters
    ----------
    is_correct : (n_images,), whether each prediction is correct; at least one image
    patients : patient of every image
    level : confidence level

    Returns
    -------
    Proportion
    """
    correct = np.asarray(is_correct, dtype=np.float64)
    names, patient_index = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    n_patients, n_images = len(names), len(correct)
    counts = int(correct.sum()), n_images, n_patients
    if n_patients < MIN_PATIENTS:
        return Proportion(*counts, None, None)
    p = float(correct.mean())
    if 0 < p < 1:
        residuals = np.bincount(patient_index, weights=correct - p)
        variance = n_patients / (n_patients - 1) * float(np.sum(residuals**2)) / n_images**2
        n_effective = min(float(n_images), p * (1 - p) / variance) if variance else float(n_images)
    else:
        n_effective = float(n_patients)  # the correlation within patients is unknown
    q = float(t.ppf((1 + level) / 2, n_patients - 1)) ** 2 / n_effective
    middle = (p + q / 2) / (1 + q)
    half = float(np.sqrt(q * p * (1 - p) + q**2 / 4)) / (1 + q)
    return Proportion(*counts, max(0.0, middle - half), min(1.0, middle + half))


def mean_interval(proportions: Sequence[Proportion]) -> tuple[float, float] | None:
    """Return the interval of the mean of proportions; None if a proportion has no interval.

    Parameters
    ----------
    proportions : proportions of disjoint sets of images, such as those of the classes

    Returns
    -------
    tuple of float, or None
        Limits (low, high).
    """
    below, above = [], []
    for each in proportions:
        if each.low is None or each.high is None:
            return None
        below.append(each.value - each.low)
        above.append(each.high - each.value)
    mean = float(np.mean([each.value for each in proportions]))
    low, high = (float(np.linalg.norm(sides)) / len(proportions) for sides in (below, above))
    return max(0.0, mean - low), min(1.0, mean + high)


_LEVEL = 0.95
_BATCH_VALUES = 2**15  # values that are ranked together, to fit into the cache
_MANY_PATIENTS = 100  # number of patients above which fewer replicates are drawn


@dataclass(frozen=True)
class AucIntervals:
    """AUC of each measurement, (n,), and limits of its 95 % interval.

    The AUC is NaN if no unit or every unit is positive. The limits are NaN if the positive or the
    other units are of fewer than two patients.
    """

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
    """Return the AUC of every measurement for positive against other units, with intervals.

    Intervals of 95 % are computed by resampling patients; see the module's docstring.

    Parameters
    ----------
    values : (n_units, n), measurements of units, such as images or patients
    positive : (n_units,), whether a unit is positive
    patients : (n_units,), patient index of each unit
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
    patient_names, patient_indices = np.unique(patients, return_inverse=True)
    if len(patient_names) > _MANY_PATIENTS:
        n_replicates = max(100, n_replicates // 4)
    n_draws = n_replicates if min(sizes) > 1 else 0
    n_patients = len(patient_names)
    draws = [_draw_patients(rng, patient_indices, positive, n_patients) for _ in range(n_draws)]
    step = max(1, _BATCH_VALUES // len(values))
    batches = [
        _column_aucs(values[:, start : start + step], positive, patient_indices, n_patients, draws)
        for start in range(0, values.shape[1], step)
    ]
    return AucIntervals(*(np.concatenate(each) for each in zip(*batches, strict=True)))


def _column_aucs(
    values: NDArray[np.float64],
    positive: NDArray[np.bool_],
    patient_indices: NDArray[np.int64],
    n_patients: int,
    draws: list[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the AUC, and its lower and upper limit, of each column of `values`.

    Parameters
    ----------
    values : (n_units, n), measurements of units
    positive : (n_units,), whether a unit is positive
    patient_indices : (n_units,), patient index of each unit
    n_patients : number of patients
    draws : results of `_draw_patients`; if empty, the limits are NaN
    """
    ranks = _Ranks(values, positive)
    aucs = ranks.aucs(np.ones(len(values)))
    if not draws:
        return aucs, np.full(len(aucs), np.nan), np.full(len(aucs), np.nan)
    replicates = np.stack([ranks.aucs(draw_counts[patient_indices]) for draw_counts in draws])
    intervals = [
        BootstrapReplicates(float(auc), column, n_patients, 0).interval(_LEVEL)
        for auc, column in zip(aucs, replicates.T, strict=True)
    ]
    low, high = np.array(intervals).T
    return aucs, np.clip(low, 0, 1), np.clip(high, 0, 1)


class _Ranks:
    """Ranks of the values in each column, for fast computation of AUCs with weighted units.

    `values` are the measurements (n_units, n), and `positive` (n_units,) states whether a unit is
    positive.
    """

    def __init__(self, values: NDArray[np.float64], positive: NDArray[np.bool_]) -> None:
        self._positive = positive
        above, below = values[positive].T, values[~positive].T
        self._order = np.argsort(below, axis=1, kind="stable")
        # Per column and positive unit: number of other units with lower, and not higher, values.
        pairs = list(zip(above, np.sort(below, axis=1), strict=True))
        first, last = (
            np.stack([np.searchsorted(others, column, side) for column, others in pairs])
            for side in ("left", "right")
        )
        self._n_below = [first] if np.array_equal(first, last) else [first, last]

    def aucs(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the AUC of each column, with weights (n_units,); ties count ½."""
        above, below = weights[self._positive], weights[~self._positive]
        cumulative = np.zeros((len(self._order), len(below) + 1))
        np.cumsum(below[self._order], axis=1, out=cumulative[:, 1:])
        n_ordered = [np.take_along_axis(cumulative, n, axis=1) @ above for n in self._n_below]
        aucs: NDArray[np.float64] = np.mean(n_ordered, axis=0) / (above.sum() * below.sum())
        return aucs


def _draw_patients(
    rng: np.random.Generator,
    patient_indices: NDArray[np.int64],
    positive: NDArray[np.bool_],
    n_patients: int,
) -> NDArray[np.float64]:
    """Return how often each patient is drawn in a bootstrap sample, (n_patients,).

    Samples are drawn until one has both positive and other units. `patient_indices` and `positive`
    have an entry for each unit.
    """
    while True:
        draw_counts = np.bincount(rng.integers(n_patients, size=n_patients), minlength=n_patients)
        unit_counts = draw_counts[patient_indices]
        if unit_counts[positive].any() and unit_counts[~positive].any():
            return draw_counts.astype(np.float64)
