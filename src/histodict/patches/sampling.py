"""Random training patches of an image, a share of them turned and mirrored if wanted.

Which patches lie in a region of an image: those of which half or more does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..datasets.annotated import RegionCoverage
from .grid import PatchGrid, RegionSource, block_means, context_margin, read_mirrored

# An image of fewer reduced pixels is read whole; from a larger one the patches are read singly.
_WHOLE_PX = 50_000_000
_MAX_TRIES = 20

Accept = Callable[[NDArray[np.uint8]], NDArray[np.bool_]]


@dataclass(frozen=True)
class LocationConstraint:
    """Which places may be used, told before anything is read.

    accepts : of corners (n, 2) in the reduced image, as x and y, which are such places
    box : (least x, least y, most x, most y) outside of which none is; None where it is not known
    """

    accepts: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    box: tuple[int, int, int, int] | None = None

    def both(self, other: LocationConstraint | None) -> LocationConstraint:
        """Places that are allowed here and there."""
        if other is None:
            return self

        def accepts(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
            return self.accepts(corners) & other.accepts(corners)

        return LocationConstraint(accepts, other.box or self.box)


def sample_patches(
    source: RegionSource,
    n_patches: int,
    grid: PatchGrid,
    rng: np.random.Generator,
    accept: Accept,
    allowed: LocationConstraint | None = None,
    context: int = 1,
) -> NDArray[np.uint8]:
    """Up to n_patches patches (n, patch_px, patch_px, 3) at random places, overlaps allowed.

    Of the grid only the patches' size and reduction count. With `context` > 1 pairs of a patch and
    its surroundings (n, 2, patch_px, patch_px, 3).

    `allowed` says, before anything is read, which places may be used; `accept(patches)` which
    patches. Fewer are returned where few are accepted in the end.
    """
    patch_px, downsample = grid.patch_px, grid.downsample
    width, height = (int(length / downsample) for length in source.size)
    if width < patch_px or height < patch_px:
        return np.empty((0, *([2] if context > 1 else []), patch_px, patch_px, 3), np.uint8)
    cut_out = _cutter(source, patch_px, downsample, width * height, context)
    limits = [width - patch_px + 1, height - patch_px + 1]
    found: list[NDArray[np.uint8]] = []
    missing = n_patches
    for _ in range(_MAX_TRIES):
        corners = _draw_corners(missing, limits, rng, allowed)
        patches = cut_out(corners)
        own = patches[:, 0] if context > 1 else patches
        chosen = patches[accept(own)] if len(patches) else patches
        found.append(chosen)
        missing -= len(chosen)
        if missing == 0:
            break
    return np.concatenate(found)


def _draw_corners(
    n_corners: int, limits: list[int], rng: np.random.Generator, allowed: LocationConstraint | None
) -> NDArray[np.int64]:
    """Up to n_corners allowed corners; a thousandth of the image, or of the box, is found."""
    if allowed is None:
        return rng.integers(0, limits, size=(n_corners, 2))
    least, most = [0, 0], limits
    if allowed.box is not None:
        last = np.array(limits) - 1
        least = np.clip(allowed.box[:2], 0, last).tolist()
        most = (np.clip(allowed.box[2:], 0, last) + 1).tolist()
    drawn = rng.integers(least, most, size=(max(n_corners, 1000) * 20, 2))
    return drawn[allowed.accepts(drawn)][:n_corners]


def random_dihedral(patches: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each patch, or pair, in one of its eight rotations and reflections."""
    turned = patches.copy()
    which = rng.integers(0, 8, len(patches))
    for choice in range(1, 8):
        own = which == choice
        rotated = np.rot90(patches[own], choice % 4, axes=(-3, -2))
        turned[own] = rotated[..., ::-1, :] if choice >= 4 else rotated
    return turned


def _cutter(
    source: RegionSource, patch_px: int, downsample: float, n_pixels: int, context: int
) -> Callable[[NDArray[np.int64]], NDArray[np.uint8]]:
    """From corners of patches to the patches, with their surroundings if context > 1."""
    before, after = context_margin(patch_px, context)
    side = patch_px * context
    if n_pixels <= _WHOLE_PX:
        width, height = (int(length / downsample) for length in source.size)
        whole = read_mirrored(source, -before, width + after, -before, height + after, downsample)

        def read_field(x: int, y: int) -> NDArray[np.uint8]:
            return whole[y : y + side, x : x + side]
    else:

        def read_field(x: int, y: int) -> NDArray[np.uint8]:
            left, top = x - before, y - before
            return read_mirrored(source, left, left + side, top, top + side, downsample)

    def cut_out(corners: NDArray[np.int64]) -> NDArray[np.uint8]:
        found = np.empty((len(corners), min(context, 2), patch_px, patch_px, 3), np.uint8)
        own = slice(before, before + patch_px)
        for pictures, (x, y) in zip(found, corners.tolist(), strict=True):
            field = read_field(x, y)
            pictures[0] = field[own, own]
            if context > 1:
                pictures[1] = block_means(field, context)
        return found if context > 1 else found[:, 0]

    return cut_out


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
