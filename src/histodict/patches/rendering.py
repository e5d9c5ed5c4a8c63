"""Rendering of patch maps, legends, patches and atoms as images, files or data URIs."""

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

# Minimum image width in pixels; narrower images are padded, so that the legend is readable.
_MIN_WIDTH = 240
_FONT_SIZES_PER_WIDTH = 48  # image width divided by the font size
_FONT_SIZE_RANGE = (12, 30)  # minimum and maximum, in pixels


@dataclass(frozen=True)
class _LegendEntry:
    """Text of a legend that stays on one line, with an optional colour square before it."""

    text: str
    colour: tuple[int, ...] | None = None


def add_legend(image: Image.Image, patch_map: PatchMap, caption: str) -> Image.Image:
    """Return the image with a legend below it, padded to a minimum width.

    The legend shows the classes with their colours and fractions, the fraction of the patches that
    use each named concept, and `caption`.
    """
    width = max(image.width, _MIN_WIDTH)
    font = _load_font(int(np.clip(width // _FONT_SIZES_PER_WIDTH, *_FONT_SIZE_RANGE)))
    entries = [
        _LegendEntry(f"{name} {100 * fraction:.0f} %", class_rgb(index))
        for index, (name, fraction) in enumerate(patch_map.proportions.items())
    ]
    usages = [f"“{name}” in {100 * use:.0f} %" for name, use in patch_map.concept_usage.items()]
    concepts = [_LegendEntry(text) for text in [*(f"{use}," for use in usages[:-1]), *usages[-1:]]]
    description = [_LegendEntry(word) for word in caption.split()]
    lines = [
        line
        for group in (entries, concepts, description)
        for line in _wrap_entries(group, width, font)
    ]
    pitch = round(font.size * 1.5)
    canvas = Image.new("RGB", (width, image.height + pitch * len(lines) + pitch // 2), "white")
    canvas.paste(image, (0, 0))
    pen = ImageDraw.Draw(canvas)
    for index, line in enumerate(lines):
        _draw_legend_line(pen, line, image.height + pitch // 2 + index * pitch, font)
    return canvas


def _wrap_entries(
    entries: list[_LegendEntry], width: int, font: ImageFont.FreeTypeFont
) -> list[list[_LegendEntry]]:
    """Distribute legend entries over lines of `width` pixels."""
    lines: list[list[_LegendEntry]] = []
    free = 0.0
    for entry in entries:
        needed = _entry_width(entry, font)
        if not lines or needed > free:
            lines.append([])
            free = width - font.size  # half a font size on either side
        lines[-1].append(entry)
        free -= needed
    return lines


def _entry_width(entry: _LegendEntry, font: ImageFont.FreeTypeFont) -> float:
    """Return the width in pixels of a legend entry with its colour square and the gap after it."""
    square, gap = (1.4, 1.0) if entry.colour else (0.0, 0.3)
    return font.getlength(entry.text) + (square + gap) * font.size


def _draw_legend_line(
    pen: ImageDraw.ImageDraw, line: list[_LegendEntry], top: float, font: ImageFont.FreeTypeFont
) -> None:
    left, side = font.size / 2, font.size
    for entry in line:
        start = left
        if entry.colour:
            pen.rectangle((left, top, left + side, top + side), fill=entry.colour)
            start += 1.4 * side
        pen.text((start, top + side / 2), entry.text, fill="black", font=font, anchor="lm")
        left += _entry_width(entry, font)


@cache
def _load_font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, a font of matplotlib with Greek and Cyrillic letters, in this size."""
    spec = find_spec("matplotlib")
    assert spec is not None and spec.origin is not None  # the package requires it
    file = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(file, size)


_MAX_OVERLAY_PX = 1600  # maximum width and height of an overlay


def save_overlay(
    path: Path, patch_map: PatchMap, caption: str, outlines: Iterable[Ring] = ()
) -> None:
    """Save the overlay of a patch map as a PNG file; see `draw_overlay` for the parameters."""
    pixels = draw_overlay(patch_map, caption, outlines)
    with atomic_write(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


def draw_overlay(
    patch_map: PatchMap,
    caption: str,
    outlines: Iterable[Ring] = (),
    *,
    longest_side: int = _MAX_OVERLAY_PX,
) -> NDArray[np.uint8]:
    """Return an image with its patches in the colours of their predicted classes, and a legend.

    Parameters
    ----------
    patch_map : map to draw
    caption : description of the prediction, shown below with the class colours and fractions
    outlines : outlines to draw on top, closed lists of (x, y) in level-0 pixels
    longest_side : maximum width and height in pixels, to which a larger image is reduced
    """
    with open_image(patch_map.path) as source:
        size = source.size
        image = source.thumbnail(min(longest_side, max(size)))
    _blend_class_colours(image, patch_map, size)
    canvas = Image.fromarray(image)
    scale = image.shape[1] / size[0]
    pen = ImageDraw.Draw(canvas)
    for ring in outlines:
        points = [(x * scale, y * scale) for x, y in ring]
        for colour, thickness in (("white", 5), ("black", 2)):
            pen.line(points, fill=colour, width=thickness, joint="curve")
    return np.asarray(add_legend(canvas, patch_map, caption))


def _blend_class_colours(
    image: NDArray[np.uint8], patch_map: PatchMap, size: tuple[int, int]
) -> None:
    """Blend the class colours of a map into the pixels of a downsampled image, in place.

    `size` is the level-0 size of the image. At most one patch around the grid is coloured, too.
    """
    colours, opacity = patch_map.colours()
    grid, (height, width) = patch_map.grid, image.shape[:2]
    y, x = (
        (np.arange(n) + 0.5) * length / n
        for n, length in zip((height, width), size[::-1], strict=True)
    )
    columns, is_near = grid.columns_at(x), grid.is_near(x, grid.left, grid.n_columns)
    rows = grid.rows_at(y)
    for index in np.flatnonzero(grid.is_near(y, grid.top, grid.n_rows)).tolist():
        # Row by row, to limit the memory for floats.
        pixels, row = image[index], rows[index]
        alpha = (opacity[row, columns] * is_near)[:, None]
        pixels[:] = np.rint(pixels * (1 - alpha) + alpha * colours[row, columns])


_ENLARGED_PX = 96  # approximate side of a magnified patch or atom


def jpeg_data_uri(pixels: NDArray[np.uint8], *, quality: int = 88) -> str:
    """Return RGB pixels as a data URI in JPEG format."""
    return _make_data_uri("jpeg", encode_jpeg(pixels, quality))


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return RGB pixels as a data URI in PNG format."""
    return _make_data_uri("png", encode_png(pixels))


def encode_jpeg(pixels: NDArray[np.uint8], quality: int = 85) -> bytes:
    """Return an RGB image as bytes in JPEG format."""
    return _encode_image(pixels, format="JPEG", quality=quality)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB image as bytes in PNG format."""
    return _encode_image(pixels, format="PNG", compress_level=3)


def _encode_image(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **options)
    return buffer.getvalue()


def _make_data_uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def render_vector(
    vector: NDArray[Any], side: int, value_range: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """Return a pixel vector as an enlarged RGB image.

    Parameters
    ----------
    vector : pixel vector of a patch, or an atom
    side : side of the patch in pixels
    value_range : values that become black and white; None for the minimum and maximum of the vector
    """
    pixels = to_images(vector[None], side)[0]
    low, high = (pixels.min(), pixels.max()) if value_range is None else value_range
    scaled = (pixels - low) / max(high - low, 1e-12)
    return magnify((255 * np.clip(scaled, 0, 1)).astype(np.uint8))


def magnify(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Enlarge a small image to about 96 pixels per side by repeating pixels."""
    factor = max(1, _ENLARGED_PX // pixels.shape[0])
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def atom_mosaic(
    D: NDArray[Any], patch_px: int, n_atoms: int = 40, n_columns: int = 10
) -> NDArray[np.uint8]:
    """Return the first atoms of a dictionary of pixel vectors as a mosaic, enlarged 3 times.

    The values of each atom are scaled to the range of black to white, so that its pattern is
    visible, but not its sign or norm.
    """
    atoms = to_images(D[:n_atoms], patch_px)
    low = atoms.min(axis=(1, 2, 3), keepdims=True)
    high = atoms.max(axis=(1, 2, 3), keepdims=True)
    images = (255 * (atoms - low) / np.maximum(high - low, 1e-12)).astype(np.uint8)
    images = images.repeat(3, axis=1).repeat(3, axis=2)
    framed = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    missing = -len(framed) % n_columns
    framed = np.concatenate([framed, np.full((missing, *framed.shape[1:]), 255, np.uint8)])
    rows = framed.reshape(-1, n_columns, *framed.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])


def atom_mosaics(dictionaries: Mapping[str, NDArray[Any]], patch_px: int) -> list[dict[str, str]]:
    """Return {"name", "uri"} for each dictionary: its key, and its mosaic as a data URI."""
    return [
        {"name": name, "uri": jpeg_data_uri(atom_mosaic(D, patch_px), quality=92)}
        for name, D in dictionaries.items()
    ]
