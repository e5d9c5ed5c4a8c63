"""Which patches lie in a region of an image: those of which half or more does."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..images.masks import RegionCoverage
from .grid import PatchGrid
from .sampling import LocationConstraint

MIN_OVERLAP = 0.5


def region_constraint(region: RegionCoverage, grid: PatchGrid) -> LocationConstraint:
    """Corners of patches of which half or more lies in a region."""
    first = np.array([grid.left, grid.top])

    def accepts(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * grid.downsample + first).T
        return region.coverage(x, y, grid.patch_side) >= MIN_OVERLAP

    if region.box is None:
        return LocationConstraint(accepts)
    box = (np.array(region.box).reshape(2, 2) - first) / grid.downsample
    (left, top), (right, bottom) = box.tolist()
    least = math.floor(left) - grid.patch_px, math.floor(top) - grid.patch_px
    return LocationConstraint(accepts, (*least, math.ceil(right), math.ceil(bottom)))
