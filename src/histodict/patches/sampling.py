"""Random sampling of training patches from an image, with optional constraints and augmentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..datasets.annotated import RegionCoverage
from .grid import PatchGrid, RegionSource, block_means, context_margin, read_mirrored

# Images of up to this many downsampled pixels are read at once, larger ones patch by patch.
_MAX_PIXELS_AT_ONCE = 50_000_000
_MAX_TRIES = 20

# Function from patches to the mask of accepted ones.
AcceptFunction = Callable[[NDArray[np.uint8]], NDArray[np.bool_]]


@dataclass(frozen=True)
class LocationConstraint:
    """Constraint on patch positions that is checked before pixels are read.

    Attributes
    ----------
    accepts : function from corners of patches (n, 2), x and y in the downsampled image, to the mask
        (n,) of the accepted ones
    box : (left, top, right, bottom) of an area that contains all accepted corners; None if unknown
    """

    accepts: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    box: tuple[int, int, int, int] | None = None

    def intersection(self, other: LocationConstraint | None) -> LocationConstraint:
        """Return the constraint of positions that both constraints accept; None accepts all."""
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
    accept: AcceptFunction,
    allowed: LocationConstraint | None = None,
    context: int = 1,
) -> NDArray[np.uint8]:
    """Return up to n_patches patches (n, patch_px, patch_px, 3) at random positions.

    Patches may overlap. With `context` > 1, return pairs of a patch and its context, reduced to the
    same size: (n, 2, patch_px, patch_px, 3).

    Parameters
    ----------
    source : image
    n_patches : number of patches; the result is smaller if too few are accepted
    grid : grid, of which only patch size and downsampling are used
    rng : random generator
    accept : function from patches (n, patch_px, patch_px, 3) to the mask (n,) of accepted ones
    allowed : constraint on positions, checked before pixels are read; None for the whole image
    context : side of the context area in patches; 1 for no context
    """
    patch_px, downsample = grid.patch_px, grid.downsample
    width, height = (int(length / downsample) for length in source.size)
    if width < patch_px or height < patch_px:
        return np.empty((0, *([2] if context > 1 else []), patch_px, patch_px, 3), np.uint8)
    read_patches = _make_patch_reader(source, patch_px, downsample, width * height, context)
    limits = [width - patch_px + 1, height - patch_px + 1]
    parts: list[NDArray[np.uint8]] = []
    n_missing = n_patches
    for _ in range(_MAX_TRIES):
        corners = _draw_corners(n_missing, limits, rng, allowed)
        patches = read_patches(corners)
        centres = patches[:, 0] if context > 1 else patches
        chosen = patches[accept(centres)] if len(patches) else patches
        parts.append(chosen)
        n_missing -= len(chosen)
        if n_missing == 0:
            break
    return np.concatenate(parts)


def _draw_corners(
    n_corners: int, limits: list[int], rng: np.random.Generator, allowed: LocationConstraint | None
) -> NDArray[np.int64]:
    """Return up to n_corners random patch corners (n, 2) that `allowed` accepts.

    `limits` are the exclusive upper bounds of x and y. The result is shorter than n_corners if too
    few of the random candidates are accepted.
    """
    if allowed is None:
        return rng.integers(0, limits, size=(n_corners, 2))
    low, high = [0, 0], limits
    if allowed.box is not None:
        last = np.array(limits) - 1
        low = np.clip(allowed.box[:2], 0, last).tolist()
        high = (np.clip(allowed.box[2:], 0, last) + 1).tolist()
    corners = rng.integers(low, high, size=(max(n_corners, 1000) * 20, 2))
    return corners[allowed.accepts(corners)][:n_corners]


def rotate_and_mirror_randomly(
    patches: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return patches rotated by multiples of 90° and mirrored at random.

    `patches` are patches, or pairs of a patch and its context, which get the same orientation.
    """
    transformed = patches.copy()
    choices = rng.integers(0, 8, len(patches))
    for choice in range(1, 8):
        is_chosen = choices == choice
        rotated = np.rot90(patches[is_chosen], choice % 4, axes=(-3, -2))
        transformed[is_chosen] = rotated[..., ::-1, :] if choice >= 4 else rotated
    return transformed


def _make_patch_reader(
    source: RegionSource, patch_px: int, downsample: float, n_pixels: int, context: int
) -> Callable[[NDArray[np.int64]], NDArray[np.uint8]]:
    """Return a function from corners of patches (n, 2) to patches in the form of `sample_patches`.

    `n_pixels` is the size of the downsampled image; small images are read as a whole.
    """
    before, after = context_margin(patch_px, context)
    side = patch_px * context
    if n_pixels <= _MAX_PIXELS_AT_ONCE:
        width, height = (int(length / downsample) for length in source.size)
        pixels = read_mirrored(source, -before, width + after, -before, height + after, downsample)

        def read_area(x: int, y: int) -> NDArray[np.uint8]:
            return pixels[y : y + side, x : x + side]
    else:

        def read_area(x: int, y: int) -> NDArray[np.uint8]:
            left, top = x - before, y - before
            return read_mirrored(source, left, left + side, top, top + side, downsample)

    def read_patches(corners: NDArray[np.int64]) -> NDArray[np.uint8]:
        patches = np.empty((len(corners), min(context, 2), patch_px, patch_px, 3), np.uint8)
        centre = slice(before, before + patch_px)
        for pair, (x, y) in zip(patches, corners.tolist(), strict=True):
            area = read_area(x, y)
            pair[0] = area[centre, centre]
            if context > 1:
                pair[1] = block_means(area, context)
        return patches if context > 1 else patches[:, 0]

    return read_patches


MIN_OVERLAP = 0.5  # minimum fraction of a patch that lies in the region


def region_constraint(region: RegionCoverage, grid: PatchGrid) -> LocationConstraint:
    """Return the constraint that at least half of a patch lies in a region."""
    origin = np.array([grid.left, grid.top])

    def accepts(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * grid.downsample + origin).T
        return region.coverage(x, y, grid.patch_side) >= MIN_OVERLAP

    if region.box is None:
        return LocationConstraint(accepts)
    box = (np.array(region.box).reshape(2, 2) - origin) / grid.downsample
    (left, top), (right, bottom) = box.tolist()
    corner = math.floor(left) - grid.patch_px, math.floor(top) - grid.patch_px
    return LocationConstraint(accepts, (*corner, math.ceil(right), math.ceil(bottom)))
