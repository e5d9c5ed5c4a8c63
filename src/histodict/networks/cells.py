"""Vectors that are the cells of a network's map, seen with the tissue around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..execution.array_cache import ArrayCache
from ..patches.grid import PatchGrid
from ..patches.sampling import Allowed
from ..patches.vectors import Tissue
from .network import Network

# Of a slide, training cells come from at most so many chunks.
_MOST_CHUNKS = 24
# Cells around a chunk that a network sees with it, so that its border knows its surroundings.
_AROUND = 2


@dataclass(frozen=True)
class CellCutter:
    """Cells of chunks. `turned`: they are the mean with those of the mirrored picture.

    `cache` keeps them under all that decides them; None keeps nothing.
    """

    network: Network
    turned: bool
    cache: ArrayCache | None

    def of_chunk(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        found = tissue.on_tissue(grid.read(tissue, rows, columns))
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if not found.any():
            return found.reshape(shape), np.empty((0, 1), np.float32)
        return found.reshape(shape), self._cells(tissue, grid, rows, columns)[found]

    def sample(
        self,
        tissue: Tissue,
        grid: PatchGrid,
        n_vectors: int,
        rng: np.random.Generator,
        allowed: Allowed | None,
    ) -> NDArray[np.float32]:
        """Cells of chunks in random order, until there are enough."""
        found: list[NDArray[np.float32]] = []
        missing = n_vectors
        chunks = list(grid.chunks())
        for place in rng.permutation(len(chunks))[:_MOST_CHUNKS]:
            rows, columns = chunks[place]
            here, vectors = self.of_chunk(tissue, grid, rows, columns)
            at = np.argwhere(here) + np.array([rows.start, columns.start])
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

    def _cells(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        """All cells of a chunk, row by row."""
        chunk = [rows.start, rows.stop, columns.start, columns.stop]
        key = [*tissue.pixels_key, self.network.digest, chunk, self.turned]
        cells = self.cache.read(key) if self.cache else None
        if cells is None:
            cells = self._compute(tissue, grid, rows, columns).astype(np.float16)
            if self.cache:
                self.cache.write(key, cells)
        return cells.reshape(-1, cells.shape[-1]).astype(np.float32)

    def _compute(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        top, left = max(0, rows.start - _AROUND), max(0, columns.start - _AROUND)
        bottom = min(grid.n_rows, rows.stop + _AROUND)
        right = min(grid.n_columns, columns.stop + _AROUND)
        area = grid.read_area(tissue, slice(top, bottom), slice(left, right))
        area = tissue.normalise(area[None])[0]
        cells = self.network.cells(area)
        if self.turned:
            # What depends on which way up the tissue lies says nothing of it.
            mirrored = self.network.cells(area.swapaxes(0, 1)).swapaxes(0, 1)
            cells = (cells + mirrored) / np.float32(2)
        own_rows = slice(rows.start - top, rows.stop - top)
        return cells[own_rows, columns.start - left : columns.stop - left]
