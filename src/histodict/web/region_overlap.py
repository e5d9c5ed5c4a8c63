"""How far regions that were found overlap with the true ones, in patches on tissue.

With H patches in both, M in the true regions alone and A in the found ones alone, Dice is
2H / (2H + M + A) and IoU is H / (H + M + A).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..compare.patch_measures import Judged
from ..decisions.regions import MOST_PATCHES
from ..images.manifest import Record
from ..patches.inside import HALF
from ..patches.outlines import Borders, label_regions
from ..patches.patch_map import PatchMap
from ..pipeline.region_truth import mask_of, true_patches
from .travel import Overlap

_FINEST = 300  # cells along the longer side of a mask whose outlines are drawn


@dataclass(frozen=True)
class Shares:
    dice: float
    iou: float


def overlap(record: Record, patch_map: PatchMap) -> Overlap:
    """Hits, misses and false alarms against the record's mask or label, for regions from
    1, 2, … connected patches on.
    """
    tissue = patch_map.tissue
    places, sizes = label_regions(patch_map.winners == 1)
    places, truth = places[tissue], true_patches(record, patch_map)[tissue]
    margins = patch_map.margins[..., 1][tissue]

    def counts(least: int) -> list[int]:
        found = np.concatenate([[False], sizes >= least])[places]
        table: list[int] = Judged(margins, truth, found).table().tolist()
        return table[:3]

    return [counts(least) for least in range(1, MOST_PATCHES + 1)]


def pooled(overlaps: Iterable[Overlap | None], least: float) -> Shares | None:
    """Of all images together, for regions from so many patches on; None: there is nothing to tell.

    Where one image's overlap is not known, none is told: the others would stand for all.
    """
    place, known = round(least) - 1, list(overlaps)
    if not known or any(one is None or not 0 <= place < len(one) for one in known):
        return None
    hits, misses, alarms = (sum(one[place][k] for one in known if one) for k in range(3))
    union = hits + misses + alarms
    return Shares(2 * hits / (union + hits), hits / union) if union else None


def true_rings(record: Record, size: tuple[int, int]) -> list[list[float]]:
    """Rings (x, y, x, y, …) around the regions of the record's mask, in an image of this size."""
    side = max(1.0, max(size) / _FINEST)
    x, y = np.meshgrid(*(np.arange(0, length, side) for length in size))
    cells = mask_of(record, "").share(x, y, side) >= HALF
    return [
        np.minimum(ring * side, size).ravel().tolist()
        for polygon in Borders(cells.astype(np.int32)).polygons(1)
        for ring in polygon
    ]
