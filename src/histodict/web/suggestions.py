"""What to label next: where the model is in doubt, and which looks unlike what it has learnt from.

Of n candidates, doubt is the share of them of which the model is at least as sure, novelty the
share that lies at most as far from everything learnt from; what is suggested has the largest
product. After each suggestion its look counts as learnt, so that the next one is not its twin. Both
are ranks: scores of any model, and distances in any unit, will do.

Reference: B. Settles, "Active learning literature survey", University of Wisconsin, 2009: density
and diversity beside uncertainty sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.distance import cdist

Numbers = NDArray[np.float64]
_TISSUE = 0.15  # optical density above which a pixel is tissue, for a glance


class Suggestion(NamedTuple):
    """A candidate by its place, and why: both from 0 to 1."""

    place: int
    doubt: float
    novelty: float


def suggest(leads: Numbers, looks: Numbers, learnt: Numbers, n: int) -> list[Suggestion]:
    """The n candidates whose labels would help most, the best first.

    leads : (n_candidates,), how far ahead the called class is of the next one
    looks, learnt : (n_candidates, n_features), (n_learnt, n_features), of `appearance`
    """
    if not len(leads):
        return []
    scale = np.vstack([looks, learnt]).std(axis=0) + 1e-9
    looks, learnt = looks / scale, learnt / scale
    far = cdist(looks, learnt).min(axis=1) if len(learnt) else _from_the_middle(looks)
    doubt, left, found = 1 - _ranks(leads), np.ones(len(leads), bool), list[Suggestion]()
    for _ in range(min(n, len(leads))):
        novelty = _ranks(far)
        place = int(np.argmax(np.where(left, doubt * novelty, -1.0)))
        found.append(Suggestion(place, float(doubt[place]), float(novelty[place])))
        left[place] = False
        far = np.minimum(far, np.linalg.norm(looks - looks[place], axis=1))
    return found


def _ranks(values: Numbers) -> Numbers:
    """Between 0 and 1, neither of them reached; the same for the same values."""
    less = np.searchsorted(np.sort(values), values, side="left")
    more = np.searchsorted(np.sort(values), values, side="right")
    ranks: Numbers = (less + more) / (2 * len(values))
    return ranks


def _from_the_middle(looks: Numbers) -> Numbers:
    """Nothing is learnt yet: what is most like all others comes first."""
    return -np.linalg.norm(looks - np.median(looks, axis=0), axis=1)


def appearance(pixels: NDArray[np.uint8]) -> Numbers:
    """How an image, or a part of it, looks at a glance: (14,).

    Of its tissue the mean and spread of each colour's optical density, their correlations, and how
    much they change over one, two and four pixels; and how much of it is tissue.
    """
    density = -np.log10((pixels.astype(np.float64) + 1) / 256)
    grey = density.mean(axis=2)
    tissue = grey > _TISSUE
    seen = density[tissue] if tissue.sum() > 9 else density.reshape(-1, 3)
    spread = seen.std(axis=0)
    unit = (seen - seen.mean(axis=0)) / (spread + 1e-6)
    correlated = (unit.T @ unit / len(unit))[np.triu_indices(3, 1)]
    changes = [
        float(np.abs(grey - ndimage.uniform_filter(grey, size)).mean()) for size in (3, 5, 9)
    ]
    blurred = float(ndimage.gaussian_filter(grey, 8).std())
    return np.array([*seen.mean(axis=0), *spread, *correlated, *changes, blurred, tissue.mean()])


def lead(facts: Mapping[str, Any]) -> float | None:
    """How far ahead the called class is in an answer, in the unit of its model; None: no tissue."""
    for shares in (facts["probabilities"], facts["shares"]):
        if facts["answer"] is not None and len(shares) > 2 - bool(facts["probabilities"]):
            first, second, *_ = sorted(shares.values(), reverse=True)
            return float(first - second)
    score = facts["score"]
    return None if facts["answer"] is None or score is None else abs(float(score))
