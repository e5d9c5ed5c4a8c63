"""Edge statistics: how many edges, how steep, and in which directions."""

from __future__ import annotations

import numpy as np

from .distributions import Entries, Plane, histogram, named_entries
from .gradients import gradient

_N_BINS = 8


def edge_statistics(plane: Plane) -> Entries:
    """Edges are pixels steeper than the mean; directions are of all pixels.

    "opposite": the difference between two opposite directions, relative to both.
    "first two": the share of the first two directions.
    """
    up, left = gradient(plane)
    steepness = np.hypot(up, left)
    directions = np.where(up == 0, np.pi * (left < 0), np.arctan2(up, left))
    h = histogram(directions, _N_BINS)
    one, other = h[: _N_BINS // 2], h[_N_BINS // 2 :]
    return (
        {"number of edges": float((steepness > steepness.mean()).sum())}
        | named_entries("opposite", np.abs(one - other) / np.maximum(one + other, 1))
        | named_entries("direction", h)
        | {"first two": float(h[:2].sum() / h.sum())}
        | _summary("direction", directions)
        | named_entries("steepness", histogram(steepness, _N_BINS))
        | _summary("steepness", steepness)
    )


def _summary(name: str, values: Plane) -> Entries:
    """Mean, median and variance."""
    return {
        f"{name} mean": float(values.mean()),
        f"{name} median": float(np.median(values)),
        f"{name} variance": float(values.var(ddof=1)),
    }
