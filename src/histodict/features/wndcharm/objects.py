"""Object statistics: connected pixels brighter than Otsu's threshold, and of the inverted image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .distributions import Entries, Plane, histogram, named_entries
from .otsu import otsu

_N_BINS = 10


def bright_objects(plane: Plane) -> Entries:
    """Of pixels above the threshold."""
    return object_statistics(plane > otsu(plane))


def dark_objects(plane: Plane) -> Entries:
    """Of pixels above the threshold of the inverted plane."""
    return bright_objects(plane.max() - plane + plane.min())


def object_statistics(mask: NDArray[np.bool_]) -> Entries:
    """Areas, middle of all, number, distances of the objects from that middle, Euler number.

    Pixels that touch, corners included, are one object; the middle counts pixels from 1. All 0
    where there is no object.
    """
    from skimage.measure import label

    labels, count = label(mask, connectivity=2, return_num=True)
    rows, columns = np.nonzero(mask)
    owners = labels[rows, columns] - 1
    areas = np.bincount(owners, minlength=count).astype(np.float64)
    centres = np.stack([np.bincount(owners, at + 1, count) for at in (columns, rows)]) / areas
    middle = np.array([columns.mean() + 1, rows.mean() + 1]) if count else np.zeros(2)
    return (
        _summary("area", areas)
        | named_entries("middle", middle)
        | {"number": float(count)}
        | _summary("distance", np.hypot(*(centres - middle[:, None])))
        | {"Euler number": float(euler_number(mask))}
    )


def euler_number(mask: NDArray[np.bool_]) -> int:
    """Objects less holes, from the 2 × 2 windows with one and with three pixels set.

    As in the original, windows of two pixels corner to corner are not counted and the border is
    left out, so that it is the Euler number only of objects that have neither.
    """
    m = mask.astype(np.int8)
    in_window = m[:-1, :-1] + m[:-1, 1:] + m[1:, :-1] + m[1:, 1:]
    return int(((in_window == 1).sum() - int((in_window == 3).sum())) / 4)


def _summary(name: str, values: NDArray[Any]) -> Entries:
    """Histogram of ten steps, greatest, mean, the upper median, least, variance."""
    known = np.sort(values) if values.size else np.zeros(1)
    # The original has no histogram of areas that are all the same.
    blank = name == "area" and np.ptp(known) == 0
    return named_entries(name, np.zeros(_N_BINS) if blank else histogram(values, _N_BINS)) | {
        f"{name} greatest": float(known[-1]),
        f"{name} mean": float(known.mean()),
        f"{name} median": float(known[len(known) // 2]),
        f"{name} least": float(known[0]),
        f"{name} variance": float(known.var(ddof=1)) if len(known) > 1 else 0.0,
    }
