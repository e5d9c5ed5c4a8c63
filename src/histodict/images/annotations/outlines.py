"""What a file of annotations holds: polygons with holes, by class name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...execution.texts import pluralize, shorten
from ..errors import ImageError

UNCLASSIFIED = "unclassified"
IGNORED = "Ignore*"  # the class, in QuPath, of what is to be left alone
# Where coordinates begin on a slide whose pixels do not begin at its corner (MRXS): at the first
# pixel, as in QuPath, or at the corner, as in OpenSlide and all that leave its coordinates alone.
FIRST_PIXEL, SLIDE_CORNER = "first pixel", "slide's corner"

_MAX_SIMPLE_CORNERS = 10_000  # of rings that are searched without a look at their tangles
_WINDOW = 100  # sides
_MAX_NEIGHBOURS = 200  # mean number of windows that meet a window, itself included
_QUERIED_SIDES, _COMPARED_PAIRS = 50, 20_000  # at a time
_MAX_PAIRS = 2_000_000  # compared in total

Ring = NDArray[np.float64]


@dataclass(frozen=True)
class AnnotationPolygon:
    """A polygon (`rings`: the outer one, then holes, each (n, 2) of x and y) and its class.

    cuts : it takes away from the other outlines of its class, as ImageScope's negative regions do
    """

    name: str
    rings: tuple[Ring, ...]
    is_hole: bool = False


@dataclass
class Annotations:
    """The outlines of a file, in its own coordinates.

    origin : where these begin, if they are pixels; FIRST_PIXEL or SLIDE_CORNER
    mpp : µm per pixel of the image they were drawn on, where the file says so
    left_out : what is there and has no area, or is no annotation, with how many there are
    """

    path: Path
    origin: str
    outlines: list[AnnotationPolygon] = field(default_factory=list)
    mpp: float | None = None
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, name: str | None, rings: Iterable[Any], kind: str, *, cuts: bool = False) -> None:
        """`rings` : lists of points, each of two numbers or more; `kind` : a word for messages."""
        number = len(self.outlines) + 1
        found = [self._ring(ring, f"outline {number}") for ring in rings]
        if not found or len(found[0]) < 3 or not np.ptp(found[0], axis=0).all():
            self.skipped[f"{kind} without an area"] += 1
            return
        outer, *holes = found
        holes = [hole for hole in holes if len(hole) >= 3]
        self.outlines.append(AnnotationPolygon(name or UNCLASSIFIED, (outer, *holes), cuts))

    def _ring(self, points: Any, where: str) -> Ring:
        """Without the last point where that is the first again."""
        try:
            ring = np.array([[float(value) for value in point[:2]] for point in points])
        except (TypeError, ValueError, KeyError, IndexError, OverflowError):
            ring = np.full((1, 2), np.nan)
        if not ring.size:
            return np.empty((0, 2))
        if ring.ndim != 2 or ring.shape[1] != 2 or not np.isfinite(ring).all():
            raise ImageError(f"{self.path}: {where} has points that are not two numbers each")
        return ring[:-1] if len(ring) > 1 and (ring[0] == ring[-1]).all() else ring

    @property
    def names(self) -> Counter[str]:
        """How many outlines each class has."""
        return Counter(outline.name for outline in self.outlines if not outline.is_hole)

    def describe(self) -> str:
        """What is in it, for messages."""
        named = [f"{shorten(repr(name))} ({n})" for name, n in sorted(self.names.items())]
        return ", ".join([*named, *(f"{n} {kind}" for kind, n in self.skipped.items())])

    def of(self, names: Iterable[str] = ()) -> list[AnnotationPolygon]:
        """Those of these classes, or all; refused where there are none."""
        wanted = set(names) or set(self.names)
        found = [outline for outline in self.outlines if outline.name in wanted]
        if any(not outline.is_hole for outline in found):
            return found
        if not self.outlines:
            what = f": there is {self.describe()}" if self.skipped else ""
            raise ImageError(f"{self.path}: holds no outline with an area{what}")
        asked = " or ".join(repr(name) for name in sorted(wanted))
        raise ImageError(
            f"{self.path}: no outline is called {asked}; there are {self.describe()}. Names are "
            "told "
            "apart by capitals, too"
        )

    @cached_property
    def crossings(self) -> list[tuple[AnnotationPolygon, Ring, tuple[float, float]]]:
        """Return rings that cross themselves, with their outline and one crossing."""
        found = [(o, r, find_self_intersections(r)) for o in self.outlines for r in o.rings]
        return [(outline, ring, places[0]) for outline, ring, places in found if places]

    def notes(self) -> list[str]:
        """What there is to say of the file, though it can be used."""
        lines = []
        if self.skipped and self.outlines:
            what = ", ".join(f"{n} {kind}" for kind, n in self.skipped.items())
            lines.append(f"{self.path}: left out: {what}")
        if self.crossings:
            (outline, _, (x, y)), n = self.crossings[0], len(self.crossings)
            name = outline.name
            lines.append(
                f"{self.path}: {pluralize(n, 'outline')} crossing itself, {name!r} at "
                f"({x:.0f}, {y:.0f}) for one: all that it encloses is taken"
            )
        return lines


def find_self_intersections(ring: Ring, limit: int = 1) -> list[tuple[float, float]]:
    """Find points at which two sides of a ring cross; sides that only touch do not.

    Parameters
    ----------
    ring : array of shape (n, 2), not closed
    limit : int
        The search ends as soon as so many points are found; there may be a few more.
    """
    import shapely

    if not is_tangled(ring) and shapely.is_simple(shapely.linearrings(ring)):
        return []
    sides = shapely.linestrings(np.stack([ring, np.roll(ring, -1, axis=0)], axis=1))
    tree, found, n_compared = shapely.STRtree(sides), list[tuple[float, float]](), 0
    for start in range(0, len(sides), _QUERIED_SIDES):
        first, second = tree.query(sides[start : start + _QUERIED_SIDES])
        pairs = np.stack([first + start, second])[:, second > first + start]
        for begin in range(0, pairs.shape[1], _COMPARED_PAIRS):
            one, other = sides[pairs[:, begin : begin + _COMPARED_PAIRS]]
            crosses = shapely.crosses(one, other)
            points = shapely.intersection(one[crosses], other[crosses])
            found += map(tuple, shapely.get_coordinates(points).tolist())
            n_compared += len(one)
            if len(found) >= limit or n_compared > _MAX_PAIRS:
                return found
    return found


def is_tangled(ring: Ring) -> bool:
    """Return whether so many sides of a long ring may cross that GEOS would take minutes."""
    import shapely

    if len(ring) <= _MAX_SIMPLE_CORNERS:
        return False
    starts = np.arange(0, len(ring), _WINDOW)
    ends = np.append(starts[1:], 0)  # the last corner of a window's last side
    low = np.minimum(np.minimum.reduceat(ring, starts), ring[ends])
    high = np.maximum(np.maximum.reduceat(ring, starts), ring[ends])
    windows = shapely.box(*low.T, *high.T)
    n_pairs = shapely.STRtree(windows).query(windows).shape[1]
    return bool(n_pairs > _MAX_NEIGHBOURS * len(windows))
