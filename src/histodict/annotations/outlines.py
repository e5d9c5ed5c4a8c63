"""Outlines of annotated regions: polygons with class names, and their run-length encoded masks.

Masks have the resolution of level 0, and their size in memory is proportional to the length of the
borders. A pixel belongs to a polygon if the centre of the pixel does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.file_types import ImageError
from ..utils.text_io import pluralize, shorten

UNCLASSIFIED = "unclassified"
IGNORED = "Ignore*"  # QuPath's class for regions to ignore
# Origin of coordinates on a slide with bounds (MRXS): the upper left pixel within the bounds, as in
# QuPath, or the corner of the whole slide, as in OpenSlide and programs based on it.
FIRST_PIXEL, SLIDE_CORNER = "first pixel", "slide's corner"

_MAX_SIMPLE_CORNERS = 10_000  # rings with at most this number of corners are never too complex
_N_WINDOW_SIDES = 100  # number of successive sides with a common bounding box
_MAX_NEIGHBOURS = 200  # mean number of bounding boxes that intersect a bounding box, or are it
# Numbers of sides and of pairs of sides in a batch of the search for intersections.
_QUERIED_SIDES, _COMPARED_PAIRS = 50, 20_000
_MAX_PAIRS = 2_000_000  # maximum number of pairs of sides that are compared in total

Ring = NDArray[np.float64]


@dataclass(frozen=True)
class AnnotationPolygon:
    """Polygon with holes and a class name.

    Attributes
    ----------
    name : class name
    rings : outer ring and holes, each an array (n, 2) of x and y; the first point is not repeated
    is_hole : whether the polygon is subtracted from the other selected polygons, like a negative
        region of ImageScope
    """

    name: str
    rings: tuple[Ring, ...]
    is_hole: bool = False


@dataclass
class Annotations:
    """Outlines of an annotation file, in the coordinates of the file.

    Attributes
    ----------
    path : annotation file
    origin : origin of the coordinates, FIRST_PIXEL or SLIDE_CORNER
    outlines : outlines in the order of the file
    mpp : µm per pixel of the annotated image; None if the file does not state it
    skipped : number of skipped objects by kind, such as "points"
    """

    path: Path
    origin: str
    outlines: list[AnnotationPolygon] = field(default_factory=list)
    mpp: float | None = None
    skipped: Counter[str] = field(default_factory=Counter)

    def add(
        self, name: str | None, rings: Iterable[Any], kind: str, *, is_hole: bool = False
    ) -> None:
        """Add a polygon, or count it in `skipped` if it has no area.

        Parameters
        ----------
        name : class name; None if unclassified
        rings : outer ring and holes, each a list of points [x, y, …]
        kind : plural noun for the kind of object, for messages
        is_hole : whether the polygon is subtracted from the other selected polygons

        Raises
        ------
        ImageError
            If x or y of a point is not a finite number.
        """
        number = len(self.outlines) + 1
        found = [self._parse_ring(ring, f"outline {number}") for ring in rings]
        if not found or len(found[0]) < 3 or not np.ptp(found[0], axis=0).all():
            self.skipped[f"{kind} without an area"] += 1
            return
        outer, *holes = found
        holes = [hole for hole in holes if len(hole) >= 3]
        self.outlines.append(AnnotationPolygon(name or UNCLASSIFIED, (outer, *holes), is_hole))

    def _parse_ring(self, points: Any, label: str) -> Ring:
        """Return points as a ring (n, 2), without the last point if it equals the first one."""
        try:
            ring = np.array([[float(value) for value in point[:2]] for point in points])
        except (TypeError, ValueError, KeyError, IndexError, OverflowError):
            ring = np.full((1, 2), np.nan)
        if not ring.size:
            return np.empty((0, 2))
        if ring.ndim != 2 or ring.shape[1] != 2 or not np.isfinite(ring).all():
            raise ImageError(f"{self.path}: {label} has points without two finite numbers")
        return ring[:-1] if len(ring) > 1 and (ring[0] == ring[-1]).all() else ring

    @property
    def class_counts(self) -> Counter[str]:
        """Number of outlines of each class."""
        return Counter(outline.name for outline in self.outlines if not outline.is_hole)

    def describe(self) -> str:
        """Return the number of outlines of each class and of skipped objects as text."""
        named = [f"{shorten(repr(name))} ({n})" for name, n in sorted(self.class_counts.items())]
        return ", ".join([*named, *(f"{n} {kind}" for kind, n in self.skipped.items())])

    def select_outlines(self, names: Iterable[str] = ()) -> list[AnnotationPolygon]:
        """Return the outlines of the classes with these names, or of all classes without names.

        Raises
        ------
        ImageError
            If there are no such outlines.
        """
        wanted = set(names) or set(self.class_counts)
        chosen = [outline for outline in self.outlines if outline.name in wanted]
        if any(not outline.is_hole for outline in chosen):
            return chosen
        if not self.outlines:
            what = f": it contains {self.describe()}" if self.skipped else ""
            raise ImageError(f"{self.path}: no outline with an area{what}")
        listed = " or ".join(repr(name) for name in sorted(wanted))
        raise ImageError(
            f"{self.path}: no outline has the class {listed}; the file has {self.describe()}. "
            "Class names are case-sensitive"
        )

    @cached_property
    def self_intersections(self) -> list[tuple[AnnotationPolygon, Ring, tuple[float, float]]]:
        """(outline, ring, first point of intersection) of each self-intersecting ring."""
        found = [(o, r, find_self_intersections(r)) for o in self.outlines for r in o.rings]
        return [(outline, ring, points[0]) for outline, ring, points in found if points]

    def notes(self) -> list[str]:
        """Return warnings about skipped objects and self-intersecting rings."""
        lines = []
        if self.skipped and self.outlines:
            what = ", ".join(f"{n} {kind}" for kind, n in self.skipped.items())
            lines.append(f"{self.path}: ignored: {what}")
        if self.self_intersections:
            (outline, _, (x, y)), n = self.self_intersections[0], len(self.self_intersections)
            name = outline.name
            lines.append(
                f"{self.path}: {pluralize(n, 'self-intersecting outline')}, such as {name!r} "
                f"at ({x:.0f}, {y:.0f}); everything that it encloses is used"
            )
        return lines


def find_self_intersections(ring: Ring, limit: int = 1) -> list[tuple[float, float]]:
    """Return points (x, y) at which two sides of a ring cross; sides that touch do not count.

    Parameters
    ----------
    ring : array (n, 2) of x and y; the first point is not repeated
    limit : number of points at which the search ends; a few more may be returned
    """
    import shapely

    if not is_too_complex(ring) and shapely.is_simple(shapely.linearrings(ring)):
        return []
    sides = shapely.linestrings(np.stack([ring, np.roll(ring, -1, axis=0)], axis=1))
    tree, found, n_compared = shapely.STRtree(sides), list[tuple[float, float]](), 0
    for start in range(0, len(sides), _QUERIED_SIDES):
        first, second = tree.query(sides[start : start + _QUERIED_SIDES])
        pairs = np.stack([first + start, second])[:, second > first + start]
        for begin in range(0, pairs.shape[1], _COMPARED_PAIRS):
            first_side, second_side = sides[pairs[:, begin : begin + _COMPARED_PAIRS]]
            crosses = shapely.crosses(first_side, second_side)
            points = shapely.intersection(first_side[crosses], second_side[crosses])
            found += map(tuple, shapely.get_coordinates(points).tolist())
            n_compared += len(first_side)
            if len(found) >= limit or n_compared > _MAX_PAIRS:
                return found
    return found


def is_too_complex(ring: Ring) -> bool:
    """Return whether GEOS is too slow for a ring, as too many of its sides are close together."""
    import shapely

    if len(ring) <= _MAX_SIMPLE_CORNERS:
        return False
    starts = np.arange(0, len(ring), _N_WINDOW_SIDES)
    ends = np.append(starts[1:], 0)  # last corner of each window
    low = np.minimum(np.minimum.reduceat(ring, starts), ring[ends])
    high = np.maximum(np.maximum.reduceat(ring, starts), ring[ends])
    windows = shapely.box(*low.T, *high.T)
    n_pairs = shapely.STRtree(windows).query(windows).shape[1]
    return bool(n_pairs > _MAX_NEIGHBOURS * len(windows))


_HOLE_WEIGHT = 1_000_000  # more than the number of overlapping outlines
_CELL_PX = 64  # side of the square cells whose coverage (all, part or none) is stored


class RunLengthMask:
    """Run-length encoded mask of a region of an image.

    The position of a pixel is row × (width + 1) + column, so that no run continues in the next row.

    Parameters
    ----------
    starts : position of the first pixel of each run, sorted
    ends : position after the last pixel of each run, sorted
    size : (width, height) of the image in level-0 pixels
    """

    def __init__(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], size: tuple[int, int]
    ) -> None:
        self.starts, self.ends, self.size = starts, ends, size
        self._n_pixels_before = np.concatenate([[0], np.cumsum(ends - starts)])

    @classmethod
    def from_outlines(
        cls, outlines: Sequence[AnnotationPolygon], size: tuple[int, int]
    ) -> RunLengthMask:
        """Return the mask of the union of outlines, in level-0 pixels of an image of this size.

        A hole of a polygon does not remove other polygons inside the hole. An outline with
        `is_hole` is subtracted from all other outlines.
        """
        parts = []
        for outline in outlines:
            weight = -_HOLE_WEIGHT if outline.is_hole else 1
            for ring_index, ring in enumerate(outline.rings):
                edges = _enclosed_runs(ring, size)
                parts.append((edges, weight if ring_index == 0 else -weight))
        positions = np.concatenate([np.empty(0, np.int64), *(e.ravel() for e, _ in parts)])
        signs = [np.repeat([weight, -weight], len(edges[0])) for edges, weight in parts]
        starts, ends = _find_inside_runs(positions, np.concatenate([np.empty(0, np.int64), *signs]))
        return cls(starts, ends, size)

    @property
    def n_pixels(self) -> int:
        """Number of pixels in the region."""
        return int(self._n_pixels_before[-1])

    def any(self) -> bool:
        """Return whether any pixel belongs to the region."""
        return self.n_pixels > 0

    def all(self) -> bool:
        """Return whether all pixels belong to the region."""
        return self.n_pixels == self.size[0] * self.size[1]

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """Bounding box (left, top, right, bottom) of the region; zeros if it is empty."""
        if not self.any():
            return 0, 0, 0, 0
        stride = self.size[0] + 1
        rows = self.starts[[0, -1]] // stride
        left, right = (self.starts % stride).min(), (self.ends % stride).max()
        return int(left), int(rows[0]), int(right), int(rows[1]) + 1

    def coverage(
        self, x: NDArray[np.float64], y: NDArray[np.float64], side: float
    ) -> NDArray[np.float64]:
        """Return the fraction of each square that the region covers.

        Parameters
        ----------
        x, y : (n,), upper left corners of the squares in level-0 pixels
        side : side of the squares in level-0 pixels
        """
        left, right = _pixel_ranges(x, side, self.size[0])
        top, bottom = _pixel_ranges(y, side, self.size[1])
        is_empty, is_full = self._find_uniform_rectangles(left, right, top, bottom)
        area = (bottom - top) * (right - left)
        inside = np.where(is_full, area, 0)
        mixed = np.nonzero(~is_empty & ~is_full)
        spans = [part[mixed] for part in (left, right, top, bottom)]
        inside[mixed] = self._count_pixels(*spans)
        return inside / area

    def _count_pixels(
        self,
        left: NDArray[np.int64],
        right: NDArray[np.int64],
        top: NDArray[np.int64],
        bottom: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the number of pixels of the region in each rectangle; all arrays are (n,)."""
        counts = np.zeros(len(left), np.int64)
        for row in range(int((bottom - top).max(initial=0))):
            begin = (top + row) * (self.size[0] + 1)
            in_row = self._count_before(begin + right) - self._count_before(begin + left)
            counts += np.where(top + row < bottom, in_row, 0)
        return counts

    def _find_uniform_rectangles(
        self,
        left: NDArray[np.int64],
        right: NDArray[np.int64],
        top: NDArray[np.int64],
        bottom: NDArray[np.int64],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return whether all cells of each rectangle are outside, and whether all are inside.

        The arguments and both results are (n,). A cell is a square with a side of _CELL_PX pixels;
        it is outside if no pixel belongs to the region, and inside if all pixels do.
        """
        rows, columns = ((top, bottom), (left, right))
        (t, l), (b, r) = (  # noqa: E741
            (rows[0] // _CELL_PX, columns[0] // _CELL_PX),
            (-(-rows[1] // _CELL_PX), -(-columns[1] // _CELL_PX)),
        )
        n_cells = (b - t) * (r - l)
        met, filled = (s[b, r] - s[t, r] - s[b, l] + s[t, l] for s in self._cell_counts)
        return met == 0, filled == n_cells

    @cached_property
    def _cell_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Summed-area tables of the grid cells that overlap the region, and of those inside it.

        Entry (i, j) is the number of such cells in the first i rows and j columns of cells.
        """
        stride = self.size[0] + 1
        n_columns, n_rows = (-(-length // _CELL_PX) for length in self.size)
        row = self.starts // stride // _CELL_PX
        begin, end = self.starts % stride, self.ends % stride
        met = _count_covering_runs(row, begin // _CELL_PX, -(-end // _CELL_PX), (n_rows, n_columns))
        # The last cell may be narrower.
        last = np.where(end == self.size[0], n_columns, end // _CELL_PX)
        first = np.minimum(-(-begin // _CELL_PX), last)
        filled = _count_covering_runs(row, first, last, (n_rows, n_columns))
        height = np.full(n_rows, _CELL_PX)
        height[-1:] = self.size[1] - (n_rows - 1) * _CELL_PX
        return _cumulative_counts(met > 0), _cumulative_counts(filled == height[:, None])

    def _count_before(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of pixels of the region that precede each position."""
        n_begun = np.searchsorted(self.starts, positions, side="right")
        remaining = self.ends[np.maximum(n_begun - 1, 0)] - positions
        counts: NDArray[np.int64] = self._n_pixels_before[n_begun] - np.where(
            n_begun > 0, np.maximum(remaining, 0), 0
        )
        return counts


def _count_covering_runs(
    row: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    shape: tuple[int, int],
) -> NDArray[np.int64]:
    """Return the number of runs that cover each cell of a grid of this shape.

    Parameters
    ----------
    row : (n,), row of cells of each run
    first : (n,), column of the first cell that each run covers
    last : (n,), column after the last cell that each run covers
    shape : (number of rows, number of columns) of the grid
    """
    changes = np.zeros((shape[0], shape[1] + 1), np.int64)
    np.add.at(changes, (row, first), 1)
    np.add.at(changes, (row, last), -1)
    counts: NDArray[np.int64] = np.cumsum(changes, axis=1)[:, :-1]
    return counts


def _cumulative_counts(cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the summed-area table of cells, with a first row and column of zeros."""
    return np.pad(np.cumsum(np.cumsum(cells, axis=0, dtype=np.int64), axis=1), ((1, 0), (1, 0)))


def _pixel_ranges(
    begin: NDArray[np.float64], side: float, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the (first, end) pixels of the intervals [begin, begin + side) along an axis.

    The limits of an interval are rounded to whole pixels, as in `RegionMask`, and clipped to the
    image, [0, length]. Each range contains at least one pixel.
    """
    first, last = (np.clip(np.rint(begin + d), 0, length).astype(np.int64) for d in (0, side))
    first = np.minimum(first, length - 1)
    return first, np.maximum(last, first + 1)


def _enclosed_runs(ring: Ring, size: tuple[int, int]) -> NDArray[np.int64]:
    """Return the pixels that a ring encloses, as runs (2, n) of starts and ends.

    A pixel is enclosed if the winding number of the ring around its centre is not 0.
    """
    (x0, y0), (x1, y1) = ring.T, np.roll(ring, -1, axis=0).T
    width, height = size
    # Rows of pixels whose centre line an edge crosses; of two edges that meet there, one counts.
    low, high = np.ceil(np.minimum(y0, y1) - 0.5), np.ceil(np.maximum(y0, y1) - 0.5)
    low, high = (np.clip(each, 0, height).astype(np.int64) for each in (low, high))
    n_rows = high - low
    edge = np.repeat(np.arange(len(ring)), n_rows)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows) + low[edge]
    slope = np.divide(x1 - x0, y1 - y0, out=np.zeros(len(ring)), where=y1 != y0)
    x = x0[edge] + (row + 0.5 - y0[edge]) * slope[edge]
    column = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    winding = np.where(y1 > y0, 1, -1)[edge]
    starts, ends = _find_inside_runs(row * (width + 1) + column, winding, nonzero=True)
    return np.stack([starts, ends])


def _find_inside_runs(
    positions: NDArray[np.int64], changes: NDArray[np.int64], *, nonzero: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of the runs in which the cumulative sum of `changes` is positive.

    `positions` are the positions of the changes. If `nonzero`, return the runs in which the sum is
    not 0.
    """
    unique_positions, inverse = np.unique(positions, return_inverse=True)
    total = np.cumsum(np.bincount(inverse, weights=changes, minlength=len(unique_positions)))
    inside = (np.abs(total) if nonzero else total) > 0.5
    turns = np.flatnonzero(np.diff(np.concatenate([[False], inside])))
    return unique_positions[turns[::2]], unique_positions[turns[1::2]]
