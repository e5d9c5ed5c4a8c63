"""The planes that features are taken from: grey levels, colours, and transforms of planes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from ..pixels import Plane

N_COLOURS = 20
# Colours weaker than this are greys.
_LEAST_SATURATION = 0.1
_N_GREYS, _N_HUES = 4, 8


def fourier(plane: Plane) -> Plane:
    """log(1 + |F|) of the unitary Fourier transform, frequency 0 in the middle."""
    spectrum = np.abs(fft.fft2(plane.astype(np.float64), norm="ortho"))
    return np.asarray(fft.fftshift(np.log1p(spectrum)), np.float32)


def wavelet(plane: Plane) -> Plane:
    """Details of the symlet of order 5, at its first level: half the size each way.

    At each place the length of the three detail coefficients: across, down and diagonal.
    """
    import pywt

    _, details = pywt.dwt2(plane.astype(np.float64), "sym5", mode="periodization")
    return np.sqrt(sum(part * part for part in details)).astype(np.float32)


def hue_plane(hue: Plane, saturation: Plane) -> Plane:
    """The hue, 0 to 255, cut open at green, which stains do not have; 0 for grey pixels."""
    turned = (hue + np.float32(2 / 3)) % 1
    return np.where(saturation > 0, turned * np.float32(255), np.float32(0))


def colour_plane(hue: Plane, saturation: Plane, value: Plane) -> Plane:
    """Which of 20 colours a pixel has: 4 greys, dark to bright, then 8 hues, dark and bright."""
    grey = np.minimum(np.floor(value * _N_GREYS), _N_GREYS - 1)
    family = np.minimum(np.floor(hue * _N_HUES), _N_HUES - 1)
    coloured = _N_GREYS + 2 * family + (value > 0.5)
    return np.where(saturation < _LEAST_SATURATION, grey, coloured)


def colour_shares(colours: Plane) -> NDArray[np.float64]:
    """The share of pixels of each of the 20 colours."""
    return np.bincount(colours.astype(np.intp).ravel(), minlength=N_COLOURS) / colours.size
