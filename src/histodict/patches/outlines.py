"""Connected cells of a grid, and their borders as polygons.

Corners are (column, row) of grid cells, whole numbers; where a cell lies in the image is the grid's
affair.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

_TOUCHING = np.ones((3, 3), int)

Ints = NDArray[np.int32]
Polygon = list[Ints]  # the outer ring, then its holes, each (n_corners, 2) and closed


def label_regions(positive: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.int64]]:
    """The number of each patch's region, from 1 (0: none), and the regions' numbers of patches."""
    places, n_regions = ndimage.label(positive, structure=_TOUCHING)
    return places, np.bincount(places.ravel(), minlength=n_regions + 1)[1:]


class RegionBorders:
    """The borders of all regions of a map, walked once.

    A region's cells that touch by a corner alone belong to different polygons. With x to the right
    and y down an outer ring has a positive area, a hole a negative one, as RFC 7946 asks; no ring
    meets itself, and two of a polygon share single corners at most.
    """

    def __init__(self, regions: Ints) -> None:
        """`regions`: (n_rows, n_columns), the number of each cell's region; 0: none."""
        parts, n_parts = ndimage.label(regions)
        region_of_part = np.zeros(n_parts + 1, np.int32)
        region_of_part[parts] = regions
        padded = np.pad(parts, 1)
        del parts  # of a large slide every such array counts
        sides = [_sides_above(np.rot90(padded, turns)) for turns in range(4)]
        del padded
        corners = np.concatenate([side.corners_turned_back(n) for n, side in enumerate(sides)])
        # From the left: so the first ring that is met of a part is the outer one.
        walk, ends = _closed_cycles(_followers(sides), np.lexsort(corners.T[::-1]))
        begins = np.append(0, ends)[:-1]
        part_of_ring = np.concatenate([side.parts for side in sides])[walk[begins]]
        del sides
        self._corners = corners[walk]
        region_of_ring = region_of_part[part_of_ring]
        order = np.lexsort((part_of_ring, region_of_ring))
        self._rings = np.stack([part_of_ring, begins, ends], axis=1)[order]
        n_rings = np.bincount(region_of_ring, minlength=int(regions.max(initial=0)) + 1)
        self._n_before = np.append(0, np.cumsum(n_rings))

    def polygons(self, region: int) -> list[Polygon]:
        """Of a region, by its number."""
        first, last = self._n_before[region : region + 2]
        found: dict[int, Polygon] = {}
        for part, begin, end in self._rings[first:last].tolist():
            found.setdefault(part, []).append(self._corners[begin:end])
        return list(found.values())

    def rings(self, step: float, first: tuple[float, float]) -> list[list[float]]:
        """All rings as x, y, x, y, …, cells `step` wide from the corner `first` on."""
        placed = self._corners * step + np.array(first)
        whole = placed.astype(np.int64)
        is_whole = np.array_equal(whole, placed)  # which is shorter to write down
        flat: list[Any] = (whole if is_whole else placed).ravel().tolist()
        return [flat[2 * begin : 2 * end] for _, begin, end in self._rings.tolist()]


class _Sides(NamedTuple):
    """Straight runs of cell sides with nothing of the cells' part above them, walked to the right.

    shape : of the grid, which was turned to the left so that all borders lie above once
    first, last : places of a run's cells in the flat grid, in its order
    parts : of the cells
    is_left_turn : whether the walk goes on up, along the cell beyond that lies above the last one
    """

    shape: tuple[int, int]
    first: Ints
    last: Ints
    parts: Ints
    is_left_turn: NDArray[np.bool_]

    def corners_turned_back(self, turns: int) -> Ints:
        """(x, y) where the runs begin, in the grid as it was before it was padded and turned."""
        y, x = np.divmod(self.first, self.shape[1])
        height, width = self.shape
        for _ in range(turns):
            x, y = height - y, x
            height, width = width, height
        return np.stack([x, y], axis=1) - np.int32(1)


def _sides_above(grid: Ints) -> _Sides:
    above = np.zeros(grid.shape, bool)
    above[1:] = (grid[1:] != grid[:-1]) & (grid[1:] > 0)
    goes_on = above[:, 1:] & above[:, :-1] & (grid[:, 1:] == grid[:, :-1])
    begins, ends = above.copy(), above
    begins[:, 1:] &= ~goes_on
    ends[:, :-1] &= ~goes_on
    first, last = (np.flatnonzero(each).astype(np.int32) for each in (begins, ends))
    y, x = np.divmod(last, grid.shape[1])
    parts = grid[y, x]
    return _Sides(grid.shape, first, last, parts, grid[y - 1, (x + 1) % grid.shape[1]] == parts)


def _followers(sides: list[_Sides]) -> Ints:
    """The number of the run that follows each, as they are counted through all four turns."""
    counts = np.cumsum([0, *(len(side.first) for side in sides)])
    found = []
    for turns, side in enumerate(sides):
        height, width = side.shape
        y, x = np.divmod(side.last, width)
        right, left = sides[(turns + 1) % 4], sides[(turns - 1) % 4]
        # Down along the same cell; or up along the next one above, which shares a corner with it.
        down = np.searchsorted(right.first, (width - 1 - x) * right.shape[1] + y)
        up = np.searchsorted(left.first, (x + 1) * left.shape[1] + height - y)
        down += counts[(turns + 1) % 4]
        up += counts[(turns - 1) % 4]
        found.append(np.where(side.is_left_turn, up, down).astype(np.int32))
    return np.concatenate(found)


def _closed_cycles(follower: Ints, order: NDArray[np.int64]) -> tuple[Ints, NDArray[np.int64]]:
    """All numbers, cycle after cycle, and where each ends: with the number it began with, again.

    They begin with the number that comes first in the order, which is also theirs.
    """
    following, is_left = follower.data, bytearray(b"\1") * len(follower)
    walk, ends = array("i"), array("q")
    for start in order.data:
        here = start
        while is_left[here]:
            is_left[here] = 0
            walk.append(here)
            here = following[here]
        if not ends or ends[-1] != len(walk):
            walk.append(start)
            ends.append(len(walk))
    return np.frombuffer(walk, np.int32), np.frombuffer(ends, np.int64)
