"""Groups of images to folds of about equal size and mixture, groups kept whole.

With F (n_folds, n_classes) the images of each class per fold and T their mean over the folds:

    min  Σ ((F − T)/T)²,  as few entries of F as possible 0, which comes first

Equal numbers of groups count a little too. Finding the minimum is hard (it contains the
partition problem); a greedy start and exchanges come close, and every start gives other folds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# What a fold without some class costs: far more than evening out the others brings, and small
# enough that costs are exact to 1e-12.
_HOLE = 1e3
# What the imbalance of the number of groups counts, next to that of a class's images.
_GROUP_WEIGHT = 0.05
# Starts, at most, while a class is missing in more folds than must be.
_N_STARTS = 20


def balanced_folds(
    counts: NDArray[np.int64], n_folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The fold of every group, (n_groups,), from its images per class (n_groups, n_classes)."""
    n_needed = np.maximum(0, n_folds - (counts > 0).sum(axis=0)).sum()
    best, fewest = np.empty(0, np.int64), np.inf
    for _ in range(_N_STARTS):
        folds = _Exchange(counts, n_folds, rng).run()
        n_holes = (fold_totals(counts, folds, n_folds) == 0).sum()
        if n_holes < fewest:
            best, fewest = folds, n_holes
        if n_holes <= n_needed:
            break
    return best


def fold_totals(
    counts: NDArray[np.int64], folds: NDArray[np.int64], n_folds: int
) -> NDArray[np.int64]:
    """Images of each class in each fold: F, (n_folds, n_classes)."""
    F = np.zeros((n_folds, counts.shape[1]), np.int64)
    np.add.at(F, folds, counts)
    return F


class _Exchange:
    """One start: groups one by one to the fold they suit best, then moves and swaps."""

    def __init__(self, counts: NDArray[np.int64], n_folds: int, rng: np.random.Generator) -> None:
        n_groups, self.n_classes = counts.shape
        # The last column counts the groups themselves.
        self.members = np.column_stack([counts, np.ones(n_groups, np.int64)]).astype(float)
        self.target = self.members.sum(axis=0) / n_folds
        self.weights = np.append(np.ones(self.n_classes), _GROUP_WEIGHT) / self.target**2
        self.order = rng.permutation(n_groups)
        self.folds = np.full(n_groups, -1)
        self.totals = np.zeros((n_folds, self.n_classes + 1))

    def run(self) -> NDArray[np.int64]:
        for group in self.order:
            gains = self._costs(self.totals + self.members[group]) - self._costs(self.totals)
            self._put(group, int(gains.argmin()))
        better = True
        while better and not self._even():
            better = any([self._improve(group) for group in self.order])
        return self.folds

    def _costs(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """What folds with these totals (..., n_classes + 1) cost, each."""
        uneven = ((totals - self.target) ** 2 * self.weights).sum(axis=-1)
        costs: NDArray[np.float64] = uneven + _HOLE * (totals == 0).sum(axis=-1)
        return costs

    def _put(self, group: int, fold: int) -> None:
        if self.folds[group] >= 0:
            self.totals[self.folds[group]] -= self.members[group]
        self.totals[fold] += self.members[group]
        self.folds[group] = fold

    def _even(self) -> bool:
        """No fold can come closer in whole images."""
        return bool(np.all(np.abs(self.totals - self.target)[:, : self.n_classes] < 1))

    def _improve(self, group: int) -> bool:
        """Move the group to another fold, or swap it with another group, if that is better."""
        home, row = self.folds[group], self.members[group]
        now, rest = self._costs(self.totals), self.totals[home] - row
        moves = self._costs(rest) + self._costs(self.totals + row) - now[home] - now
        moves[home] = 0
        swaps = self._costs(rest + self.members) - now[home]
        swaps += self._costs(self.totals[self.folds] + row - self.members) - now[self.folds]
        swaps[self.folds == home] = 0
        # Less than this may be rounding, which would go in circles.
        if min(moves.min(), swaps.min()) > -1e-9:
            return False
        if moves.min() <= swaps.min():
            self._put(group, int(moves.argmin()))
        else:
            other = int(swaps.argmin())
            self._put(group, int(self.folds[other]))
            self._put(other, int(home))
        return True
