"""Edge statistics: how many edges, how steep, and in which directions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pixels import Plane
from .distributions import Entries, numbered, shares
from .gradients import gradient

_N_STEEPNESS = 8
_N_DIRECTIONS = 8


def edge_statistics(plane: Plane) -> Entries:
    """Edges are pixels steeper than Otsu's threshold; directions are theirs alone.

    "opposite": the difference between two opposite directions, relative to both.
    "two fullest": the share of the two most frequent directions.
    """
    from skimage.filters import threshold_otsu

    down, right = gradient(plane)
    steepness = np.hypot(down, right)
    edges = steepness > threshold_otsu(steepness)
    directions = np.arctan2(down[edges], right[edges]) % (2 * np.pi)
    places = np.rint(directions * (_N_DIRECTIONS / (2 * np.pi))).astype(np.intp) % _N_DIRECTIONS
    h = np.bincount(places, minlength=_N_DIRECTIONS) / max(len(places), 1)
    one, other = h[: _N_DIRECTIONS // 2], h[_N_DIRECTIONS // 2 :]
    return (
        {"share of edges": float(edges.mean())}
        | _summary("steepness", steepness)
        | numbered("steepness", shares(steepness, _N_STEEPNESS))
        | _summary("direction", directions)
        | numbered("direction", h)
        | {"two fullest": float(np.sort(h)[-2:].sum())}
        | numbered("opposite", np.abs(one - other) / np.maximum(one + other, 1e-9))
    )


def _summary(name: str, values: NDArray[Any]) -> Entries:
    """Mean, median and variance; 0 of no values."""
    if values.size == 0:
        values = np.zeros(1)
    return {
        f"{name} mean": float(values.mean(dtype=np.float64)),
        f"{name} median": float(np.median(values)),
        f"{name} variance": float(values.var(dtype=np.float64)),
    }
