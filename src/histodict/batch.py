"""A model over many images, into a folder: goes past bad files, and goes on where it was stopped.

    DIR/predictions.csv, .parquet    one row per image (detections.csv for regions)
    DIR/regions.csv, .parquet        one row per region found
    DIR/overlays/KEY.png             the image with its patch map and the regions' outlines
    DIR/maps/KEY.npz                 the patch map, for `PatchMap.load`
    DIR/geojson/KEY.geojson          the patches, or the regions, for QuPath
    DIR/done/KEY.json                one image's rows, and the digests of its files; what is there
                                     and whole is not done again

KEY is the file's name and a few letters that tell equal names apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import astuple, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .execution.executor import Executor, Threads
from .execution.files import content_digest, file_key, written_whole
from .execution.progress import Callback, Progress, ignore
from .execution.tables import Row, write_table
from .images.layout import images_below
from .images.pixel_size import GivenSize
from .pipeline import Model, RegionAnswer
from .pipeline.answers import outlines, region_rows
from .reports.geojson import features, save_geojson
from .reports.overlay import save_overlay

# Of a file's name that goes into KEY: with it, no name may become longer than file systems allow.
_MOST_BYTES = 200
_FORM = 4  # goes up when an image's files are written otherwise


@dataclass(frozen=True)
class RunResult:
    """Rows of the tables, in the order of the images, and (path, reason) of those that failed."""

    rows: list[Row]
    regions: list[Row]
    failures: list[tuple[Path, str]]
    n_skipped: int


def find_images(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files named, and all images under the folders named, in order, each once.

    Beside them what lies in the folders and may have been meant: pictures of other formats, masks.
    """
    found: dict[Path, None] = {}
    left_out: list[Path] = []
    for path in paths:
        images, others = images_below(path) if path.is_dir() else ([path], [])
        found.update(dict.fromkeys(images))
        left_out += others
    return list(found), left_out


def run_images(
    model: Model,
    model_digest: str,
    images: list[Path],
    folder: Path,
    *,
    mpp: float | GivenSize | None = None,
    callback: Callback = ignore,
    executor: Executor | None = None,
) -> RunResult:
    """Answer for every image and write the files above. The callback hears of each image.

    `executor` takes an image at a time, and what works there writes into `folder`; None: one image
    after another, with threads for the parts of each.
    """
    given = GivenSize.of(mpp)
    stamps = [_stamp(image, model_digest, given) for image in images]
    files = [folder / "done" / f"{image_key(image)}.json" for image in images]
    finished = [_finished(file, stamp) for file, stamp in zip(files, stamps, strict=True)]
    # Another machine may work in another folder: paths that are sent are whole.
    missing = [image.absolute() for image, found in zip(images, finished, strict=True) if not found]
    answer = partial(_answer_one, model.with_jobs(1) if executor else model, folder.absolute())
    results = (executor or Threads(1)).map(partial(answer, given), missing, lost=str)
    done, failures = [], []
    callback(Progress("answer", 0, len(images)))
    for n, (image, file, stamp) in enumerate(zip(images, files, stamps, strict=True)):
        content = finished[n] or next(results)
        if isinstance(content, str):
            failures.append((image, content))
        else:
            done.append(content if finished[n] else _kept(content, file, image, stamp))
        callback(Progress("answer", n + 1, len(images)))
    rows = [content["row"] for content in done]
    regions = [row for content in done for row in content["regions"]]
    write_table(folder / model.table, rows, model.columns)
    if model.finds_regions:
        write_table(folder / "regions", regions, RegionAnswer.REGION_COLUMNS)
    return RunResult(rows, regions, failures, len(images) - len(missing))


def image_key(image: Path) -> str:
    """A file name for what belongs to an image, the same each time."""
    place = hashlib.sha256(os.fsencode(image.resolve())).hexdigest()[:8]
    name = _text(Path(image.stem)).encode()[:_MOST_BYTES].decode("utf-8", "ignore")
    return f"{name}-{place}"


def _text(path: Path) -> str:
    """A path for a table; what is not UTF-8 in it, in names of old systems, is marked."""
    return os.fsencode(path).decode("utf-8", "replace")


def _stamp(image: Path, model_digest: str, given: GivenSize) -> list[Any]:
    """Changes when the image, the model, the pixel size or what is written does."""
    state = file_key(image) if image.exists() else []
    return [model_digest, *astuple(given), version("histodict"), _FORM, *state]


def _finished(done: Path, stamp: list[Any]) -> dict[str, Any] | None:
    if not done.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        if content["stamp"] != stamp:
            return None
        for name, digest in content["files"].items():
            if content_digest(done.parents[1] / name) != digest:
                raise ValueError(f"{name} is another file")
        return content if content["row"] and isinstance(content["regions"], list) else None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        warnings.warn(f"{done}: is damaged, and the image is done again ({error})", stacklevel=3)
        return None


def _kept(content: dict[str, Any], done: Path, image: Path, stamp: list[Any]) -> dict[str, Any]:
    """On disk, under the path that was asked for."""
    for row in (content["row"], *content["regions"]):
        row["path"] = _text(image)
    with written_whole(done) as partial_file:
        partial_file.write_text(json.dumps(content | {"stamp": stamp}), encoding="utf-8")
    return content


def _answer_one(model: Model, folder: Path, given: GivenSize, image: Path) -> dict[str, Any] | str:
    """The rows of an image, whose files are then written; or why there are none."""
    try:
        return _answer(model, folder, given, image)
    except (ValueError, OSError, MemoryError) as error:
        return str(error) or type(error).__name__


def _answer(model: Model, folder: Path, given: GivenSize, image: Path) -> dict[str, Any]:
    key = image_key(image)
    answer = model.answer(image, mpp=given)
    files: list[Path] = []
    if answer.patch_map is not None:
        overlay, outlined, mapped = files = [
            Path("overlays", f"{key}.png"),
            Path("geojson", f"{key}.geojson"),
            Path("maps", f"{key}.npz"),
        ]
        save_overlay(folder / overlay, answer.patch_map, outlines(answer))
        save_geojson(folder / outlined, features(answer, of_regions=model.finds_regions))
        answer.patch_map.save(folder / mapped)
    return {
        "row": answer.row() | {"key": key},
        "regions": region_rows(answer),
        "files": {file.as_posix(): content_digest(folder / file) for file in files},
    }
