"""What image features ask of an image first: grey levels, hue, and a size that can be worked with.

A `Plane` is one number per pixel, (height, width).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]

# Rec. 601, the luminance of television and of most image software.
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


def check_pixels(pixels: Pixels) -> Pixels:
    """pixels, row by row, if they are those of an image: (height, width, 3), uint8, not empty."""
    given: object = pixels
    if not isinstance(given, np.ndarray) or pixels.dtype != np.uint8:
        raise TypeError("pixels must be an array of uint8: convert the image to 8 bits a channel")
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise ValueError(
            f"pixels must have the shape (height, width, 3), not {pixels.shape}: "
            "convert the image to RGB"
        )
    return np.ascontiguousarray(pixels)  # so that sums round alike however it was stored


def luminance(pixels: Pixels) -> Plane:
    """Whole grey levels, 0 to 255."""
    return np.rint(pixels.astype(np.float32) @ _LUMINANCE)


def hue_saturation_value(pixels: Pixels) -> tuple[Plane, Plane, Plane]:
    """Each between 0 and 1; the hue of a grey pixel is 0, that of red."""
    red, green, blue = (pixels[..., i].astype(np.float32) for i in range(3))
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    whole = np.maximum(chroma, 1)  # of a grey pixel the differences are 0 anyway
    sixths = np.where(
        value == red,
        (green - blue) / whole % 6,
        np.where(value == green, (blue - red) / whole + 2, (red - green) / whole + 4),
    )
    saturation = chroma / np.maximum(value, 1)
    as_plane = partial(np.asarray, dtype=np.float32)
    return as_plane(sixths / 6), as_plane(saturation), as_plane(value / 255)


def area_means(plane: Plane, side: int) -> NDArray[np.float64]:
    """Means over side × side equal parts of the plane, pixels on a border shared out."""
    down, across = (_overlaps(length, side) for length in plane.shape)
    return down @ plane @ across.T


def pad_reflect(pixels: Pixels, side: int) -> Pixels:
    """An image of at least side × side: a smaller one goes on in its mirror images."""
    missing = [max(0, side - length) for length in pixels.shape[:2]]
    if not any(missing):
        return pixels
    return np.pad(pixels, [(0, missing[0]), (0, missing[1]), (0, 0)], mode="symmetric")


def _overlaps(n_pixels: int, n_parts: int) -> NDArray[np.float64]:
    """How much of every part each pixel is: (n_parts, n_pixels), rows of sum 1."""
    borders = np.arange(n_parts + 1)[:, None] * (n_pixels / n_parts)
    pixels = np.arange(n_pixels)
    ends, starts = np.minimum(borders[1:], pixels + 1), np.maximum(borders[:-1], pixels)
    return np.maximum(ends - starts, 0) * (n_parts / n_pixels)
