"""Confidence intervals of proportions of images that are clustered by patient.

A bootstrap of patients gives an interval of zero width if all images are right. The Wilson interval
does not; it is computed with the effective number of images, given the correlation within patients.

References
----------
Korn and Graubard, "Confidence intervals for proportions with small expected number of positive
counts estimated from survey data", Survey Methodology 24 (1998) 193-201.
Zou and Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27
(2008) 1693-1702.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t

MIN_PATIENTS = 3  # of a class; with fewer there is no interval


@dataclass(frozen=True)
class Proportion:
    """A proportion of images and its interval; `low` and `high` are None with too few patients."""

    n_right: int
    n_images: int
    n_patients: int
    low: float | None
    high: float | None

    @property
    def value(self) -> float:
        return self.n_right / self.n_images


def proportion(is_right: ArrayLike, patients: Sequence[str], *, level: float = 0.95) -> Proportion:
    """Return the proportion of correct predictions with a Wilson interval by patient.

    Parameters
    ----------
    is_right : (n_images,) of bool, at least one
    patients : the patient of every image
    """
    right = np.asarray(is_right, dtype=np.float64)
    names, owner = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    n_patients, n_images = len(names), len(right)
    known = int(right.sum()), n_images, n_patients
    if n_patients < MIN_PATIENTS:
        return Proportion(*known, None, None)
    p = float(right.mean())
    if 0 < p < 1:
        residuals = np.bincount(owner, weights=right - p)
        variance = n_patients / (n_patients - 1) * float(np.sum(residuals**2)) / n_images**2
        n_effective = min(float(n_images), p * (1 - p) / variance) if variance else float(n_images)
    else:
        n_effective = float(n_patients)  # the correlation within patients is unknown
    q = float(t.ppf((1 + level) / 2, n_patients - 1)) ** 2 / n_effective
    middle = (p + q / 2) / (1 + q)
    half = float(np.sqrt(q * p * (1 - p) + q**2 / 4)) / (1 + q)
    return Proportion(*known, max(0.0, middle - half), min(1.0, middle + half))


def mean_interval(parts: Sequence[Proportion]) -> tuple[float, float] | None:
    """Return the interval of the mean of proportions of disjoint images; None if one has none."""
    below, above = [], []
    for part in parts:
        if part.low is None or part.high is None:
            return None
        below.append(part.value - part.low)
        above.append(part.high - part.value)
    mean = float(np.mean([part.value for part in parts]))
    low, high = (float(np.linalg.norm(sides)) / len(parts) for sides in (below, above))
    return max(0.0, mean - low), min(1.0, mean + high)
