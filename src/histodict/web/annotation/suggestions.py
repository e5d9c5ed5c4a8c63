"""Suggestions of images or regions to label next, by uncertainty and novelty.

The uncertainty of a candidate is the fraction of candidates with a larger margin. Its novelty is
the fraction of candidates whose descriptors are closer to the descriptor of a labelled image. The
candidate with the largest product is suggested. Its descriptor then counts as labelled, so that
similar candidates are not suggested together. As uncertainty and novelty are ranks, the units of
margins and distances do not matter.

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
from .store import Shape, shape_polygons

FloatArray = NDArray[np.float64]
_TISSUE_DENSITY = 0.15  # optical density above which a pixel is tissue


class Suggestion(NamedTuple):
    """Index of a suggested candidate, its uncertainty and its novelty (both from 0 to 1)."""

    candidate: int
    uncertainty: float
    novelty: float


def suggest(
    margins: FloatArray, descriptors: FloatArray, labelled: FloatArray, n: int
) -> list[Suggestion]:
    """Return the n most informative candidates to label, the best first.

    Parameters
    ----------
    margins : (n_candidates,), margins between the predicted class and the next one
    descriptors : (n_candidates, n_features), colour descriptors of the candidates
    labelled : (n_labelled, n_features), colour descriptors of labelled images
    n : number of suggestions
    """
    if not len(margins):
        return []
    scale = np.vstack([descriptors, labelled]).std(axis=0) + 1e-9
    descriptors, labelled = descriptors / scale, labelled / scale
    if len(labelled):
        distances = cdist(descriptors, labelled).min(axis=1)
    else:
        distances = _median_proximity(descriptors)
    uncertainty, is_available = 1 - _ranks(margins), np.ones(len(margins), bool)
    suggestions = list[Suggestion]()
    for _ in range(min(n, len(margins))):
        novelty = _ranks(distances)
        best = int(np.argmax(np.where(is_available, uncertainty * novelty, -1.0)))
        suggestions.append(Suggestion(best, float(uncertainty[best]), float(novelty[best])))
        is_available[best] = False
        distances = np.minimum(distances, np.linalg.norm(descriptors - descriptors[best], axis=1))
    return suggestions


def _ranks(values: FloatArray) -> FloatArray:
    """Return the mid-rank of each value, divided by the number of values."""
    n_less = np.searchsorted(np.sort(values), values, side="left")
    n_not_greater = np.searchsorted(np.sort(values), values, side="right")
    ranks: FloatArray = (n_less + n_not_greater) / (2 * len(values))
    return ranks


def _median_proximity(descriptors: FloatArray) -> FloatArray:
    """Return negative distances from the median descriptor, for use without labelled images."""
    return -np.linalg.norm(descriptors - np.median(descriptors, axis=0), axis=1)


def colour_descriptor(pixels: NDArray[np.uint8]) -> FloatArray:
    """Return a descriptor (14,) of the appearance of an image, from RGB pixels.

    It contains, in units of optical density:

    - means, standard deviations and correlations of the colour channels in tissue;
    - for the mean over the channels: the mean absolute difference from local means over 3, 5 and
      9 pixels, and the standard deviation after blurring;

    and the fraction of tissue.
    """
    density = -np.log10((pixels.astype(np.float64) + 1) / 256)
    grey = density.mean(axis=2)
    tissue = grey > _TISSUE_DENSITY
    pixels_of_tissue = density[tissue] if tissue.sum() > 9 else density.reshape(-1, 3)
    spread = pixels_of_tissue.std(axis=0)
    standardised = (pixels_of_tissue - pixels_of_tissue.mean(axis=0)) / (spread + 1e-6)
    correlations = (standardised.T @ standardised / len(standardised))[np.triu_indices(3, 1)]
    textures = [float(np.abs(grey - ndimage.uniform_filter(grey, n)).mean()) for n in (3, 5, 9)]
    blurred = float(ndimage.gaussian_filter(grey, 8).std())
    return np.array(
        [*pixels_of_tissue.mean(axis=0), *spread, *correlations, *textures, blurred, tissue.mean()]
    )


def prediction_margin(prediction: Mapping[str, Any]) -> float | None:
    """Return the margin of a stored prediction (JSON), which is small for an uncertain prediction.

    It is the difference of the two largest class probabilities. Without probabilities, it is the
    difference of the two largest fractions of patches if there are more than two classes, and the
    absolute value of the score otherwise. It is None if the image has no tissue.
    """
    for fractions in (prediction["probabilities"], prediction["shares"]):
        if prediction["answer"] is not None and len(fractions) > 2 - bool(
            prediction["probabilities"]
        ):
            first, second, *_ = sorted(fractions.values(), reverse=True)
            return float(first - second)
    score = prediction["score"]
    return None if prediction["answer"] is None or score is None else abs(float(score))


# --- regions of an image --------------------------------------------------------------------------


_REGION_PX = 512  # approximate side of a region; half of the shorter side of a small image
_MIN_REGION_PATCHES = 3  # minimum side of a region in patches
_MAX_REGIONS = 64  # maximum number of regions to read
_OVERVIEW_PX = 128  # maximum side of a region when its descriptor is computed
_MIN_TISSUE_FRACTION = 0.5  # of the patches of a region

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class MapRegion:
    """Square region of an image that may be suggested.

    Attributes
    ----------
    slices : rows and columns of the patch map in the region
    box : left, top, right, bottom in level-0 pixels
    mean_margin : mean margin of the tissue patches in the region
    """

    slices: tuple[slice, slice]
    box: Box
    mean_margin: float


def map_regions(patch_map: PatchMap) -> list[MapRegion]:
    """Return square regions that cover a map, except those with little tissue."""
    ordered = np.sort(patch_map.margins.astype(np.float64), axis=2)
    margins, tissue = ordered[..., -1] - ordered[..., -2], patch_map.tissue
    grid = patch_map.grid
    shorter = min(grid.n_rows, grid.n_columns)
    n = min(shorter, max(_MIN_REGION_PATCHES, min(round(_REGION_PX / grid.step), shorter // 2)))
    regions = []
    for row in _window_starts(grid.n_rows, n):
        for column in _window_starts(grid.n_columns, n):
            slices = slice(row, row + n), slice(column, column + n)
            region_tissue = tissue[slices]
            if region_tissue.mean() >= _MIN_TISSUE_FRACTION:
                box = _region_box(patch_map, *slices)
                regions.append(MapRegion(slices, box, float(margins[slices][region_tissue].mean())))
    return regions


def _window_starts(count: int, n: int) -> list[int]:
    """Return the start indices of windows of length n that cover the indices 0 to `count` - 1.

    The last two windows may overlap.
    """
    return sorted({*range(0, count - n + 1, n), count - n})


def _region_box(patch_map: PatchMap, rows: slice, columns: slice) -> Box:
    left, top = patch_map.grid.corner(rows.start, columns.start)
    right, bottom = patch_map.grid.corner(rows.stop - 1, columns.stop - 1)
    side = patch_map.grid.patch_side
    return round(left), round(top), round(right + side), round(bottom + side)


def annotation_mask(
    patch_map: PatchMap, shapes: Sequence[Shape], size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return the mask (n_rows, n_columns) of the grid cells of a map that any shape overlaps.

    `size` is the (width, height) of the image in pixels.
    """
    grid = patch_map.grid
    outlines = [AnnotationPolygon("", tuple(rings)) for s in shapes for rings in shape_polygons(s)]
    across = np.asarray(grid.left + grid.step * np.arange(grid.n_columns), np.float64)
    down = np.asarray(grid.top + grid.step * np.arange(grid.n_rows), np.float64)
    x, y = np.meshgrid(across, down)
    return RunLengthMask.from_outlines(outlines, size).coverage(x, y, grid.step) > 0


