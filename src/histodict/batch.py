"""A model over many images, into a folder: goes past bad files, and goes on where it was stopped.

    DIR/predictions.csv, .parquet    one row per image (detections.csv for regions)
    DIR/regions.csv, .parquet        one row per region found
    DIR/overlays/KEY.png             the image with its patch map and the regions' outlines
    DIR/maps/KEY.npz                 winners and margins on the patch grid
    DIR/geojson/KEY.geojson          the patches, or the regions, for QuPath
    DIR/done/KEY.json                one image's rows; what is there is not done again

KEY is the file's name and a few letters that tell equal names apart.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .execution.executor import Executor, Threads
from .execution.files import written_whole
from .execution.tables import Row, write_table
from .images.readers import READERS, open_image
from .pipeline import PatchMap, RegionDetector, TissueClassifier
from .reports.geojson import patch_features, region_features, save_geojson
from .reports.overlay import Rings, save_overlay

_IMAGE_COLUMNS = ("path", "label", "score", "threshold", "n_patches")
_REGION_COLUMNS = ("path", "region", "label", "n_patches", "score", "area_px", "area_um2")


@dataclass(frozen=True)
class RunResult:
    """Rows of the tables, in the order of the images, and (path, reason) of those that failed."""

    rows: list[Row]
    regions: list[Row]
    failures: list[tuple[Path, str]]
    n_skipped: int


@dataclass(frozen=True)
class _Findings:
    """What is written of one image."""

    row: Row
    regions: list[Row]
    patch_map: PatchMap | None
    features: Iterable[dict[str, Any]]
    outlines: Rings = ()


def find_images(paths: list[Path]) -> list[Path]:
    """The files named, and all images under the folders named, in order; each once."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = (p for p in sorted(path.rglob("*")) if p.suffix.lower() in READERS)
            found.update(dict.fromkeys(p for p in inside if p.is_file()))
        else:
            found[path] = None
    return list(found)


def run_images(
    model: TissueClassifier | RegionDetector,
    model_digest: str,
    images: list[Path],
    folder: Path,
    *,
    mpp: float | None = None,
    tell: Callable[[Path], None] = lambda path: None,
    executor: Executor | None = None,
) -> RunResult:
    """Answer for every image and write the files above. `tell(path)` after each image.

    `executor` takes an image at a time, and what works there writes into `folder`; None: one image
    after another, with threads for the parts of each.
    """
    rows: list[Row] = []
    regions: list[Row] = []
    failures = []
    stamps = [_stamp(image, model_digest, mpp) for image in images]
    files = [folder / "done" / f"{image_key(image)}.json" for image in images]
    finished = [_finished(file, stamp) for file, stamp in zip(files, stamps, strict=True)]
    # Another machine may work in another folder: paths that are sent are whole.
    missing = [image.absolute() for image, found in zip(images, finished, strict=True) if not found]
    answer = partial(_answer_one, _for_one_thread(model) if executor else model, folder.absolute())
    results = (executor or Threads(1)).map(partial(answer, mpp), missing, lost=str)
    for image, file, stamp, found in zip(images, files, stamps, finished, strict=True):
        content = found or next(results)
        if isinstance(content, str):
            failures.append((image, content))
            tell(image)
            continue
        if not found:
            for row in (content["row"], *content["regions"]):
                row["path"] = _text(image)
            with written_whole(file) as partial_file:
                partial_file.write_text(json.dumps(content | {"stamp": stamp}), encoding="utf-8")
        rows.append(content["row"])
        regions.extend(content["regions"])
        tell(image)
    if isinstance(model, RegionDetector):
        write_table(folder / "detections", rows, _IMAGE_COLUMNS[:3])
        write_table(folder / "regions", regions, _REGION_COLUMNS)
    else:
        write_table(folder / "predictions", rows, _IMAGE_COLUMNS)
    return RunResult(rows, regions, failures, len(images) - len(missing))


def image_key(image: Path) -> str:
    """A file name for what belongs to an image, the same each time."""
    place = hashlib.sha256(os.fsencode(image.resolve())).hexdigest()[:8]
    return f"{_text(Path(image.stem))}-{place}"


def _text(path: Path) -> str:
    """A path for a table; what is not UTF-8 in it, in names of old systems, is marked."""
    return os.fsencode(path).decode("utf-8", "replace")


