"""Which patches lie in a region of an image: those of which half or more does."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..images.masks import Region
from .grid import PatchGrid
from .sampling import Allowed

HALF = 0.5


def inside_of(region: Region, grid: PatchGrid) -> Allowed:
    """Corners of patches of which half or more lies in a region."""
    first = np.array([grid.left, grid.top])

    def accepts(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * grid.downsample + first).T
        return region.share(x, y, grid.patch_side) >= HALF

    if region.box is None:
        return Allowed(accepts)
    box = (np.array(region.box).reshape(2, 2) - first) / grid.downsample
    (left, top), (right, bottom) = box.tolist()
    least = math.floor(left) - grid.patch_px, math.floor(top) - grid.patch_px
    return Allowed(accepts, (*least, math.ceil(right), math.ceil(bottom)))
