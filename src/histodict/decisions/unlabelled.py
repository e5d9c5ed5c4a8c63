"""Where to put the threshold, with the help of images without labels.

A threshold learnt from a handful of images sits well for their patients; the scores of other
patients, stained or scanned in another way, lie higher or lower together. Of many images to be
answered most belong clearly to either class, so their scores fall into two groups, and the middle
between these is a threshold that needs no labels. It holds as far as there are about as many of
each: should nearly all be of one class it cuts through that class. So only half the way is gone,
which gains most of what there is to gain and halves that cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_IMAGES = 10


def unlabelled_threshold(scores: NDArray[np.float64]) -> float:
    """Of scores (n_images,) whose threshold is 0: half the way to the middle of their groups."""
    if len(scores) < MIN_IMAGES:
        raise ValueError(
            f"{len(scores)} images with tissue are too few to see how their scores lie: give at "
            f"least {MIN_IMAGES}, of both classes"
        )
    return two_means_midpoint(scores) / 2


def two_means_midpoint(scores: NDArray[np.float64]) -> float:
    """2-means in one dimension: the middle of the means of the two groups that lie closest."""
    ordered = np.sort(scores)
    n_left = np.arange(1, len(ordered))
    left = np.cumsum(ordered)[:-1]
    # The least squares within the groups are the most between them.
    between = left**2 / n_left + (ordered.sum() - left) ** 2 / (len(ordered) - n_left)
    cut = int(between.argmax()) + 1
    return float((ordered[:cut].mean() + ordered[cut:].mean()) / 2)


@dataclass(frozen=True)
class ThresholdAdaptation:
    """What another threshold does to the images it was found with; those of glass are left out.

    groups : images below and above the middle between the two groups of scores
    n_moved : images that get another answer than before
    """

    groups: tuple[int, int]
    n_moved: int

    @classmethod
    def of(cls, scores: Sequence[float], threshold: float) -> ThresholdAdaptation:
        """`threshold`: of `unlabelled_threshold`, for scores whose threshold is 0."""
        known = np.array([score for score in scores if not np.isnan(score)])
        n_above = int((known > 2 * threshold).sum())  # half the way was gone
        n_moved = int(((known > 0) != (known > threshold)).sum())
        return cls((len(known) - n_above, n_above), n_moved)

    @property
    def one_is_small(self) -> bool:
        """Whether nearly all images may be of one class, which the threshold then cuts through."""
        return min(self.groups) < sum(self.groups) / 5