def _stamp(image: Path, model_digest: str, mpp: float | None) -> list[Any]:
    """Changes when the image, the model or the pixel size does."""
    state = image.stat() if image.exists() else None
    return [model_digest, mpp, state.st_size if state else 0, state.st_mtime_ns if state else 0]


def _finished(done: Path, stamp: list[Any]) -> dict[str, Any] | None:
    if not done.is_file():
        return None
    content: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
    return content if content["stamp"] == stamp else None


_Model = TypeVar("_Model", bound=TissueClassifier | RegionDetector)


def _for_one_thread(model: _Model) -> _Model:
    """The same model, to work on one image beside others."""
    model = copy(model)
    model.model_ = copy(model.model_)
    model.model_.n_jobs = 1
    if isinstance(model, TissueClassifier):
        model.others_ = [_for_one_thread(other) for other in model.others_]
    return model


def _answer_one(
    model: TissueClassifier | RegionDetector, folder: Path, mpp: float | None, image: Path
) -> dict[str, Any] | str:
    """The rows of an image, whose files are then written; or why there are none."""
    try:
        return _answer(model, folder, mpp, image)
    except (ValueError, OSError, MemoryError) as error:
        return str(error) or type(error).__name__


def _answer(
    model: TissueClassifier | RegionDetector, folder: Path, mpp: float | None, image: Path
) -> dict[str, Any]:
    key = image_key(image)
    with open_image(image) as source:
        offset = source.offset
    if isinstance(model, RegionDetector):
        found = _detect(model, image, mpp, offset)
    else:
        found = _predict(model, image, mpp, offset)
    if found.patch_map is not None:
        save_overlay(folder / "overlays" / f"{key}.png", image, found.patch_map, found.outlines)
        save_geojson(folder / "geojson" / f"{key}.geojson", found.features)
        _save_map(folder / "maps" / f"{key}.npz", found.patch_map)
    return {"row": found.row | {"key": key}, "regions": found.regions}


def _predict(
    model: TissueClassifier, image: Path, mpp: float | None, offset: tuple[int, int]
) -> _Findings:
    answer = model.predict(image, mpp=mpp)
    shares = {f"proportion_{name}": value for name, value in answer.proportions.items()}
    row = {
        "path": _text(image),
        "label": answer.label or "no tissue",
        "score": answer.score if answer.n_patches or answer.label else None,
        "threshold": answer.threshold,
        "n_patches": answer.n_patches,
    }
    if model.others_:
        row["n_silent"] = answer.n_silent
    chances = {f"probability_{name}": value for name, value in answer.probabilities.items()}
    if chances:
        row |= chances | {"candidates": " or ".join(answer.candidates) or "none"}
    patch_map = answer.patch_map
    features = patch_features(patch_map, model.classes_, offset) if patch_map else []
    return _Findings(row | shares, [], patch_map, features)


def _detect(
    model: RegionDetector, image: Path, mpp: float | None, offset: tuple[int, int]
) -> _Findings:
    answer = model.detect(image, mpp=mpp)
    row = {
        "path": _text(image),
        "label": answer.label or "no tissue",
        "score": answer.score,
        "least_patches": answer.least_patches,
        "n_patches": answer.n_patches,
        "n_regions": len(answer.regions),
        "region_area_px": sum(region.area_px for region in answer.regions),
    }
    regions = [
        {
            "path": _text(image),
            "region": number + 1,
            "label": model.classes_[1],
            "n_patches": region.n_patches,
            "score": region.score,
            "area_px": region.area_px,
            "area_um2": region.area_um2,
            **dict(zip(("left", "top", "right", "bottom"), region.box, strict=True)),
        }
        for number, region in enumerate(answer.regions)
    ]
    rings = [r for region in answer.regions for polygon in region.polygons for r in polygon]
    features = region_features(answer.regions, model.classes_[1], offset)
    return _Findings(row, regions, answer.patch_map, features, rings)


def _save_map(path: Path, patch_map: PatchMap) -> None:
    grid = patch_map.grid
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            winners=patch_map.winners,
            margins=patch_map.margins.astype(np.float16),
            stride=grid.stride_px * grid.downsample,
            side=grid.patch_side,
        )
