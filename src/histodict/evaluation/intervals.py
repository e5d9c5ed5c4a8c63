"""How sure a metric is: intervals from resampling patients.

Images of one patient are alike, so what varies from one study to the next is which patients it
has. A replicate draws as many patients as there are, with replacement, and takes along all images
of a drawn patient, as often as it was drawn. The interval says how the metric would vary with
other test patients; the trained models are taken as they are.

Repeats of an experiment test the same images again: they are not more patients. A replicate
therefore uses one draw for all repeats and takes the mean of the metric over them, which is the
figure that is reported, too. So repeats make the figure steadier, and the interval only as much
narrower as they really do.

In cross-validation the patients tested in one fold train the models of the others, so
predictions of different patients are not independent: without any signal, the standard deviation of
a score is √2 times that of a bootstrap of patients. Intervals of such scores are widened by this
factor; with a strong signal they are then slightly too wide. `benchmarks/null_intervals.py`
measures both.

A draw may lack a class, and the metric is then not defined. A repeat whose images lack one is left
out of that replicate's mean; a draw that leaves no repeat is drawn again, and counted. That is the
distribution given that every class was seen, which is the one that the metric is a statement on.

Reference: Field and Welsh, "Bootstrapping clustered data", JRSS B 69 (2007) 369-390.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from ..parameters import check_number, check_whole_number
from .answers import Repeat

# metric(labels, answers), as in `metrics`.
Metric = Callable[[NDArray[Any], NDArray[Any]], float]
# statistic(repeat, rows): a value from these rows of that repeat.
Statistic = Callable[[int, NDArray[np.int64]], float]

# Factor by which bootstrap intervals of cross-validated scores are widened.
CROSS_VALIDATED = 2**0.5
# Draws in vain, at most, per replicate.
_MAX_REDRAWN = 20


class UndefinedMetricError(ValueError):
    """What a metric raises that has no value for these images: the draw is made again."""


@dataclass(frozen=True)
class Interval:
    """A value, its interval, and what the interval rests on."""

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
    """The metric's mean over the repeats, with an interval from draws of patients.

    cross_validated : whether test patients of one model are training patients of another; the
        metric must then lie between 0 and 1, and the interval is widened, see above
    """
    level = check_level(level)
    draws = PatientBootstrap(repeats)

    def statistic(repeat: int, rows: NDArray[np.int64]) -> float:
        return metric(repeats[repeat].labels[rows], repeats[repeat].predictions[rows])

    sample = draws.replicates(statistic, n_replicates, random_state)
    low, high = sample.interval(level, CROSS_VALIDATED if cross_validated else 1.0)
    n_replicates = len(sample.values)
    return Interval(
        sample.value, low, high, level, sample.n_patients, n_replicates, sample.n_redrawn
    )


def check_level(level: float) -> float:
    if not 0 < check_number("level", level) < 1:
        raise ValueError(f"level must lie between 0 and 1, such as 0.95, not {level!r}")
    return float(level)


# --- draws of patients --------------------------------------------------------------------------


@dataclass(frozen=True)
class BootstrapReplicates:
    """A statistic of all patients, and of the draws (n_replicates,)."""

    value: float
    values: NDArray[np.float64]
    n_patients: int
    n_redrawn: int

    def interval(self, level: float, wider: float = 1.0) -> tuple[float, float]:
        """More than the middle `level` of the draws, which is too narrow with few patients.

        It reaches as much further out as Student's t does beyond the normal distribution, and then
        `wider` times as far from the value, but not beyond 0 and 1.

        Reference: Hesterberg, The American Statistician 69 (2015) 371-386.
        """
        n = self.n_patients
        # √(n/(n−1)) because a draw of n varies by the spread over n, not over n − 1.
        tail = float(norm.cdf(np.sqrt(n / (n - 1)) * t.ppf((1 - level) / 2, n - 1)))
        ends = np.quantile(self.values, (tail, 1 - tail))
        if wider != 1:
            ends = np.clip(self.value + wider * (ends - self.value), 0, 1)
        low, high = ends.tolist()
        return low, high


class PatientBootstrap:
    """Whose the images of every repeat are; every class must come from two patients or more."""

    def __init__(self, repeats: Sequence[Repeat]) -> None:
        if not repeats:
            raise ValueError("there are no answers to judge by")
        self.patients = np.unique(np.concatenate([repeat.patients for repeat in repeats]))
        classes = np.unique(np.concatenate([repeat.labels for repeat in repeats]))
        self.patient_of_row = [np.searchsorted(self.patients, r.patients) for r in repeats]
        self.rows = [np.arange(len(places)) for places in self.patient_of_row]
        # (n_repeats, n_patients, n_classes): whether a patient has images of a class
        self.contains = np.zeros((len(repeats), len(self.patients), len(classes)), bool)
        for holds, places, repeat in zip(self.contains, self.patient_of_row, repeats, strict=True):
            holds[places, np.searchsorted(classes, repeat.labels)] = True
        self._check(classes)

    def _check(self, classes: NDArray[Any]) -> None:
        for repeat, holds in enumerate(self.contains, start=1):
            held = np.any(holds, axis=0)
            if not np.all(held):
                raise ValueError(
                    f"repeat {repeat} tests no image of class {str(classes[held.argmin()])!r}: put "
                    "the folds of a repeat together (gather), or leave the repeat out"
                )
        n_holders = np.sum(np.any(self.contains, axis=0), axis=0)
        if n_holders.min() < 2:
            raise ValueError(
                f"the images of class {str(classes[n_holders.argmin()])!r} come from one patient: "
                "how much patients differ cannot be seen from one. Test more patients"
            )

    def value(self, statistic: Statistic, times: NDArray[np.int64]) -> float:
        """With every patient taken so many times (n_patients,).

        Mean over the repeats in which these patients have every class; NaN if there is none.
        """
        # Asked for thousands of draws: what numpy wraps about these would take longer than they do.
        seen = np.logical_or.reduce(self.contains[:, times > 0], axis=1)
        complete = np.logical_and.reduce(seen, axis=1)
        values = []
        for repeat in complete.nonzero()[0].tolist():
            rows, places = self.rows[repeat], self.patient_of_row[repeat]
            with suppress(UndefinedMetricError):
                values.append(float(statistic(repeat, rows.repeat(times[places]))))
        if not all(map(isfinite, values)):
            raise ValueError("the metric is not finite on some draw of patients: it cannot be used")
        if len(values) == 1:
            return values[0]
        return float(np.mean(values)) if values else nan

    def replicates(
        self, statistic: Statistic, n_replicates: int, random_state: int
    ) -> BootstrapReplicates:
        n_replicates = check_whole_number("n_replicates", n_replicates, 100)
        rng = np.random.default_rng(check_whole_number("random_state", random_state, 0))
        n = len(self.patients)
        values: list[float] = []
        n_redrawn = 0
        while len(values) < n_replicates:
            times = np.bincount(rng.integers(n, size=n), minlength=n)
            value = self.value(statistic, times)
            if isfinite(value):
                values.append(value)
                continue
            n_redrawn += 1
            if n_redrawn > _MAX_REDRAWN * n_replicates:
                raise ValueError(
                    "nearly every draw of patients lacks some class: test more patients of the "
                    "rare classes"
                )

        everyone = self.value(statistic, np.ones(n, int))
        return BootstrapReplicates(everyone, np.array(values), n, n_redrawn)
