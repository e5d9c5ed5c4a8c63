"""A regular grid of patches over an image of any size, read in chunks.

Lengths ending in `_px` are pixels of the reduced image, at which patches are cut; the image itself
is addressed in level-0 pixels, `downsample` times as many.

Patches that lie somewhere, on a grid: each in a cell of its own, the one it lies in.

Corners of one regular grid, as most tools cut them, are found again to the pixel. Others, such as
those of CLAM, whose grid begins anew in every piece of tissue, or of patches at random places, take
the nearest cell that is free, at most about a patch away.

A patch together with its surroundings, seen at a coarser scale.

The surroundings are `context` times as wide as the patch, have the same centre, and are reduced to
as many pixels: a cell and what it lies in, in two pictures of one size. Beyond the image lies its
mirror image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from reprlib import repr as short
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..images.file_types import ImageError
from ..precomputed.feature_file import FeatureFile
from ..precomputed.formats import MAX_LENGTH
from ..utils.validation import check_kind, check_number, check_whole_number

_CHUNK_PX = 1024


class RegionSource(Protocol):
    """The part of an image source that is needed here."""

    @property
    def size(self) -> tuple[int, int]: ...

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class PatchGrid:
    """n_rows × n_columns patches of patch_px, one every stride_px.

    left, top : level-0 corner of the first, where it does not lie in that of the image
    chunk_px : side of what is read together
    """

    n_rows: int
    n_columns: int
    patch_px: int
    stride_px: int
    downsample: float
    left: float = 0.0
    top: float = 0.0
    chunk_px: int = _CHUNK_PX

    @classmethod
    def covering(
        cls,
        size: tuple[int, int],
        patch_px: int,
        stride_px: int,
        downsample: float,
        corner: tuple[int, int] = (0, 0),
    ) -> PatchGrid:
        """Return the grid of all patches inside a box given by level-0 corner and size."""
        counts = [
            int((length / downsample - patch_px) // stride_px) + 1 if length else 0
            for length in size
        ]
        if min(counts) < 1:
            least = round(patch_px * downsample)
            raise ValueError(
                f"the image has {size[0]} x {size[1]} pixels, less than one patch of "
                f"{least} x {least}: use a smaller patch or scale, or leave the image out"
            )
        place = counts[1], counts[0], patch_px, stride_px, downsample, *corner
        return cls(*place, chunk_px=_CHUNK_PX)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Ranges of grid rows and columns whose patches are read together."""
        per_side = max(1, (self.chunk_px - self.patch_px) // self.stride_px + 1)
        for row in range(0, self.n_rows, per_side):
            for column in range(0, self.n_columns, per_side):
                yield (
                    slice(row, min(row + per_side, self.n_rows)),
                    slice(column, min(column + per_side, self.n_columns)),
                )

    def read(self, source: RegionSource, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """The patches of a chunk, row by row: (n_patches, patch_px, patch_px, 3)."""
        return extract_patches(self.read_area(source, rows, columns), self.patch_px, self.stride_px)

    def read_area(self, source: RegionSource, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """The pixels that the patches of a chunk cover, reduced."""
        height, width = (
            (part.stop - part.start - 1) * self.stride_px + self.patch_px
            for part in (rows, columns)
        )
        x, y = self.corner(rows.start, columns.start)
        return source.read(
            x,
            y,
            round(width * self.downsample),
            round(height * self.downsample),
            self.downsample,
        )[:height, :width]

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """Level-0 x and y of a patch's upper left corner."""
        return round(self.left + column * self.step), round(self.top + row * self.step)

    @property
    def patch_side(self) -> float:
        """Side of a patch in level-0 pixels."""
        return self.patch_px * self.downsample

    @property
    def step(self) -> float:
        """From a patch to the next, in level-0 pixels: the side of a cell of the grid."""
        return self.stride_px * self.downsample

    @property
    def shift(self) -> float:
        """Where the first cell begins: overlapping patches are drawn as the cells nearest them."""
        return (self.patch_side - self.step) / 2

    def cell_corner(self, corner: tuple[int, int]) -> tuple[float, float]:
        """Level-0 (x, y) of a corner (column, row) of the cells."""
        x, y = (at * self.step + self.shift for at in corner)
        return x + self.left, y + self.top

    def rows_at(self, y: NDArray[np.float64]) -> NDArray[np.int64]:
        """The rows of cells that are nearest to level-0 places."""
        return self._nearest(y - self.top, self.n_rows)

    def columns_at(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        return self._nearest(x - self.left, self.n_columns)

    def is_near(self, places: NDArray[np.float64], start: float, count: int) -> NDArray[np.bool_]:
        """Return whether level-0 x or y are within one patch of the columns or rows."""
        reach, first = max(self.patch_side, self.step), start + self.shift
        return (places > first - reach) & (places < first + count * self.step + reach)

    def _nearest(self, places: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        index = np.floor((places - self.shift) / self.step).astype(np.int64)
        return np.clip(index, 0, count - 1)


def extract_patches(pixels: NDArray[np.uint8], patch_px: int, stride_px: int) -> NDArray[np.uint8]:
    """All patches of an image on a grid, row by row: (n_patches, patch_px, patch_px, 3)."""
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (patch_px, patch_px), axis=(0, 1))
    chosen = windows[::stride_px, ::stride_px].transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(chosen).reshape(-1, patch_px, patch_px, 3)


def extract_selected_patches(
    pixels: NDArray[np.uint8], patch_px: int, stride_px: int, chosen: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Those patches of an image on a grid that are chosen (rows, columns): (n_patches, …, 3).

    In memory their colours lie one after another, as vectors want them.
    """
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (patch_px, patch_px), axis=(0, 1))
    return windows[::stride_px, ::stride_px][chosen].transpose(0, 2, 3, 1)


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


def context_margin(patch_px: int, context: int) -> tuple[int, int]:
    """How far the surroundings reach beyond the patch: before and after it."""
    both = patch_px * (context - 1)
    return both // 2, both - both // 2


def read_with_context(
    grid: PatchGrid, source: RegionSource, rows: slice, columns: slice, context: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels that the surroundings of a chunk's patches cover, and those of the patches alone.

    The origin of `source` is that of the grid.
    """
    p, stride = grid.patch_px, grid.stride_px
    before, after = context_margin(p, context)
    spans = [
        (part.start * stride - before, (part.stop - 1) * stride + p + after)
        for part in (columns, rows)
    ]
    area = read_mirrored(source, *spans[0], *spans[1], grid.downsample)
    return area, area[before : len(area) - after, before : area.shape[1] - after]


def downsampled_context(
    area: NDArray[np.uint8], side: int, stride: int, context: int, chosen: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """The chosen fields of an area on a grid (rows, columns), reduced: (n_fields, …, 3)."""
    windows = np.lib.stride_tricks.sliding_window_view(area, (side, side), axis=(0, 1))
    wide = windows[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    # A line of the grid at a time: less memory.
    lines = [block_means(fields[own], context) for fields, own in zip(wide, chosen, strict=True)]
    return np.concatenate(lines)


def read_mirrored(
    source: RegionSource, left: int, right: int, top: int, bottom: int, downsample: float
) -> NDArray[np.uint8]:
    """Pixels of the reduced image from left to right and top to bottom, which may lie outside."""
    size = [int(length / downsample) for length in source.size]
    inside = [(max(0, left), min(size[0], right)), (max(0, top), min(size[1], bottom))]
    (x0, x1), (y0, y1) = inside
    pixels = source.read(
        round(x0 * downsample),
        round(y0 * downsample),
        round((x1 - x0) * downsample),
        round((y1 - y0) * downsample),
        downsample,
    )[: y1 - y0, : x1 - x0]
    missing = ((y0 - top, bottom - y1), (x0 - left, right - x1), (0, 0))
    return np.pad(pixels, missing, mode="symmetric") if np.any(missing) else pixels


def block_means(pictures: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pictures (..., h, w, 3) reduced by a whole number: each pixel is the mean of its block."""
    # The sum over up to 16 × 16 pixels, and half as many more, is below 2¹⁶.
    kind: type[Any] = np.uint16 if size <= 16 else np.uint32
    total = np.zeros(pictures[..., ::size, ::size, :].shape, kind)
    for row in range(size):  # many times as fast as a sum over axes
        for column in range(size):
            total += pictures[..., row::size, column::size, :]
    means: NDArray[np.uint8] = (total + kind(size * size // 2)) // kind(size * size)
    return means.astype(np.uint8)
