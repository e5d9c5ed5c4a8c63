"""What the colours of a picture mean: a band below it, with the classes and the answer.

A picture of an image with its patch map laid over it, and a legend below.

Pictures of patches and atoms, and pictures as files or as text that a page can hold.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ..images.source import open_image
from ..utils.files import atomic_write
from .patch_map import PatchMap, Ring, class_rgb
from .vectors import to_images

# A narrow picture gets white beside it rather than letters that nobody can read.
_MIN_WIDTH = 240
_CHARACTERS_PER_WIDTH = 48  # heights of a letter
_LETTER_PX = (12, 30)


@dataclass(frozen=True)
class _Entry:
    """A word or a group that stays on one line; with a square of a colour before it, or none."""

    text: str
    colour: tuple[int, ...] | None = None


def add_legend(picture: Image.Image, patch_map: PatchMap, words: str) -> Image.Image:
    """The picture at the top left, below it the classes, their colours and shares, how much of the
    tissue uses each named concept, and `words`.
    """
    width = max(picture.width, _MIN_WIDTH)
    font = _font(int(np.clip(width // _CHARACTERS_PER_WIDTH, *_LETTER_PX)))
    entries = [
        _Entry(f"{name} {100 * share:.0f} %", class_rgb(place))
        for place, (name, share) in enumerate(patch_map.proportions.items())
    ]
    uses = [f"“{name}” in {100 * use:.0f} %" for name, use in patch_map.atom_usage.items()]
    concepts = [_Entry(text) for text in [*(f"{use}," for use in uses[:-1]), *uses[-1:]]]
    told = [_Entry(word) for word in words.split()]
    lines = [line for part in (entries, concepts, told) for line in _lines(part, width, font)]
    pitch = round(font.size * 1.5)
    drawn = Image.new("RGB", (width, picture.height + pitch * len(lines) + pitch // 2), "white")
    drawn.paste(picture, (0, 0))
    pen = ImageDraw.Draw(drawn)
    for place, line in enumerate(lines):
        _draw_line(pen, line, picture.height + pitch // 2 + place * pitch, font)
    return drawn


def _lines(entries: list[_Entry], width: int, font: ImageFont.FreeTypeFont) -> list[list[_Entry]]:
    """As many entries to a line as there is room for."""
    lines: list[list[_Entry]] = []
    free = 0.0
    for entry in entries:
        needed = _length(entry, font)
        if not lines or needed > free:
            lines.append([])
            free = width - font.size  # half a letter on either side
        lines[-1].append(entry)
        free -= needed
    return lines


def _length(entry: _Entry, font: ImageFont.FreeTypeFont) -> float:
    """With the square before it and the gap behind it."""
    square, gap = (1.4, 1.0) if entry.colour else (0.0, 0.3)
    return font.getlength(entry.text) + (square + gap) * font.size


def _draw_line(
    pen: ImageDraw.ImageDraw, line: list[_Entry], top: float, font: ImageFont.FreeTypeFont
) -> None:
    left, side = font.size / 2, font.size
    for entry in line:
        start = left
        if entry.colour:
            pen.rectangle((left, top, left + side, top + side), fill=entry.colour)
            start += 1.4 * side
        pen.text((start, top + side / 2), entry.text, fill="black", font=font, anchor="lm")
        left += _length(entry, font)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu, which comes with matplotlib and knows Greek and Cyrillic class names, too."""
    spec = find_spec("matplotlib")
    assert spec is not None and spec.origin is not None  # the package requires it
    file = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(file, size)


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


_ENLARGED_PX = 96


def jpeg_data_uri(pixels: NDArray[np.uint8], *, quality: int = 88) -> str:
    """An RGB picture as a data URI."""
    return _uri("jpeg", encode_jpeg(pixels, quality))


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """A small RGB picture as a data URI, pixel by pixel."""
    return _uri("png", encode_png(pixels))


def encode_jpeg(pixels: NDArray[np.uint8], quality: int = 85) -> bytes:
    return _encoded(pixels, format="JPEG", quality=quality)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    return _encoded(pixels, format="PNG", compress_level=3)


def _encoded(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **options)
    return buffer.getvalue()


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def render_vector(
    vector: NDArray[Any], side: int, ends: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """A vector of pixels as an RGB picture, `ends` as black and white; its own range if None."""
    pixels = to_images(vector[None], side)[0]
    low, high = ends if ends is not None else (float(pixels.min()), float(pixels.max()))
    scaled = (pixels - low) / max(high - low, 1e-12)
    return magnify((255 * np.clip(scaled, 0, 1)).astype(np.uint8))


def magnify(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every pixel as a square, so that a patch is large enough to look at."""
    factor = max(1, _ENLARGED_PX // pixels.shape[0])
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def atom_mosaic(
    D: NDArray[Any], patch_px: int, n_atoms: int = 40, n_columns: int = 10
) -> NDArray[np.uint8]:
    """The first atoms of a dictionary of pixel vectors as a sheet of pictures, enlarged 3 times.

    Each atom is stretched to its own range: what counts is its pattern, not its sign or scale.
    """
    atoms = to_images(D[:n_atoms], patch_px)
    low = atoms.min(axis=(1, 2, 3), keepdims=True)
    high = atoms.max(axis=(1, 2, 3), keepdims=True)
    pictures = (255 * (atoms - low) / np.maximum(high - low, 1e-12)).astype(np.uint8)
    pictures = pictures.repeat(3, axis=1).repeat(3, axis=2)
    framed = np.pad(pictures, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    missing = -len(framed) % n_columns
    framed = np.concatenate([framed, np.full((missing, *framed.shape[1:]), 255, np.uint8)])
    rows = framed.reshape(-1, n_columns, *framed.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])


def atom_mosaics(bases: Mapping[str, NDArray[Any]], patch_px: int) -> list[dict[str, str]]:
    """The sheets of several dictionaries by name, for a page."""
    return [
        {"name": name, "uri": jpeg_data_uri(atom_mosaic(D, patch_px), quality=92)}
        for name, D in bases.items()
    ]
