"""Images made smaller: by block means where the factor is whole, else through a smooth window."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
# Side of the largest piece of a level held at once while reducing: 16 MB as RGBA.
PIECE_PX = 2048
# Pixels of a block up to which Pillow's `reduce` is exact, and several times as fast as `resize`.
_SMALL_BLOCK = 1024


def pieces(length: int, step: float) -> list[slice]:
    """Ranges of output pixels, each of at most PIECE_PX source pixels."""
    most = max(1, int(PIECE_PX / step))
    return [slice(start, min(start + most, length)) for start in range(0, length, most)]


def span(start: float, stop: float, margin: float, limit: float) -> tuple[int, int]:
    """Whole pixels around [start, stop), with a margin for the filter as far as the image goes."""
    first = max(math.floor(start - margin), min(math.floor(start), 0))
    last = min(math.ceil(stop + margin), max(math.ceil(stop), math.ceil(limit)))
    return first, last


def picture_of(pixels: Pixels) -> Image.Image:
    from PIL import Image

    return Image.fromarray(pixels)


def block_means(picture: Image.Image, width: int, height: int) -> Pixels:
    """The mean of each block of so many pixels: the same however the region is cut."""
    from PIL import Image

    if width == height == 1:
        return np.array(picture)
    if width * height <= _SMALL_BLOCK:
        return np.array(picture.reduce((width, height)))
    size = (picture.width // width, picture.height // height)
    return np.array(picture.resize(size, Image.Resampling.BOX))


def resize(
    picture: Image.Image,
    shape: tuple[int, ...],
    box: tuple[float, float, float, float] | None = None,
) -> Pixels:
    """A box of an image as an image of this shape, through a smooth window.

    Where the factor is no whole number, some pixels would lie half a pixel off with block means.
    """
    from PIL import Image

    size = (shape[1], shape[0])
    return np.array(picture.resize(size, Image.Resampling.HAMMING, box=box))
