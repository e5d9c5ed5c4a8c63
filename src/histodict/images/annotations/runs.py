"""Polygons as runs of level-0 pixels: a mask of full resolution that is as small as its border.

A pixel belongs to a polygon if its centre does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .outlines import AnnotationPolygon, Ring

_MUCH = 1_000_000  # more than any number of outlines above each other
_CELL_PX = 64  # of squares that are known to be all region, or none of it


class RunLengthMask:
    """The share of region in any rectangle of an image, from the runs of region in its rows.

    A pixel's place is row × (width + 1) + column, so that no run goes on in the next row.

    starts, ends : places of the first pixel of every run, and behind its last; in order
    size : of the image (width, height)
    """

    def __init__(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], size: tuple[int, int]
    ) -> None:
        self.starts, self.ends, self.size = starts, ends, size
        self._before = np.concatenate([[0], np.cumsum(ends - starts)])

    @classmethod
    def of(cls, outlines: Sequence[AnnotationPolygon], size: tuple[int, int]) -> RunLengthMask:
        """What the outlines cover together, of an image of this size.

        Holes count for their own polygon: what another one has inside of them stays. Outlines that
        cut take away from all.
        """
        parts = []
        for outline in outlines:
            weight = -_MUCH if outline.is_hole else 1
            for place, ring in enumerate(outline.rings):
                edges = _filled(ring, size)
                parts.append((edges, weight if place == 0 else -weight))
        places = np.concatenate([np.empty(0, np.int64), *(e.ravel() for e, _ in parts)])
        signs = [np.repeat([weight, -weight], len(edges[0])) for edges, weight in parts]
        starts, ends = _where_positive(places, np.concatenate([np.empty(0, np.int64), *signs]))
        return cls(starts, ends, size)

    @property
    def n_pixels(self) -> int:
        return int(self._before[-1])

    def any(self) -> bool:
        return self.n_pixels > 0

    def all(self) -> bool:
        return self.n_pixels == self.size[0] * self.size[1]

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) of all runs."""
        if not self.any():
            return 0, 0, 0, 0
        stride = self.size[0] + 1
        rows = self.starts[[0, -1]] // stride
        left, right = (self.starts % stride).min(), (self.ends % stride).max()
        return int(left), int(rows[0]), int(right), int(rows[1]) + 1

    def coverage(
        self, x: NDArray[np.float64], y: NDArray[np.float64], side: float
    ) -> NDArray[np.float64]:
        """Of the squares with these upper left corners, the share that is region."""
        left, right = _spans(x, side, self.size[0])
        top, bottom = _spans(y, side, self.size[1])
        none, whole = self._plain(left, right, top, bottom)
        area = (bottom - top) * (right - left)
        inside = np.where(whole, area, 0)
        chosen = np.nonzero(~none & ~whole)
        spans = [part[chosen] for part in (left, right, top, bottom)]
        inside[chosen] = self._counted(*spans)
        return inside / area

    def _counted(
        self,
        left: NDArray[np.int64],
        right: NDArray[np.int64],
        top: NDArray[np.int64],
        bottom: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Pixels of region in rectangles, each (n,), row by row."""
        found = np.zeros(len(left), np.int64)
        for row in range(int((bottom - top).max(initial=0))):
            begin = (top + row) * (self.size[0] + 1)
            own = self._up_to(begin + right) - self._up_to(begin + left)
            found += np.where(top + row < bottom, own, 0)
        return found

    def _plain(
        self,
        left: NDArray[np.int64],
        right: NDArray[np.int64],
        top: NDArray[np.int64],
        bottom: NDArray[np.int64],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of rectangles, which lie in cells without region, and which in cells full of it."""
        rows, columns = ((top, bottom), (left, right))
        (t, l), (b, r) = (  # noqa: E741
            (rows[0] // _CELL_PX, columns[0] // _CELL_PX),
            (-(-rows[1] // _CELL_PX), -(-columns[1] // _CELL_PX)),
        )
        n_cells = (b - t) * (r - l)
        met, filled = (s[b, r] - s[t, r] - s[b, l] + s[t, l] for s in self._cells)
        return met == 0, filled == n_cells

    @cached_property
    def _cells(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the cells above and left of each corner, how many have region, and are full of it."""
        stride = self.size[0] + 1
        n_columns, n_rows = (-(-length // _CELL_PX) for length in self.size)
        row = self.starts // stride // _CELL_PX
        begin, end = self.starts % stride, self.ends % stride
        met = _rows_between(row, begin // _CELL_PX, -(-end // _CELL_PX), (n_rows, n_columns))
        last = np.where(end == self.size[0], n_columns, end // _CELL_PX)  # it may be narrower
        first = np.minimum(-(-begin // _CELL_PX), last)
        filled = _rows_between(row, first, last, (n_rows, n_columns))
        height = np.full(n_rows, _CELL_PX)
        height[-1:] = self.size[1] - (n_rows - 1) * _CELL_PX
        return _sums(met > 0), _sums(filled == height[:, None])

    def _up_to(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many pixels are region before each place, from the image's first on."""
        n_begun = np.searchsorted(self.starts, places, side="right")
        behind = self.ends[np.maximum(n_begun - 1, 0)] - places
        counts: NDArray[np.int64] = self._before[n_begun] - np.where(
            n_begun > 0, np.maximum(behind, 0), 0
        )
        return counts


def _rows_between(
    row: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    shape: tuple[int, int],
) -> NDArray[np.int64]:
    """How many of the runs, each of a row of cells, go over each cell, from first up to last."""
    changes = np.zeros((shape[0], shape[1] + 1), np.int64)
    np.add.at(changes, (row, first), 1)
    np.add.at(changes, (row, last), -1)
    counts: NDArray[np.int64] = np.cumsum(changes, axis=1)[:, :-1]
    return counts


def _sums(cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.pad(np.cumsum(np.cumsum(cells, axis=0, dtype=np.int64), axis=1), ((1, 0), (1, 0)))


def _spans(
    begin: NDArray[np.float64], side: float, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Whole pixels of squares, as `RegionMask` takes them: one at least."""
    first, last = (np.clip(np.rint(begin + d), 0, length).astype(np.int64) for d in (0, side))
    first = np.minimum(first, length - 1)
    return first, np.maximum(last, first + 1)


def _filled(ring: Ring, size: tuple[int, int]) -> NDArray[np.int64]:
    """What a ring encloses as runs (2, n) of starts and ends: where it winds around a pixel."""
    (x0, y0), (x1, y1) = ring.T, np.roll(ring, -1, axis=0).T
    width, height = size
    # An edge crosses the middle of these rows; of two edges that meet there, one does.
    low, high = np.ceil(np.minimum(y0, y1) - 0.5), np.ceil(np.maximum(y0, y1) - 0.5)
    low, high = (np.clip(each, 0, height).astype(np.int64) for each in (low, high))
    n_rows = high - low
    edge = np.repeat(np.arange(len(ring)), n_rows)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows) + low[edge]
    slope = np.divide(x1 - x0, y1 - y0, out=np.zeros(len(ring)), where=y1 != y0)
    x = x0[edge] + (row + 0.5 - y0[edge]) * slope[edge]
    column = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    winding = np.where(y1 > y0, 1, -1)[edge]
    starts, ends = _where_positive(row * (width + 1) + column, winding, either_way=True)
    return np.stack([starts, ends])


def _where_positive(
    places: NDArray[np.int64], changes: NDArray[np.int64], *, either_way: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Runs in which the sum of all changes up to a place is above 0, or other than 0."""
    at, which = np.unique(places, return_inverse=True)
    total = np.cumsum(np.bincount(which, weights=changes, minlength=len(at)))
    inside = (np.abs(total) if either_way else total) > 0.5
    turns = np.flatnonzero(np.diff(np.concatenate([[False], inside])))
    return at[turns[::2]], at[turns[1::2]]
