"""A decoded image, of which any part is shown as 8-bit RGB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ImageError
from .wide_pixels import to_8_bits, white_level

if TYPE_CHECKING:
    from PIL import Image

_ORIENTATION = 274
_STRIP_ROWS = 256


def orientation_of(exif: Image.Exif) -> int:
    """By EXIF, from 1 (as it is) to 8."""
    value = exif.get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


class DecodedImage:
    """A decoded image, of which regions are shown as 8-bit RGB, rotated by EXIF, over white.

    It is held as the file has it, so that nothing is in memory twice; but colours of 16 bits as 8.
    Which number is white is said in `wide_pixels`.
    """

    def __init__(self, path: Path, image: Image.Image) -> None:
        if image.mode in ("LAB", "HSV"):
            raise ImageError(
                f"{path}: pixels of mode {image.mode} cannot be shown as colours; "
                "save the image with 8 bits per colour (RGB)"
            )
        self._image = image
        self._orientation = orientation_of(image.getexif())
        self._white = _white(path, image) if image.mode.startswith("I") else 255.0
        turned = self._orientation >= 5
        self.size = (image.height, image.width) if turned else (image.width, image.height)

    def region(self, x: int, y: int, width: int, height: int) -> Image.Image:
        """As RGB; beyond the image everything is white."""
        from PIL import Image

        left, right = (min(max(0, at), self.size[0]) for at in (x, x + width))
        top, bottom = (min(max(0, at), self.size[1]) for at in (y, y + height))
        inside = self._inside(left, top, right, bottom)
        if inside.size == (width, height):
            return inside
        white = Image.new("RGB", (width, height), "white")
        white.paste(inside, (left - x, top - y))
        return white

    def _inside(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        from PIL import Image

        w, h = self._image.size
        mirrored = (w - right, h - bottom, w - left, h - top)
        across = (w - bottom, h - right, w - top, h - left)  # for those that swap x and y
        turn = Image.Transpose
        box, turns = {
            1: ((left, top, right, bottom), None),
            2: ((mirrored[0], top, mirrored[2], bottom), turn.FLIP_LEFT_RIGHT),
            3: (mirrored, turn.ROTATE_180),
            4: ((left, mirrored[1], right, mirrored[3]), turn.FLIP_TOP_BOTTOM),
            5: ((top, left, bottom, right), turn.TRANSPOSE),
            6: ((top, across[1], bottom, across[3]), turn.ROTATE_270),
            7: (across, turn.TRANSVERSE),
            8: ((across[0], left, across[2], right), turn.ROTATE_90),
        }[self._orientation]
        part = _as_rgb(self._image.crop(box), self._white)
        return part if turns is None else part.transpose(turns)


def _as_rgb(image: Image.Image, white: float) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        image = Image.fromarray(to_8_bits(np.asarray(image), white))
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def iter_strips(image: Image.Image) -> Iterator[tuple[slice, NDArray[Any]]]:
    """An image as arrays of some rows each, and which rows these are."""
    for y in range(0, image.height, _STRIP_ROWS):
        rows = slice(y, min(y + _STRIP_ROWS, image.height))
        yield rows, np.asarray(image.crop((0, rows.start, image.width, rows.stop)))


def _white(path: Path, grey: Image.Image) -> float:
    """The grey value that is white; looked at strip by strip."""
    limits = [(int(strip.min()), int(strip.max())) for _, strip in iter_strips(grey)]
    return white_level(path, min(low for low, _ in limits), max(high for _, high in limits))
