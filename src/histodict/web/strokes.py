"""What a hand paints on an image, as polygons in level-0 pixels.

A stroke of the brush is all that lies within its radius of its path. It is painted on a canvas, a
mask whose cells are about a tenth of the radius wide, and the border of what is painted is walked.
What is painted over, or rubbed out, is taken away on such a canvas, too: nobody can tell by eye.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..images.annotations.crossings import first_crossing
from ..images.annotations.outlines import Outline, Ring
from ..images.annotations.runs import PixelRuns
from ..patches.outlines import Borders

Polygon = list[Ring]  # the outer ring, then its holes, each (n, 2) of x and y and not closed
Size = tuple[int, int]
Box = tuple[NDArray[np.float64], NDArray[np.float64]]  # least and greatest x and y

_CELLS_PER_RADIUS = 10
_MOST_CELLS = 2048  # along a side of a canvas
_CELLS_OF_CROSSED = 500  # along the longer side of a line that crosses itself
_DIGITS = 1  # behind the point, of a pixel


@dataclass(frozen=True)
class Canvas:
    """A grid of cells over a part of an image: `step` level-0 pixels wide, from (left, top) on."""

    left: float
    top: float
    step: float
    n_columns: int
    n_rows: int

    @classmethod
    def over(cls, low: NDArray[np.float64], high: NDArray[np.float64], step: float) -> Canvas:
        """Of a box, in cells of this size at least; with a cell of margin all around."""
        step = max(1.0, step, float((high - low).max()) / _MOST_CELLS)
        left, top = np.floor(low / step) * step - step
        n_columns, n_rows = (np.ceil((high - (left, top)) / step) + 1).astype(int).tolist()
        return cls(float(left), float(top), step, n_columns, n_rows)

    def inside(self, polygons: Sequence[Polygon]) -> NDArray[np.bool_]:
        """The cells whose middle lies in one of the polygons: (n_rows, n_columns)."""
        first = np.array([self.left, self.top])
        placed = [Outline("", tuple((r - first) / self.step for r in rings)) for rings in polygons]
        runs = PixelRuns.of(placed, (self.n_columns, self.n_rows))
        changes = np.zeros(self.n_rows * (self.n_columns + 1) + 1, np.int8)
        changes[runs.starts] += 1
        changes[runs.ends] -= 1
        cells = np.cumsum(changes[:-1], dtype=np.int8).reshape(self.n_rows, -1)
        return cells[:, :-1] > 0

    def along(self, path: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
        """The cells whose middle lies within the radius of a path (n, 2)."""
        painted = np.zeros((self.n_rows, self.n_columns), bool)
        places = (path - (self.left, self.top)) / self.step - 0.5
        reach = radius / self.step
        for start, end in zip(places, [*places[1:], places[-1]], strict=True):
            low = np.maximum(np.floor(np.minimum(start, end) - reach), 0).astype(int)
            high = np.ceil(np.maximum(start, end) + reach).astype(int) + 1
            part = painted[low[1] : high[1], low[0] : high[0]]
            part |= _near(start - low, end - low, reach, part.shape)
        return painted

    def polygons(self, painted: NDArray[np.bool_], size: Size) -> list[Polygon]:
        """The borders of painted cells, their corners rounded off; inside of the image."""
        found = Borders(painted.astype(np.int32)).polygons(1) if painted.any() else []
        return [[self._placed(ring, size) for ring in polygon] for polygon in found]

    def _placed(self, ring: NDArray[np.int32], size: Size) -> Ring:
        corners = _rounded_off(ring[:-1].astype(np.float64)) * self.step + (self.left, self.top)
        return np.asarray(np.round(np.clip(corners, 0, size), _DIGITS), np.float64)


def _near(
    start: NDArray[np.float64], end: NDArray[np.float64], reach: float, shape: tuple[int, ...]
) -> NDArray[np.bool_]:
    """The cells of a small canvas that are within reach of a line from start to end."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    along = end - start
    length = float(along @ along)
    share = 0.0
    if length:
        share = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / length, 0, 1)
    near: NDArray[np.bool_] = (
        np.hypot(x - start[0] - share * along[0], y - start[1] - share * along[1]) <= reach
    )
    return near


