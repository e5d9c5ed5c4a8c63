"""Is one method better than another on the same images? A paired test, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from .answers import Repeat
from .intervals import BootstrapReplicates, Metric, PatientBootstrap, check_level


@dataclass(frozen=True)
class Comparison:
    """Two methods' values, first − second with its interval, and the p-value of "no difference"."""

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
    """Difference of a metric, mean over the repeats, with draws of patients for both methods alike.

    The interval is that of `bootstrap_interval`. The p-value is 1 less the largest level at which
    it excludes 0; how small it can be is limited by the number of patients and of replicates.
    """
    level = check_level(level)
    _check_same_images(first, second)

    def difference(repeat: int, rows: NDArray[np.int64]) -> float:
        labels = first[repeat].labels[rows]
        a, b = (metric(labels, tested[repeat].predictions[rows]) for tested in (first, second))
        return a - b

    sample = PatientBootstrap(first).replicates(difference, n_replicates, random_state)
    low, high = sample.interval(level)
    a, b = (
        float(np.mean([metric(tested.labels, tested.predictions) for tested in repeats]))
        for repeats in (first, second)
    )
    return Comparison(a, b, sample.value, low, high, _p_value(sample), level, sample.n_patients)


def _p_value(sample: BootstrapReplicates) -> float:
    """Solves an end of `BootstrapReplicates.interval` = 0 for the level."""
    n, beyond = sample.n_patients, min((sample.values <= 0).sum(), (sample.values >= 0).sum())
    tail = (beyond + 1) / (len(sample.values) + 1)
    return min(1.0, float(2 * t.cdf(norm.ppf(tail) * np.sqrt((n - 1) / n), n - 1)))


def _check_same_images(first: Sequence[Repeat], second: Sequence[Repeat]) -> None:
    same = len(first) == len(second) and all(
        np.array_equal(a.labels, b.labels) and np.array_equal(a.patients, b.patients)
        for a, b in zip(first, second, strict=True)
    )
    if not same:
        raise ValueError(
            "the two methods were not tested on the same images in the same order: use the same "
            "splits for both"
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the order given.

    Call those below α differences, and the chance that any of them is none stays below α. The
    i-th smallest of m counts (m − i + 1)-fold, and never less than a smaller one.

    Reference: Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"p-values must lie between 0 and 1, not {p_values!r}")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(value) for value in corrected]
