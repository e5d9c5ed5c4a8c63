"""A model over many images, into a folder: goes past bad files, and goes on where it was stopped.

    DIR/predictions.csv, .parquet    one row per image
    DIR/overlays/KEY.png             the image with its patch map
    DIR/maps/KEY.npz                 winners and margins on the patch grid
    DIR/geojson/KEY.geojson          the patches for QuPath
    DIR/done/KEY.json                one image's row; what is there is not done again

KEY is the file's name and a few letters that tell equal names apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from .images.readers import READERS, open_image
from .pipeline import ImageAnswer, TissueClassifier
from .reports.files import written_whole
from .reports.geojson import patch_features, save_geojson
from .reports.overlay import save_overlay


@dataclass(frozen=True)
class RunResult:
    """Rows of the table, in the order of the images, and (path, reason) of those that failed."""

    rows: list[dict[str, Any]]
    failures: list[tuple[Path, str]]
    n_skipped: int


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


def predict_images(
    model: TissueClassifier,
    model_digest: str,
    images: list[Path],
    folder: Path,
    *,
    mpp: float | None = None,
    tell: Callable[[Path], None] = lambda path: None,
) -> RunResult:
    """Answer for every image and write the files above. `tell(path)` after each image."""
    rows, failures, n_skipped = [], [], 0
    for image in images:
        key = image_key(image)
        done = folder / "done" / f"{key}.json"
        stamp = _stamp(image, model_digest, mpp)
        row = _finished_row(done, stamp)
        if row is not None:
            n_skipped += 1
        else:
            try:
                row = _predict_one(model, image, folder, key, mpp)
            except (ValueError, OSError, MemoryError) as error:
                failures.append((image, str(error) or type(error).__name__))
                tell(image)
                continue
            with written_whole(done) as partial:
                partial.write_text(json.dumps({"stamp": stamp, "row": row}), encoding="utf-8")
        rows.append(row)
        tell(image)
    _write_tables(folder, rows)
    return RunResult(rows, failures, n_skipped)


def image_key(image: Path) -> str:
    """A file name for what belongs to an image, the same each time."""
    place = hashlib.sha256(str(image.resolve()).encode()).hexdigest()[:8]
    return f"{image.stem}-{place}"


def _stamp(image: Path, model_digest: str, mpp: float | None) -> list[Any]:
    """Changes when the image, the model or the pixel size does."""
    state = image.stat() if image.exists() else None
    return [model_digest, mpp, state.st_size if state else 0, state.st_mtime_ns if state else 0]


def _finished_row(done: Path, stamp: list[Any]) -> dict[str, Any] | None:
    if not done.is_file():
        return None
    content = json.loads(done.read_text(encoding="utf-8"))
    row: dict[str, Any] | None = content["row"] if content["stamp"] == stamp else None
    return row


def _predict_one(
    model: TissueClassifier, image: Path, folder: Path, key: str, mpp: float | None
) -> dict[str, Any]:
    answer = model.predict(image, mpp=mpp)
    with open_image(image) as source:
        offset = source.offset
    save_overlay(folder / "overlays" / f"{key}.png", image, answer.patch_map)
    features = patch_features(answer.patch_map, model.classes_, offset)
    save_geojson(folder / "geojson" / f"{key}.geojson", features)
    grid = answer.patch_map.grid
    with written_whole(folder / "maps" / f"{key}.npz") as partial, partial.open("wb") as file:
        np.savez_compressed(
            file,
            winners=answer.patch_map.winners,
            margins=answer.patch_map.margins.astype(np.float16),
            stride=grid.stride_px * grid.downsample,
            side=grid.patch_side,
        )
    return _row(answer, key)


def _row(answer: ImageAnswer, key: str) -> dict[str, Any]:
    shares = {f"proportion_{name}": value for name, value in answer.proportions.items()}
    return {
        "path": str(answer.path),
        "label": answer.label or "no tissue",
        "score": answer.score,
        "threshold": answer.threshold,
        "n_patches": answer.n_patches,
        "key": key,
    } | shares


def _write_tables(folder: Path, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    with written_whole(folder / "predictions.csv") as partial:
        pyarrow.csv.write_csv(table, partial)
    with written_whole(folder / "predictions.parquet") as partial:
        pyarrow.parquet.write_table(table, partial)
