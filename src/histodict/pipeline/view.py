"""An image as a recipe sees it: reduced, stain-normalised, with glass left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..images.readers import ImageError, ImageSource, open_image
from ..images.stain import NORMALISERS
from ..images.tissue import TissueThreshold, tissue_fraction
from ..patches.grid import PatchGrid
from ..patches.vectors import VECTORS
from ..recipes import Recipe

_THUMBNAIL_SIDE = 1024


class View:
    """The patches and vectors of one open image."""

    def __init__(self, source: ImageSource, recipe: Recipe, trained_mpp: float | None) -> None:
        self._source = source
        self._recipe = recipe
        self.size = source.size
        self.mpp = source.mpp
        self.downsample = _downsample(source, recipe, trained_mpp)
        thumbnail = source.thumbnail(_THUMBNAIL_SIDE)
        self._tissue = TissueThreshold.from_thumbnail(thumbnail)
        mask = self._tissue.mask(thumbnail)
        self.normalise = NORMALISERS[recipe.stain].estimate(thumbnail, mask)

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        return self._source.read(x, y, width, height, downsample)

    def on_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if len(patches) == 0:
            return np.zeros(0, bool)
        return tissue_fraction(patches, self._tissue) >= self._recipe.least_tissue

    def vectors(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        return VECTORS[self._recipe.vectors](self.normalise(patches))

    def grid(self) -> PatchGrid:
        recipe = self._recipe
        return PatchGrid.over(self.size, recipe.patch_px, recipe.grid_stride_px, self.downsample)


@contextmanager
def open_view(
    path: Path, mpp: float | None, recipe: Recipe, trained_mpp: float | None = None
) -> Iterator[View]:
    """The image at `path`; mpp overrides its pixel size, trained_mpp is what it must match."""
    with open_image(path, mpp) as source:
        yield View(source, recipe, trained_mpp)


def _downsample(source: ImageSource, recipe: Recipe, trained_mpp: float | None) -> float:
    """The factor by which the image is reduced; refuses pixel sizes that do not fit the model."""
    if recipe.mpp is not None:
        if source.mpp is None:
            raise ImageError(
                f"{source.path}: its pixel size is not known, and the model works at "
                f"{recipe.mpp:g} µm per pixel: give the pixel size (mpp)"
            )
        factor = recipe.mpp / source.mpp
        if factor < 0.95:
            raise ImageError(
                f"{source.path}: has {source.mpp:g} µm per pixel, coarser than the "
                f"{recipe.mpp:g} µm the model works at"
            )
        return max(1.0, factor)
    if trained_mpp and source.mpp and abs(source.mpp / trained_mpp - 1) > 0.1:
        raise ImageError(
            f"{source.path}: has {source.mpp:g} µm per pixel, but the model was trained on "
            f"images of {trained_mpp:g}: rescale the image, or give its true pixel size (mpp)"
        )
    return recipe.downsample
