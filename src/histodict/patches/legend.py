"""What the colours of a picture mean: a band below it, with the classes and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .patch_map import PatchMap, class_rgb

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
