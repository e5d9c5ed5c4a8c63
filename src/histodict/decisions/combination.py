"""Several classifiers' scores as one.

The score of a panel is the weighted mean of its members' scores, each over its own scale: the root
mean square of what the member said of patients it had not seen. Far from 0 scores are bent, so that
a member that is beside itself, as on a scanner it does not know, cannot overrule all the others.

Weights follow how well a member put those patients in order, so that one that tells nothing of this
tissue has hardly a say; with two classes an offset moves the mean towards where both are equally
likely for such patients. What a handful of patients say is mostly chance, so both are shrunk, the
weights towards equal ones and the offset towards none: half way with `_HALF_WAY` patients of the
class that has fewest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from .calibration import Calibration

_HALF_WAY = 12
_BEND = 1.0  # where several decide: nobody says more than 1 / this
# Of AUC: nobody is silenced for good, and a handful of patients in the right order proves little.
_MIN, _MAX = 0.51, 0.98


@dataclass(frozen=True)
class ScoreCombination:
    """scales, weights : (n_members,), weights sum to 1; offset : added to the mean, 0 with more
    than two classes; bend : a score x over its scale counts as tanh(bend · x) / bend, as x where
    it is 0.
    """

    scales: NDArray[np.float64]
    weights: NDArray[np.float64]
    offset: float = 0.0
    tanh_scale: float = 0.0

    @classmethod
    def fit(
        cls,
        parts: NDArray[np.float64],
        labels: NDArray[np.int64],
        orders: NDArray[np.float64],
        n_patients: int,
    ) -> tuple[ScoreCombination, Calibration]:
        """From scores (n_images, n_members, n_scores) of unseen patients, NaN where a member saw
        nothing, the places of their classes, and the members' AUC (n_members,) on them.

        n_patients : of the class with fewest
        """
        mean = replace(cls.equal(parts), weights=shrunk_weights(orders, n_patients))
        scores = mean.scores(parts)
        if scores.shape[1] == 1:
            border = Calibration.fit(scores, labels).quantile()
            mean = replace(mean, offset=-border * _trust(n_patients))
        return mean, Calibration.fit(scores + mean.offset, labels, at_zero=True)

    @classmethod
    def equal(cls, parts: NDArray[np.float64]) -> ScoreCombination:
        """All have the same say: where nothing is known of unseen patients."""
        scales = np.sqrt(np.nanmean(parts**2, axis=(0, 2)))
        n_members = parts.shape[1]
        return cls(
            np.where(scales > 0, scales, 1.0),
            np.full(n_members, 1 / n_members),
            tanh_scale=_BEND if n_members > 1 else 0.0,
        )

    def scores(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., n_scores) from the members' (..., n_members, n_scores)."""
        present = ~np.isnan(parts)
        say = self.weights[:, None] * present
        said = parts / self.scales[:, None]
        if self.tanh_scale:
            said = np.tanh(self.tanh_scale * said) / self.tanh_scale
        total = (np.nan_to_num(said) * say).sum(axis=-2)
        with np.errstate(invalid="ignore"):  # NaN where all are silent
            mean: NDArray[np.float64] = total / say.sum(axis=-2)
        return mean + self.offset

    def score_gradients(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_members, n_scores), 0 of the silent: the scores are Σ factors · parts + offset.

        What a member says is bent as a whole, so all parts of it are made smaller alike.
        """
        present = ~np.isnan(parts)
        x = np.nan_to_num(parts) / self.scales[:, None]
        bent = np.tanh(self.tanh_scale * x) / self.tanh_scale if self.tanh_scale else x
        smaller = np.divide(bent, x, out=np.ones_like(x), where=x != 0)
        say = self.weights[:, None] * present
        found: NDArray[np.float64] = smaller * say / say.sum(axis=0) / self.scales[:, None]
        return found

    def invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a single member would have to say for such scores of a panel, over its scale."""
        mean = scores - self.offset
        if not self.tanh_scale:
            return mean
        most = 1 - 1e-9
        found: NDArray[np.float64] = (
            np.arctanh(np.clip(self.tanh_scale * mean, -most, most)) / self.tanh_scale
        )
        return found


def shrunk_weights(orders: NDArray[np.float64], n_patients: int) -> NDArray[np.float64]:
    """From members' AUC, and the number of patients that it rests on; they sum to 1."""
    # With normal scores of either class, AUC = Φ(d'/√2); independent members add up their d'².
    steep = ndtri(np.clip(orders, _MIN, _MAX)) ** 2
    trust = _trust(n_patients)
    weights: NDArray[np.float64] = trust * steep / steep.sum() + (1 - trust) / len(orders)
    return weights / weights.sum()


def _trust(n_patients: int) -> float:
    """In what so many patients say, from 0 to 1."""
    return n_patients / (n_patients + _HALF_WAY)
