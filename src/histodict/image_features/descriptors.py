"""Image descriptors: local binary patterns, colour histograms and thumbnails.

The local binary pattern of a pixel records which neighbours on a circle are at least as bright. The
class of a pattern is the number of these neighbours if they are adjacent, and one common class
otherwise, so the histogram is invariant to rotation. Three circles are used, on grey levels and on
the two stains. Thumbnails are images reduced to a small fixed size, as vectors of unit norm, for
sparse representation of whole images. A `Plane` has one number per pixel, (height, width).

Reference: Ojala, Pietikäinen, Mäenpää, "Multiresolution gray-scale and rotation invariant texture
classification with local binary patterns", IEEE TPAMI, 2002; stains: Ruifrok, Johnston,
"Quantification of histochemical staining by color deconvolution", 2001.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]

# Luminance weights of Rec. 601, as in most image software.
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


def check_pixels(pixels: Pixels) -> Pixels:
    """Return pixels as a contiguous array; raise an error if not (height, width, 3) uint8."""
    untyped: object = pixels
    if not isinstance(untyped, np.ndarray) or pixels.dtype != np.uint8:
        raise TypeError(
            "pixels must be an array of type uint8; convert the image to 8 bits per channel"
        )
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise ValueError(
            f"pixels must have shape (height, width, 3), not {pixels.shape}; convert the "
            "image to RGB"
        )
    return np.ascontiguousarray(pixels)  # so that sums do not depend on the memory layout


def luminance(pixels: Pixels) -> Plane:
    """Return grey levels (Rec. 601 luminance), rounded to whole numbers from 0 to 255."""
    return np.rint(pixels.astype(np.float32) @ _LUMINANCE)


def hue_saturation_value(pixels: Pixels) -> tuple[Plane, Plane, Plane]:
    """Return hue, saturation and value, each between 0 and 1; the hue of grey pixels is 0."""
    red, green, blue = (pixels[..., i].astype(np.float32) for i in range(3))
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    divisor = np.maximum(chroma, 1)  # the differences of grey pixels are 0
    hue_in_sixths = np.where(
        value == red,
        (green - blue) / divisor % 6,
        np.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    saturation = chroma / np.maximum(value, 1)
    as_plane = partial(np.asarray, dtype=np.float32)
    return as_plane(hue_in_sixths / 6), as_plane(saturation), as_plane(value / 255)


def area_means(plane: Plane, side: int) -> NDArray[np.float64]:
    """Return a plane resized to side × side pixels, each the weighted mean over its area."""
    down, across = (_area_weights(length, side) for length in plane.shape)
    return down @ plane @ across.T


def pad_reflect(pixels: Pixels, side: int) -> Pixels:
    """Return an image with at least side × side pixels.

    Smaller images are extended by reflection at the right and lower edges.
    """
    padding = [max(0, side - length) for length in pixels.shape[:2]]
    if not any(padding):
        return pixels
    return np.pad(pixels, [(0, padding[0]), (0, padding[1]), (0, 0)], mode="symmetric")


def _area_weights(n_pixels: int, n_parts: int) -> NDArray[np.float64]:
    """Return the weights of pixels in means over equal parts of an axis, (n_parts, n_pixels)."""
    borders = np.arange(n_parts + 1)[:, None] * (n_pixels / n_parts)
    pixels = np.arange(n_pixels)
    ends, starts = np.minimum(borders[1:], pixels + 1), np.maximum(borders[:-1], pixels)
    return np.maximum(ends - starts, 0) * (n_parts / n_pixels)


_CIRCLES = ((1, 8), (2, 16), (3, 24))  # radius in pixels, number of neighbours
_N_COLOUR_BINS = 16
# Optical densities of haematoxylin, eosin and the residual, in red, green and blue.
_STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
_MAX_DENSITY = 2.5  # largest optical density; that of an 8-bit pixel is at most about 2.4


def lbp_colour(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Return histograms of local binary patterns and colours, and the names of their bins.

    The histograms have sum 1 each and are concatenated to one vector.
    """
    pixels = check_pixels(pixels)
    grey = luminance(pixels)
    haematoxylin, eosin = _stain_levels(pixels)
    histograms: dict[str, NDArray[np.float64]] = {}
    for name, plane in {"grey": grey, "haematoxylin": haematoxylin, "eosin": eosin}.items():
        for radius, n_neighbours in _CIRCLES:
            histograms[f"lbp {radius} px {name}"] = _pattern_fractions(plane, radius, n_neighbours)
    for name, channel in _colour_channels(pixels).items():
        histograms[f"colour {name}"] = _histogram(channel)
    names = [f"{name} {i}" for name, values in histograms.items() for i in range(len(values))]
    return np.concatenate(list(histograms.values())), names


def _pattern_fractions(plane: Plane, radius: int, n_neighbours: int) -> NDArray[np.float64]:
    """Return the fractions of the n_neighbours + 2 pattern classes; the border is mirrored."""
    from skimage.feature import local_binary_pattern

    padded = np.pad(plane.astype(np.uint8), radius, mode="symmetric")
    patterns = local_binary_pattern(padded, n_neighbours, radius, method="uniform")
    inside = patterns[radius:-radius, radius:-radius].astype(np.intp)
    return np.bincount(inside.ravel(), minlength=n_neighbours + 2) / inside.size


def _stain_levels(pixels: Pixels) -> tuple[Plane, Plane]:
    """Return planes of haematoxylin and eosin: optical density, as levels from 0 to 255."""
    density = -np.log10(np.maximum(np.arange(256), 1) / 255)  # of every pixel value
    unit_stains = _STAINS / np.linalg.norm(_STAINS, axis=1, keepdims=True)
    amounts = density.astype(np.float32)[pixels] @ np.linalg.inv(unit_stains)[:, :2].astype(
        np.float32
    )
    levels = np.rint(np.clip(amounts / _MAX_DENSITY, 0, 1) * 255)
    return levels[..., 0], levels[..., 1]


def _colour_channels(pixels: Pixels) -> dict[str, NDArray[Any]]:
    """Return hue, saturation, value and the opponent colours, each between 0 and 1."""
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
    bins = np.clip((channel * _N_COLOUR_BINS).astype(np.intp), 0, _N_COLOUR_BINS - 1)
    return np.bincount(bins.ravel(), minlength=_N_COLOUR_BINS) / channel.size


THUMBNAIL_PX = 32


def luminance_thumbnail(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Return a grey thumbnail as a unit vector (THUMBNAIL_PX²,), and the names of its entries."""
    return _normalize(
        area_means(luminance(check_pixels(pixels)), THUMBNAIL_PX).ravel()
    ), _name_pixels("grey")


def plane_thumbnail(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Return a thumbnail as a unit vector (3·THUMBNAIL_PX²,), and the names of its entries.

    The vector contains the three colour planes one after another.
    """
    checked = check_pixels(pixels)
    planes = [area_means(checked[..., i].astype(np.float32), THUMBNAIL_PX) for i in range(3)]
    return _normalize(np.concatenate(planes, axis=None)), _name_pixels("red", "green", "blue")


def _normalize(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / (np.linalg.norm(vector) or 1.0)


def _name_pixels(*channels: str) -> list[str]:
    """Return the names "CHANNEL ROW,COLUMN" of the pixels of thumbnails with these channels."""
    positions = [(row, column) for row in range(THUMBNAIL_PX) for column in range(THUMBNAIL_PX)]
    return [f"{channel} {row},{column}" for channel in channels for row, column in positions]
