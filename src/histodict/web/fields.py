"""Which part of an image to label next: fields of the map, by the rule for images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..images.annotations.outlines import Outline
from ..images.annotations.runs import PixelRuns
from ..images.readers import ImageSource
from ..patches.patch_map import PatchMap
from .sheets import Shape, polygons_of
from .suggestions import Suggestion, appearance, suggest

_SIDE = 512  # pixels of the image, about; of a small one, half of its shorter side
_LEAST_CELLS = 3
_MOST_READ = 64  # fields whose pixels are looked at
_SEEN_PX = 128
_LEAST_TISSUE = 0.5

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class Field:
    """A square of the image, and the mean lead of its patches; `cells` of the map, by rows and
    columns.
    """

    cells: tuple[slice, slice]
    box: Box
    lead: float


def fields_of(patch_map: PatchMap) -> list[Field]:
    """Squares that cover the map, those that show enough tissue."""
    ordered = np.sort(patch_map.margins.astype(np.float64), axis=2)
    leads, tissue = ordered[..., -1] - ordered[..., -2], patch_map.tissue
    grid = patch_map.grid
    shorter = min(grid.n_rows, grid.n_columns)
    n = min(shorter, max(_LEAST_CELLS, min(round(_SIDE / grid.step), shorter // 2)))
    found = []
    for row in _starts(grid.n_rows, n):
        for column in _starts(grid.n_columns, n):
            cells = slice(row, row + n), slice(column, column + n)
            own = tissue[cells]
            if own.mean() >= _LEAST_TISSUE:
                box = _box(patch_map, *cells)
                found.append(Field(cells, box, float(leads[cells][own].mean())))
    return found


def _starts(count: int, n: int) -> list[int]:
    """Where parts of n begin; the last reaches the end, and may overlap with the one before."""
    return sorted({*range(0, count - n + 1, n), count - n})


def _box(patch_map: PatchMap, rows: slice, columns: slice) -> Box:
    left, top = patch_map.grid.corner(rows.start, columns.start)
    right, bottom = patch_map.grid.corner(rows.stop - 1, columns.stop - 1)
    side = patch_map.grid.patch_side
    return round(left), round(top), round(right + side), round(bottom + side)


def drawn_cells(
    patch_map: PatchMap, shapes: Sequence[Shape], size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return the cells of the map in which something is drawn on an image of this size."""
    grid = patch_map.grid
    outlines = [Outline("", tuple(rings)) for shape in shapes for rings in polygons_of(shape)]
    across = np.asarray(grid.left + grid.step * np.arange(grid.n_columns), np.float64)
    down = np.asarray(grid.top + grid.step * np.arange(grid.n_rows), np.float64)
    x, y = np.meshgrid(across, down)
    return PixelRuns.of(outlines, size).share(x, y, grid.step) > 0


def suggest_fields(
    patch_map: PatchMap,
    source: ImageSource,
    marked: list[Box],
    n: int,
    shapes: Sequence[Shape] = (),
) -> list[tuple[Box, Suggestion]]:
    """The n fields whose labels would help most; `marked`, `shapes`: what has some."""
    painted = drawn_cells(patch_map, shapes, source.size)
    fields, known = list[Field](), [*marked]
    for one in fields_of(patch_map):
        if painted[one.cells].any():
            known.append(one.box)
        elif not any(_meet(one.box, box) for box in marked):
            fields.append(one)
    fields = sorted(fields, key=lambda one: one.lead)[:_MOST_READ]
    if not fields:
        return []
    looks = np.stack([look_of(source, one.box) for one in fields])
    learnt = np.array([look_of(source, box) for box in known[:_MOST_READ]])
    leads = np.array([one.lead for one in fields])
    found = suggest(leads, looks, learnt.reshape(-1, looks.shape[1]), n)
    return [(fields[one.place].box, one) for one in found]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def look_of(source: ImageSource, box: Box) -> NDArray[np.float64]:
    left, top, right, bottom = box
    width = min(right, source.size[0]) - left
    height = min(bottom, source.size[1]) - top
    factor = max(1.0, max(width, height) / _SEEN_PX)
    return appearance(source.read(left, top, width, height, factor))
