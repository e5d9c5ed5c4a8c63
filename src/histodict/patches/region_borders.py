"""Connected regions of patches, and their borders as polygons.

Corners of polygons are integer (column, row) of the patch grid; see `PatchGrid.cell_corner`.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

_EIGHT_NEIGHBOURS = np.ones((3, 3), int)
IntArray = NDArray[np.int32]
Polygon = list[IntArray]  # outer ring, then holes, each (n_corners, 2) and closed


def label_regions(mask: NDArray[np.bool_]) -> tuple[IntArray, NDArray[np.int64]]:
    """Return the region number of each patch of a mask, and the size of each region in patches.

    Regions are sets of connected patches (by a side or corner), numbered from 1; patches outside
    of all regions have the number 0.
    """
    regions, n_regions = ndimage.label(mask, structure=_EIGHT_NEIGHBOURS)
    return regions, np.bincount(regions.ravel(), minlength=n_regions + 1)[1:]


class RegionBorders:
    """Borders of all regions of a patch map.

    Cells of a region that touch only at a corner belong to different polygons. With x to the right
    and y down, outer rings have a positive area and holes a negative one, as in RFC 7946. No ring
    touches itself, and two rings of a polygon share single corners at most. In this module, a
    component is a set of cells connected by sides, which is one polygon.
    """

    def __init__(self, regions: IntArray) -> None:
        """Trace the borders of `regions` (n_rows, n_columns), the numbers from `label_regions`."""
        components, n_components = ndimage.label(regions)
        region_of_component = np.zeros(n_components + 1, np.int32)
        region_of_component[components] = regions
        padded = np.pad(components, 1)
        del components  # such arrays are large for large slides
        sides = [_find_upper_runs(np.rot90(padded, turns)) for turns in range(4)]
        del padded
        corners = np.concatenate([side.start_corners(n) for n, side in enumerate(sides)])
        # Sorted from the left, so that the first ring of each component is the outer one.
        walk, ends = _join_cycles(_find_following_runs(sides), np.lexsort(corners.T[::-1]))
        begins = np.append(0, ends)[:-1]
        component_of_ring = np.concatenate([side.components for side in sides])[walk[begins]]
        del sides
        self._corners = corners[walk]
        region_of_ring = region_of_component[component_of_ring]
        order = np.lexsort((component_of_ring, region_of_ring))
        self._rings = np.stack([component_of_ring, begins, ends], axis=1)[order]
        n_rings = np.bincount(region_of_ring, minlength=int(regions.max(initial=0)) + 1)
        self._n_before = np.append(0, np.cumsum(n_rings))

    def polygons(self, region: int) -> list[Polygon]:
        """Return the polygons of a region, given by its number."""
        first, last = self._n_before[region : region + 2]
        rings_of_component: dict[int, Polygon] = {}
        for component, begin, end in self._rings[first:last].tolist():
            rings_of_component.setdefault(component, []).append(self._corners[begin:end])
        return list(rings_of_component.values())

    def rings(self, step: float, origin: tuple[float, float]) -> list[list[float]]:
        """Return the rings of all regions, each as a flat list of coordinates x, y, x, y, ….

        Parameters
        ----------
        step : side of a grid cell, in the unit of the returned coordinates
        origin : (x, y) of the upper left corner of the first cell, in the same unit
        """
        corners = self._corners * step + np.array(origin)
        integers = corners.astype(np.int64)
        is_whole = np.array_equal(integers, corners)  # shorter as text
        flat: list[Any] = (integers if is_whole else corners).ravel().tolist()
        return [flat[2 * begin : 2 * end] for _, begin, end in self._rings.tolist()]


class _BorderRuns(NamedTuple):
    """Straight runs of upper cell sides at borders, traversed to the right, in a rotated grid.

    The grid is rotated by 0, 90, 180 and 270°, so that every border is an upper side once.

    Attributes
    ----------
    shape : shape of the rotated grid
    first : (n_runs,), flat index of the first cell of each run
    last : (n_runs,), flat index of the last cell of each run
    components : (n_runs,), number of the component of each run's cells
    is_left_turn : (n_runs,), whether the border continues upwards, along the next cell
    """

    shape: tuple[int, int]
    first: IntArray
    last: IntArray
    components: IntArray
    is_left_turn: NDArray[np.bool_]

    def start_corners(self, turns: int) -> IntArray:
        """Return the start (x, y) of each run in the original grid, (n_runs, 2).

        `turns` is the number of rotations by 90° between the grids.
        """
        y, x = np.divmod(self.first, self.shape[1])
        height, width = self.shape
        for _ in range(turns):
            x, y = height - y, x
            height, width = width, height
        return np.stack([x, y], axis=1) - np.int32(1)


def _find_upper_runs(grid: IntArray) -> _BorderRuns:
    """Return the runs of upper sides of a padded, rotated grid of component numbers."""
    above = np.zeros(grid.shape, bool)
    above[1:] = (grid[1:] != grid[:-1]) & (grid[1:] > 0)
    continues = above[:, 1:] & above[:, :-1] & (grid[:, 1:] == grid[:, :-1])
    begins, ends = above.copy(), above
    begins[:, 1:] &= ~continues
    ends[:, :-1] &= ~continues
    first, last = (np.flatnonzero(edges).astype(np.int32) for edges in (begins, ends))
    y, x = np.divmod(last, grid.shape[1])
    components = grid[y, x]
    return _BorderRuns(
        grid.shape, first, last, components, grid[y - 1, (x + 1) % grid.shape[1]] == components
    )


def _find_following_runs(sides: list[_BorderRuns]) -> IntArray:
    """Return the index of the run that follows each run along its border, (n_runs,).

    `sides` are the runs of the four rotations; indices count the runs of all sides in order.
    """
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


def _join_cycles(
    follower: IntArray, order: NDArray[np.int64]
) -> tuple[IntArray, NDArray[np.int64]]:
    """Return the concatenated cycles of the permutation `follower`, and the end of each cycle.

    A cycle begins with the one of its elements that comes first in `order`, and ends with the same
    element. Cycles are sorted by the position of their first elements in `order`.
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
