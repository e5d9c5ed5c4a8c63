"""The features of WND-CHARM: families of general image features, on an image and its transforms.

| families | planes |
|---|---|
| edges, bright objects, dark objects, Gabor | grey levels |
| Chebyshev, Chebyshev–Fourier, Zernike | 8 of grey, 4 of colour |
| comb, Haralick, histograms, Tamura, Radon, fractal, intensity, Gini | 12 of grey, 4 of colour |

which is 103 + 12·136 + 16·144 numbers, and the shares of 20 colours: 4059. The 2919 numbers of the
grey planes are those of the original program, version 4.2, in its order within a family; where they
are not, and why, is told in docs/methods.md. The planes of colour are our own.

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

# Combs, discs and fractals want some pixels; smaller images are mirrored up to this.
_MIN_SIDE = 64


def wndcharm_features(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """The 4059 numbers of an image (height, width, 3), and their names; all are finite.

    An image with a side below 64 pixels goes on in its mirror images up to that.
    """
    pixels = pad_reflect(check_pixels(pixels), _MIN_SIDE)
    entries = plane_features(grey_planes(luminance(pixels).astype(np.float64)))
    colours = _colour_planes(pixels)
    entries |= named_entries("shares of colours", colour_fractions(colours["colour"]))
    entries |= plane_features(colours)
    return np.array(list(entries.values())), list(entries)


def plane_features(planes: dict[str, Plane]) -> Entries:
    """The numbers of all families of planes by name."""
    return {
        f"{family} {key} of {name}": value
        for name, plane in planes.items()
        for family, features in families_of(name).items()
        for key, value in features(plane).items()
    }


def _colour_planes(pixels: Pixels) -> dict[str, Plane]:
    """By name: the colours, the hue and its transforms."""
    hue, saturation, value = hue_saturation_value(pixels)
    turned = hue_plane(hue, saturation)
    return {
        "colour": colour_plane(hue, saturation, value),
        "hue": turned,
        "fourier(hue)": fourier(turned),
        "chebyshev(hue)": chebyshev_transform(turned),
    }
