"""What every atom has to do with an image's score: parts that add up to it.

`image_rules.Evidence` says what the patches of an image said together; here the same is said atom
by atom, and `Aggregator.parts` carries it through the rule:

| feature of the rule | an atom's part in it |
|---|---|
| margin | the mean of its parts in the patches' margins (`methods.atom_parts`) |
| proportion | its share of the patches' votes: one is shared among all that spoke for the winner |
| codes, roots of codes | the atom's own number |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter
from scipy.sparse import csr_array

from ..methods.atom_parts import DistanceContributions


def code_signs(leaning: NDArray[np.float64]) -> NDArray[np.float64]:
    """In which sign atoms are used whose codes lean so: 1 where they lean to neither side."""
    return np.where(leaning < 0, -1.0, 1.0)


@dataclass(frozen=True)
class AtomReference:
    """Means over the patches of an image, or of a class.

    usage : (n_codes,), fraction of the patches that use an atom
    codes : (n_codes,), mean |code|
    mean_codes : (n_codes,), mean code
    margins : (n_classes, n_codes), contributions to the mean margin of each class
    class_votes : (n_classes, n_codes), contributions to the fraction of patches of each class
    """

    usage: NDArray[np.float64]
    codes: NDArray[np.float64]
    mean_codes: NDArray[np.float64]
    margins: NDArray[np.float64]
    class_votes: NDArray[np.float64]


class AtomAccumulator:
    """Adds up atom evidence over blocks of patches; what is said is the mean over those chosen."""

    def __init__(self, n_classes: int, n_codes: int) -> None:
        self.n_patches = 0
        self._users, self._codes, self._leaning = np.zeros((3, n_codes))
        self._distances = np.zeros((n_classes, n_codes))
        self._class_counts = np.zeros((n_classes, n_codes))

    def add(
        self,
        codes: csr_array,
        parts: DistanceContributions,
        winners: NDArray[np.integer],
        weights: NDArray[np.float64],
        chosen: NDArray[np.bool_],
    ) -> None:
        """Patches' codes, their parts, the class that won each, how much its margin counts, and
        which of them are chosen: by `patch_weights` the margins of others may count, too.
        """
        own = codes[np.flatnonzero(chosen)]
        self.n_patches += own.shape[0]
        self._users += np.bincount(own.indices[own.data != 0], minlength=own.shape[1])
        self._codes += np.asarray(abs(own).sum(axis=0), np.float64).ravel()
        self._leaning += np.asarray(own.sum(axis=0), np.float64).ravel()
        for place, part in enumerate(parts.by_class):
            self._distances[place] += part.T @ weights
            won = np.flatnonzero((winners == place) & chosen)
            if len(won):
                self._class_counts[place] += _votes(parts.of_margin(place)[won])

    def mean(self) -> AtomReference:
        n = max(self.n_patches, 1)
        left, n_classes = self._distances / n, len(self._distances)
        margins = (left.sum(axis=0) - left) / (n_classes - 1) - left
        used = self._users / n, self._codes / n, self._leaning / n
        return AtomReference(*used, margins, self._class_counts / n)


def _votes(spoken: csr_array) -> NDArray[np.float64]:
    """One vote of every row, shared among what is positive in it; summed over the rows."""
    for_it = csr_array(spoken.maximum(0))
    total = np.asarray(for_it.sum(axis=1)).ravel()
    share = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
    found: NDArray[np.float64] = for_it.T @ share
    return found


def patch_weights(
    tissue: NDArray[np.bool_], chosen: NDArray[np.bool_], n_steps: int
) -> NDArray[np.float64]:
    """How often a patch's margin counts in the sum over those chosen, if each of these takes the
    mean of its neighbours on tissue: (rows, columns).

    It is the transpose of `smooth_margins`, applied to who is chosen.
    """
    if not n_steps:
        return chosen.astype(np.float64)
    width = 2 * n_steps + 1
    around = uniform_filter(tissue.astype(np.float64), width, mode="constant")
    taken = np.where(chosen, 1 / np.maximum(around, 1e-12), 0)
    return np.where(tissue, uniform_filter(taken, width, mode="constant"), 0)
