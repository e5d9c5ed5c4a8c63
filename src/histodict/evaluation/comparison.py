"""Is one method better than another on the same images? Paired tests, and Holm's correction.

| | takes | compares |
|---|---|---|
| `paired_bootstrap` | any number of images per patient, repeats | any metric |
| `delong` | one score per patient | AUC |
| `mcnemar` | one prediction per patient | share of right answers |

The last two count every row as independent of the others, so they insist on one row per patient;
`per_patient` makes such rows where every patient has one label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, norm, rankdata, t

from .answers import Repeat
from .intervals import METHODS, Metric, PatientDraws, Replicates, check_level
from .metrics import auc


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


# --- any metric ---------------------------------------------------------------------------------


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

    The interval is the "expanded" one of `bootstrap_interval`. The p-value is 1 less the largest
    level at which it excludes 0; how small it can be is limited by the number of patients and of
    replicates.
    """
    level = check_level(level)
    _check_same_images(first, second)

    def difference(repeat: int, rows: NDArray[np.int64]) -> float:
        labels = first[repeat].labels[rows]
        a, b = (metric(labels, tested[repeat].answers[rows]) for tested in (first, second))
        return a - b

    sample = PatientDraws(first).replicates(difference, n_replicates, random_state)
    low, high = np.quantile(sample.values, METHODS["expanded"](sample, (1 - level) / 2))
    a, b = (
        float(np.mean([metric(tested.labels, tested.answers) for tested in repeats]))
        for repeats in (first, second)
    )
    return Comparison(
        a, b, sample.value, float(low), float(high), _p_value(sample), level, sample.n_patients
    )


def _p_value(sample: Replicates) -> float:
    """Solves `_expanded`'s cut = 0 for the level."""
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


# --- one row per patient ------------------------------------------------------------------------


def delong(
    labels: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    patients: ArrayLike,
    *,
    level: float = 0.95,
) -> Comparison:
    """Difference of two AUCs: (A₁ − A₂)/√(C₁₁ + C₂₂ − 2·C₁₂) against the normal distribution.

    labels, first, second, patients : (n_patients,); two classes, scores high for the second
    """
    level = check_level(level)
    truth, scores = np.asarray(labels), np.array([first, second], dtype=float)
    _check_one_row_each(patients, truth, *scores)
    a, b = (auc(truth, row) for row in scores)
    C = delong_covariance(truth, scores)
    variance = C[0, 0] + C[1, 1] - 2 * C[0, 1]
    # Covariances of placements, which lie in [0, 1], round at about 1e-16.
    deviation = float(np.sqrt(variance)) if variance > 1e-15 else 0.0
    if deviation == 0 and a != b:
        raise ValueError(
            f"the AUCs {a:.3g} and {b:.3g} differ, but by the same for every patient: there is no "
            "spread to judge the difference by; use paired_bootstrap"
        )
    p_value = float(2 * norm.sf(abs(a - b) / deviation)) if deviation else 1.0
    reach = float(norm.ppf((1 + level) / 2)) * deviation
    return Comparison(a, b, a - b, a - b - reach, a - b + reach, p_value, level, len(truth))


def delong_covariance(labels: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """C (n_methods, n_methods): covariance of the AUCs of scores (n_methods, n_patients).

    The placement of a score is the share of the other class that it beats, ties one half; an AUC
    is the mean placement of either class, and C = cov(placements₁)/n₁ + cov(placements₀)/n₀.

    References: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988) 837-845; placements from
    midranks: Sun, Xu, IEEE Signal Processing Letters 21 (2014) 1389-1393.
    """
    truth, rows = np.asarray(labels), np.atleast_2d(np.asarray(scores, dtype=float))
    classes, counts = np.unique(truth, return_counts=True)
    if len(classes) != 2 or counts.min() < 2:
        raise ValueError(
            "there must be two classes with two patients each or more, not "
            f"{dict(zip(classes.tolist(), counts.tolist(), strict=True))}"
        )
    C = np.zeros((len(rows), len(rows)))
    ranks = rankdata(rows, axis=1)
    for name in classes:
        inside = truth == name
        # Rank among all, less rank among its own: how many of the other class it beats.
        beaten = ranks[:, inside] - rankdata(rows[:, inside], axis=1)
        C += np.cov(beaten / (~inside).sum()) / inside.sum()
    return C


@dataclass(frozen=True)
class Discordance:
    """Patients that one method alone got right, and the p-value of "equally often"."""

    first_only: int
    second_only: int
    p_value: float


def mcnemar(
    labels: ArrayLike, first: ArrayLike, second: ArrayLike, patients: ArrayLike
) -> Discordance:
    """Exact test on the patients on which one method is right and the other wrong.

    If both are equally good, each such patient falls to either with probability ½.
    labels, first, second (predictions), patients : (n_patients,)

    Reference: McNemar, Psychometrika 12 (1947) 153-157.
    """
    truth, a, b = np.asarray(labels), np.asarray(first), np.asarray(second)
    _check_one_row_each(patients, truth, a, b)
    first_only = int(np.sum((a == truth) & (b != truth)))
    second_only = int(np.sum((a != truth) & (b == truth)))
    rarer = min(first_only, second_only)
    p_value = min(1.0, float(2 * binom.cdf(rarer, first_only + second_only, 0.5)))
    return Discordance(first_only, second_only, p_value)


def per_patient(
    labels: ArrayLike, scores: ArrayLike, patients: ArrayLike
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[Any]]:
    """Labels, mean scores and names, one row per patient; every patient must have one label."""
    truth, values, names = (np.asarray(x) for x in (labels, scores, patients))
    unique, places = np.unique(names, return_inverse=True)
    for i, name in enumerate(unique):
        found = np.unique(truth[places == i])
        if len(found) > 1:
            raise ValueError(
                f"patient {str(name)!r} has images of {found.tolist()}: there is no one label to "
                "compare by; use paired_bootstrap on the images"
            )
    firsts = [int(np.argmax(places == i)) for i in range(len(unique))]
    return truth[firsts], np.bincount(places, values) / np.bincount(places), unique


def _check_one_row_each(patients: ArrayLike, *columns: NDArray[Any]) -> None:
    names, counts = np.unique(np.asarray(patients), return_counts=True)
    if any(column.shape != (counts.sum(),) for column in columns):
        raise ValueError("labels, answers and patients must have one entry per patient")
    if counts.max() > 1:
        raise ValueError(
            f"patient {str(names[counts.argmax()])!r} has {counts.max()} rows, which this test "
            "would count as independent: use paired_bootstrap, or per_patient first"
        )


# --- several comparisons ------------------------------------------------------------------------


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
