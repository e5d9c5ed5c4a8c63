"""Tissue detection, uniform margins and background masks.

Colours are compared with the white of the same image, the colour of background, so that white
balance and lamp brightness do not matter. With r, g, b the transmitted fractions of that white, a
pixel is stained if one colour is absorbed more than the other two,

    1 − 2g / (r + b) > 0.05   green: haematoxylin and eosin absorb it most
    1 − 2r / (g + b) > 0.12   red: haematoxylin alone
    1 − 2b / (r + g) > 0.12   blue: diaminobenzidine, pigment, blood

and it is dark if (r + g + b) / 3 < 0.8, as dense nuclei are whatever their hue. Tissue is stained
or dark. In a grey image a pixel is tissue if this mean is below 0.88.

White is the median colour of smooth areas whose green is about as bright as the maximum in the
image, as every stain absorbs green. An image without such areas has no background to measure; its
white is estimated from its brightest pixels, the gaps between cells, and is assumed not to be
tinted by stain. As this estimate may be too dark, the threshold of the mean is 0.88 as well.

Unusable pixels are neither tissue nor background: the black padding of scanners, and green or blue
ink, which transmits much more green than red. `preprocessing.quality` detects black ink, blur and
folds. The thresholds are compared with manual masks in `benchmarks/tissue.py`.

Uniform margins are added by software to reach a fixed image size. A margin consists of whole rows
or columns of one colour at a side of the image. Microscope background has noise and counts as
content.

A `BackgroundMask` finds the background of a slide at a low level, so that it is not read at full
resolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

_UNIFORM_TOLERANCE = 3  # grey levels; above the error of lossy compression in a uniform area
_MARGIN_STRIP_PX = 64  # rows or columns read together
_MAX_FRAMES = 2  # nested margins of different colours
_MAX_PIXELS = 50_000_000  # larger images are not searched, as they are not tiles

Box = tuple[int, int, int, int]  # left, top, right, bottom in level-0 pixels


class Source(Protocol):
    """Part of the image source interface that tissue detection uses."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""

    @property
    def overview_downsample(self) -> float | None:
        """Downsample factor of a level that is fast to read as a whole; None if there is none."""

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        """Return the pixels of a region, given in level-0 pixels, reduced by `downsample`."""

    def thumbnail(self, longest_side: int) -> NDArray[np.uint8]:
        """Return the whole image, reduced to this length of the longest side in pixels."""


