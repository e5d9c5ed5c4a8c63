"""WND-CHARM features: families of general image features, on an image and its transforms.

| families | planes |
|---|---|
| edges, bright objects, dark objects, Gabor | grey levels |
| Chebyshev, Chebyshev–Fourier, Zernike | 8 of grey, 4 of colour |
| comb, Haralick, histograms, Tamura, Radon, fractal, intensity, Gini | 12 of grey, 4 of colour |

These are 103 + 12·136 + 16·144 numbers; with the fractions of 20 colours there are 4059. The 2919
numbers of the grey planes are those of the original program, version 4.2, in its order within a
family; docs/methods.md explains exceptions. The colour planes are an addition.

Reference: Orlov, Shamir, Macura, Johnston, Eckley, Goldberg, "WND-CHARM: multi-purpose image
classification using compound image transforms", Pattern Recognition Letters, 2008; Shamir et al.,
"Wndchrm: an open source utility for biological image analysis", Source Code for Biology and
Medicine, 2008.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..descriptors import Pixels, check_pixels, hue_saturation_value, luminance, pad_reflect
from .feature_bank import (
    colour_fractions,
    colour_plane,
    families_of,
    fourier,
    grey_planes,
    hue_plane,
)
from .histograms import Entries, Plane, named_entries
from .polynomials import chebyshev_transform

# Minimum size for combs, discs and fractals; smaller images are mirrored up to it.
_MIN_SIDE = 64


def wndcharm_features(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Return the 4059 features of an image (height, width, 3), all finite, and their names.

    An image with a side below 64 pixels is mirrored up to that.
    """
    pixels = pad_reflect(check_pixels(pixels), _MIN_SIDE)
    entries = plane_features(grey_planes(luminance(pixels).astype(np.float64)))
    colours = _colour_planes(pixels)
    entries |= named_entries("colour fractions", colour_fractions(colours["colour"]))
    entries |= plane_features(colours)
    return np.array(list(entries.values())), list(entries)


def plane_features(planes: dict[str, Plane]) -> Entries:
    """Return the features of all families of the named planes."""
    return {
        f"{family} {key} of {name}": value
        for name, plane in planes.items()
        for family, features in families_of(name).items()
        for key, value in features(plane).items()
    }


def _colour_planes(pixels: Pixels) -> dict[str, Plane]:
    """Return the planes of colours, of hue and of the hue's transforms."""
    hue, saturation, value = hue_saturation_value(pixels)
    shifted = hue_plane(hue, saturation)
    return {
        "colour": colour_plane(hue, saturation, value),
        "hue": shifted,
        "fourier(hue)": fourier(shifted),
        "chebyshev(hue)": chebyshev_transform(shifted),
    }
