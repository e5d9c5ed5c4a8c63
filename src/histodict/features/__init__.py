"""What stands for a whole image: the step from pixels to one vector, exchangeable by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..execution.local import single_blas_thread
from .lbp_colour import lbp_colour
from .pixels import Pixels
from .thumbnails import luminance_thumbnail, plane_thumbnail
from .wndcharm import wndcharm_features

__all__ = ["FEATURES", "ImageFeatureExtractor"]


@dataclass(frozen=True)
class ImageFeatureExtractor:
    """Pixels (height, width, 3) uint8 to a vector whose length does not depend on the image.

    `version` goes up whenever an image gets other numbers than before. `of_parts`: the vector of
    an image is the mean of those of its parts, but for their borders.
    """

    compute: Callable[[Pixels], tuple[NDArray[np.float64], list[str]]]
    version: int
    of_parts: bool = False

    def __call__(self, pixels: Pixels) -> NDArray[np.float64]:
        with single_blas_thread():
            return self.compute(pixels)[0]

    @cached_property
    def names(self) -> list[str]:
        """What the entries of the vector are."""
        return self.compute(np.zeros((1, 1, 3), np.uint8))[1]


FEATURES: dict[str, ImageFeatureExtractor] = {
    "wndcharm": ImageFeatureExtractor(wndcharm_features, version=2),
    "lbp-colour": ImageFeatureExtractor(lbp_colour, version=1, of_parts=True),
    "luminance": ImageFeatureExtractor(luminance_thumbnail, version=1),
    "planes": ImageFeatureExtractor(plane_thumbnail, version=1),
}
