"""Several classifiers' scores as one.

The score of a panel is the mean of its members' scores, each over its own scale: the root mean
square of what the member said of patients it had not seen. With two classes an offset puts the
place at which both are equally likely, for such patients, at 0.

Averaging needs no choice, and a choice among a handful of training patients is mostly chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calibration import Calibration


@dataclass(frozen=True)
class Combination:
    """scales : (n_members,); offset : added to the mean, 0 with more than two classes."""

    scales: NDArray[np.float64]
    offset: float = 0.0

    @classmethod
    def fit(
        cls, parts: NDArray[np.float64], labels: NDArray[np.int64]
    ) -> tuple[Combination, Calibration]:
        """From scores (n_images, n_members, n_scores) of unseen patients, NaN where a member saw
        nothing, and the places of their classes."""
        scales = np.sqrt(np.nanmean(parts**2, axis=(0, 2)))
        mean = cls(np.where(scales > 0, scales, 1.0))
        scores = mean.scores(parts)
        calibration = Calibration.fit(scores, labels)
        if scores.shape[1] > 1:
            return mean, calibration
        centred = cls(mean.scales, -calibration.border())
        return centred, Calibration.fit(scores + centred.offset, labels)

    def scores(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., n_scores) from the members' (..., n_members, n_scores)."""
        mean: NDArray[np.float64] = np.nanmean(parts / self.scales[:, None], axis=-2)
        return mean + self.offset
