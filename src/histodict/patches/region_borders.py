"""Connected regions of patches, and their borders as polygons.

Corners of polygons are integer (column, row) of grid cells, which the grid converts to image
coordinates.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

_TOUCHING = np.ones((3, 3), int)
Ints = NDArray[np.int32]
Polygon = list[Ints]  # outer ring, then holes, each (n_corners, 2) and closed


def label_regions(positive: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.int64]]:
    """Label connected patches: return the region number of each patch, and the size of each region.

    Regions are numbered from 1; 0 marks patches outside of all regions. Sizes are in patches.
    """
    regions, n_regions = ndimage.label(positive, structure=_TOUCHING)
    return regions, np.bincount(regions.ravel(), minlength=n_regions + 1)[1:]


class RegionBorders:
    """Borders of all regions of a map, traced once.

    Cells of a region that touch only at a corner belong to different polygons. With x to the right
    and y down, outer rings have a positive area and holes a negative one, as RFC 7946 asks. No ring
    touches itself, and two rings of a polygon share single corners at most.
    """

    def __init__(self, regions: Ints) -> None:
        """Trace the borders of `regions` (n_rows, n_columns), region numbers with 0 for none."""
        parts, n_parts = ndimage.label(regions)
        region_of_part = np.zeros(n_parts + 1, np.int32)
        region_of_part[parts] = regions
        padded = np.pad(parts, 1)
        del parts  # such arrays are large for large slides
        sides = [_sides_above(np.rot90(padded, turns)) for turns in range(4)]
        del padded
        corners = np.concatenate([side.corners_turned_back(n) for n, side in enumerate(sides)])
        # Sorted from the left, so that the first ring of each part is the outer one.
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
        """Return the polygons of a region, given by its number."""
        first, last = self._n_before[region : region + 2]
        rings_of_part: dict[int, Polygon] = {}
        for part, begin, end in self._rings[first:last].tolist():
            rings_of_part.setdefault(part, []).append(self._corners[begin:end])
        return list(rings_of_part.values())

    def rings(self, step: float, first: tuple[float, float]) -> list[list[float]]:
        """Return the rings of all regions, each as a flat list of coordinates x, y, x, y, ….

        Parameters
        ----------
        step : side of a grid cell
        first : position (x, y) of the upper left corner of the grid
        """
        corners = self._corners * step + np.array(first)
        integers = corners.astype(np.int64)
        is_whole = np.array_equal(integers, corners)  # shorter as text
        flat: list[Any] = (integers if is_whole else corners).ravel().tolist()
        return [flat[2 * begin : 2 * end] for _, begin, end in self._rings.tolist()]


class _Sides(NamedTuple):
    """Straight runs of cell sides with another part above them, traversed to the right.

    Attributes
    ----------
    shape : shape of the grid, which is rotated so that every border lies above once
    first, last : flat indices of the first and last cells of the runs
    parts : part of each run's cells
    is_left_turn : whether the border continues upwards, along the next cell
    """

    shape: tuple[int, int]
    first: Ints
    last: Ints
    parts: Ints
    is_left_turn: NDArray[np.bool_]

    def corners_turned_back(self, turns: int) -> Ints:
        """Return (x, y) of the start of the runs in the grid before padding and rotation."""
        y, x = np.divmod(self.first, self.shape[1])
        height, width = self.shape
        for _ in range(turns):
            x, y = height - y, x
            height, width = width, height
        return np.stack([x, y], axis=1) - np.int32(1)


def _sides_above(grid: Ints) -> _Sides:
    above = np.zeros(grid.shape, bool)
    above[1:] = (grid[1:] != grid[:-1]) & (grid[1:] > 0)
    continues = above[:, 1:] & above[:, :-1] & (grid[:, 1:] == grid[:, :-1])
    begins, ends = above.copy(), above
    begins[:, 1:] &= ~continues
    ends[:, :-1] &= ~continues
    first, last = (np.flatnonzero(edges).astype(np.int32) for edges in (begins, ends))
    y, x = np.divmod(last, grid.shape[1])
    parts = grid[y, x]
    return _Sides(grid.shape, first, last, parts, grid[y - 1, (x + 1) % grid.shape[1]] == parts)


def _followers(sides: list[_Sides]) -> Ints:
    """Return the number of the run that follows each run, counted through all four rotations."""
    counts = np.cumsum([0, *(len(side.first) for side in sides)])
    followers = []
    for turns, side in enumerate(sides):
        height, width = side.shape
        y, x = np.divmod(side.last, width)
        right, left = sides[(turns + 1) % 4], sides[(turns - 1) % 4]
        # Down along the same cell, or up along the next cell above, which shares a corner.
        down = np.searchsorted(right.first, (width - 1 - x) * right.shape[1] + y)
        up = np.searchsorted(left.first, (x + 1) * left.shape[1] + height - y)
        down += counts[(turns + 1) % 4]
        up += counts[(turns - 1) % 4]
        followers.append(np.where(side.is_left_turn, up, down).astype(np.int32))
    return np.concatenate(followers)


def _closed_cycles(follower: Ints, order: NDArray[np.int64]) -> tuple[Ints, NDArray[np.int64]]:
    """Return all numbers, cycle after cycle, each closed by its first number, and the ends.

    Cycles start with their number that comes first in `order`, and are sorted by it.
    """
    following, is_unvisited = follower.data, bytearray(b"\1") * len(follower)
    walk, ends = array("i"), array("q")
    for start in order.data:
        current = start
        while is_unvisited[current]:
            is_unvisited[current] = 0
            walk.append(current)
            current = following[current]
        if not ends or ends[-1] != len(walk):
            walk.append(start)
            ends.append(len(walk))
    return np.frombuffer(walk, np.int32), np.frombuffer(ends, np.int64)
