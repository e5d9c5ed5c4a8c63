"""What to label next: where the model is in doubt, and which looks unlike what it has learnt from.

Of n candidates, doubt is the share of them of which the model is at least as sure, novelty the
share that lies at most as far from everything learnt from; what is suggested has the largest
product. After each suggestion its look counts as learnt, so that the next one is not its twin. Both
are ranks: scores of any model, and distances in any unit, will do.

Reference: B. Settles, "Active learning literature survey", University of Wisconsin, 2009: density
and diversity beside uncertainty sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.distance import cdist

from ...annotations.outlines import AnnotationPolygon, RunLengthMask
from ...images.source import ImageSource
from ...patches.patch_map import PatchMap
from .store import Shape, polygons_of

Numbers = NDArray[np.float64]
_TISSUE = 0.15  # optical density above which a pixel is tissue, for a glance


class Suggestion(NamedTuple):
    """A candidate by its place, and why: both from 0 to 1."""

    position: int
    uncertainty: float
    novelty: float


def suggest(leads: Numbers, looks: Numbers, learnt: Numbers, n: int) -> list[Suggestion]:
    """The n candidates whose labels would help most, the best first.

    leads : (n_candidates,), how far ahead the called class is of the next one
    looks, learnt : (n_candidates, n_features), (n_learnt, n_features), of `appearance`
    """
    if not len(leads):
        return []
    scale = np.vstack([looks, learnt]).std(axis=0) + 1e-9
    looks, learnt = looks / scale, learnt / scale
    far = cdist(looks, learnt).min(axis=1) if len(learnt) else _from_the_middle(looks)
    doubt, left, found = 1 - _ranks(leads), np.ones(len(leads), bool), list[Suggestion]()
    for _ in range(min(n, len(leads))):
        novelty = _ranks(far)
        place = int(np.argmax(np.where(left, doubt * novelty, -1.0)))
        found.append(Suggestion(place, float(doubt[place]), float(novelty[place])))
        left[place] = False
        far = np.minimum(far, np.linalg.norm(looks - looks[place], axis=1))
    return found


def _ranks(values: Numbers) -> Numbers:
    """Between 0 and 1, neither of them reached; the same for the same values."""
    less = np.searchsorted(np.sort(values), values, side="left")
    more = np.searchsorted(np.sort(values), values, side="right")
    ranks: Numbers = (less + more) / (2 * len(values))
    return ranks


def _from_the_middle(looks: Numbers) -> Numbers:
    """Nothing is learnt yet: what is most like all others comes first."""
    return -np.linalg.norm(looks - np.median(looks, axis=0), axis=1)


def colour_descriptor(pixels: NDArray[np.uint8]) -> Numbers:
    """How an image, or a part of it, looks at a glance: (14,).

    Of its tissue the mean and spread of each colour's optical density, their correlations, and how
    much they change over one, two and four pixels; and how much of it is tissue.
    """
    density = -np.log10((pixels.astype(np.float64) + 1) / 256)
    grey = density.mean(axis=2)
    tissue = grey > _TISSUE
    seen = density[tissue] if tissue.sum() > 9 else density.reshape(-1, 3)
    spread = seen.std(axis=0)
    unit = (seen - seen.mean(axis=0)) / (spread + 1e-6)
    correlated = (unit.T @ unit / len(unit))[np.triu_indices(3, 1)]
    changes = [
        float(np.abs(grey - ndimage.uniform_filter(grey, size)).mean()) for size in (3, 5, 9)
    ]
    blurred = float(ndimage.gaussian_filter(grey, 8).std())
    return np.array([*seen.mean(axis=0), *spread, *correlated, *changes, blurred, tissue.mean()])


def normalized_margin(facts: Mapping[str, Any]) -> float | None:
    """How far ahead the called class is in an answer, in the unit of its model; None: no tissue."""
    for shares in (facts["probabilities"], facts["shares"]):
        if facts["answer"] is not None and len(shares) > 2 - bool(facts["probabilities"]):
            first, second, *_ = sorted(shares.values(), reverse=True)
            return float(first - second)
    score = facts["score"]
    return None if facts["answer"] is None or score is None else abs(float(score))


# --- regions of an image --------------------------------------------------------------------------


_SIDE = 512  # pixels of the image, about; of a small one, half of its shorter side
_MIN_CELLS = 3
_MAX_READ = 64  # fields whose pixels are looked at
_OVERVIEW_PX = 128
_MIN_TISSUE = 0.5

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class MapRegion:
    """A square of the image, and the mean lead of its patches; `cells` of the map, by rows and
    columns.
    """

    positions: tuple[slice, slice]
    box: Box
    normalized_margin: float


def map_regions(patch_map: PatchMap) -> list[MapRegion]:
    """Squares that cover the map, those that show enough tissue."""
    ordered = np.sort(patch_map.margins.astype(np.float64), axis=2)
    leads, tissue = ordered[..., -1] - ordered[..., -2], patch_map.tissue
    grid = patch_map.grid
    shorter = min(grid.n_rows, grid.n_columns)
    n = min(shorter, max(_MIN_CELLS, min(round(_SIDE / grid.step), shorter // 2)))
    found = []
    for row in _starts(grid.n_rows, n):
        for column in _starts(grid.n_columns, n):
            cells = slice(row, row + n), slice(column, column + n)
            own = tissue[cells]
            if own.mean() >= _MIN_TISSUE:
                box = _box(patch_map, *cells)
                found.append(MapRegion(cells, box, float(leads[cells][own].mean())))
    return found


def _starts(count: int, n: int) -> list[int]:
    """Where parts of n begin; the last reaches the end, and may overlap with the one before."""
    return sorted({*range(0, count - n + 1, n), count - n})


def _box(patch_map: PatchMap, rows: slice, columns: slice) -> Box:
    left, top = patch_map.grid.corner(rows.start, columns.start)
    right, bottom = patch_map.grid.corner(rows.stop - 1, columns.stop - 1)
    side = patch_map.grid.patch_side
    return round(left), round(top), round(right + side), round(bottom + side)


def annotated_positions(
    patch_map: PatchMap, shapes: Sequence[Shape], size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return the cells of the map in which something is drawn on an image of this size."""
    grid = patch_map.grid
    outlines = [
        AnnotationPolygon("", tuple(rings)) for shape in shapes for rings in polygons_of(shape)
    ]
    across = np.asarray(grid.left + grid.step * np.arange(grid.n_columns), np.float64)
    down = np.asarray(grid.top + grid.step * np.arange(grid.n_rows), np.float64)
    x, y = np.meshgrid(across, down)
    return RunLengthMask.of(outlines, size).coverage(x, y, grid.step) > 0


