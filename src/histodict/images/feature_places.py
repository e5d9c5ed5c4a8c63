"""Where the patches of a feature file lie, and whether that can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import ImageError


def usual_step(coords: NDArray[np.int64]) -> tuple[float | None, float]:
    """The most frequent distance of neighbours in a row or a column, and the share of all that have
    it; None if none has any.
    """
    found = []
    for along, across in ((0, 1), (1, 0)):
        ordered = coords[np.lexsort((coords[:, along], coords[:, across]))]
        in_line = np.diff(ordered[:, across]) == 0
        found.append(np.diff(ordered[:, along])[in_line])
    steps, counts = np.unique(np.concatenate(found), return_counts=True)
    steps, counts = steps[steps > 0], counts[steps > 0]
    if not len(steps):
        return None, 0.0
    most = int(np.argmax(counts))
    return float(steps[most]), float(counts[most] / counts.sum())


def check_places(
    path: Path, coords: NDArray[np.int64], size: tuple[int, int] | None, told: float | None
) -> None:
    """Refuses places that contradict what the file says: maps would show patches elsewhere.

    size : of the slide, told : how far apart its patches lie; where the file says so
    """
    if len(coords) > 1 and (coords == coords[0]).all():
        raise ImageError(
            f"{path}: all its {len(coords)} patches lie in one place, {tuple(coords[0].tolist())}: "
            "its coords do not say where they lie"
        )
    if size is not None and (coords >= size).any():
        x, y = coords.max(axis=0).tolist()
        raise ImageError(
            f"{path}: its patches lie up to ({x}, {y}), and its slide has {size[0]} x {size[1]} "
            "pixels (level0_width, level0_height): are its coords level-0 pixels?"
        )
    step, share = usual_step(coords)
    if told is not None and step is not None and step < told / 2 and share > 0.5:
        raise ImageError(
            f"{path}: says that its patches lie {told:g} pixels apart (patch_size_level0, overlap),"
            f" and most lie {step:g} apart: are its coords level-0 pixels?"
        )
