"""An image as a recipe sees it: reduced, stain-normalised, with glass left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..execution.array_cache import ArrayCache, file_key
from ..images.readers import ImageError, ImageSource, open_image
from ..images.stain import NORMALISERS
from ..images.tissue import TissueThreshold, tissue_fraction
from ..networks import is_network, open_network
from ..patches.grid import PatchGrid
from ..patches.sampling import Allowed, sample_patches, turn_at_random
from ..patches.surroundings import read_pairs
from ..patches.vectors import VECTORS
from ..recipes import Recipe

_THUMBNAIL_SIDE = 1024
# Of a slide, training cells come from at most so many chunks.
_MOST_CHUNKS = 24
# Cells around a chunk that a network sees with it, so that its border knows its surroundings.
_AROUND = 2


class View:
    """The patches and vectors of one open image."""

    def __init__(
        self,
        source: ImageSource,
        recipe: Recipe,
        trained_mpp: float | None,
        cache: ArrayCache | None = None,
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._cache = cache
        self._network = open_network(recipe.vectors) if is_network(recipe.vectors) else None
        if self._network and not recipe.patch_px == recipe.grid_stride_px == self._network.cell_px:
            raise ValueError(
                f"the vectors {recipe.vectors!r} have cells of {self._network.cell_px} pixels: set "
                "patch_px to that, and leave stride_px alone"
            )
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

    def grid(self) -> PatchGrid:
        recipe = self._recipe
        try:
            return PatchGrid.over(
                self.size, recipe.patch_px, recipe.grid_stride_px, self.downsample
            )
        except ValueError as error:
            raise ImageError(f"{self._source.path}: {error}") from error

    def chunk_vectors(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Of a chunk: which patches are tissue (rows, columns), and these patches' vectors."""
        if self._recipe.context > 1:
            patches = read_pairs(grid, self, rows, columns, self._recipe.context)
        else:
            patches = grid.read(self, rows, columns)[:, None]
        tissue = self.on_tissue(patches[:, 0])
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if self._network is None or not tissue.any():
            vectors = self._pixel_vectors(patches[tissue])
        else:
            vectors = self._cells(grid, rows, columns)[tissue]
        return tissue.reshape(shape), vectors

    def sample_vectors(
        self, n_vectors: int, rng: np.random.Generator, allowed: Allowed | None = None
    ) -> NDArray[np.float32]:
        """Up to n_vectors of random tissue patches, at places that `allowed` accepts."""
        if self._network is not None:
            return self._sample_cells(n_vectors, rng, allowed)
        patches = sample_patches(
            self,
            n_vectors,
            self._recipe.patch_px,
            self.downsample,
            rng,
            self.on_tissue,
            allowed,
            self._recipe.context,
        )
        if self._recipe.turn_patches:
            patches = turn_at_random(patches, rng)
        return self._pixel_vectors(patches if self._recipe.context > 1 else patches[:, None])

    def on_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if len(patches) == 0:
            return np.zeros(0, bool)
        return self.tissue_share(patches) >= self._recipe.least_tissue

    def tissue_share(self, patches: NDArray[np.uint8]) -> NDArray[np.float64]:
        return tissue_fraction(patches, self._tissue)

    def _pixel_vectors(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of patches (n, n_scales, patch_px, patch_px, 3); the scales weigh the same."""
        if self._network is not None:
            return np.empty((0, 1), np.float32)
        n_scales = patches.shape[1]
        parts = [
            VECTORS[self._recipe.vectors](self.normalise(patches[:, i])) for i in range(n_scales)
        ]
        return parts[0] if n_scales == 1 else np.hstack(parts) / np.float32(n_scales**0.5)

    # ------------------------------------------------------------ vectors of a network

    def _sample_cells(
        self, n_vectors: int, rng: np.random.Generator, allowed: Allowed | None
    ) -> NDArray[np.float32]:
        """Cells of chunks in random order, until there are enough."""
        grid = self.grid()
        found: list[NDArray[np.float32]] = []
        missing = n_vectors
        chunks = list(grid.chunks())
        for place in rng.permutation(len(chunks))[:_MOST_CHUNKS]:
            rows, columns = chunks[place]
            tissue, vectors = self.chunk_vectors(grid, rows, columns)
            at = np.argwhere(tissue) + np.array([rows.start, columns.start])
            keep = np.ones(len(at), bool)
            if allowed is not None and len(at):
                keep = allowed(at[:, ::-1] * grid.stride_px)
            places = rng.permutation(np.flatnonzero(keep))[:missing]
            if len(places):
                found.append(vectors[places])
                missing -= len(places)
            if missing == 0:
                break
        return np.concatenate(found) if found else np.empty((0, 0), np.float32)

    def _cells(self, grid: PatchGrid, rows: slice, columns: slice) -> NDArray[np.float32]:
        """All cells of a chunk, row by row, seen with the tissue around it."""
        assert self._network is not None
        key = [
            *file_key(self._source.path),
            self._network.digest,
            self._recipe.stain,
            self.downsample,
            [rows.start, rows.stop, columns.start, columns.stop],
        ]
        if self._recipe.turn_patches:
            key.append("turned")
        cells = self._cache.read(key) if self._cache else None
        if cells is None:
            cells = self._compute_cells(grid, rows, columns).astype(np.float16)
            if self._cache:
                self._cache.write(key, cells)
        return cells.reshape(-1, cells.shape[-1]).astype(np.float32)

    def _compute_cells(self, grid: PatchGrid, rows: slice, columns: slice) -> NDArray[np.float32]:
        assert self._network is not None
        top, left = max(0, rows.start - _AROUND), max(0, columns.start - _AROUND)
        bottom = min(grid.n_rows, rows.stop + _AROUND)
        right = min(grid.n_columns, columns.stop + _AROUND)
        area = self.normalise(grid.read_area(self, slice(top, bottom), slice(left, right))[None])[0]
        cells = self._network.cells(area)
        if self._recipe.turn_patches:
            # What depends on which way up the tissue lies says nothing of it.
            mirrored = self._network.cells(area.swapaxes(0, 1)).swapaxes(0, 1)
            cells = (cells + mirrored) / np.float32(2)
        own_rows = slice(rows.start - top, rows.stop - top)
        return cells[own_rows, columns.start - left : columns.stop - left]


@contextmanager
def open_view(
    path: Path,
    mpp: float | None,
    recipe: Recipe,
    trained_mpp: float | None = None,
    cache: ArrayCache | None = None,
) -> Iterator[View]:
    """The image at `path`; mpp overrides its pixel size, trained_mpp is what it must match."""
    with open_image(path, mpp) as source:
        yield View(source, recipe, trained_mpp, cache)


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
