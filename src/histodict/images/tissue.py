"""Which pixels are tissue, and which are glass.

Haematoxylin and eosin both absorb green most, so tissue has less green than the mean of its red and
blue. Glass has not, however bright the lamp, and whether its light is bluish or yellowish: a wrong
white balance raises one of red and blue and lowers the other. The measure is the lack of green

    1 − 2·G / (R + B)

Otsu's threshold (IEEE Trans. SMC 9, 1979) parts glass from tissue; it is kept between two limits,
so that an image of tissue alone or of glass alone is not cut in two. What clearly lacks green
counts as one value, or Otsu would part pale tissue from strong. Strong colours of other hues, such
as brown pigment, are tissue as well.

A grey image, R = G = B in every pixel, has no colour to go by: there the measure is the lack of
light, 1 − G / white, which also takes dirt and shadows for tissue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Glass stays below the first, stained tissue above the second.
_LEAST_LACK, _MOST_LACK = 0.05, 0.12
_CLEARLY_STAINED = 0.2
# The same three for the lack of light.
_LEAST_DARK, _MOST_DARK = 0.1, 0.15
_CLEARLY_DARK = 0.3
# Saturation, 1 − min/max of R, G, B, that no lamp gives to glass.
_STRONG_COLOUR = 0.4
# Nothing is this dark through a microscope but the padding that scanners add.
_PADDING = 20
_N_BINS = 256
# Of the limits of tissue: a pixel of a low level beyond these may have tissue among its pixels.
_MAYBE = 0.3


@dataclass(frozen=True)
class TissueThreshold:
    """Tissue lacks green by more than this, or has a strong colour, and is not black padding.

    In an image without colours, tissue is what is darker than the grey value `least_light`; where
    there are colours, this is 0. Learnt on an image's thumbnail, then applied to its pixels piece
    by piece.
    """

    lack_of_green: float
    least_light: float = 0.0

    @classmethod
    def from_thumbnail(cls, thumbnail: NDArray[np.uint8]) -> TissueThreshold:
        """Otsu's threshold over (height, width, 3) pixels, within the limits."""
        seen = thumbnail[_brightest(thumbnail) >= _PADDING]
        if len(seen) and np.array_equal(_brightest(seen), _darkest(seen)):
            return cls(_MOST_LACK, _least_light(seen[:, 1]))
        green, red_and_blue = _green_and_rest(seen)
        lack = 1 - 2 * green / np.maximum(red_and_blue, 1).astype(np.float32)
        threshold = _otsu(np.clip(lack, 0, _CLEARLY_STAINED))
        return cls(float(np.clip(threshold, _LEAST_LACK, _MOST_LACK)))

    def mask(self, pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Where pixels (..., 3) are tissue: (...)."""
        green, red_and_blue = _green_and_rest(pixels)
        brightest = _brightest(pixels)
        # Both conditions are "a value < a table at another": (1 − t)·(R + B)/2 and (1 − s)·max.
        stained = green < _bounds((1 - self.lack_of_green) / 2, 511)[red_and_blue]
        strong = _darkest(pixels) < _bounds(1 - _STRONG_COLOUR, 256)[brightest]
        mask: NDArray[np.bool_] = stained | strong
        if self.least_light:
            mask |= brightest < self.least_light
        return mask & (brightest >= _PADDING)

    def maybe(self, pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Where pixels of a low level, means of many, may have tissue among these: (...).

        Elsewhere is glass: of a patch that is tissue by half, the mean lacks half the green.
        """
        green, red_and_blue = _green_and_rest(pixels)
        brightest = _brightest(pixels)
        lack = _MAYBE * self.lack_of_green
        mask: NDArray[np.bool_] = green < _bounds((1 - lack) / 2, 511)[red_and_blue]
        mask |= _darkest(pixels) < _bounds(1 - _MAYBE * _STRONG_COLOUR, 256)[brightest]
        if self.least_light:
            mask |= brightest < self.least_light + (1 - _MAYBE) * (255 - self.least_light)
        return mask


def tissue_mask(thumbnail: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where a thumbnail (height, width, 3) is tissue, by a threshold of its own."""
    return TissueThreshold.from_thumbnail(thumbnail).mask(thumbnail)


def tissue_fraction(tiles: NDArray[np.uint8], threshold: TissueThreshold) -> NDArray[np.float64]:
    """The share of tissue in each of the tiles (n_tiles, height, width, 3): (n_tiles,)."""
    fraction: NDArray[np.float64] = threshold.mask(tiles).mean(axis=(1, 2), dtype=np.float64)
    return fraction


def window_fraction(
    pixels: NDArray[np.uint8], threshold: TissueThreshold, side: int, stride: int
) -> NDArray[np.float64]:
    """The share of tissue in each square of an image on a grid: (rows, columns)."""
    bands = _sums_down(threshold.mask(pixels), side, stride)
    counts = _sums_down(bands.T, side, stride).T
    fraction: NDArray[np.float64] = counts / side**2
    return fraction


def _sums_down(values: NDArray[Any], side: int, stride: int) -> NDArray[np.int32]:
    """Of every `side` values of a column, beginning every `stride`, the sum."""
    sums = np.zeros(((len(values) - side) // stride + 1, values.shape[1]), np.int32)
    for first in range(side):  # many times as fast as a sum over windows
        sums += values[first : first + (len(sums) - 1) * stride + 1 : stride]
    return sums


def _least_light(grey: NDArray[np.uint8]) -> float:
    """The grey value that parts tissue from glass; glass is about as bright as the brightest."""
    white = np.percentile(grey, 99)
    dark = np.clip(1 - grey / white, 0, _CLEARLY_DARK).astype(np.float32)
    return float(white * (1 - np.clip(_otsu(dark), _LEAST_DARK, _MOST_DARK)))


def _green_and_rest(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    return pixels[..., 1], np.add(pixels[..., 0], pixels[..., 2], dtype=np.uint16)


def _bounds(factor: float, n_values: int) -> NDArray[np.uint8]:
    """b with g < b[v] where g < factor·v, for whole numbers g and v < n_values."""
    return np.ceil(factor * np.arange(n_values)).astype(np.uint8)


# Far faster than max and min along an axis of length 3.
def _brightest(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.maximum(np.maximum(pixels[..., 0], pixels[..., 1]), pixels[..., 2])


def _darkest(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.minimum(np.minimum(pixels[..., 0], pixels[..., 1]), pixels[..., 2])


def _otsu(values: NDArray[np.float32]) -> float:
    """The threshold in [0, 1] that maximises the variance between the classes it makes."""
    counts, edges = np.histogram(values, bins=_N_BINS, range=(0, 1))
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)
    above = below[-1] - below
    sums = np.cumsum(counts * centres)
    both = np.maximum(below * above, 1)  # a split that leaves one side empty scores 0
    between = (sums * above - (sums[-1] - sums) * below) ** 2 / both
    return float(edges[1:][np.argmax(between)])
