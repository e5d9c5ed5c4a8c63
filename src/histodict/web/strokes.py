"""Geometry of what users draw on an image: polygons in level-0 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from ..images.annotations.outlines import Ring, find_self_intersections, is_tangled

Polygon = list[Ring]  # the outer ring, then its holes, each (n, 2) of x and y and not closed
Size = tuple[int, int]
Box = tuple[NDArray[np.float64], NDArray[np.float64]]  # least and greatest x and y

_DIGITS = 1  # of corners, in pixels
_GRID = 10.0**-_DIGITS
_MIN_AREA = 1.0  # of a piece that is left over
_PATH_TOLERANCE, _BORDER_TOLERANCE = 0.02, 0.01  # of the radius of a brush
_PIECE = 50  # sides of a path that are buffered together
MAX_INTERSECTIONS = 10_000  # of the rings of a shape or a file; GEOS resolves them in about 1 s


def buffer_path(path: NDArray[np.float64], radius: float, size: Size) -> list[Polygon]:
    """Return what a round brush covers along a path (n, 2), inside an image of this size.

    The path is buffered in pieces, which are united: a single buffer of a path that often crosses
    itself takes minutes.
    """
    line = shapely.LineString(path if len(path) > 1 else np.repeat(path, 2, axis=0))
    corners = shapely.get_coordinates(shapely.simplify(line, _PATH_TOLERANCE * radius))
    starts = range(0, len(corners) - 1, _PIECE)
    pieces = [shapely.LineString(corners[start : start + _PIECE + 1]) for start in starts]
    painted = shapely.union_all(shapely.buffer(pieces, radius))
    return _polygons_of(_inside(shapely.simplify(painted, _BORDER_TOLERANCE * radius), size))


def polygonize(rings: Sequence[Ring], size: Size) -> list[Polygon]:
    """Return what the first ring encloses, also where it crosses itself, less the other rings.

    A valid polygon keeps its corners. The list is empty if there is no area on the image.
    """
    outer, *holes = (_tidied(ring) for ring in rings)
    if len(outer) < 3:
        return []
    polygon = [outer, *(hole for hole in holes if len(hole) > 2)]
    if sum(map(count_intersections, polygon)) > MAX_INTERSECTIONS:
        raise ValueError("the line crosses itself too often: draw a simpler one")
    low, high = box_of([polygon])
    drawn = shapely.Polygon(outer, polygon[1:])
    if (low >= 0).all() and (high <= size).all() and drawn.is_valid:
        return [polygon]
    return _polygons_of(_inside(_valid(drawn), size))


def count_intersections(ring: Ring) -> float:
    """Return how often a ring crosses itself, counted up to more than MAX_INTERSECTIONS."""
    if is_tangled(ring):
        return np.inf
    return len(find_self_intersections(ring, MAX_INTERSECTIONS + 1))


def subtract(polygons: Sequence[Polygon], taken: Sequence[Polygon]) -> list[Polygon] | None:
    """Subtract polygons from others; None if they do not overlap."""
    near = [_meet(box_of([polygon]), box_of(taken)) for polygon in polygons]
    if not any(near):
        return None
    cutter = shapely.union_all([_valid(shapely.Polygon(outer, holes)) for outer, *holes in taken])
    kept, cut = list[Polygon](), list[Polygon]()
    for polygon, is_near in zip(polygons, near, strict=True):
        before = _valid(shapely.Polygon(polygon[0], polygon[1:])) if is_near else None
        if before is not None and shapely.relate_pattern(before, cutter, "T********"):
            cut += _polygons_of(shapely.difference(before, cutter, grid_size=_GRID))
        else:
            kept.append(polygon)
    return [*kept, *cut] if len(kept) < len(polygons) else None


def box_of(polygons: Sequence[Polygon]) -> Box:
    """Return the corners around polygons, the least and the greatest x and y."""
    outer = np.concatenate([rings[0] for rings in polygons])
    return outer.min(axis=0), outer.max(axis=0)


def area(polygons: Sequence[Polygon]) -> float:
    """Return the area of polygons that do not cross themselves, in level-0 pixels."""
    return float(sum(shapely.Polygon(outer, holes).area for outer, *holes in polygons))


def _meet(one: Box, other: Box) -> bool:
    (low, high), (low_other, high_other) = one, other
    return bool((low < high_other).all() and (low_other < high).all())


def _tidied(ring: Ring) -> Ring:
    """Round to the grid, and drop points that repeat the one before."""
    ring = np.asarray(np.round(ring, _DIGITS), np.float64)
    return ring[(ring != np.roll(ring, 1, axis=0)).any(axis=1)]


def _valid(polygon: Any) -> Any:
    """Return a valid geometry of all that is enclosed, by the non-zero winding rule."""
    if polygon.is_valid:
        return polygon
    return shapely.make_valid(polygon, method="structure", keep_collapsed=False)


def _inside(geometry: Any, size: Size) -> Any:
    return shapely.intersection(geometry, shapely.box(0, 0, *size), grid_size=_GRID)


def _polygons_of(geometry: Any) -> list[Polygon]:
    """Return the polygons of a geometry; outer rings have a positive area, as RFC 7946 asks."""
    parts = shapely.orient_polygons(shapely.get_parts(geometry))
    return [
        [shapely.get_coordinates(ring)[:-1] for ring in (part.exterior, *part.interiors)]
        for part in parts
        if part.geom_type == "Polygon" and part.area >= _MIN_AREA
    ]