def _rounded_off(corners: Ring) -> Ring:
    """A ring of right angles with every corner cut half a cell from it, so that stairs become
    slopes; two cuts that meet in the middle of a side are one point.
    """
    sides = np.roll(corners, -1, axis=0) - corners
    lengths = np.abs(sides).sum(axis=1, keepdims=True)
    cut = np.minimum(0.5, lengths / 2) / lengths * sides
    points = np.stack([corners + cut, corners + sides - cut], axis=1).reshape(-1, 2)
    is_new = (points != np.roll(points, 1, axis=0)).any(axis=1)
    return points[is_new]


def brushed(path: NDArray[np.float64], radius: float, size: Size) -> list[Polygon]:
    """What a round brush covers along a path (n, 2), of an image of this size."""
    canvas = Canvas.over(path.min(axis=0) - radius, path.max(axis=0) + radius, step_for(radius))
    painted = canvas.along(path, radius)
    return [p for p in canvas.polygons(painted, size) if area([p]) > 0]


def enclosed(rings: Sequence[Ring], size: Size) -> list[Polygon]:
    """All that a line (n, 2) encloses, also where it crosses itself, less its holes; nothing where
    that has no area.
    """
    outer, *holes = (_tidied(ring, size) for ring in rings)
    if len(outer) < 3 or not np.ptp(outer, axis=0).all():
        return []
    polygon = [outer, *(hole for hole in holes if len(hole) > 2)]
    if all(first_crossing(ring) is None for ring in polygon):
        return [polygon] if area([polygon]) > 0 else []
    low, high = box_of([polygon])
    canvas = Canvas.over(low, high, float((high - low).max()) / _CELLS_OF_CROSSED)
    return canvas.polygons(canvas.inside([polygon]), size)


def fill_cost(ring: Ring) -> int:
    """Return the cost of filling a self-intersecting ring: edges, once per pixel row."""
    step = max(1.0, float(np.ptp(ring, axis=0).max()) / _CELLS_OF_CROSSED)
    heights = np.abs(np.diff(ring[:, 1], append=ring[:1, 1]))
    return int((heights / step).sum()) + len(ring)


def _tidied(ring: Ring, size: Size) -> Ring:
    """Inside of the image, without points that are there twice in a row."""
    ring = np.asarray(np.round(np.clip(ring, 0, size), _DIGITS), np.float64)
    return ring[(ring != np.roll(ring, 1, axis=0)).any(axis=1)]


def without(
    polygons: Sequence[Polygon], taken: Sequence[Polygon], step: float, size: Size
) -> list[Polygon] | None:
    """What is left of polygons where others are taken away; None: they do not touch, or the rest
    is all of it.
    """
    meets = [_meet(box_of([polygon]), box_of(taken)) for polygon in polygons]
    near = [polygon for polygon, is_near in zip(polygons, meets, strict=True) if is_near]
    if not near:
        return None
    # A polygon that is thin beside the brush would fall between the cells of its canvas.
    thinnest = min(float(np.ptp(outer, axis=0).min()) for outer, *_ in near)
    canvas = Canvas.over(*box_of(near), min(step, max(1.0, thinnest / _CELLS_PER_RADIUS)))
    before = canvas.inside(near)
    left = before & ~canvas.inside(taken)
    if (left == before).all():
        return None
    far = [polygon for polygon, is_near in zip(polygons, meets, strict=True) if not is_near]
    return [*far, *canvas.polygons(left, size)]


def _meet(one: Box, other: Box) -> bool:
    (low, high), (low_other, high_other) = one, other
    return bool((low < high_other).all() and (low_other < high).all())


def step_for(radius: float) -> float:
    """Of a canvas that shows a brush of this radius round."""
    return radius / _CELLS_PER_RADIUS


def box_of(polygons: Sequence[Polygon]) -> Box:
    """The corners around polygons, the least and the largest x and y."""
    outer = np.concatenate([rings[0] for rings in polygons])
    return outer.min(axis=0), outer.max(axis=0)


def area(polygons: Sequence[Polygon]) -> float:
    """In level-0 pixels, of polygons that do not cross themselves."""
    total = 0.0
    for outer, *holes in polygons:
        total += abs(_signed(outer)) - sum(abs(_signed(hole)) for hole in holes)
    return total


def _signed(ring: Ring) -> float:
    x, y = ring.T
    return math.fsum((x * np.roll(y, -1) - np.roll(x, -1) * y).tolist()) / 2
