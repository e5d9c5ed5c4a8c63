"""Gabor textures: how strongly waves of seven lengths are present, place by place.

A Gabor filter is a wave under a Gaussian window of 0.56 wavelengths; in frequency, a Gaussian bump
about the wave's frequency. The length of its complex response does not depend on the wave's phase.
"""

from __future__ import annotations

import numpy as np
from scipy import fft

from ..pixels import Plane
from .distributions import Entries, stretched

_WAVELENGTHS = (3, 4, 6, 8, 12, 16, 24)  # pixels
_N_DIRECTIONS = 4
_WINDOW = 0.56  # wavelengths


def gabor_textures(plane: Plane) -> Entries:
    """Per wavelength the mean, over the plane, of the strongest response of four directions.

    Relative to the standard deviation of the plane.
    """
    unit = stretched(plane)
    deviation = np.float32(unit.std(dtype=np.float64) or 1.0)
    spectrum = fft.fft2((unit - unit.mean(dtype=np.float64)) / deviation).astype(np.complex64)
    down, across = (fft.fftfreq(side).astype(np.float32) for side in plane.shape)
    entries: Entries = {}
    for wavelength in _WAVELENGTHS:
        width = np.float32(1 / (2 * np.pi * _WINDOW * wavelength))
        strongest = np.zeros(plane.shape, np.float32)
        for turn in range(_N_DIRECTIONS):
            angle = turn * np.pi / _N_DIRECTIONS
            in_rows = np.exp(-(((down - np.sin(angle) / wavelength) / width) ** 2) / 2)
            in_columns = np.exp(-(((across - np.cos(angle) / wavelength) / width) ** 2) / 2)
            bump = np.outer(in_rows, in_columns).astype(np.float32)
            np.maximum(strongest, np.abs(fft.ifft2(spectrum * bump)), out=strongest)
        entries[f"wavelength {wavelength}"] = float(strongest.mean(dtype=np.float64))
    return entries
