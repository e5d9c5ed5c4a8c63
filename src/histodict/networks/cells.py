"""Vectors that are the cells of a network's map, seen with the tissue around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..patches.grid import PatchGrid
from ..patches.sampling import Allowed
from ..patches.vectors import AtHand, Tissue, Vectors
from .network import Network, open_network

# Of a slide, training cells come from at most so many chunks.
_MOST_CHUNKS = 24
# Pixels around a chunk that a network sees with it, so that its border knows its surroundings.
_AROUND_PX = 64
# Beyond an image a network fills up by itself, and cells along the border look as no tissue does.
# Learnt from, they get atoms of their own; so they are left out of training, or not, or the network
# sees the image's mirror image there.
LEFT_OUT, FILLED, MIRRORED = "left-out", "filled", "mirrored"
BORDERS = (LEFT_OUT, FILLED, MIRRORED)

OfChunk = Callable[[slice, slice], tuple[NDArray[np.bool_], NDArray[np.float32]]]


class NetworkVectors(Vectors):
    """The cells of a network's map; it is opened when they are asked for.

    Where the tissue is `turned` they are the mean with those of the mirrored picture.
    """

    are_pictures = False
    take_surroundings = False
    alone = False
    precision = np.float16  # to which the cells of a map are rounded

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def network(self) -> Network:
        return open_network(self.name)

    def weights(self) -> str:
        return self.network.digest

    def check(self, patch_px: int, stride_px: int) -> None:
        cell_px = self.network.cell_px
        if not patch_px == stride_px == cell_px:
            raise ValueError(
                f"the vectors {self.name!r} have cells of {cell_px} pixels: set patch_px to that, "
                "and leave stride_px alone"
            )

    def of_chunk(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        found = tissue.on_tissue(grid.read(tissue, rows, columns))
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if not found.any():
            return found.reshape(shape), np.empty((0, 1), np.float32)
        return found.reshape(shape), self._cells(tissue, grid, rows, columns)[found]

    def sample(
        self, tissue: Tissue, grid: PatchGrid, n: int, rng: Generator, allowed: Allowed | None
    ) -> NDArray[np.float32]:
        """Cells of chunks in random order, until there are enough.

        Those along the border are left out, unless the image has no others to give.
        """
        of_chunk = partial(self.of_chunk, tissue, grid)
        return _sample(of_chunk, tissue.border, grid, n, rng, allowed)

    def sample_kept(
        self, kept: AtHand, grid: PatchGrid, n: int, rng: Generator, allowed: Allowed | None
    ) -> NDArray[np.float32]:
        of_chunk = partial(kept.chunk_vectors, grid)
        return _sample(of_chunk, kept.border, grid, n, rng, allowed)

    def _cells(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        """All cells of a chunk, row by row."""
        chunk = [rows.start, rows.stop, columns.start, columns.stop]
        beyond = MIRRORED if tissue.border == MIRRORED else FILLED
        key = [*tissue.pixels_key, self.network.digest, chunk, tissue.turned, beyond]
        cells = tissue.cache.read(key) if tissue.cache else None
        if cells is None:
            cells = self._compute(tissue, grid, rows, columns).astype(np.float16)
            if tissue.cache:
                tissue.cache.write(key, cells)
        return cells.reshape(-1, cells.shape[-1]).astype(np.float32)

    def _compute(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        network = self.network
        around = -(-_AROUND_PX // network.cell_px)
        spans = [_Span.around(rows, around, grid.n_rows)]
        spans.append(_Span.around(columns, around, grid.n_columns))
        area = grid.read_area(tissue, *(span.there for span in spans))
        area = tissue.normalise(area[None])[0]
        if tissue.border == MIRRORED:
            beyond = [[network.cell_px * n for n in span.missing] for span in spans]
            area = np.pad(area, (*beyond, (0, 0)), mode="symmetric")
            spans = [span.filled() for span in spans]
        cells = network.cells(area)
        if tissue.turned:
            # What depends on which way up the tissue lies says nothing of it.
            mirrored = network.cells(area.swapaxes(0, 1)).swapaxes(0, 1)
            cells = (cells + mirrored) / np.float32(2)
        return cells[tuple(span.own for span in spans)]


def _sample(
    of_chunk: OfChunk,
    border: str,
    grid: PatchGrid,
    n: int,
    rng: Generator,
    allowed: Allowed | None,
) -> NDArray[np.float32]:
    kept_from = 1 if border == LEFT_OUT else 0
    found = _sample_inside(of_chunk, grid, n, rng, allowed, kept_from)
    if kept_from and not len(found):
        found = _sample_inside(of_chunk, grid, n, rng, allowed, 0)
    return found


def _sample_inside(
    of_chunk: OfChunk,
    grid: PatchGrid,
    n: int,
    rng: Generator,
    allowed: Allowed | None,
    kept_from: int,
) -> NDArray[np.float32]:
    """Cells at least `kept_from` others away from the border."""
    found: list[NDArray[np.float32]] = []
    missing = n
    chunks = list(grid.chunks())
    ends = np.array([grid.n_rows, grid.n_columns]) - 1
    n_seen = 0
    for place in rng.permutation(len(chunks)):
        rows, columns = chunks[place]
        may = _allowed_cells(grid, rows, columns, allowed)
        if not may.any():
            continue  # it takes no time, and what is outlined may be small
        n_seen += 1
        if n_seen > _MOST_CHUNKS:
            break
        here, vectors = of_chunk(rows, columns)
        at = np.argwhere(here) + np.array([rows.start, columns.start])
        keep = (np.minimum(at, ends - at) >= kept_from).all(axis=1) & may[here]
        places = rng.permutation(np.flatnonzero(keep))[:missing]
        if len(places):
            found.append(vectors[places])
            missing -= len(places)
        if missing == 0:
            break
    return np.concatenate(found) if found else np.empty((0, 0), np.float32)


def _allowed_cells(
    grid: PatchGrid, rows: slice, columns: slice, allowed: Allowed | None
) -> NDArray[np.bool_]:
    """Of a chunk, (rows, columns)."""
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    if allowed is None:
        return np.ones(shape, bool)
    at = np.argwhere(np.ones(shape, bool)) + np.array([rows.start, columns.start])
    return allowed.accepts(at[:, ::-1] * grid.stride_px).reshape(shape)


@dataclass(frozen=True)
class _Span:
    """Cells of a row or column with those around them.

    there : those that the image has; own : where among them the cells are
    missing : how many it lacks before and behind
    """

    there: slice
    own: slice
    missing: tuple[int, int]

    @classmethod
    def around(cls, part: slice, n_around: int, n: int) -> _Span:
        start, stop = part.start - n_around, part.stop + n_around
        there = slice(max(0, start), min(n, stop))
        own = slice(part.start - there.start, part.stop - there.start)
        return cls(there, own, (there.start - start, stop - there.stop))

    def filled(self) -> _Span:
        """With what is missing filled in."""
        before = self.missing[0]
        own = slice(self.own.start + before, self.own.stop + before)
        return replace(self, own=own, missing=(0, 0))
