"""The patch map of an image by a model, with the answer, as files of a job.

maps/KEY.npz     winners and margins on the patch grid
maps/KEY.json    the answer: label, score, shares, grid
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ..batch import image_key
from ..decisions.regions import label_regions, polygons
from ..execution.files import written_whole
from ..images.manifest import Record
from ..model_file import Model
from ..patches.grid import PatchGrid
from ..pipeline import (
    BLANK,
    ImageAnswer,
    PatchMap,
    RegionAnswer,
    RegionDetector,
    TissueClassifier,
)
from ..reports.overlay import colour_map
from .workspace import read_json, write_json

_MOST_OUTLINES = 400


def answer_image(model: Model, record: Record, folder: Path) -> dict[str, Any]:
    """The model's answer for an image as plain values; its map, if it has one, into the folder."""
    answer: ImageAnswer | RegionAnswer
    if isinstance(model, RegionDetector):
        answer = model.detect(record.path, mpp=record.mpp)
        facts: dict[str, Any] = {"value": answer.score, "shares": _shares(model, answer)}
    else:
        answer = model.predict(record.path, mpp=record.mpp)
        facts = {"value": _rule_value(model, answer.score), "shares": answer.proportions}
    facts |= {
        "answer": answer.label,
        "score": None if np.isnan(answer.score) else float(answer.score),
        "n_patches": answer.n_patches,
        "grid": None,
    }
    key = image_key(record.path)
    if answer.patch_map is not None:
        facts["grid"] = _save(folder / f"{key}.npz", answer.patch_map)
    write_json(folder / f"{key}.json", facts)
    return facts


def _rule_value(model: TissueClassifier, score: float) -> float | None:
    """What the operating point is compared with: what θ is, or the score where there is no θ."""
    if np.isnan(score):
        return None
    return float(score) if model.threshold is None else model.rule_value(score)


def stored_answer(folder: Path, image: Path) -> dict[str, Any] | None:
    path = folder / f"{image_key(image)}.json"
    return read_json(path) if path.is_file() else None


def stored_map(folder: Path, image: Path) -> PatchMap:
    facts = stored_answer(folder, image)
    if facts is None or facts["grid"] is None:
        raise KeyError("this image has no patch map yet")
    grid = {name: facts["grid"][name] for name in PatchGrid.__dataclass_fields__}
    with np.load(folder / f"{image_key(image)}.npz") as arrays:
        margins = arrays["margins"].astype(np.float32)
        return PatchMap(PatchGrid(**grid), arrays["winners"], margins)


def _save(path: Path, patch_map: PatchMap) -> dict[str, Any]:
    """Write the map; how its grid lies over the image, for the page."""
    grid = patch_map.grid
    with written_whole(path) as partial, partial.open("wb") as file:
        margins = patch_map.margins.astype(np.float16)
        np.savez_compressed(file, winners=patch_map.winners, margins=margins)
    step = grid.stride_px * grid.downsample
    return {
        "n_rows": grid.n_rows,
        "n_columns": grid.n_columns,
        "patch_px": grid.patch_px,
        "stride_px": grid.stride_px,
        "downsample": grid.downsample,
        "side": grid.patch_side,
        "step": step,
        "shift": (grid.patch_side - step) / 2,
    }


def _shares(model: RegionDetector, answer: RegionAnswer) -> dict[str, float]:
    winners = answer.patch_map.winners
    n_patches = max(1, answer.n_patches)
    return {name: float((winners == i).sum()) / n_patches for i, name in enumerate(model.classes_)}


def map_picture(patch_map: PatchMap, only: int | None) -> NDArray[np.uint8]:
    """One RGBA pixel per patch: its class's colour, more opaque where it won more clearly."""
    colours, opacity = colour_map(patch_map)
    alpha = opacity / max(float(opacity.max()), 1e-12)
    alpha = np.where(patch_map.winners == BLANK, 0, alpha)
    if only is not None:
        alpha = np.where(patch_map.winners == only, alpha, 0)
    return np.dstack([colours, 255 * alpha]).round().astype(np.uint8)


def outlines(patch_map: PatchMap, place: int, least: int) -> list[list[float]]:
    """Rings (x, y, x, y, …) around connected patches of a class, the largest regions first."""
    grid = patch_map.grid
    step = grid.stride_px * grid.downsample
    shift = (grid.patch_side - step) / 2
    places, sizes = label_regions(patch_map.winners == place)
    windows = ndimage.find_objects(places)
    numbers = [n for n in np.argsort(-sizes, kind="stable") if sizes[n] >= least]
    rings: list[list[float]] = []
    for number in numbers[:_MOST_OUTLINES]:
        rows, columns = windows[number]
        for polygon in polygons(places[rows, columns] == number + 1):
            for ring in polygon:
                corners = np.add(ring, (columns.start, rows.start))
                rings.append((corners * step + shift).ravel().tolist())
    return rings
