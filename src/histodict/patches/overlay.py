"""A picture of an image with its patch map laid over it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..execution.files import written_whole
from ..images.readers import open_image
from .patch_map import PatchMap, Ring

_LONGEST_SIDE = 1600


def save_overlay(path: Path, patch_map: PatchMap, outlines: Iterable[Ring] = ()) -> None:
    pixels = draw_overlay(patch_map, outlines)
    with written_whole(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


def draw_overlay(patch_map: PatchMap, outlines: Iterable[Ring] = ()) -> NDArray[np.uint8]:
    """The map's image, reduced if it is large, with every patch in its class's colour.

    `outlines`: closed rings of level-0 (x, y) to draw on top.
    """
    with open_image(patch_map.path) as source:
        width, height = source.size
        picture = source.thumbnail(min(_LONGEST_SIDE, max(width, height)))
    colours, opacity = patch_map.colours()
    rows, columns = (
        patch_map.grid.cells_at((np.arange(pixels) + 0.5) * length / pixels, count)
        for pixels, length, count in zip(
            picture.shape, (height, width), patch_map.winners.shape, strict=False
        )
    )
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
