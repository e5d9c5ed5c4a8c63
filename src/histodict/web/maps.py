"""An image as a model sees it, kept as files of a job.

maps/KEY.json    the answer: label, score, shares, words, how the map's grid lies over the image
maps/KEY.npz     the patch map, where there is one; see `PatchMap.save`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch import image_key
from ..execution.files import file_key
from ..execution.progress import Callback, ignore
from ..execution.sealed import write_sealed
from ..images.manifest import Record
from ..images.pixel_size import PixelSize
from ..patches.grid import PatchGrid
from ..patches.patch_map import PatchMap
from ..pipeline import Model
from ..pipeline.answers import Answer, ImageAnswer, RegionAnswer
from .about import About
from .workspace import DamagedFileError, read_fields, say_once, short_id

_MOST_OUTLINES = 400
_FORM = 7  # increased when the content of these files changes, so that stored ones are not used
_FACTS: dict[str, Any] = {
    "answer": object,
    "score": object,
    "value": object,
    "grid": object,
    "words": str,
    "mpp": object,
    "mpp_from": str,
    "probabilities": dict,
    "candidates": list,
}


def answer_image(
    model: Model,
    record: Record,
    folder: Path,
    mpp: float | None = None,
    callback: Callback = ignore,
) -> dict[str, Any]:
    """The model's answer for an image as plain values; its map, if it has one, into the folder.

    `mpp`: µm per pixel where neither the record nor the file says it.
    """
    state = _state(record, mpp)  # first: the image may be replaced meanwhile
    size = About(mpp=mpp).given(record.mpp)
    answer = model.answer(record.path, mpp=size, callback=callback, within=record.within)
    facts = answer_facts(answer) | {"version": short_id(repr(state))}
    if answer.patch_map is not None:  # before the answer that tells of it
        answer.patch_map.save(_file(folder, record, "npz"))
    write_sealed(_file(folder, record, "json"), facts | {"form": _FORM, "of": state})
    return facts


def answer_facts(answer: Answer) -> dict[str, Any]:
    """What the page is told."""
    patch_map = answer.patch_map
    return {
        "answer": answer.label,
        "score": None if np.isnan(answer.score) else float(answer.score),
        "value": answer.value,
        "shares": answer.proportions,
        "n_patches": answer.n_patches,
        "words": answer.words(),
        "mpp": answer.size.mpp,
        "mpp_from": answer.size.origin,
        "probabilities": answer.probabilities,
        "candidates": answer.candidates,
        "grid": None if patch_map is None else _placed(patch_map.grid),
    }


def _placed(grid: PatchGrid) -> dict[str, float]:
    """How the grid lies over the image, for the page."""
    return {
        "n_rows": grid.n_rows,
        "n_columns": grid.n_columns,
        "left": grid.left,
        "top": grid.top,
        "side": grid.patch_side,
        "step": grid.step,
        "shift": grid.shift,
    }


def _state(record: Record, mpp: float | None) -> list[Any]:
    """Another one when the image was changed under its name, or what is said of its pixel size."""
    within = [*record.within.facts()] if record.within else []
    return [*file_key(record.path), record.mpp, mpp, *within]


def stored_answer(folder: Path, record: Record, mpp: float | None = None) -> dict[str, Any] | None:
    """Return what `answer_image` stored; None if there is nothing for the image as it is now."""
    path = _file(folder, record, "json")
    try:
        facts = read_fields(path, _FACTS) if path.exists() else {}
    except DamagedFileError as error:
        say_once(f"{error}: it is made anew")
        facts = {}
    is_present = facts.pop("form", None) == _FORM and facts.pop("of", None) == _state(record, mpp)
    return facts if is_present else None


def answer_once(
    model: Model, record: Record, folder: Path, mpp: float | None = None
) -> dict[str, Any]:
    return stored_answer(folder, record, mpp) or answer_image(model, record, folder, mpp)


def map_version(folder: Path, record: Record, mpp: float | None = None) -> list[Any]:
    """Another one whenever `stored_map` would give another map."""
    _facts_of_map(folder, record, mpp)
    return file_key(_file(folder, record, "npz"))


def stored_map(folder: Path, record: Record, mpp: float | None = None) -> PatchMap:
    _facts_of_map(folder, record, mpp)
    try:
        return PatchMap.load(_file(folder, record, "npz"))
    except (ValueError, OSError) as error:
        _file(folder, record, "json").unlink(missing_ok=True)  # the next look makes both anew
        raise ValueError(f"{error}: open the image once more, and it is made anew") from error


def _facts_of_map(folder: Path, record: Record, mpp: float | None) -> dict[str, Any]:
    facts = stored_answer(folder, record, mpp)
    if facts is None or facts["grid"] is None:
        raise KeyError("this image has no patch map yet")
    return facts


# --- where the line was moved -------------------------------------------------------------------


def redrawn(moved: Model, facts: dict[str, Any], patch_map: PatchMap | None, path: Path) -> Answer:
    """The answer of a model whose line was moved, from what was stored before: label, words and map
    as the moved model would give them.
    """
    size = PixelSize(facts["mpp"], facts["mpp_from"])
    if moved.finds_regions:
        assert patch_map is not None
        before = RegionAnswer(path, facts["answer"], facts["score"], 0, [], patch_map, size)
        return moved.redrawn(before)
    return moved.redrawn(
        ImageAnswer(
            path,
            facts["answer"],
            (np.nan if facts["score"] is None else facts["score"],),
            patch_map=patch_map,
            value=facts["value"],
            n_patches=facts["n_patches"],
            probabilities=facts["probabilities"],
            candidates=facts["candidates"],
            size=size,
        )
    )


def _file(folder: Path, record: Record, kind: str) -> Path:
    """Of an image, or of the part of one inside of outlines."""
    part = f"-{short_id(repr(record.within))}" if record.within else ""
    return folder / f"{image_key(record.path)}{part}.{kind}"


def map_picture(
    patch_map: PatchMap, only: int | None, chosen: Mapping[str, str] | None = None
) -> NDArray[np.uint8]:
    """One RGBA pixel per patch: its class's colour, more opaque where it won more clearly.

    `chosen`: colours that the user has given to classes, by name, as #rrggbb.
    """
    colours, opacity = patch_map.colours()
    for place, name in enumerate(patch_map.classes):
        if chosen and name in chosen:
            colours[patch_map.winners == place] = list(bytes.fromhex(chosen[name][1:]))
    alpha = opacity / max(float(opacity.max()), 1e-12)
    if only is not None:
        alpha = np.where(patch_map.winners == only, alpha, 0)
    return np.dstack([colours, 255 * alpha]).round().astype(np.uint8)


def outlines(patch_map: PatchMap, place: int, least: int) -> list[list[float]]:
    """Rings (x, y, x, y, …) around connected patches of a class, of the largest regions."""
    return patch_map.rings(place, least, _MOST_OUTLINES)
