"""The patch maps behind the wrong answers of a training, kept so that a report can show them.

A later look with another model would show something else than what led to the answer.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from ..execution.files import written_whole
from ..patches.grid import PatchGrid
from ..pipeline import PatchMap


def save_maps(path: Path, maps: dict[int, PatchMap]) -> None:
    """One .npz file; `maps` by the image's place among those tested. Margins are rounded."""
    arrays: dict[str, Any] = {}
    for place, patch_map in maps.items():
        arrays[f"{place}.grid"] = np.array(astuple(patch_map.grid), np.float64)
        arrays[f"{place}.winners"] = patch_map.winners
        arrays[f"{place}.margins"] = patch_map.margins.astype(np.float16)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_map(path: Path | None, place: int) -> PatchMap | None:
    """The map of an image, if there is one: whole-image methods have none, nor do right answers."""
    if path is None or not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        if f"{place}.grid" not in arrays:
            return None
        rows, columns, patch_px, stride_px, downsample = arrays[f"{place}.grid"].tolist()
        grid = PatchGrid(int(rows), int(columns), int(patch_px), int(stride_px), downsample)
        margins = arrays[f"{place}.margins"].astype(np.float32)
        return PatchMap(grid, arrays[f"{place}.winners"], margins)