@dataclass(frozen=True)
class Crop:
    """Image source that is a box of another source, with coordinates relative to the box.

    Attributes
    ----------
    source : source of the whole image
    box : (left, top, right, bottom) in level-0 pixels
    overview_downsample : None, as slides are not cropped
    """

    source: Source
    box: Box
    overview_downsample: float | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the box."""
        left, top, right, bottom = self.box
        return right - left, bottom - top

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        """Return the pixels of a region, relative to the box, reduced by `downsample`."""
        return self.source.read(self.box[0] + x, self.box[1] + y, width, height, downsample)

    def thumbnail(self, longest_side: int) -> NDArray[np.uint8]:
        """Return the whole box, reduced to this length of the longest side in pixels."""
        return self.read(0, 0, *self.size, max(1.0, max(self.size) / longest_side))


def content_box(source: Source) -> Box:
    """Return the box inside the uniform margins of a tile or photograph.

    The box is the whole image if it has no margins, is uniform as a whole, or is a slide.
    """
    whole = (0, 0, *source.size)
    if source.overview_downsample is not None or source.size[0] * source.size[1] > _MAX_PIXELS:
        return whole
    box = list(whole)
    for axis in (1, 0) * _MAX_FRAMES:  # rows, then columns
        for is_last in (False, True):
            n_lines = _count_uniform_lines(source, box, axis, is_last)
            if n_lines == box[axis + 2] - box[axis]:
                return whole
            box[axis + 2 * is_last] += -n_lines if is_last else n_lines
    left, top, right, bottom = box
    return left, top, right, bottom


def _count_uniform_lines(source: Source, box: list[int], axis: int, is_last: bool) -> int:
    """Return the number of rows or columns of one colour at a side of a box.

    `axis` is 0 for columns, 1 for rows; `is_last` selects the right or lower side.
    """
    colour, count = None, 0
    for lines in _read_strips(source, box, axis, is_last):
        if colour is None:
            colour = np.median(lines[0], axis=0)
        differs = (np.abs(lines - colour) > _UNIFORM_TOLERANCE).any(axis=(1, 2))
        if differs.any():
            return count + int(differs.argmax())
        count += len(lines)
    return count


def _read_strips(
    source: Source, box: list[int], axis: int, is_last: bool
) -> Iterator[NDArray[np.uint8]]:
    """Yield blocks (n, length, 3) of rows or columns of a box, from one side inwards.

    For `axis` and `is_last` see `_count_uniform_lines`.
    """
    for start in range(box[axis], box[axis + 2], _MARGIN_STRIP_PX):
        stop = min(start + _MARGIN_STRIP_PX, box[axis + 2])
        part = box.copy()
        part[axis], part[axis + 2] = start, stop
        if is_last:
            first = box[axis] + box[axis + 2]
            part[axis], part[axis + 2] = first - stop, first - start
        pixels = source.read(part[0], part[1], part[2] - part[0], part[3] - part[1])
        lines = pixels if axis == 1 else pixels.swapaxes(0, 1)
        yield lines[::-1] if is_last else lines


_LACK_OF_RED, _LACK_OF_GREEN, _LACK_OF_BLUE = 0.12, 0.05, 0.12
# The second value applies to grey images, and if white is estimated and may be too dark.
_MIN_LIGHT, _MIN_LIGHT_ESTIMATED = 0.8, 0.88
_MAX_PADDING = 20  # grey levels; microscope images have no darker pixels
_MAX_INK_RATIO = 0.7  # red relative to green; haematoxylin of the test images is above
# A mean over many pixels may include tissue if it exceeds this fraction of a threshold.
_POSSIBLE_FRACTION = 0.3

# Background is smooth in windows of a thumbnail, up to this coefficient of variation, ...
_THUMBNAIL_PX = 512
_WINDOW_PX = 9
_DENOISING_PX = 3  # side of the window of a first average
_MAX_VARIATION = 0.015
# ... has at least this fraction of the image's brightest red, green and blue, covers this fraction
# of the image, and lacks less green than eosin does.
_MIN_BRIGHTNESS = 0.85, 0.93, 0.85
_BRIGHTNESS_PERCENTILE = 99.5
_MIN_BACKGROUND = 0.001
_MAX_TINT = 0.22
# Without background, white is at least this bright, and its green at least this fraction of the
# mean of red and blue.
_MIN_WHITE = 200
_MIN_GREEN = 0.95

# All of a tile with a lower fraction of tissue counts as tissue, unless more than half is smooth.
_MIN_TILE_TISSUE = 0.01
_MAX_SMOOTH = 0.5

_BLOCK_PIXELS = 1 << 15
_MAX_FACTOR = 256  # 256 · 255 fits into 16 bits, with room for rounding
_Weights = tuple[float, float, float]
_Planes = tuple[NDArray[np.uint16], ...]  # red, green, blue


@dataclass(frozen=True)
class TissueThreshold:
    """Tissue thresholds, fitted on an image's thumbnail and applied to its pixels.

    Attributes
    ----------
    white : red, green and blue of background
    min_light : pixels with (r + g + b) / 3 below this value are tissue whatever their hue
    has_background : whether `white` was measured on background; otherwise it was estimated from
        the brightest pixels
    accepts_all : whether every usable pixel counts as tissue
    """

    white: tuple[float, float, float] = (255.0, 255.0, 255.0)
    min_light: float = _MIN_LIGHT
    has_background: bool = True
    accepts_all: bool = False

    @classmethod
    def from_tile(cls, thumbnail: NDArray[np.uint8]) -> TissueThreshold:
        """Fit the thresholds to pixels (height, width, 3) of a tile or photograph.

        If less than 1 % of the pixels is tissue, all usable pixels count as tissue, unless nearly
        all are smooth background or black padding.
        """
        fitted = cls.from_thumbnail(thumbnail)
        if fitted.mask(thumbnail).mean() >= _MIN_TILE_TISSUE:
            return fitted
        pixels = _subsample(thumbnail)
        is_image = _max_channel(pixels) >= _MAX_PADDING
        is_empty = not is_image.any() or _smooth_areas(pixels)[1][is_image].mean() > _MAX_SMOOTH
        return replace(fitted, accepts_all=not is_empty)

    @classmethod
    def from_thumbnail(cls, thumbnail: NDArray[np.uint8]) -> TissueThreshold:
        """Fit the thresholds to pixels (height, width, 3) of a thumbnail."""
        white, has_background = estimate_white(thumbnail)
        red, green, blue = np.moveaxis(thumbnail, -1, 0)
        is_grey = np.array_equal(red, green) and np.array_equal(green, blue)
        is_strict = has_background and not is_grey
        return cls(white, _MIN_LIGHT if is_strict else _MIN_LIGHT_ESTIMATED, has_background)

    def mask(self, pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return the tissue mask (...) of pixels (..., 3)."""
        return _test_by_blocks(
            pixels, lambda p: self._is_stained_or_dark(p, 1.0) & ~self._is_unusable(p)
        )

    def possible_tissue(self, pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether each pixel (..., 3) of a strongly reduced image may contain tissue.

        The mask is more inclusive than `mask`, as each pixel is the mean of tissue and background.
        """
        return _test_by_blocks(
            pixels, lambda planes: self._is_stained_or_dark(planes, _POSSIBLE_FRACTION)
        )

    def is_unusable(self, pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return the mask (...) of padding and ink in pixels (..., 3)."""
        return _test_by_blocks(pixels, self._is_unusable)

    def _is_unusable(self, planes: _Planes) -> NDArray[np.bool_]:
        padding: NDArray[np.bool_] = np.maximum(np.maximum(*planes[:2]), planes[2]) < _MAX_PADDING
        if not self.has_background:  # a tint of the light could look like ink
            return padding
        return padding | self._is_sum_less(planes, (1, 0, 0), (0, _MAX_INK_RATIO, 0))

    def _is_stained_or_dark(self, planes: _Planes, fraction: float) -> NDArray[np.bool_]:
        """Return the mask of pixels that are stained or dark.

        The distances of the thresholds from white are multiplied by `fraction`.
        """
        if self.accepts_all:
            return np.ones(planes[0].shape, bool)
        green, red, blue = (
            (1 - fraction * lack) / 2 for lack in (_LACK_OF_GREEN, _LACK_OF_RED, _LACK_OF_BLUE)
        )
        light = 1 - fraction * (1 - self.min_light)
        return (
            self._is_sum_less(planes, (0, 1, 0), (green, 0, green))
            | self._is_sum_less(planes, (1, 0, 0), (0, red, red))
            | self._is_sum_less(planes, (0, 0, 1), (blue, blue, 0))
            | self._is_sum_less(planes, (1, 1, 1), (0, 0, 0), 3 * light)
        )

    def _is_sum_less(
        self, planes: _Planes, left: _Weights, right: _Weights, constant: float = 0.0
    ) -> NDArray[np.bool_]:
        """Return the mask of pixels with left · (r, g, b) < right · (r, g, b) + constant.

        r, g and b are `planes` divided by the white of the image. The sums are computed with 16-bit
        integers, which are much faster than floats. `constant` is only used if `right` is 0.
        """
        factors = np.array([left, right]) / self.white
        scale = _MAX_FACTOR / factors.sum(axis=1).max()
        sums = []
        for weights in np.rint(scale * factors).astype(np.uint16):
            terms = [
                plane * weight for plane, weight in zip(planes, weights, strict=True) if weight
            ]
            total = terms[0] if terms else np.uint16(scale * constant)
            for term in terms[1:]:
                total += term
            sums.append(total)
        return np.asarray(sums[0] < sums[1])


def estimate_white(thumbnail: NDArray[np.uint8]) -> tuple[tuple[float, float, float], bool]:
    """Estimate the colour of background from pixels (height, width, 3).

    Returns
    -------
    white : red, green and blue
    has_background : whether the image has background; otherwise white is estimated from the
        brightest pixels
    """
    pixels = _subsample(thumbnail)
    is_image = _max_channel(pixels) >= _MAX_PADDING
    if not is_image.any():
        return (255.0, 255.0, 255.0), False
    means, is_smooth = _smooth_areas(pixels)
    brightest = np.percentile(pixels[is_image], _BRIGHTNESS_PERCENTILE, axis=0)
    background = (
        is_image & is_smooth & (means >= np.array(_MIN_BRIGHTNESS) * brightest).all(axis=-1)
    )
    if background.mean() >= _MIN_BACKGROUND:
        red, green, blue = np.median(means[background], axis=0).tolist()
        is_light = min(red, green, blue) >= _MAX_PADDING  # no lamp lacks a colour
        if is_light and 1 - 2 * green / (red + blue) < _MAX_TINT:
            return (red, green, blue), True
    red, green, blue = np.clip(brightest, _MIN_WHITE, 255).tolist()
    return (red, max(green, _MIN_GREEN * (red + blue) / 2), blue), False


def _subsample(thumbnail: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return every k-th pixel of a thumbnail, so that no side exceeds 512 pixels."""
    height, width, _ = thumbnail.shape
    return thumbnail[:: -(-height // _THUMBNAIL_PX), :: -(-width // _THUMBNAIL_PX)]


def _smooth_areas(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return local means (height, width, 3), and the mask of pixels with small local variation."""
    blurred = uniform_filter(pixels.astype(np.float32), (_DENOISING_PX, _DENOISING_PX, 1))
    means, squares = (
        uniform_filter(power, (_WINDOW_PX, _WINDOW_PX, 1)) for power in (blurred, blurred**2)
    )
    deviation = np.sqrt(np.maximum((squares - means**2).max(axis=-1), 0))
    return means, deviation < _MAX_VARIATION * means.mean(axis=-1)


def tissue_mask(thumbnail: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Fit thresholds to a thumbnail, and return the tissue mask (height, width)."""
    return TissueThreshold.from_thumbnail(thumbnail).mask(thumbnail)


def tissue_fraction(tiles: NDArray[np.uint8], threshold: TissueThreshold) -> NDArray[np.float64]:
    """Return the fraction of tissue (n_tiles,) in tiles (n_tiles, height, width, 3)."""
    fraction: NDArray[np.float64] = threshold.mask(tiles).mean(axis=(1, 2), dtype=np.float64)
    return fraction


def window_fraction(
    pixels: NDArray[np.uint8], threshold: TissueThreshold, side: int, stride: int
) -> NDArray[np.float64]:
    """Return the fraction of tissue in the squares of a grid, (rows, columns).

    `side` is the side of a square and `stride` the distance of squares, in pixels of `pixels`.
    """
    bands = _window_sums(threshold.mask(pixels), side, stride)
    counts = _window_sums(bands.T, side, stride).T
    fraction: NDArray[np.float64] = counts / side**2
    return fraction


def _window_sums(values: NDArray[Any], side: int, stride: int) -> NDArray[np.int32]:
    """Return sums (n_windows, n_columns) over `side` rows, for windows every `stride` rows."""
    sums = np.zeros(((len(values) - side) // stride + 1, values.shape[1]), np.int32)
    for first in range(side):  # many times as fast as a sum over windows
        sums += values[first : first + (len(sums) - 1) * stride + 1 : stride]
    return sums


# Far faster than `max` along an axis of length 3.
def _max_channel(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.maximum(np.maximum(pixels[..., 0], pixels[..., 1]), pixels[..., 2])


def _test_by_blocks(
    pixels: NDArray[np.uint8], test: Callable[[_Planes], NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Return the mask (...) of the pixels (..., 3) that pass a test.

    `test` is a function of the three colour planes of a block of pixels that returns which pixels
    pass. Blocks are small enough for the CPU cache.
    """
    rows = pixels.reshape(-1, 3)
    found = np.empty(len(rows), bool)
    for start in range(0, len(rows), _BLOCK_PIXELS):
        block = rows[start : start + _BLOCK_PIXELS]
        found[start : start + _BLOCK_PIXELS] = test(
            tuple(block[:, channel].astype(np.uint16) for channel in range(3))
        )
    return found.reshape(pixels.shape[:-1])


# Level-0 pixels: side of the squares of a background mask, and height of the strips to read.
_SQUARE_PX = 256
_STRIP_PX = 2048
# Safety margin in pixels of the low level, which scanners may shift by about one pixel.
_MARGIN_PX = 2


class _ReadableSource(Protocol):
    @property
    def size(self) -> tuple[int, int]: ...

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]: ...


class BackgroundMask:
    """Mask of the squares of a slide that may have tissue; the others are background.

    Parameters
    ----------
    source : slide
    downsample : downsample factor of the low level from which the mask is computed
    threshold : tissue threshold of the slide

    Attributes
    ----------
    possible_tissue : (rows, columns), mask of squares of 256 × 256 level-0 pixels
    """

    def __init__(
        self, source: _ReadableSource, downsample: float, threshold: TissueThreshold
    ) -> None:
        width, height = source.size
        self._margin = math.ceil(_MARGIN_PX * downsample)
        n_rows, n_columns = -(-height // _SQUARE_PX), -(-width // _SQUARE_PX)
        self.possible_tissue = np.zeros((n_rows, n_columns), bool)
        for y in range(0, height, _STRIP_PX):
            pixels = source.read(0, y, width, min(_STRIP_PX, height - y), downsample)
            part = self.possible_tissue[y // _SQUARE_PX : (y + _STRIP_PX) // _SQUARE_PX]
            part[:] = _any_in_squares(threshold.possible_tissue(pixels), part.shape, downsample)

    def may_have_tissue(
        self, x: NDArray[np.int64], y: NDArray[np.int64], side: int
    ) -> NDArray[np.bool_]:
        """Return whether each square of a grid may have tissue, (len(y), len(x)).

        Parameters
        ----------
        x : left edge of each grid column in level-0 pixels
        y : upper edge of each grid row in level-0 pixels
        side : side of the squares in level-0 pixels
        """
        sums = np.pad(self.possible_tissue.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
        (top, bottom), (left, right) = (
            (
                np.clip((ends - self._margin) // _SQUARE_PX, 0, n),
                np.clip((ends + side + self._margin - 1) // _SQUARE_PX + 1, 0, n),
            )
            for ends, n in zip((y, x), self.possible_tissue.shape, strict=True)
        )
        found: NDArray[np.bool_] = (
            sums[np.ix_(bottom, right)] - sums[np.ix_(top, right)]
            > sums[np.ix_(bottom, left)] - sums[np.ix_(top, left)]
        )
        return found


def _any_in_squares(
    mask: NDArray[np.bool_], shape: tuple[int, ...], downsample: float
) -> NDArray[np.bool_]:
    """Return whether each square contains a True pixel of a mask.

    Parameters
    ----------
    mask : mask at a low level
    shape : number of rows and columns of squares, of 256 × 256 level-0 pixels each
    downsample : level-0 pixels per pixel of the mask
    """
    for axis, n in enumerate(shape):
        starts = np.floor(np.arange(n) * _SQUARE_PX / downsample).astype(int)
        starts = np.minimum(starts, mask.shape[axis] - 1)
        mask = np.logical_or.reduceat(mask, starts, axis=axis)
    return mask
