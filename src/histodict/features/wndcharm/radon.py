"""Radon features: sums along the lines of four directions.

Of each direction's sums, how many lie in three equal steps between the least and the greatest.
A pixel is four points, a quarter of it each, whose shares go to the two nearest of the lines, which
are a pixel apart and reach beyond the image's corners: the outer ones are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane, histogram, named_entries


def radon_features(plane: Plane) -> Entries:
    """Four directions, three steps."""
    entries: Entries = {}
    for direction, sums in line_sums(plane).items():
        entries |= named_entries(direction, histogram(sums, 3))
    return entries


def line_sums(plane: Plane) -> dict[str, NDArray[np.float64]]:
    """The sum along every line, by the direction across the lines; 0 is to the right."""
    height, width = plane.shape
    half_width, half_height = width - 1 - (width - 1) // 2, height - 1 - (height - 1) // 2
    reach = int(np.ceil(np.hypot(half_width, half_height))) + 1
    x = np.arange(width) - (width - 1) // 2
    y = np.arange(height)[::-1] - (height - 1) // 2  # rises upwards
    rising, falling = _diagonal_sums(plane[::-1]), _diagonal_sums(plane)
    steps = np.arange(height + width - 1)
    quarter, half = [(-0.25, 1), (0.25, 1)], [(-0.5, 1), (0.0, 2), (0.5, 1)]
    lines = {
        "0°": (x, plane.sum(axis=0), quarter, 1.0),
        # x − y and x + y, of which the sums over a diagonal of the pixels have one.
        "135°": (y[0] - x[0] - steps, falling, half, np.sqrt(0.5)),
        "45°": (x[0] + y[-1] + steps, rising, half, np.sqrt(0.5)),
        "90°": (y, plane.sum(axis=1), quarter, 1.0),
    }
    return {name: _shared_out(*line, reach) for name, line in lines.items()}


def _shared_out(
    places: NDArray[np.int64],
    sums: NDArray[np.float64],
    points: list[tuple[float, int]],
    unit: float,
    reach: int,
) -> NDArray[np.float64]:
    """Sums at places, each several points, shared out to lines −reach … reach."""
    shared = np.zeros(2 * reach + 2)
    total = sum(weight for _, weight in points)
    for step, weight in points:
        at = (places + step) * unit + reach
        below = at.astype(np.intp)
        low = sums * (weight / total) * (1 - (at - below))
        shared += np.bincount(below, low, len(shared))
        shared += np.bincount(below + 1, sums * (weight / total) - low, len(shared))
    return shared[:-1]


def _diagonal_sums(plane: Plane) -> NDArray[np.float64]:
    """Sums over pixels of the same row + column."""
    height, width = plane.shape
    # Rows that are one pixel longer each time shift against each other when read in shorter rows.
    wide = np.zeros((height, width + height))
    wide[:, :width] = plane
    sheared = wide.ravel()[: height * (width + height - 1)].reshape(height, -1)
    sums: NDArray[np.float64] = sheared.sum(axis=0)
    return sums
