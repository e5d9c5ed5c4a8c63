"""Object statistics: connected pixels brighter than Otsu's threshold, and those that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..pixels import Plane
from .distributions import Entries, numbered, shares

_N_BINS = 10


def bright_objects(plane: Plane) -> Entries:
    """Of pixels above the threshold."""
    return object_statistics(_above_threshold(plane))


def dark_objects(plane: Plane) -> Entries:
    """Of the other pixels."""
    return object_statistics(~_above_threshold(plane))


def object_statistics(mask: NDArray[np.bool_]) -> Entries:
    """Number, Euler number, middle of all, areas, and distances of the objects from that middle.

    Pixels that touch, corners included, are one object. All 0 where there is no object.
    """
    from skimage.measure import euler_number, label

    labels, count = label(mask, connectivity=2, return_num=True)
    rows, columns = np.nonzero(mask)
    owners = labels[rows, columns] - 1
    areas = np.bincount(owners, minlength=count).astype(np.float64)
    centres = np.stack([np.bincount(owners, at, count) for at in (rows, columns)]) / areas
    middle = np.array([rows.mean(), columns.mean()]) if count else np.zeros(2)
    distances = np.hypot(*(centres - middle[:, None]))
    return (
        {"number": float(count), "Euler number": float(euler_number(mask, connectivity=2))}
        | numbered("middle", middle / mask.shape)
        | _summary("area", areas)
        | _summary("distance", distances)
    )


def _above_threshold(plane: Plane) -> NDArray[np.bool_]:
    from skimage.filters import threshold_otsu

    mask: NDArray[np.bool_] = plane > threshold_otsu(plane)
    return mask


def _summary(name: str, values: NDArray[Any]) -> Entries:
    """Least, greatest, mean, median, variance, and shares in ten equal steps."""
    none = values.size == 0
    known = np.zeros(1) if none else values
    return {
        f"{name} least": float(known.min()),
        f"{name} greatest": float(known.max()),
        f"{name} mean": float(known.mean()),
        f"{name} median": float(np.median(known)),
        f"{name} variance": float(known.var()),
    } | numbered(name, np.zeros(_N_BINS) if none else shares(known, _N_BINS))
