"""Images made smaller: by block means where the factor is whole, else through a smooth window.

Without numpy: pieces of a slide are reduced in the process that decodes them, which is to start
quickly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]  # left, top, right, bottom

# Side of the largest piece of a level held at once while reducing: 16 MB as RGBA.
PIECE_PX = 2048
# Means of blocks are the same however they are cut, and a chunk of patches at half scale, with what
# lies around it, is one piece.
BLOCKS_PX = 2304
# Pixels of a block up to which Pillow's `reduce` is exact, and several times as fast as `resize`.
_SMALL_BLOCK = 1024


def pieces(length: int, step: float, most_px: int) -> list[slice]:
    """Ranges of output pixels, each of at most so many source pixels."""
    most = max(1, int(most_px / step))
    return [slice(start, min(start + most, length)) for start in range(0, length, most)]


def padded_range(start: float, stop: float, margin: float, limit: float) -> tuple[int, int]:
    """Whole pixels around [start, stop), with a margin for the filter as far as the image goes."""
    first = max(math.floor(start - margin), min(math.floor(start), 0))
    last = min(math.ceil(stop + margin), max(math.ceil(stop), math.ceil(limit)))
    return first, last


def is_integer_grid(*numbers: float) -> bool:
    return all(float(number).is_integer() for number in numbers)


class ResampleTile(NamedTuple):
    """A rectangle of a level, in its pixels, and how it becomes an image of `shape`.

    box : what of it is reduced through a window, in its own pixels; None: the means of blocks
    """

    level: int
    x: int
    y: int
    width: int
    height: int
    shape: tuple[int, int]
    box: Box | None

    @classmethod
    def around(
        cls, level: int, box: Box, shape: tuple[int, int], limits: tuple[float, ...]
    ) -> ResampleTile:
        """What is needed for a box of a level, which has pixels up to `limits`."""
        steps = (box[2] - box[0]) / shape[1], (box[3] - box[1]) / shape[0]
        whole = is_integer_grid(*box, *steps)
        (x, right), (y, bottom) = (
            padded_range(box[axis], box[axis + 2], 0 if whole else steps[axis], limits[axis])
            for axis in (0, 1)
        )
        inside = None if whole else (box[0] - x, box[1] - y, box[2] - x, box[3] - y)
        return cls(level, x, y, right - x, bottom - y, shape, inside)

    def reduced(self, picture: Image.Image) -> Image.Image:
        """The image, from the picture of this rectangle."""
        if self.box is not None:
            return resize(picture, self.shape, self.box)
        return block_means(picture, self.width // self.shape[1], self.height // self.shape[0])


def block_means(picture: Image.Image, width: int, height: int) -> Image.Image:
    """The mean of each block of so many pixels: the same however the region is cut."""
    from PIL import Image

    if width == height == 1:
        return picture
    if width * height <= _SMALL_BLOCK:
        return picture.reduce((width, height))
    size = (picture.width // width, picture.height // height)
    return picture.resize(size, Image.Resampling.BOX)


def resize(picture: Image.Image, shape: tuple[int, ...], box: Box | None = None) -> Image.Image:
    """A box of an image as an image of this shape, through a smooth window.

    Where the factor is no whole number, some pixels would lie half a pixel off with block means.
    """
    from PIL import Image

    return picture.resize((shape[1], shape[0]), Image.Resampling.HAMMING, box=box)


def composite_on_white(picture: Image.Image) -> Image.Image:
    """An RGBA picture as RGB, laid over white where it is transparent."""
    from PIL import Image

    opacity = picture.getchannel("A")
    if opacity.getextrema() == (255, 255):  # nearly always, and quicker
        return picture.convert("RGB")
    white = Image.new("RGB", picture.size, "white")
    white.paste(picture, mask=opacity)
    return white
