"""Reduction of images with Pillow.

Images are reduced to block means if the factor is a whole number, otherwise with a Hamming window.
The child process that decodes slides uses this module without loading NumPy at start.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL import Image


Box = tuple[float, float, float, float]  # left, top, right, bottom

# Maximum side of a tile that is reduced at once, in pixels of the level: 16 MB as RGBA.
MAX_TILE_PX = 2048
# Maximum side for block means, which do not depend on how an image is divided. A batch of patches
# at half scale and its margin fit in one tile.
MAX_BLOCK_TILE_PX = 2304
# Up to this number of pixels in a block, Pillow's `reduce` is exact and faster than `resize`.
_MAX_REDUCE_PIXELS = 1024


def split_range(length: int, step: float, max_px: int) -> list[slice]:
    """Divide the output pixels of an axis into ranges of at most `max_px` source pixels each.

    Parameters
    ----------
    length : number of output pixels
    step : source pixels per output pixel
    max_px : maximum number of source pixels per range

    Returns
    -------
    list of slice
        Ranges of output pixels, of at least one pixel each.
    """
    n_max = max(1, int(max_px / step))
    return [slice(start, min(start + n_max, length)) for start in range(0, length, n_max)]


def padded_range(start: float, stop: float, margin: float, length: float) -> tuple[int, int]:
    """Return the pixel range (first, end) of the interval [start, stop) with margins.

    Both limits are rounded outwards. The margins are cropped to the image, [0, length); the
    interval itself is not.
    """
    first = max(math.floor(start - margin), min(math.floor(start), 0))
    last = min(math.ceil(stop + margin), max(math.ceil(stop), math.ceil(length)))
    return first, last


def are_whole_numbers(*numbers: float) -> bool:
    """Return whether all numbers are whole."""
    return all(float(number).is_integer() for number in numbers)


class ResampleTile(NamedTuple):
    """Rectangle of a pyramid level, and how to resample its pixels.

    Attributes
    ----------
    level : index of the pyramid level
    x, y, width, height : rectangle in pixels of the level
    shape : (height, width) of the resampled image
    box : part to resample with a Hamming window, relative to (x, y); None to average blocks of the
        whole rectangle
    """

    level: int
    x: int
    y: int
    width: int
    height: int
    shape: tuple[int, int]
    box: Box | None

    @classmethod
    def from_box(
        cls, level: int, box: Box, shape: tuple[int, int], level_size: tuple[float, ...]
    ) -> ResampleTile:
        """Return the tile with all pixels that are needed to resample a box of a level.

        Parameters
        ----------
        level : index of the pyramid level
        box : (left, top, right, bottom) in pixels of the level, not necessarily whole numbers
        shape : (height, width) of the resampled image
        level_size : (width, height) of the level
        """
        steps = (box[2] - box[0]) / shape[1], (box[3] - box[1]) / shape[0]
        is_integer = are_whole_numbers(*box, *steps)
        (x, right), (y, bottom) = (
            padded_range(
                box[axis], box[axis + 2], 0 if is_integer else steps[axis], level_size[axis]
            )
            for axis in (0, 1)
        )
        window = None if is_integer else (box[0] - x, box[1] - y, box[2] - x, box[3] - y)
        return cls(level, x, y, right - x, bottom - y, shape, window)

    def resample(self, image: Image.Image) -> Image.Image:
        """Return `image`, the pixels of this rectangle, resampled to `shape`."""
        if self.box is not None:
            return resize(image, self.shape, self.box)
        return block_means(image, self.width // self.shape[1], self.height // self.shape[0])


def block_means(image: Image.Image, width: int, height: int) -> Image.Image:
    """Return an image of the means of blocks of `width` x `height` pixels."""
    from PIL import Image

    if width == height == 1:
        return image
    if width * height <= _MAX_REDUCE_PIXELS:
        return image.reduce((width, height))
    size = (image.width // width, image.height // height)
    return image.resize(size, Image.Resampling.BOX)


def resize(image: Image.Image, shape: tuple[int, ...], box: Box | None = None) -> Image.Image:
    """Return a box of an image, resampled to `shape` (height, width) with a Hamming window.

    If `box` is None, the whole image is resampled. Unlike block means, this is also accurate for
    factors that are not whole numbers.
    """
    from PIL import Image

    return image.resize((shape[1], shape[0]), Image.Resampling.HAMMING, box=box)


def composite_on_white(image: Image.Image) -> Image.Image:
    """Composite an RGBA image on white and return it as RGB."""
    from PIL import Image

    opacity = image.getchannel("A")
    if opacity.getextrema() == (255, 255):  # the most frequent case, and faster
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=opacity)
    return white
