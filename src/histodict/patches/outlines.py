"""Connected cells of a grid, and their borders as polygons.

Corners are (column, row) of grid cells, whole numbers; where a cell lies in the image is the grid's
affair.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

_TOUCHING = np.ones((3, 3), int)

Corner = tuple[int, int]


def label_regions(positive: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The number of each patch's region, from 1 (0: none), and the regions' numbers of patches."""
    places, n_regions = ndimage.label(positive, structure=_TOUCHING)
    return places, np.bincount(places.ravel(), minlength=n_regions + 1)[1:]


def polygons(region: NDArray[np.bool_]) -> list[list[list[Corner]]]:
    """A region's borders as polygons: per polygon its outer ring, then its holes.

    Rings are closed lists of (column, row) corners of grid cells and do not touch themselves.
    Patches that touch by a corner alone belong to different polygons.
    """
    places, n_parts = ndimage.label(region)
    return [_rings(places == number) for number in range(1, n_parts + 1)]


def _rings(part: NDArray[np.bool_]) -> list[list[Corner]]:
    edges = _border_edges(part)
    rings: list[list[Corner]] = []
    while edges:
        start = min(edges)
        ring, here, heading = [start], start, (1, 0)
        while here != start or len(ring) == 1:
            here, heading = _follow(edges, here, heading)
            ring.append(here)
        rings.extend(map(_without_straight_corners, _apart_at_repeats(ring)))
    return sorted(rings, key=_area, reverse=True)


def _area(ring: list[Corner]) -> float:
    """Positive for the outer ring, which alone has the part on its inside; negative for holes."""
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring)) / 2


def _border_edges(part: NDArray[np.bool_]) -> dict[Corner, list[Corner]]:
    """Cell sides with the part on their right hand, y downwards: from a corner to the next ones."""
    padded = np.pad(part, 1)
    edges: dict[Corner, list[Corner]] = {}
    for neighbour, start, end in (
        ((-1, 0), (0, 0), (1, 0)),  # nothing above: along the top, to the right
        ((0, 1), (1, 0), (1, 1)),  # nothing to the right: down
        ((1, 0), (1, 1), (0, 1)),  # nothing below: to the left
        ((0, -1), (0, 1), (0, 0)),  # nothing to the left: up
    ):
        beside = np.roll(padded, (-neighbour[0], -neighbour[1]), axis=(0, 1))
        for row, column in (np.argwhere(padded & ~beside) - 1).tolist():
            corner = column + start[0], row + start[1]
            edges.setdefault(corner, []).append((column + end[0], row + end[1]))
    return edges


def _follow(
    edges: dict[Corner, list[Corner]], here: Corner, heading: Corner
) -> tuple[Corner, Corner]:
    """The next corner and heading; a right turn, where there is a choice, stays with the cell."""
    choices = edges[here]
    right = here[0] - heading[1], here[1] + heading[0]
    end = right if right in choices else choices[0]
    choices.remove(end)
    if not choices:
        del edges[here]
    return end, (end[0] - here[0], end[1] - here[1])


def _apart_at_repeats(ring: list[Corner]) -> list[list[Corner]]:
    """A closed walk as rings that visit no corner twice."""
    rings: list[list[Corner]] = []
    walk: list[Corner] = []
    for corner in ring:
        if corner in walk:
            begin = walk.index(corner)
            rings.append(walk[begin:])
            del walk[begin:]
        walk.append(corner)
    return rings


def _without_straight_corners(ring: list[Corner]) -> list[Corner]:
    """A closed ring of the corners at which it turns."""
    kept = []
    for place, corner in enumerate(ring):
        before, after = ring[place - 1], ring[(place + 1) % len(ring)]
        if (before[0] == after[0]) == (before[1] == after[1]):
            kept.append(corner)
    return [*kept, kept[0]]