def suggest_regions(
    patch_map: PatchMap,
    source: ImageSource,
    marked: list[Box],
    n: int,
    shapes: Sequence[Shape] = (),
) -> list[tuple[Box, Suggestion]]:
    """The n fields whose labels would help most; `marked`, `shapes`: what has some."""
    painted = annotated_positions(patch_map, shapes, source.size)
    fields, known = list[MapRegion](), [*marked]
    for one in map_regions(patch_map):
        if painted[one.positions].any():
            known.append(one.box)
        elif not any(_meet(one.box, box) for box in marked):
            fields.append(one)
    fields = sorted(fields, key=lambda one: one.normalized_margin)[:_MAX_READ]
    if not fields:
        return []
    looks = np.stack([appearance_of(source, one.box) for one in fields])
    learnt = np.array([appearance_of(source, box) for box in known[:_MAX_READ]])
    leads = np.array([one.normalized_margin for one in fields])
    found = suggest(leads, looks, learnt.reshape(-1, looks.shape[1]), n)
    return [(fields[one.position].box, one) for one in found]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def appearance_of(source: ImageSource, box: Box) -> NDArray[np.float64]:
    left, top, right, bottom = box
    width = min(right, source.size[0]) - left
    height = min(bottom, source.size[1]) - top
    factor = max(1.0, max(width, height) / _OVERVIEW_PX)
    return colour_descriptor(source.read(left, top, width, height, factor))
