"""An image as a model sees it, kept as files of a job.

maps/KEY.json    the answer: label, score, shares, words, how the map's grid lies over the image
maps/KEY.npz     the patch map, where there is one; see `PatchMap.save`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch import image_key
from ..execution.files import file_key
from ..execution.sealed import write_sealed
from ..images.manifest import Record
from ..images.pixel_size import GivenSize
from ..patches.grid import PatchGrid
from ..patches.patch_map import PatchMap
from ..pipeline import Model
from .workspace import DamagedFileError, read_fields, say_once

_MOST_OUTLINES = 400
_FORM = 5  # of these files; those of earlier versions are made anew
_FACTS: dict[str, Any] = {
    "answer": object,
    "score": object,
    "value": object,
    "grid": object,
    "words": str,
}


def answer_image(model: Model, record: Record, folder: Path) -> dict[str, Any]:
    """The model's answer for an image as plain values; its map, if it has one, into the folder."""
    state = _state(record)  # first: the image may be replaced meanwhile
    answer = model.answer(record.path, mpp=GivenSize(table=record.mpp))
    patch_map = answer.patch_map
    facts = {
        "answer": answer.label,
        "score": None if np.isnan(answer.score) else float(answer.score),
        "value": answer.value,
        "shares": answer.proportions,
        "n_patches": answer.n_patches,
        "words": answer.words(),
        "mpp": answer.size.mpp,
        "mpp_from": answer.size.origin,
        "grid": None if patch_map is None else _placed(patch_map.grid),
    }
    if patch_map is not None:  # before the answer that tells of it
        patch_map.save(_file(folder, record.path, "npz"))
    write_sealed(_file(folder, record.path, "json"), facts | {"form": _FORM, "of": state})
    return facts


def _placed(grid: PatchGrid) -> dict[str, float]:
    """How the grid lies over the image, for the page."""
    return {
        "n_rows": grid.n_rows,
        "n_columns": grid.n_columns,
        "side": grid.patch_side,
        "step": grid.step,
        "shift": grid.shift,
    }


def _state(record: Record) -> list[Any]:
    """Another one when the image was changed under its name, or its pixel size in the table."""
    return [*file_key(record.path), record.mpp]


def stored_answer(folder: Path, record: Record) -> dict[str, Any] | None:
    """What `answer_image` gave; None if it was not asked yet of this image as it is now, in another
    version, or is damaged.
    """
    path = _file(folder, record.path, "json")
    try:
        facts = read_fields(path, _FACTS) if path.exists() else {}
    except DamagedFileError as error:
        say_once(f"{error}: it is made anew")
        facts = {}
    is_present = facts.pop("form", None) == _FORM and facts.pop("of", None) == _state(record)
    return facts if is_present else None


def answer_once(model: Model, record: Record, folder: Path) -> dict[str, Any]:
    return stored_answer(folder, record) or answer_image(model, record, folder)


def stored_map(folder: Path, record: Record) -> PatchMap:
    facts, image = stored_answer(folder, record), record.path
    if facts is None or facts["grid"] is None:
        raise KeyError("this image has no patch map yet")
    try:
        return PatchMap.load(_file(folder, image, "npz"))
    except (ValueError, OSError) as error:
        _file(folder, image, "json").unlink(missing_ok=True)  # the next look makes both anew
        raise ValueError(f"{error}: open the image once more, and it is made anew") from error


def _file(folder: Path, image: Path, kind: str) -> Path:
    return folder / f"{image_key(image)}.{kind}"


def map_picture(patch_map: PatchMap, only: int | None) -> NDArray[np.uint8]:
    """One RGBA pixel per patch: its class's colour, more opaque where it won more clearly."""
    colours, opacity = patch_map.colours()
    alpha = opacity / max(float(opacity.max()), 1e-12)
    if only is not None:
        alpha = np.where(patch_map.winners == only, alpha, 0)
    return np.dstack([colours, 255 * alpha]).round().astype(np.uint8)


def outlines(patch_map: PatchMap, place: int, least: int) -> list[list[float]]:
    """Rings (x, y, x, y, …) around connected patches of a class, the largest regions first."""
    return [
        [length for corner in ring for length in corner]
        for _, _, polygons in patch_map.regions(place, least, _MOST_OUTLINES)
        for polygon in polygons
        for ring in polygon
    ]
