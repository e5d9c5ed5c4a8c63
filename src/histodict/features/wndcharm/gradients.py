"""Prewitt's gradient."""

from __future__ import annotations

import numpy as np

from ..pixels import Plane


def gradient(plane: Plane) -> tuple[Plane, Plane]:
    """The slope of a plane down and to the right, each over 3 × 3 pixels; edges go on as they are.

    Per pixel: on a ramp that rises by 1 a pixel, the slope is 1.
    """
    padded = np.pad(plane, 1, mode="edge")
    down, right = padded[2:] - padded[:-2], padded[:, 2:] - padded[:, :-2]
    sixth = np.float32(1 / 6)
    return (
        (down[:, :-2] + down[:, 1:-1] + down[:, 2:]) * sixth,
        (right[:-2] + right[1:-1] + right[2:]) * sixth,
    )


def steepness(plane: Plane) -> Plane:
    """Length of the gradient."""
    return np.hypot(*gradient(plane))
