"""A picture of an image with its patch map laid over it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..execution.files import written_whole
from ..images.readers import open_image
from ..pipeline import BLANK, PatchMap

# Distinguishable for colour-blind readers (Okabe and Ito); the first class is healthy, by custom.
COLOURS = np.array(
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [240, 228, 66], [86, 180, 233]],
    np.float64,
)
_LONGEST_SIDE = 1600
_OPACITY = 0.45

Rings = Iterable[list[tuple[float, float]]]


def css_colour(place: int) -> str:
    """The colour of the class at this place."""
    r, g, b = COLOURS[place % len(COLOURS)]
    return f"rgb({r:.0f}, {g:.0f}, {b:.0f})"


def colour_map(patch_map: PatchMap) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Colour (rows, columns, 3) and opacity (rows, columns): stronger where it won more clearly."""
    winners = patch_map.winners
    colours = COLOURS[np.where(winners == BLANK, 0, winners) % len(COLOURS)]
    margins = patch_map.margins.max(axis=2)
    on_tissue = winners != BLANK
    typical = np.median(margins[on_tissue]) if on_tissue.any() else 1.0
    strength = np.clip(0.35 + 0.65 * margins / max(2 * typical, 1e-12), 0.35, 1.0)
    return colours, np.where(on_tissue, _OPACITY * strength, 0.0)


def save_overlay(path: Path, image: Path, patch_map: PatchMap, outlines: Rings = ()) -> None:
    pixels = draw_overlay(image, patch_map, outlines)
    with written_whole(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


def draw_overlay(image: Path, patch_map: PatchMap, outlines: Rings = ()) -> NDArray[np.uint8]:
    """The image, reduced if it is large, with every patch in its class's colour.

    `outlines`: closed rings of level-0 (x, y) to draw on top.
    """
    with open_image(image) as source:
        width, height = source.size
        picture = source.thumbnail(min(_LONGEST_SIDE, max(width, height)))
    colours, opacity = colour_map(patch_map)
    rows, columns = _grid_places(picture.shape[:2], (height, width), patch_map)
    for line, row in zip(picture, rows, strict=True):  # one by one: as floats all would be large
        a = np.where((row >= 0) & (columns >= 0), opacity[row, columns], 0.0)[:, None]
        line[:] = np.rint(line * (1 - a) + a * colours[row, columns])
    drawn = Image.fromarray(picture)
    scale = picture.shape[1] / width
    pen = ImageDraw.Draw(drawn)
    for ring in outlines:
        points = [(x * scale, y * scale) for x, y in ring]
        for colour, thickness in (("white", 5), ("black", 2)):
            pen.line(points, fill=colour, width=thickness, joint="curve")
    return np.asarray(drawn)


def _grid_places(
    shape: tuple[int, int], size: tuple[int, int], patch_map: PatchMap
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every row and column of the picture, the grid row or column it lies in; −1 outside.

    Where patches overlap, a point belongs to the patch whose centre is nearest.
    """
    grid = patch_map.grid
    places = []
    for pixels, length, count in zip(shape, size, patch_map.winners.shape, strict=True):
        level0 = (np.arange(pixels) + 0.5) * length / pixels
        step = grid.stride_px * grid.downsample
        index = np.floor((level0 - (grid.patch_side - step) / 2) / step).astype(np.int64)
        covered = level0 < (count - 1) * step + grid.patch_side
        places.append(np.where(covered, np.clip(index, 0, count - 1), -1))
    return places[0], places[1]
