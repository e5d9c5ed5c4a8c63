"""Several classifiers' scores as one.

The score of a panel is the weighted mean of its members' scores, each over its own scale: the root
mean square of what the member said of patients it had not seen. With two classes an offset puts the
place at which both are equally likely, for such patients, at 0.

Weights follow how well a member put those patients in order (AUC), so that one that tells nothing
of this tissue has hardly a say; but a choice among a handful of patients is mostly chance, so they
are shrunk towards equal ones: half way with `_HALF_WAY` patients of the class that has fewest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calibration import Calibration

_HALF_WAY = 6
_STEEPNESS = 2
_LEAST = 0.01  # of the steep part: nobody is silenced for good


@dataclass(frozen=True)
class Combination:
    """scales, weights : (n_members,), weights sum to 1; offset : added to the mean, 0 with more
    than two classes.
    """

    scales: NDArray[np.float64]
    weights: NDArray[np.float64]
    offset: float = 0.0

    @classmethod
    def fit(
        cls,
        parts: NDArray[np.float64],
        labels: NDArray[np.int64],
        orders: NDArray[np.float64],
        n_patients: int,
    ) -> tuple[Combination, Calibration]:
        """From scores (n_images, n_members, n_scores) of unseen patients, NaN where a member saw
        nothing, the places of their classes, and the members' AUC (n_members,) on them.

        n_patients : of the class with fewest
        """
        mean = cls(cls.equal(parts).scales, shrunk_weights(orders, n_patients))
        scores = mean.scores(parts)
        calibration = Calibration.fit(scores, labels)
        if scores.shape[1] > 1:
            return mean, calibration
        centred = cls(mean.scales, mean.weights, -calibration.border())
        return centred, Calibration.fit(scores + centred.offset, labels)

    @classmethod
    def equal(cls, parts: NDArray[np.float64]) -> Combination:
        """All have the same say: where nothing is known of unseen patients."""
        scales = np.sqrt(np.nanmean(parts**2, axis=(0, 2)))
        n_members = parts.shape[1]
        return cls(np.where(scales > 0, scales, 1.0), np.full(n_members, 1 / n_members))

    def scores(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., n_scores) from the members' (..., n_members, n_scores)."""
        present = ~np.isnan(parts)
        say = self.weights[:, None] * present
        total = (np.nan_to_num(parts / self.scales[:, None]) * say).sum(axis=-2)
        with np.errstate(invalid="ignore"):  # NaN where all are silent
            mean: NDArray[np.float64] = total / say.sum(axis=-2)
        return mean + self.offset


def shrunk_weights(orders: NDArray[np.float64], n_patients: int) -> NDArray[np.float64]:
    """From members' AUC, and the number of patients that it rests on; they sum to 1."""
    steep = np.clip(2 * orders - 1, _LEAST, 1) ** _STEEPNESS
    trust = n_patients / (n_patients + _HALF_WAY)
    weights: NDArray[np.float64] = trust * steep / steep.sum() + (1 - trust) / len(orders)
    return weights / weights.sum()
