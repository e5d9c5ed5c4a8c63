"""Local binary patterns and colour histograms: texture and colour of an image in one short vector.

A pixel's pattern says which of its neighbours on a circle are at least as bright: kept are the
number of brighter neighbours where they lie together, and one class for all other patterns. Turning
the image leaves the histogram as it is. Three circles, on grey levels and on the two stains.

Reference: Ojala, Pietikäinen, Mäenpää, "Multiresolution gray-scale and rotation invariant texture
classification with local binary patterns", IEEE TPAMI, 2002; stains: Ruifrok, Johnston,
"Quantification of histochemical staining by color deconvolution", 2001.

What image features ask of an image first: grey levels, hue, and a size that can be worked with.

A `Plane` is one number per pixel, (height, width).

The image itself, reduced to a small fixed size, for sparse representation over whole images.

Vectors of unit norm, row by row; a black image stays 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

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


_CIRCLES = ((1, 8), (2, 16), (3, 24))  # radius in pixels, number of neighbours
_N_BINS = 16
# Optical densities of haematoxylin, eosin and what is left, in red, green and blue.
_STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
_DENSEST = 2.5  # decades of light: 8-bit pixels hold about 2.4


def lbp_colour(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Histograms, each of sum 1, one after another, and the names of their bins."""
    pixels = check_pixels(pixels)
    grey = luminance(pixels)
    haematoxylin, eosin = _stain_levels(pixels)
    histograms: dict[str, NDArray[np.float64]] = {}
    for name, plane in {"grey": grey, "haematoxylin": haematoxylin, "eosin": eosin}.items():
        for radius, n_neighbours in _CIRCLES:
            histograms[f"lbp {radius} px {name}"] = _patterns(plane, radius, n_neighbours)
    for name, channel in _colour_channels(pixels).items():
        histograms[f"colour {name}"] = _histogram(channel)
    names = [f"{name} {i}" for name, values in histograms.items() for i in range(len(values))]
    return np.concatenate(list(histograms.values())), names


def _patterns(plane: Plane, radius: int, n_neighbours: int) -> NDArray[np.float64]:
    """Shares of the n_neighbours + 2 patterns; beyond the border lies the mirror image."""
    from skimage.feature import local_binary_pattern

    wide = np.pad(plane.astype(np.uint8), radius, mode="symmetric")
    patterns = local_binary_pattern(wide, n_neighbours, radius, method="uniform")
    inside = patterns[radius:-radius, radius:-radius].astype(np.intp)
    return np.bincount(inside.ravel(), minlength=n_neighbours + 2) / inside.size


def _stain_levels(pixels: Pixels) -> tuple[Plane, Plane]:
    """Amounts of haematoxylin and eosin, as levels 0 to 255."""
    density = -np.log10(np.maximum(np.arange(256), 1) / 255)  # of every pixel value
    unit = _STAINS / np.linalg.norm(_STAINS, axis=1, keepdims=True)
    amounts = density.astype(np.float32)[pixels] @ np.linalg.inv(unit)[:, :2].astype(np.float32)
    levels = np.rint(np.clip(amounts / _DENSEST, 0, 1) * 255)
    return levels[..., 0], levels[..., 1]


def _colour_channels(pixels: Pixels) -> dict[str, NDArray[Any]]:
    """Hue, saturation, value, and the opponent colours, each between 0 and 1."""
    hue, saturation, value = hue_saturation_value(pixels)
    red, green, blue = (pixels[..., i].astype(np.float32) / 255 for i in range(3))
    return {
        "hue": hue,
        "saturation": saturation,
        "value": value,
        "red-green": (red - green + 1) / 2,
        "yellow-blue": (red + green - 2 * blue + 2) / 4,
        "brightness": (red + green + blue) / 3,
    }


def _histogram(channel: NDArray[Any]) -> NDArray[np.float64]:
    places = np.clip((channel * _N_BINS).astype(np.intp), 0, _N_BINS - 1)
    return np.bincount(places.ravel(), minlength=_N_BINS) / channel.size


SIDE_PX = 32


def luminance_thumbnail(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Grey levels, for SRC: (SIDE_PX²,)."""
    return _unit(area_means(luminance(check_pixels(pixels)), SIDE_PX).ravel()), _names("grey")


def plane_thumbnail(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """All of red, then green, then blue, for SHIRC: (3·SIDE_PX²,)."""
    checked = check_pixels(pixels)
    planes = [area_means(checked[..., i].astype(np.float32), SIDE_PX) for i in range(3)]
    return _unit(np.concatenate(planes, axis=None)), _names("red", "green", "blue")


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / (np.linalg.norm(vector) or 1.0)


def _names(*channels: str) -> list[str]:
    places = [(row, column) for row in range(SIDE_PX) for column in range(SIDE_PX)]
    return [f"{channel} {row},{column}" for channel in channels for row, column in places]
