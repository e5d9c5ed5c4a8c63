"""The disc that polynomials of radius and angle live on: the image, reduced to a square."""

from __future__ import annotations

import numpy as np

from ..pixels import Plane, area_means
from .distributions import stretched

DISC_PX = 128


def disc_square(plane: Plane) -> Plane:
    """DISC_PX × DISC_PX means over the plane, stretched to 0 … 1; all 1 for a plane of one value.

    The whole plane is squeezed into the square; the disc touches its sides.
    """
    square = stretched(area_means(plane, DISC_PX)).astype(np.float32)
    return square if square.any() else np.ones_like(square)
