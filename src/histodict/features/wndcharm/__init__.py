"""The features of WND-CHARM: families of general image features, on an image and its transforms.

| families | planes |
|---|---|
| edges, bright objects, dark objects, Gabor | grey levels |
| Chebyshev, Chebyshev–Fourier, Zernike | 8 of grey, 4 of colour |
| comb, Haralick, histograms, Tamura, Radon, fractal, intensity, Gini | 12 of grey, 4 of colour |

which is 103 + 12·136 + 16·144 numbers, and the shares of 20 colours: 4059. Plans and numbers of
entries are the published ones; what an entry is follows the published description, but where the
original fixed a scale in grey levels, the range or the deviation of the plane is taken, and
transforms whose values span powers of ten are on a logarithmic scale.

Reference: Orlov, Shamir, Macura, Johnston, Eckley, Goldberg, "WND-CHARM: multi-purpose image
classification using compound image transforms", Pattern Recognition Letters, 2008; Shamir et al.,
"Wndchrm: an open source utility for biological image analysis", Source Code for Biology and
Medicine, 2008.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..pixels import (
    Pixels,
    Plane,
    check_pixels,
    hue_saturation_value,
    luminance,
    mirrored_up_to,
)
from .chebyshev import chebyshev_statistics, chebyshev_transform
from .chebyshev_fourier import chebyshev_fourier_statistics
from .comb import comb_moments
from .distributions import Entries, numbered
from .edges import edge_statistics
from .fractal import fractal_features
from .gabor import gabor_textures
from .gradients import steepness
from .haralick import haralick_textures
from .intensity import gini, intensity_statistics, multiscale_histograms
from .objects import bright_objects, dark_objects
from .radon import radon_features
from .tamura import tamura_textures
from .transforms import colour_plane, colour_shares, fourier, hue_plane, wavelet
from .zernike import zernike_moments

Families = dict[str, Callable[[Plane], Entries]]

HIGH_CONTRAST: Families = {
    "edges": edge_statistics,
    "bright objects": bright_objects,
    "dark objects": dark_objects,
    "gabor": gabor_textures,
}
POLYNOMIALS: Families = {
    "chebyshev": chebyshev_statistics,
    "chebyshev-fourier": chebyshev_fourier_statistics,
    "zernike": zernike_moments,
}
TEXTURES: Families = {
    "comb": comb_moments,
    "haralick": haralick_textures,
    "histograms": multiscale_histograms,
    "tamura": tamura_textures,
    "radon": radon_features,
    "fractal": fractal_features,
    "intensity": intensity_statistics,
    "gini": gini,
}
# Planes of compound transforms from which no polynomials are taken.
_TEXTURES_ONLY = {
    "chebyshev(fourier)",
    "wavelet(fourier)",
    "chebyshev(wavelet)",
    "fourier(chebyshev)",
}
# The fractal features look 20 pixels far, and a wavelet plane is half as large as its image.
_LEAST_SIDE = 64


def wndcharm_features(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """The 4059 numbers of an image (height, width, 3), and their names; all are finite.

    An image with a side below 64 pixels goes on in its mirror images up to that.
    """
    pixels = mirrored_up_to(check_pixels(pixels), _LEAST_SIDE)
    entries: Entries = {}
    for name, plane in _planes(pixels).items():
        families = TEXTURES if name in _TEXTURES_ONLY else POLYNOMIALS | TEXTURES
        if name == "grey":
            families = HIGH_CONTRAST | families
        elif name == "colour":
            entries |= numbered("shares of colours", colour_shares(plane))
        for family, features in families.items():
            entries |= {f"{family} {key} of {name}": v for key, v in features(plane).items()}
    return np.array(list(entries.values())), list(entries)


def _planes(pixels: Pixels) -> dict[str, Plane]:
    """By name: the grey levels, the colours, and their transforms and transforms of transforms."""
    grey, (hue, saturation, value) = luminance(pixels), hue_saturation_value(pixels)
    turned = hue_plane(hue, saturation)
    waves, details = fourier(grey), wavelet(grey)
    polynomials, edges = chebyshev_transform(grey), steepness(grey)
    return {
        "grey": grey,
        "fourier": waves,
        "wavelet": details,
        "chebyshev": polynomials,
        "edge": edges,
        "fourier(wavelet)": fourier(details),
        "fourier(edge)": fourier(edges),
        "wavelet(edge)": wavelet(edges),
        "chebyshev(fourier)": chebyshev_transform(waves),
        "wavelet(fourier)": wavelet(waves),
        "chebyshev(wavelet)": chebyshev_transform(details),
        "fourier(chebyshev)": fourier(polynomials),
        "colour": colour_plane(hue, saturation, value),
        "hue": turned,
        "fourier(hue)": fourier(turned),
        "chebyshev(hue)": chebyshev_transform(turned),
    }
