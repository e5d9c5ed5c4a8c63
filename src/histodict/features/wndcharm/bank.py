"""The bank of families, and the transforms of a grey plane that they are taken from."""

from __future__ import annotations

from collections.abc import Callable

from .chebyshev import chebyshev_statistics, chebyshev_transform
from .chebyshev_fourier import chebyshev_fourier_statistics
from .comb import comb_moments
from .distributions import Entries, Plane
from .edges import edge_statistics
from .fractal import fractal_features
from .gabor import gabor_textures
from .gradients import edge_transform
from .haralick import haralick_textures
from .intensity import gini, intensity_statistics, multiscale_histograms
from .objects import bright_objects, dark_objects
from .radon import radon_features
from .tamura import tamura_textures
from .transforms import fourier, wavelet
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


def families_of(name: str) -> Families:
    """The families that are taken from the plane of that name."""
    if name == "grey":
        return HIGH_CONTRAST | POLYNOMIALS | TEXTURES
    return TEXTURES if name in _TEXTURES_ONLY else POLYNOMIALS | TEXTURES


def grey_planes(grey: Plane) -> dict[str, Plane]:
    """By name: the grey levels, their transforms and transforms of transforms."""
    waves, details = fourier(grey), wavelet(grey)
    polynomials, edges = chebyshev_transform(grey), edge_transform(grey)
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
    }