def suggest_regions(
    patch_map: PatchMap,
    source: ImageSource,
    labelled_boxes: list[Box],
    n: int,
    shapes: Sequence[Shape] = (),
) -> list[tuple[Box, Suggestion]]:
    """Return the n most informative regions to label, the best first, as (box, suggestion).

    Parameters
    ----------
    patch_map : patch map of the image
    source : image
    labelled_boxes : rectangles labelled by the user, as left, top, right, bottom in level-0 pixels
    n : number of suggestions
    shapes : annotations of the image
    """
    is_annotated = annotation_mask(patch_map, shapes, source.size)
    regions, labelled = list[MapRegion](), [*labelled_boxes]
    for region in map_regions(patch_map):
        if is_annotated[region.slices].any():
            labelled.append(region.box)
        elif not any(_boxes_overlap(region.box, box) for box in labelled_boxes):
            regions.append(region)
    regions = sorted(regions, key=lambda region: region.mean_margin)[:_MAX_REGIONS]
    if not regions:
        return []
    descriptors = np.stack([region_descriptor(source, region.box) for region in regions])
    known = np.array([region_descriptor(source, box) for box in labelled[:_MAX_REGIONS]])
    margins = np.array([region.mean_margin for region in regions])
    suggestions = suggest(margins, descriptors, known.reshape(-1, descriptors.shape[1]), n)
    return [(regions[suggestion.candidate].box, suggestion) for suggestion in suggestions]


def _boxes_overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def region_descriptor(source: ImageSource, box: Box) -> NDArray[np.float64]:
    """Return the colour descriptor of a box of an image, at reduced resolution."""
    left, top, right, bottom = box
    width = min(right, source.size[0]) - left
    height = min(bottom, source.size[1]) - top
    factor = max(1.0, max(width, height) / _OVERVIEW_PX)
    return colour_descriptor(source.read(left, top, width, height, factor))
