"""An image as the quick answer sees it: a grid of patches, and a few numbers of each.

Cells of a pretrained network where one is installed, else the colours and edges of a patch's
pixels, and of its neighbours'. They are computed once, field by field, and kept in memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ..execution.memory_cache import BytesCache, Key
from ..images.readers import ImageSource
from ..networks import missing_module, vectors_named
from ..patches.grid import PatchGrid
from ..pipeline.view import View
from ..presets import preset
from ..recipes import Recipe

Field = tuple[slice, slice]
Box = tuple[float, float, float, float]
# Which patches of a field are tissue (rows, columns), and their numbers (n, n_features).
Numbers = tuple[NDArray[np.bool_], NDArray[np.float32]]

NETWORK = "efficientnet-lite0-half"
_FIELD_PX = 512  # side of what is computed together
_NETWORK_MPP, _PIXEL_MPP = 0.5, 1.0  # µm per pixel at which patches are looked at, if known


def by_network() -> bool:
    return missing_module(NETWORK) is None


def quick_recipe(mpp: float | None, network: bool) -> Recipe:
    """How patches are cut from an image of this pixel size: of 8 µm or, of pixels, 16."""
    wanted = _NETWORK_MPP if network else _PIXEL_MPP
    reduced = max(1.0, wanted / mpp) if mpp else 1.0
    if network:
        return preset("embeddings", regions=True).with_changes(
            vectors=NETWORK, downsample=reduced, turn_patches=False
        )
    return Recipe(patch_px=16, downsample=reduced, vectors="rgb")


class Sight:
    """An image as the quick answer sees it: its grid, and the numbers of its patches, as kept."""

    def __init__(self, source: ImageSource, recipe: Recipe, image: list[Any]) -> None:
        """`image`: the file's key."""
        self.view = View(source, recipe, None, None, image)
        self.grid = replace(self.view.grid(), chunk_px=_FIELD_PX)
        self.fields = list(self.grid.chunks())
        self._of_pixels = vectors_named(recipe.vectors).are_pictures
        self._key: Key = (repr(image), repr(recipe))

    def known(self, kept: BytesCache[Numbers], field: Field) -> Numbers | None:
        return kept.find((*self._key, repr(field)))

    def numbers(self, kept: BytesCache[Numbers], field: Field) -> Numbers:
        def made() -> tuple[Numbers, int]:
            if self._of_pixels:
                found = _pixel_numbers(self.view, self.grid, field)
            else:
                found = self.view.chunk_vectors(self.grid, *field)
            return found, sum(part.nbytes for part in found)

        return kept.get((*self._key, repr(field)), made)

    def on(self, box: Box) -> list[Field]:
        """The fields that a box (left, top, right, bottom) shows, the middle ones first."""
        first = (self.grid.left, self.grid.top) * 2
        left, top, right, bottom = (
            (edge - start) / self.grid.step for edge, start in zip(box, first, strict=True)
        )
        middle = (top + bottom) / 2, (left + right) / 2
        shown = [
            (rows, columns)
            for rows, columns in self.fields
            if rows.start < bottom and top < rows.stop
            if columns.start < right and left < columns.stop
        ]

        def far(field: Field) -> float:
            away = [(p.start + p.stop) / 2 - m for p, m in zip(field, middle, strict=True)]
            return float(np.hypot(*away))

        return sorted(shown, key=far)


def _pixel_numbers(view: View, grid: PatchGrid, field: Field) -> Numbers:
    pixels = view.normalise(grid.read(view, *field))
    tissue = view.on_tissue(pixels).reshape([part.stop - part.start for part in field])
    return tissue, _with_neighbours(_of_pixels(pixels), tissue)


def _of_pixels(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Colour, its spread, and edges of patches (n, side, side, 3): (n, 14)."""
    values = patches.astype(np.float32) / 255
    flat = values.reshape(len(values), -1, 3)
    grey = values.mean(axis=3)
    edges = [
        np.abs(np.diff(grey[:, ::step, ::step], axis=axis)).mean(axis=(1, 2))
        for step in (1, 3)
        for axis in (1, 2)
    ]
    dark = np.quantile(grey.reshape(len(grey), -1), [0.05, 0.25, 0.75, 0.95], axis=1)
    parts = [flat.mean(axis=1), flat.std(axis=1), np.stack(edges, axis=1), dark.T]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _with_neighbours(
    numbers: NDArray[np.float32], tissue: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Beside a patch's own numbers the mean of those around it: (n_tissue, 2 × n_features)."""
    laid = numbers.reshape(*tissue.shape, -1) * tissue[..., None]
    size = (3, 3, 1)
    weight = np.maximum(ndimage.uniform_filter(tissue.astype(np.float32), 3, mode="nearest"), 1e-6)
    around = ndimage.uniform_filter(laid, size, mode="nearest") / weight[..., None]
    both: NDArray[np.float32] = np.concatenate([laid, around], axis=2)[tissue]
    return both
