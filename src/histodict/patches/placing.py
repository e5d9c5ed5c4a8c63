"""Patches that lie somewhere, on a grid: each in a cell of its own, the one it lies in.

Corners of one regular grid, as most tools cut them, are found again to the pixel. Others, such as
those of CLAM, whose grid begins anew in every piece of tissue, or of patches at random places, take
the nearest cell that is free, at most about a patch away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.errors import ImageError
from ..images.feature_file import FeatureFile
from ..images.formats import MAX_LENGTH
from ..parameters import check_kind, check_number, check_whole_number
from .grid import PatchGrid

_ROUNDING = 1.0  # corners are whole pixels, steps need not be
_MAX_CELLS = 50_000_000
_CELLS_PER_PATCH = 1000  # of a large grid, most of which may be background
_FEW_CELLS = 4_000_000
_MIN_DOWNSAMPLE = 1e-3
_PER_SIDE = 32  # patches of a chunk that is read together
_CROWDED = 0.9  # of patches that must have a cell of their own before others are moved
_MAX_HALVINGS = 4


def fit_grid(file: FeatureFile) -> tuple[PatchGrid, NDArray[np.int64]]:
    """The grid, and per vector the (row, column) of its cell (n, 2)."""
    if "grid" in file.settings:
        return _extraction_grid(file)
    told = file.side - file.overlap
    for step in dict.fromkeys(filter(None, (told, file.step))):
        grid = _over(file, step, _origin(file.coords, step))
        cells = _nearest(file.coords, grid)
        if _is_exact(file.coords, grid, cells) and _n_different(cells) == len(cells):
            return grid, cells
    return _by_position(file, min(told, file.step or told))


def _extraction_grid(file: FeatureFile) -> tuple[PatchGrid, NDArray[np.int64]]:
    """Of a file that was made here, which knows its grid."""
    try:
        grid = _grid_of(file.settings["grid"], _max_cells(file))
        cells = _nearest(file.coords - np.array(file.offset), grid)
        whole = (cells >= 0).all() and (cells < [grid.n_rows, grid.n_columns]).all()
        if not whole or _n_different(cells) < len(cells):
            raise ValueError("patches lie outside it, or in one place")
    except (TypeError, ValueError, KeyError) as error:
        raise ImageError(
            f"{file.path}: its patches do not lie on the grid that it names ({error}): make it "
            "again"
        ) from error
    return grid, cells


def _max_cells(file: FeatureFile) -> int:
    """Return the maximum number of grid cells; empty cells take memory, too."""
    return min(_MAX_CELLS, max(_FEW_CELLS, _CELLS_PER_PATCH * file.n_rows))


def _grid_of(settings: dict[str, Any], max_cells: int) -> PatchGrid:
    """Return the grid in a file; raise ValueError for an invalid field."""
    grid = PatchGrid(**settings)
    for own in fields(grid):
        value = getattr(grid, own.name)
        check_kind(own.name, value, str(own.type))
        if not abs(value) <= MAX_LENGTH:  # nor is NaN
            raise ValueError(f"{own.name} must be at most {MAX_LENGTH:,}, not {short(value)}")
    for name in ("n_rows", "n_columns", "patch_px", "stride_px"):
        check_whole_number(name, getattr(grid, name), 1)
    check_number("downsample", grid.downsample, low=_MIN_DOWNSAMPLE)
    if grid.n_rows * grid.n_columns > max_cells:
        raise ValueError(f"it has {grid.n_rows} x {grid.n_columns} cells, more than any slide")
    return grid


def _by_position(file: FeatureFile, step: float) -> tuple[PatchGrid, NDArray[np.int64]]:
    """The nearest free cells, of a finer grid where patches lie more densely."""
    for _ in range(_MAX_HALVINGS):
        grid = _with_margin(_over(file, step, _origin(file.coords, step)), file.n_rows)
        cells = _nearest(file.coords, grid)
        if _n_different(cells) >= _CROWDED * len(cells):
            break
        step = max(1.0, step / 2)
    return grid, _separated(cells, grid)


def _over(file: FeatureFile, step: float, origin: tuple[float, float]) -> PatchGrid:
    """The grid over all patches, and over the slide where its size is known.

    Where it is not, a row and a column without patches say that nothing is known beyond.
    """
    side = file.side
    unit = side / file.origin.patch_px if file.origin.patch_px else 1.0
    if not (side / unit).is_integer() or not (step / unit).is_integer():
        unit = 1.0
    patch_px, stride_px = max(1, round(side / unit)), max(1, round(step / unit))
    most = file.coords.max(axis=0, initial=0)
    counts = []
    for axis in (0, 1):
        n = int(np.rint((most[axis] - origin[axis]) / (stride_px * unit))) + 1
        covered = (file.size[axis] - origin[axis] - side) if file.size else 0.0
        counts.append(max(n, int(covered // (stride_px * unit)) + 1) if file.size else n + 1)
    if counts[0] * counts[1] > _max_cells(file):
        raise ImageError(
            f"{file.path}: its patches of {side:g} pixels lie up to {most[0]} x {most[1]} pixels "
            "away from the slide's corner: are its coords level-0 pixels?"
        )
    return PatchGrid(counts[1], counts[0], patch_px, stride_px, unit, *origin)


def with_large_chunks(grid: PatchGrid) -> PatchGrid:
    """Vectors are small beside the pixels of a patch: so many are read together."""
    least = (_PER_SIDE - 1) * grid.stride_px + grid.patch_px
    return replace(grid, chunk_px=max(grid.chunk_px, least))


def _origin(coords: NDArray[np.int64], step: float) -> tuple[float, float]:
    """Where the grid begins: at 0 if that fits, else at the most frequent remainder."""
    found = []
    for at in coords.T:
        rest = at - np.rint(at / step) * step
        if (np.abs(rest) <= _ROUNDING).all():
            found.append(0.0)
            continue
        values, counts = np.unique(np.rint(at % step), return_counts=True)
        found.append(float(values[np.argmax(counts)]) % step)
    return found[0], found[1]


def _nearest(coords: NDArray[np.int64], grid: PatchGrid) -> NDArray[np.int64]:
    """(row, column) of cells; of a patch before the first, below 0."""
    return np.rint((coords - [grid.left, grid.top]) / grid.step).astype(np.int64)[:, ::-1]


def _is_exact(coords: NDArray[np.int64], grid: PatchGrid, cells: NDArray[np.int64]) -> bool:
    again = cells[:, ::-1] * grid.step + [grid.left, grid.top]
    return bool((np.abs(again - coords) <= _ROUNDING).all() and (cells >= 0).all())


def _n_different(cells: NDArray[np.int64]) -> int:
    return len(np.unique(cells, axis=0))


def _with_margin(grid: PatchGrid, n_patches: int) -> PatchGrid:
    """With a cell for each, however many lie in one place."""
    least = math.isqrt(n_patches) + 1
    rows, columns = max(grid.n_rows, least), max(grid.n_columns, least)
    return replace(grid, n_rows=rows, n_columns=columns)


def _separated(cells: NDArray[np.int64], grid: PatchGrid) -> NDArray[np.int64]:
    """Cells of which each is taken once: who comes later takes the nearest that is free."""
    cells = np.clip(cells, 0, [grid.n_rows - 1, grid.n_columns - 1])
    _, first = np.unique(cells, axis=0, return_index=True)
    taken = {(row, column) for row, column in cells[first].tolist()}
    rings: dict[tuple[int, int], Iterator[tuple[int, int]]] = {}
    for late in np.setdiff1d(np.arange(len(cells)), first).tolist():
        row, column = cells[late].tolist()
        # What was taken stays so: the search goes on where the last one from here has ended.
        around = rings.setdefault((row, column), _around(row, column, grid))
        free = next(cell for cell in around if cell not in taken)
        taken.add(free)
        cells[late] = free
    return cells


def _around(row: int, column: int, grid: PatchGrid) -> Iterator[tuple[int, int]]:
    """Cells in rings around one, the nearest of each ring first."""
    for ring in range(1, max(grid.n_rows, grid.n_columns) + 1):
        span = range(-ring, ring + 1)
        edge = [(a, b) for a in span for b in ((-ring, ring) if abs(a) < ring else span)]
        for a, b in sorted(edge, key=lambda step: step[0] ** 2 + step[1] ** 2):
            if 0 <= row + a < grid.n_rows and 0 <= column + b < grid.n_columns:
                yield row + a, column + b
