"""Technical properties of an image: format, size, pixel size and colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .feature_file import is_feature_file
from .readers import ImageSource

_SIDE = 128  # of the overview whose colours are measured
_WHITE = 99  # percentile of each channel, near that of the background
_SUFFIXES = {".jpeg": ".jpg", ".tiff": ".tif"}

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class ImageProperties:
    """Format, size, pixel size and colours of an image; only the format for a feature file.

    size : (width, height); mpp : µm per pixel, if known; mean, white : mean and 99th percentile
    of red, green and blue over the whole image
    """

    format: str
    size: tuple[int, int] | None = None
    mpp: float | None = None
    mean: Colour | None = None
    white: Colour | None = None

    @classmethod
    def of(cls, source: ImageSource) -> ImageProperties:
        suffix = source.path.suffix.lower() if hasattr(source.path, "suffix") else ""
        suffix = _SUFFIXES.get(suffix, suffix)
        if is_feature_file(source.path):
            return cls(suffix)
        pixels = source.thumbnail(_SIDE).reshape(-1, 3)
        mean, white = pixels.mean(axis=0), np.percentile(pixels, _WHITE, axis=0)
        return cls(suffix, source.size, source.mpp, _colour(mean), _colour(white))


def _colour(values: NDArray[Any]) -> Colour:
    red, green, blue = values.tolist()
    return red, green, blue
