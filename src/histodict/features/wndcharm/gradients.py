"""Prewitt's gradient, and the edge transform."""

from __future__ import annotations

import numpy as np

from .distributions import Plane


def gradient(plane: Plane) -> tuple[Plane, Plane]:
    """How much the three pixels above outweigh those below, and those left those right.

    There is nothing beyond the border: pixels there are 0.
    """
    padded = np.pad(plane, 1)
    up, left = padded[:-2] - padded[2:], padded[:, :-2] - padded[:, 2:]
    return up[:, :-2] + up[:, 1:-1] + up[:, 2:], left[:-2] + left[1:-1] + left[2:]


def edge_transform(plane: Plane) -> Plane:
    """The largest |difference| to the neighbours above, below, left and right.

    Pixels of the border have neighbours along the border alone.
    """
    edges = np.zeros_like(plane)
    down, across = np.abs(np.diff(plane, axis=0)), np.abs(np.diff(plane, axis=1))
    edges[1:-1] = np.maximum(down[:-1], down[1:])
    np.maximum(edges[:, 1:-1], np.maximum(across[:, :-1], across[:, 1:]), out=edges[:, 1:-1])
    return edges
