"""Regular grids of patches, fitted to images of any size or to feature files.

Lengths ending in `_px` are pixels of the downsampled image, from which patches are cut; positions
in the image are level-0 pixels, `downsample` times as many.

Patches of feature files are assigned to grid cells, one patch per cell. If the corners lie on one
regular grid, as those of most tools do, they are reproduced to the pixel. Otherwise (CLAM restarts
its grid in every tissue region, other tools sample at random) a patch gets the nearest free cell,
at most about one patch away.

The context of a patch is an area `context` times as wide with the same centre, reduced to the size
of the patch. The image is mirrored at its border. A chunk is a range of grid rows and columns whose
patches are read together.
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
from ..utils.validation import check_number, check_type, check_whole_number

_CHUNK_PX = 1024


class RegionSource(Protocol):
    """Interface of an image from which patches are read."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        """Return the pixels of a region, given in level-0 pixels, reduced by `downsample`."""


@dataclass(frozen=True)
class PatchGrid:
    """Regular grid of patches over an image.

    A patch has a grid cell: the square with the same centre and side `step`. Cells do not overlap.

    Attributes
    ----------
    n_rows : number of rows of patches
    n_columns : number of columns of patches
    patch_px : side of a patch, in pixels of the downsampled image
    stride_px : distance between neighbouring patches, in pixels of the downsampled image
    downsample : level-0 pixels per pixel of the downsampled image
    left, top : level-0 position of the upper left corner of the first patch
    chunk_px : maximum side of an area that is read at once, in pixels of the downsampled image
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
    def from_size(
        cls,
        size: tuple[int, int],
        patch_px: int,
        stride_px: int,
        downsample: float,
        corner: tuple[int, int] = (0, 0),
    ) -> PatchGrid:
        """Return the grid of all patches in a box of level-0 `size` (w, h) at `corner` (x, y)."""
        counts = [
            int((length / downsample - patch_px) // stride_px) + 1 if length else 0
            for length in size
        ]
        if min(counts) < 1:
            side = round(patch_px * downsample)
            raise ValueError(
                f"the image ({size[0]} x {size[1]} pixels) is smaller than a patch ({side} x "
                f"{side}); use a smaller patch or scale, or exclude the image"
            )
        arguments = counts[1], counts[0], patch_px, stride_px, downsample, *corner
        return cls(*arguments, chunk_px=_CHUNK_PX)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the ranges of grid rows and columns (chunks) whose patches are read together."""
        per_side = max(1, (self.chunk_px - self.patch_px) // self.stride_px + 1)
        for row in range(0, self.n_rows, per_side):
            for column in range(0, self.n_columns, per_side):
                yield (
                    slice(row, min(row + per_side, self.n_rows)),
                    slice(column, min(column + per_side, self.n_columns)),
                )

    def read(self, source: RegionSource, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Return the patches in a range of the grid: (n_patches, patch_px, patch_px, 3)."""
        return extract_patches(self.read_area(source, rows, columns), self.patch_px, self.stride_px)

    def read_area(self, source: RegionSource, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """Return the pixels (height, width, 3) of the downsampled image that a range covers."""
        height, width = (
            (part.stop - part.start - 1) * self.stride_px + self.patch_px
            for part in (rows, columns)
        )
        x, y = self.corner(rows.start, columns.start)
        return source.read(
            x, y, round(width * self.downsample), round(height * self.downsample), self.downsample
        )[:height, :width]

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """Return level-0 x and y of the upper left corner of a patch."""
        return round(self.left + column * self.step), round(self.top + row * self.step)

    @property
    def patch_side(self) -> float:
        """Side of a patch in level-0 pixels."""
        return self.patch_px * self.downsample

    @property
    def step(self) -> float:
        """Distance between neighbouring patches, and side of a grid cell, in level-0 pixels."""
        return self.stride_px * self.downsample

    @property
    def shift(self) -> float:
        """Distance in level-0 pixels from the left side of a patch to that of its cell."""
        return (self.patch_side - self.step) / 2

    def cell_corner(self, corner: tuple[int, int]) -> tuple[float, float]:
        """Return level-0 (x, y) of a corner of a grid cell, given as (column, row)."""
        x, y = (index * self.step + self.shift for index in corner)
        return x + self.left, y + self.top

    def rows_at(self, y: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the grid rows of the cells nearest to level-0 coordinates y."""
        return self._nearest_indices(y - self.top, self.n_rows)

    def columns_at(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the grid columns of the cells nearest to level-0 coordinates x."""
        return self._nearest_indices(x - self.left, self.n_columns)

    def is_near(
        self, positions: NDArray[np.float64], start: float, count: int
    ) -> NDArray[np.bool_]:
        """Return whether coordinates along one axis lie at most one patch outside the grid.

        Parameters
        ----------
        positions : level-0 x or y coordinates
        start : `left` for x, `top` for y
        count : number of columns for x, of rows for y
        """
        reach, first = max(self.patch_side, self.step), start + self.shift
        return (positions > first - reach) & (positions < first + count * self.step + reach)

    def _nearest_indices(self, positions: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        index = np.floor((positions - self.shift) / self.step).astype(np.int64)
        return np.clip(index, 0, count - 1)


def extract_patches(pixels: NDArray[np.uint8], patch_px: int, stride_px: int) -> NDArray[np.uint8]:
    """Return all patches of an image on a grid, row by row: (n_patches, patch_px, patch_px, 3)."""
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (patch_px, patch_px), axis=(0, 1))
    patches = windows[::stride_px, ::stride_px].transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(patches).reshape(-1, patch_px, patch_px, 3)


def extract_selected_patches(
    pixels: NDArray[np.uint8], patch_px: int, stride_px: int, is_selected: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return the patches of an image on a grid that the mask `is_selected` (rows, columns) selects.

    The result (n_patches, patch_px, patch_px, 3) is stored in planar layout, colour by colour, for
    the functions of `patches.vectors`.
    """
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (patch_px, patch_px), axis=(0, 1))
    return windows[::stride_px, ::stride_px][is_selected].transpose(0, 2, 3, 1)


_TOLERANCE = 1.0  # level-0 pixels; stored corners are rounded, steps may be fractions
_MAX_CELLS = 50_000_000
_MAX_CELLS_PER_PATCH = 1000  # for grids with more than _FEW_CELLS cells
_FEW_CELLS = 4_000_000
_MIN_DOWNSAMPLE = 1e-3
_PATCHES_PER_SIDE = 32  # patches per side of a chunk of feature vectors
_MIN_DISTINCT = 0.9  # fraction of distinct cells that stops the refinement of the grid
_MAX_HALVINGS = 4


def fit_grid(file: FeatureFile) -> tuple[PatchGrid, NDArray[np.int64]]:
    """Return the grid of a feature file, and the cell (row, column) of each vector, (n, 2)."""
    if "grid" in file.settings:
        return _read_stored_grid(file)
    nominal_step = file.side - file.overlap
    for step in dict.fromkeys(filter(None, (nominal_step, file.step))):
        grid = _make_covering_grid(file, step, _find_origin(file.coords, step))
        cells = _nearest_cells(file.coords, grid)
        if _is_exact(file.coords, grid, cells) and _count_distinct(cells) == len(cells):
            return grid, cells
    return _assign_nearest_free_cells(file, min(nominal_step, file.step or nominal_step))


def _read_stored_grid(file: FeatureFile) -> tuple[PatchGrid, NDArray[np.int64]]:
    """Return the grid that `histodict features` stored in a file, and the cells of the vectors."""
    try:
        grid = _parse_grid(file.settings["grid"], _max_cells(file))
        cells = _nearest_cells(file.coords - np.array(file.offset), grid)
        is_inside = (cells >= 0).all() and (cells < [grid.n_rows, grid.n_columns]).all()
        if not is_inside or _count_distinct(cells) < len(cells):
            raise ValueError("patches are outside the grid or share a position")
    except (TypeError, ValueError, KeyError) as error:
        raise ImageError(
            f"{file.path}: the coords do not fit the grid in the attributes ({error}); "
            "compute the features again"
        ) from error
    return grid, cells


def _max_cells(file: FeatureFile) -> int:
    """Return the maximum number of grid cells for a file, as empty cells also take memory."""
    return min(_MAX_CELLS, max(_FEW_CELLS, _MAX_CELLS_PER_PATCH * file.n_rows))


def _parse_grid(settings: dict[str, Any], max_cells: int) -> PatchGrid:
    """Return the grid from its stored fields; raise ValueError if a field is invalid."""
    grid = PatchGrid(**settings)
    for field in fields(grid):
        value = getattr(grid, field.name)
        check_type(field.name, value, str(field.type))
        if not abs(value) <= MAX_LENGTH:  # also refuses NaN
            raise ValueError(f"{field.name} must be at most {MAX_LENGTH:,}, not {short(value)}")
    for name in ("n_rows", "n_columns", "patch_px", "stride_px"):
        check_whole_number(name, getattr(grid, name), 1)
    check_number("downsample", grid.downsample, low=_MIN_DOWNSAMPLE)
    if grid.n_rows * grid.n_columns > max_cells:
        raise ValueError(
            f"the grid has {grid.n_rows} x {grid.n_columns} positions, more than supported"
        )
    return grid


def _assign_nearest_free_cells(
    file: FeatureFile, step: float
) -> tuple[PatchGrid, NDArray[np.int64]]:
    """Return a grid, and the nearest free cell (row, column) of each patch, (n, 2).

    `step` is the side of the cells in level-0 pixels, halved while many patches share cells.
    """
    for _ in range(_MAX_HALVINGS):
        grid = _enlarge(
            _make_covering_grid(file, step, _find_origin(file.coords, step)), file.n_rows
        )
        cells = _nearest_cells(file.coords, grid)
        if _count_distinct(cells) >= _MIN_DISTINCT * len(cells):
            break
        step = max(1.0, step / 2)
    return grid, _resolve_shared_cells(cells, grid)


def _make_covering_grid(file: FeatureFile, step: float, origin: tuple[float, float]) -> PatchGrid:
    """Return a grid over all patches and, if the slide's size is known, over the whole slide.

    If the size is unknown, the grid gets one empty row and column after the last patches.
    `step` is the side of a cell, and `origin` (x, y) the first corner, both in level-0 pixels.
    """
    side = file.side
    unit = side / file.metadata.patch_px if file.metadata.patch_px else 1.0
    if not (side / unit).is_integer() or not (step / unit).is_integer():
        unit = 1.0
    patch_px, stride_px = max(1, round(side / unit)), max(1, round(step / unit))
    last = file.coords.max(axis=0, initial=0)
    counts = []
    for axis in (0, 1):
        n = int(np.rint((last[axis] - origin[axis]) / (stride_px * unit))) + 1
        covered = (file.size[axis] - origin[axis] - side) if file.size else 0.0
        counts.append(max(n, int(covered // (stride_px * unit)) + 1) if file.size else n + 1)
    if counts[0] * counts[1] > _max_cells(file):
        raise ImageError(
            f"{file.path}: patches of {side:g} pixels extend to ({last[0]}, {last[1]}), too "
            "far for a slide; coords must be level-0 pixels"
        )
    return PatchGrid(counts[1], counts[0], patch_px, stride_px, unit, *origin)


def with_large_chunks(grid: PatchGrid) -> PatchGrid:
    """Return the grid with larger `chunk_px`, as feature vectors take less memory than pixels."""
    chunk_px = (_PATCHES_PER_SIDE - 1) * grid.stride_px + grid.patch_px
    return replace(grid, chunk_px=max(grid.chunk_px, chunk_px))


def _find_origin(coords: NDArray[np.int64], step: float) -> tuple[float, float]:
    """Return the first corner (x, y) of a grid with cells of side `step`, in level-0 pixels.

    A coordinate is 0 if all patches lie on a grid that starts at 0, otherwise the most frequent
    remainder of patch coordinates modulo `step`.
    """
    origin = []
    for positions in coords.T:
        remainder = positions - np.rint(positions / step) * step
        if (np.abs(remainder) <= _TOLERANCE).all():
            origin.append(0.0)
            continue
        values, counts = np.unique(np.rint(positions % step), return_counts=True)
        origin.append(float(values[np.argmax(counts)]) % step)
    return origin[0], origin[1]


def _nearest_cells(coords: NDArray[np.int64], grid: PatchGrid) -> NDArray[np.int64]:
    """Return (row, column) of the nearest cell of each patch, (n, 2), also outside the grid."""
    return np.rint((coords - [grid.left, grid.top]) / grid.step).astype(np.int64)[:, ::-1]


def _is_exact(coords: NDArray[np.int64], grid: PatchGrid, cells: NDArray[np.int64]) -> bool:
    """Return whether the corners of all patches and of their cells agree within one pixel."""
    corners = cells[:, ::-1] * grid.step + [grid.left, grid.top]
    return bool((np.abs(corners - coords) <= _TOLERANCE).all() and (cells >= 0).all())


def _count_distinct(cells: NDArray[np.int64]) -> int:
    return len(np.unique(cells, axis=0))


def _enlarge(grid: PatchGrid, n_patches: int) -> PatchGrid:
    """Return the grid with at least √n_patches rows and columns, so that all patches get a cell."""
    side = math.isqrt(n_patches) + 1
    rows, columns = max(grid.n_rows, side), max(grid.n_columns, side)
    return replace(grid, n_rows=rows, n_columns=columns)


def _resolve_shared_cells(cells: NDArray[np.int64], grid: PatchGrid) -> NDArray[np.int64]:
    """Return distinct cells (row, column) of patches, (n, 2).

    If several patches have the same cell, all but the first get the nearest free cells.
    """
    cells = np.clip(cells, 0, [grid.n_rows - 1, grid.n_columns - 1])
    _, first = np.unique(cells, axis=0, return_index=True)
    taken = {(row, column) for row, column in cells[first].tolist()}
    rings: dict[tuple[int, int], Iterator[tuple[int, int]]] = {}
    for index in np.setdiff1d(np.arange(len(cells)), first).tolist():
        row, column = cells[index].tolist()
        # Cells are never freed, so a search continues where the last one from here ended.
        candidates = rings.setdefault((row, column), _ring_cells(row, column, grid))
        free = next(cell for cell in candidates if cell not in taken)
        taken.add(free)
        cells[index] = free
    return cells


def _ring_cells(row: int, column: int, grid: PatchGrid) -> Iterator[tuple[int, int]]:
    """Yield the cells around a cell, ring by ring, the nearest of each ring first."""
    for ring in range(1, max(grid.n_rows, grid.n_columns) + 1):
        span = range(-ring, ring + 1)
        edge = [(a, b) for a in span for b in ((-ring, ring) if abs(a) < ring else span)]
        for a, b in sorted(edge, key=lambda step: step[0] ** 2 + step[1] ** 2):
            if 0 <= row + a < grid.n_rows and 0 <= column + b < grid.n_columns:
                yield row + a, column + b


def context_margin(patch_px: int, context: int) -> tuple[int, int]:
    """Return the width of the context before (left, above) and after (right, below) a patch.

    `context` is the side of the context area in patches; widths are in pixels.
    """
    margin = patch_px * (context - 1)
    return margin // 2, margin - margin // 2


def read_with_context(
    grid: PatchGrid, source: RegionSource, rows: slice, columns: slice, context: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the pixels of a range of the grid, with and without the context of the patches.

    `context` is the side of the context areas in patches. The grid must start at (0, 0) of the
    source.

    Returns
    -------
    area : pixels with the context on all sides
    inner : pixels without the context, a NumPy view of `area`
    """
    p, stride = grid.patch_px, grid.stride_px
    before, after = context_margin(p, context)
    spans = [
        (part.start * stride - before, (part.stop - 1) * stride + p + after)
        for part in (columns, rows)
    ]
    area = read_mirrored(source, *spans[0], *spans[1], grid.downsample)
    return area, area[before : len(area) - after, before : area.shape[1] - after]


def downsample_contexts(
    area: NDArray[np.uint8], side: int, stride: int, context: int, is_selected: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return the context areas of selected patches, reduced to patch size: (n, size, size, 3).

    Parameters
    ----------
    area : pixels that the patches and their contexts cover
    side : side of a context area, in pixels of `area`
    stride : distance between neighbouring context areas, in pixels of `area`
    context : integer factor by which the context areas are reduced
    is_selected : mask (rows, columns) of the selected patches
    """
    windows = np.lib.stride_tricks.sliding_window_view(area, (side, side), axis=(0, 1))
    contexts = windows[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    # Row by row of the grid, to limit memory.
    rows = [
        block_means(row_contexts[mask], context)
        for row_contexts, mask in zip(contexts, is_selected, strict=True)
    ]
    return np.concatenate(rows)


def read_mirrored(
    source: RegionSource, left: int, right: int, top: int, bottom: int, downsample: float
) -> NDArray[np.uint8]:
    """Return the pixels of a box; the image is mirrored at its border.

    `left`, `right`, `top` and `bottom` are coordinates in the downsampled image.
    """
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
    padding = ((y0 - top, bottom - y1), (x0 - left, right - x1), (0, 0))
    return np.pad(pixels, padding, mode="symmetric") if np.any(padding) else pixels


def block_means(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return images (..., h, w, 3) reduced to the means of blocks of size × size pixels."""
    # The sum over 16 × 16 pixels, with the addend for rounding, is below 2¹⁶.
    kind: type[Any] = np.uint16 if size <= 16 else np.uint32
    total = np.zeros(images[..., ::size, ::size, :].shape, kind)
    for row in range(size):  # many times as fast as a sum over axes
        for column in range(size):
            total += images[..., row::size, column::size, :]
    means: NDArray[np.uint8] = (total + kind(size * size // 2)) // kind(size * size)
    return means.astype(np.uint8)
