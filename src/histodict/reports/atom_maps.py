"""Where in an image atoms are used, as small pictures: the image in grey, the use in colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..images.manifest import ImageRecord
from ..images.readers import open_image
from ..patches.grid import PatchGrid
from ..patches.patch_map import NO_TISSUE
from ..pipeline import Model
from ..pipeline.spoken import AtomActivity, atom_activity

_SIDE_PX = 150
_MAX_PATCHES = 60_000  # of an image: a slide with more takes too long for a page
_PAPER = 244


def maps_of(model: Model, record: ImageRecord) -> tuple[AtomActivity, PatchGrid] | None:
    """A second look at an image; None where it is too large, or shows only glass."""
    if not hasattr(model.model_, "judge"):
        return None
    image = record.path, record.mpp
    patch_map, evidence = model.model_.judge(*image, within=record.region_of_interest)
    if not 0 < evidence.n_patches <= _MAX_PATCHES:
        return None
    chosen = patch_map.predicted_classes != NO_TISSUE
    look = atom_activity(model.model_, patch_map, chosen, *image, record.region_of_interest)
    return look, patch_map.grid


def usage_image(
    picture: Path | None,
    grid: PatchGrid,
    share: NDArray[Any],
    colour: NDArray[Any] | tuple[int, ...],
) -> NDArray[np.uint8]:
    """Share of the patches (rows, columns) of a coarse grid over the patches' grid, NaN on glass.

    The strongest colour is the largest share. Without a picture it lies on plain paper.
    """
    step = grid.step * max(1, -(-max(grid.n_rows, grid.n_columns) // max(share.shape)))
    width, height = share.shape[1] * step + grid.left, share.shape[0] * step + grid.top
    below, scale = _background(picture, width, height)
    rows, columns = (
        np.clip(((np.arange(n) + 0.5) / scale - start) // step, -1, size).astype(int)
        for n, start, size in (
            (below.shape[0], grid.top, share.shape[0]),
            (below.shape[1], grid.left, share.shape[1]),
        )
    )
    padded = np.pad(np.nan_to_num(share), 1)
    top = max(float(np.nanmax(share, initial=0)), 1e-12)
    strength = (0.85 * padded[np.ix_(rows + 1, columns + 1)] / top)[..., None]
    mixed = (1 - strength) * below + strength * np.asarray(colour, np.float64)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _background(
    picture: Path | None, width: float, height: float
) -> tuple[NDArray[np.float64], float]:
    """The image, small and in light grey, and its pixels per level-0 pixel."""
    if picture is not None:
        try:
            with open_image(picture) as source:
                small, size = source.thumbnail(_SIDE_PX), source.size
        except (ValueError, OSError):
            return _background(None, width, height)
        grey = np.asarray(Image.fromarray(small).convert("L"), np.float64)
        light = 255 - 0.55 * (255 - grey)
        return np.repeat(light[..., None], 3, axis=2), max(small.shape[:2]) / max(size)
    scale = _SIDE_PX / max(width, height)
    shape = max(1, round(height * scale)), max(1, round(width * scale)), 3
    return np.full(shape, _PAPER, np.float64), scale
