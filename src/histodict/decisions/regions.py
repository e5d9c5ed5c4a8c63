"""Regions: connected patches of the class looked for, and how many of them make a finding.

A patch is positive beyond a margin: 0, where its class is the closest, or one that is fitted. A
region is a set of positive patches that touch, by a side or a corner; it counts from m patches on.
m is the value from 1 to 20 whose point (false alarm rate, miss rate) on training images lies
closest to the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches.outlines import label_regions

MAX_MIN_PATCHES = 20


def describe_min_size(min_patches: int) -> str:
    """How a detector decides, for a model card."""
    if min_patches == 1:
        return "every patch that is found counts"
    return f"a region counts from {min_patches} connected patches on"


def fit_margin_threshold(margins: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """The margin beyond which a patch is best called positive, of patches that are known (n,).

    It has the highest sum of sensitivity and specificity, and lies midway between two patches';
    0 where there are not both kinds.
    """
    if truth.all() or not truth.any():
        return 0.0
    order = np.argsort(margins, kind="stable")
    ordered, is_true = margins[order].astype(np.float64), truth[order]
    # With the lowest k patches called negative, for k = 0 … n.
    missed = np.concatenate([[0.0], np.cumsum(is_true)]) / is_true.sum()
    refused = np.concatenate([[0.0], np.cumsum(~is_true)]) / (~is_true).sum()
    ends = np.concatenate([ordered[:1] - 1, ordered, ordered[-1:] + 1])
    # Patches of one margin cannot be parted.
    sums = np.where(ends[1:] > ends[:-1], refused - missed, -np.inf)
    k = int(np.argmax(sums))
    return float((ends[k] + ends[k + 1]) / 2)


@dataclass(frozen=True)
class LargestRegion:
    """The largest region of one training image, where there is something and where nothing.

    found : patches of the largest region that meets a true one; None if the image has none
    alarm : patches of the largest region that does not; None if the image is all true region
    """

    found: int | None
    alarm: int | None


def match_regions(
    positive: NDArray[np.bool_], truth: NDArray[np.bool_], tissue: NDArray[np.bool_]
) -> LargestRegion:
    """Regions of an image against the true patches: the outside of a mask is a negative image."""
    places, sizes = label_regions(positive)
    meets = np.zeros(len(sizes) + 1, bool)
    meets[np.unique(places[truth])] = True
    hits, others = sizes[meets[1:]], sizes[~meets[1:]]
    return LargestRegion(
        int(hits.max(initial=0)) if truth.any() else None,
        int(others.max(initial=0)) if (tissue & ~truth).any() else None,
    )


@dataclass(frozen=True)
class SizeCurve:
    """Miss and false alarm rates for m = 1 … 20, and the m chosen."""

    false_negative_rate: NDArray[np.float64]
    false_positive_rate: NDArray[np.float64]

    @classmethod
    def of(cls, findings: Sequence[LargestRegion]) -> SizeCurve:
        found = np.array([f.found for f in findings if f.found is not None])
        alarm = np.array([f.alarm for f in findings if f.alarm is not None])
        for name, values in (("with", found), ("without", alarm)):
            if len(values) == 0:
                raise ValueError(
                    f"no training image has tissue {name} the class looked for: both are needed to "
                    "choose how many connected patches make a region"
                )
        sizes = np.arange(1, MAX_MIN_PATCHES + 1)
        return cls((found < sizes[:, None]).mean(axis=1), (alarm >= sizes[:, None]).mean(axis=1))

    @property
    def min_patches(self) -> int:
        """m, the smallest of those closest to the origin."""
        return int(np.argmin(np.hypot(self.false_negative_rate, self.false_positive_rate))) + 1
