"""WND-CHARM features: families of general image features of an image and its transforms.

A plane is an image with one number per pixel: grey levels, colours, or a transform of these.

| families | number of planes |
|---|---|
| edges, bright objects, dark objects, Gabor | 1: grey levels |
| Chebyshev, Chebyshev–Fourier, Zernike | 8 of grey, 4 of colour |
| comb, Haralick, histograms, Tamura, Radon, fractal, intensity, Gini | 12 of grey, 4 of colour |

These are 103 + 12·136 + 16·144 numbers; with the fractions of 20 colours there are 4059. The 2919
numbers of the grey planes are those of the original program, version 4.2, in its order within a
family. The colour planes are an addition.

Where the original program differs from the publications that it cites, this package follows the
program, with these exceptions:

| | original program | here |
|---|---|---|
| Haralick's maximal correlation | an eigenvalue that depends on rounding | the second largest |
| Tamura's coarseness, if two scales tie | depends on rounding | the finer scale |
| images below 64 pixels | omits some features | extends them by mirroring |
| division by 0 | NaN | 0, or 1 for a correlation |
| colours | fuzzy colour names; hue 0 to 240 | 4 greys, 16 hues; hue 0 to 255 |

Reference: Orlov, Shamir, Macura, Johnston, Eckley, Goldberg, "WND-CHARM: multi-purpose image
classification using compound image transforms", Pattern Recognition Letters, 2008; Shamir et al.,
"Wndchrm: an open source utility for biological image analysis", Source Code for Biology and
Medicine, 2008.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from ..descriptors import Pixels, check_pixels, hue_saturation_value, luminance, pad_reflect
from .histograms import (
    Entries,
    Plane,
    comb_moments,
    gini,
    intensity_statistics,
    multiscale_histograms,
    named_entries,
)
from .polynomials import (
    chebyshev_fourier_statistics,
    chebyshev_statistics,
    chebyshev_transform,
    radon_features,
    zernike_moments,
)
from .textures import (
    bright_objects,
    dark_objects,
    edge_statistics,
    edge_transform,
    fractal_features,
    gabor_textures,
    haralick_textures,
    tamura_textures,
)

# Minimum size for combs, discs and fractals; smaller images are mirrored up to it.
_MIN_SIDE = 64


def wndcharm_features(pixels: Pixels) -> tuple[NDArray[np.float64], list[str]]:
    """Return the 4059 features of an image (height, width, 3) uint8, and their names.

    Images with a side below 64 pixels are extended to 64 pixels by reflection.
    """
    pixels = pad_reflect(check_pixels(pixels), _MIN_SIDE)
    entries = plane_features(grey_planes(luminance(pixels).astype(np.float64)))
    colours = _colour_planes(pixels)
    entries |= named_entries("colour fractions", colour_fractions(colours["colour"]))
    entries |= plane_features(colours)
    return np.array(list(entries.values())), list(entries)


def plane_features(planes: dict[str, Plane]) -> Entries:
    """Return the features of the named planes, as entries "FAMILY FEATURE of PLANE"."""
    return {
        f"{family} {key} of {name}": value
        for name, plane in planes.items()
        for family, features in feature_families(name).items()
        for key, value in features(plane).items()
    }


def _colour_planes(pixels: Pixels) -> dict[str, Plane]:
    """Return the planes of colours, hue, and the transforms of hue, by name."""
    hue, saturation, value = hue_saturation_value(pixels)
    shifted = hue_plane(hue, saturation)
    return {
        "colour": colour_plane(hue, saturation, value),
        "hue": shifted,
        "fourier(hue)": fourier(shifted),
        "chebyshev(hue)": chebyshev_transform(shifted),
    }


N_COLOURS = 20
# Colours weaker than this are greys.
_MIN_SATURATION = 0.1
_N_GREYS, _N_HUES = 4, 8


def fourier(plane: Plane) -> Plane:
    """Return the modulus of the Fourier transform, with frequency 0 in the upper left corner."""
    return np.abs(fft.fft2(plane))


def wavelet(plane: Plane) -> Plane:
    """Return the first level of the zero-padded wavelet transform (symlet of order 5) as one plane.

    The diagonal and the horizontal details are at the top of the plane, the vertical details and
    the approximation at the bottom.
    """
    import pywt

    approximation, (down, across, diagonal) = pywt.dwt2(plane, "sym5", mode="zero")
    return np.block([[diagonal, across], [down, approximation]])


def hue_plane(hue: NDArray[np.float32], saturation: NDArray[np.float32]) -> Plane:
    """Return the hue as a plane from 0 to 255, with 0 for grey pixels.

    `hue` and `saturation` are between 0 and 1. Hues are shifted so that the discontinuity is at
    green, which stains do not have.
    """
    shifted = (hue + np.float32(2 / 3)) % 1
    hues = np.where(saturation > 0, shifted * np.float32(255), np.float32(0))
    return hues.astype(np.float64)


def colour_plane(
    hue: NDArray[np.float32], saturation: NDArray[np.float32], value: NDArray[np.float32]
) -> Plane:
    """Return the index of the colour of each pixel, from 0 to 19.

    `hue`, `saturation` and `value` are from 0 to 1. The colours are 4 greys from dark to bright,
    and a dark and a bright colour of each of 8 hues.
    """
    grey = np.minimum(np.floor(value * _N_GREYS), _N_GREYS - 1)
    family = np.minimum(np.floor(hue * _N_HUES), _N_HUES - 1)
    coloured = _N_GREYS + 2 * family + (value > 0.5)
    return np.where(saturation < _MIN_SATURATION, grey, coloured).astype(np.float64)


def colour_fractions(colours: Plane) -> NDArray[np.float64]:
    """Return the fraction of pixels of each of the 20 colours of `colour_plane`."""
    return np.bincount(colours.astype(np.intp).ravel(), minlength=N_COLOURS) / colours.size


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


def feature_families(name: str) -> Families:
    """Return the feature families, by name, of the plane with this name."""
    if name == "grey":
        return HIGH_CONTRAST | POLYNOMIALS | TEXTURES
    return TEXTURES if name in _TEXTURES_ONLY else POLYNOMIALS | TEXTURES


def grey_planes(grey: Plane) -> dict[str, Plane]:
    """Return the grey levels, their transforms, and transforms of these, by name of the plane."""
    spectrum, wavelets = fourier(grey), wavelet(grey)
    polynomials, edges = chebyshev_transform(grey), edge_transform(grey)
    return {
        "grey": grey,
        "fourier": spectrum,
        "wavelet": wavelets,
        "chebyshev": polynomials,
        "edge": edges,
        "fourier(wavelet)": fourier(wavelets),
        "fourier(edge)": fourier(edges),
        "wavelet(edge)": wavelet(edges),
        "chebyshev(fourier)": chebyshev_transform(spectrum),
        "wavelet(fourier)": wavelet(spectrum),
        "chebyshev(wavelet)": chebyshev_transform(wavelets),
        "fourier(chebyshev)": fourier(polynomials),
    }
