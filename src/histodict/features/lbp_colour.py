"""Local binary patterns and colour histograms: texture and colour of an image in one short vector.

A pixel's pattern says which of its neighbours on a circle are at least as bright: kept are the
number of brighter neighbours where they lie together, and one class for all other patterns. Turning
the image leaves the histogram as it is. Three circles, on grey levels and on the two stains.

Reference: Ojala, Pietikäinen, Mäenpää, "Multiresolution gray-scale and rotation invariant texture
classification with local binary patterns", IEEE TPAMI, 2002; stains: Ruifrok, Johnston,
"Quantification of histochemical staining by color deconvolution", 2001.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pixels import Pixels, Plane, check_pixels, hue_saturation_value, luminance

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
