"""A picture of an image with its patch map laid over it, and a legend below."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..execution.files import atomic_write
from ..images.readers import open_image
from .legend import add_legend
from .patch_map import PatchMap, Ring

_LONGEST_SIDE = 1600


def save_overlay(
    path: Path, patch_map: PatchMap, words: str, outlines: Iterable[Ring] = ()
) -> None:
    pixels = draw_overlay(patch_map, words, outlines)
    with atomic_write(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


def draw_overlay(
    patch_map: PatchMap,
    words: str,
    outlines: Iterable[Ring] = (),
    *,
    longest_side: int = _LONGEST_SIDE,
) -> NDArray[np.uint8]:
    """The map's image, reduced if it is large, with every patch in its class's colour.

    `words`: what the answer is; they go below, with the classes' colours and shares.
    `outlines`: closed rings of level-0 (x, y) to draw on top.
    """
    with open_image(patch_map.path) as source:
        size = source.size
        picture = source.thumbnail(min(longest_side, max(size)))
    _lay_over(picture, patch_map, size)
    drawn = Image.fromarray(picture)
    scale = picture.shape[1] / size[0]
    pen = ImageDraw.Draw(drawn)
    for ring in outlines:
        points = [(x * scale, y * scale) for x, y in ring]
        for colour, thickness in (("white", 5), ("black", 2)):
            pen.line(points, fill=colour, width=thickness, joint="curve")
    return np.asarray(add_legend(drawn, patch_map, words))


def _lay_over(picture: NDArray[np.uint8], patch_map: PatchMap, size: tuple[int, int]) -> None:
    """Colouring of an image of this level-0 size, up to its border.

    A uniform margin, which is outside the grid, is coloured up to the width of one patch.
    """
    colours, opacity = patch_map.colours()
    grid, (height, width) = patch_map.grid, picture.shape[:2]
    y, x = (
        (np.arange(n) + 0.5) * at / n for n, at in zip((height, width), size[::-1], strict=True)
    )
    columns, is_near = grid.columns_at(x), grid.is_near(x, grid.left, grid.n_columns)
    rows = grid.rows_at(y)
    for place in np.flatnonzero(grid.is_near(y, grid.top, grid.n_rows)).tolist():
        # One by one, to limit the memory for floats.
        line, row = picture[place], rows[place]
        a = (opacity[row, columns] * is_near)[:, None]
        line[:] = np.rint(line * (1 - a) + a * colours[row, columns])
