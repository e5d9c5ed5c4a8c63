"""Vectors of images' patches into feature files, one per image; what is there is not made again.

    DIR/NAME.h5    features (n, length), coords (n, 2), attributes as TRIDENT has them; beside them
                   what the file was made with (`histodict`, JSON)

NAME is that of the image, without its ending. A file has its name only when it is whole, so any
number of runs may fill a folder; one that was made otherwise is refused, and stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.manifest import ImageRecord
from ..encoders import get_patch_features, load_encoder
from ..images.file_types import ImageError
from ..images.memory_image import estimated_bytes
from ..images.pixel_size import MppLike, PixelSizeOption
from ..patches.grid import PatchGrid
from ..precomputed.feature_file import open_features
from ..precomputed.formats import (
    COORDS,
    FEATURES,
    HISTODICT_ATTRIBUTE,
    MAGNIFICATION_AT_1_UM,
    write_hdf5,
)
from ..utils.files import atomic_write, exists, file_key
from ..utils.parallel import Executor, Threads, map_blocks
from ..utils.progress import Callback, Progress, cumulative_shares, no_callback
from ..utils.text_io import failure_reason, printable, shorten
from .prepared_image import PreparedImage, extraction_settings, open_prepared_image, report_windows
from .recipe import PRESETS, Recipe

_FORM = 2  # goes up when a file is written otherwise


@dataclass(frozen=True)
class ExtractionResult:
    """files : of the images that have one now, in their order; failures : (image, reason)"""

    files: list[Path]
    failures: list[tuple[Path, str]]
    n_skipped: int


def extraction_recipe(vectors: str, settings: dict[str, str]) -> Recipe:
    """What vectors of this name are made with, as the presets have it; only that may be set."""
    kind = get_patch_features(vectors)
    if kind.is_precomputed:
        raise ValueError(f"vectors {vectors!r} come from feature files: name those to be computed")
    base = PRESETS["fast" if kind.uses_context else "embeddings"]
    changes = {} if kind.uses_context else {"patch_px": load_encoder(vectors).stride_px}
    others = sorted(set(settings) - _SETTINGS)
    if others:
        raise ValueError(
            f"--set {others[0]}: does not change vectors; these do: {', '.join(sorted(_SETTINGS))}"
        )
    recipe = base.with_changes(features=vectors, **changes).parse_settings(settings)
    kind.check(recipe.patch_px, recipe.grid_stride_px)
    return recipe


_SETTINGS = {
    *(
        "patch_px",
        "stride_px",
        "downsample",
        "mpp",
        "stain",
        "min_tissue_fraction",
        "context_scale",
    ),
    *("augment_patches", "border_mode"),
}


def extract_features(
    recipe: Recipe,
    images: Sequence[ImageRecord],
    folder: Path,
    *,
    mpp: MppLike = None,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
    executor: Executor | None = None,
) -> ExtractionResult:
    """A feature file of every image. The callback hears of each image.

    `mpp`, `executor` as of `batch.predict_images`.
    """
    given = PixelSizeOption.of(mpp)
    files = _names(images, folder)
    keys = [_key(recipe, record, given) for record in images]
    finished = [_is_done(file, key) for file, key in zip(files, keys, strict=True)]
    todo = [
        (record.path.absolute(), given.with_table(record.mpp), file.absolute(), key)
        for record, file, key, is_done in zip(images, files, keys, finished, strict=True)
        if not is_done
    ]
    watch = no_callback if executor else callback
    work = partial(_extract, recipe, 1 if executor else n_jobs, watch)
    reasons = (executor or Threads(1)).map(work, todo, lost=str)
    share = cumulative_shares(
        [0 if f else estimated_bytes(r.path) for r, f in zip(images, finished, strict=True)]
    )
    callback(Progress("vectors", 0, len(images), work=share[0]))
    made, failures = [], []
    for n, (record, file, is_done) in enumerate(zip(images, files, finished, strict=True)):
        reason = "" if is_done else next(reasons)
        if reason:
            failures.append((record.path, reason))
        else:
            made.append(file)
        callback(Progress("vectors", n + 1, len(images), work=share[n + 1]))
    return ExtractionResult(made, failures, sum(finished))


def _names(images: Sequence[ImageRecord], folder: Path) -> list[Path]:
    """Refuses images whose files would be one, also where case makes no difference."""
    files = [folder / f"{record.path.stem}.h5" for record in images]
    first: dict[str, Path] = {}
    for record, file in zip(images, files, strict=True):
        other = first.setdefault(file.name.casefold(), record.path)
        if other != record.path:
            raise ValueError(
                f"{other} and {record.path} would both have their features in {file}: give them "
                "other names, or do them one after the other into two folders"
            )
    return files


def _key(recipe: Recipe, record: ImageRecord, given: PixelSizeOption) -> dict[str, Any]:
    """All that decides what is in a file."""
    made = extraction_settings(recipe) | {"form": _FORM, "version": version("histodict")}
    image = file_key(record.path) if exists(record.path) else []
    return {
        "recipe": made,
        "image": image,
        "size": list(astuple(given.with_table(record.mpp))),
    }


def _is_done(file: Path, key: dict[str, Any]) -> bool:
    """Whether it is there, and of this image as it is now; refuses what was made otherwise."""
    if not file.exists():
        return False
    try:
        with open_features(file) as found:
            before = found.settings
    except ImageError as error:
        raise ValueError(f"{error}. Remove it, or choose another folder (--output)") from error
    if before.get("recipe") != key["recipe"]:
        own = before.get("recipe", {})
        others = [
            f"{k} was {shorten(own[k])}, is {v}"
            for k, v in key["recipe"].items()
            if own.get(k, v) != v
        ]
        what = "; ".join(others) or "not by `histodict features`"
        raise ValueError(
            f"{file}: was made otherwise ({what}): choose another folder (--output), or remove it"
        )
    return before.get("image") == key["image"] and before.get("size") == key["size"]


def _extract(
    recipe: Recipe,
    n_jobs: int | None,
    callback: Callback,
    todo: tuple[Path, PixelSizeOption, Path, dict[str, Any]],
) -> str:
    """Why there is no file; nothing if it was written."""
    image, given, file, key = todo
    try:
        size = given.at(image)
        with open_prepared_image(image, size.is_user_given, recipe) as view:
            _write(file, view, recipe, key, n_jobs, callback)
    except Exception as error:
        return failure_reason(error)
    return ""


def _write(
    file: Path,
    view: PreparedImage,
    recipe: Recipe,
    key: dict[str, Any],
    n_jobs: int | None,
    callback: Callback,
) -> None:
    grid, kind = view.grid(), get_patch_features(recipe.features)
    own = key | {"grid": asdict(grid), "offset": list(view.offset)}
    attributes = {
        "": {HISTODICT_ATTRIBUTE: json.dumps(own)},
        FEATURES: {
            "encoder": recipe.features,
            "name": printable(file.stem),
            "savetodir": printable(str(file.parent)),
        },
        COORDS: _reported(view, grid)
        | {"name": printable(file.stem), "savetodir": printable(str(file.parent))},
    }
    with atomic_write(file) as partial_file:
        parts = _parts(view, grid, n_jobs, callback)
        if not write_hdf5(partial_file, parts, kind.precision, attributes):
            raise ImageError(f"{view.path}: shows no tissue, so that there are no vectors")


def _reported(view: PreparedImage, grid: PatchGrid) -> dict[str, Any]:
    """Of the coords, by TRIDENT's names; what is not known is left out."""
    side = round(grid.patch_side)
    told: dict[str, Any] = {
        "patch_size": grid.patch_px,
        "patch_size_level0": side,
        "overlap": grid.patch_px - grid.stride_px,
        "level0_width": view.size[0] + view.offset[0],
        "level0_height": view.size[1] + view.offset[1],
    }
    if view.mpp is not None:
        told["level0_mpp"] = view.mpp
        told["level0_magnification"] = MAGNIFICATION_AT_1_UM / view.mpp
        told["target_magnification"] = MAGNIFICATION_AT_1_UM / (view.mpp * grid.downsample)
    return told


def _parts(
    view: PreparedImage, grid: PatchGrid, n_jobs: int | None, callback: Callback
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Vectors and corners, chunk by chunk in the order of the grid."""

    def work(chunk: tuple[slice, slice]) -> Any:
        return chunk, *view.chunk_features(grid, *chunk)

    chunks = list(view.chunks(grid))
    results = map_blocks(work, chunks, n_jobs)
    for (rows, columns), found, vectors in report_windows(results, chunks, view.size, callback):
        if len(vectors):
            cells = np.add(np.argwhere(found), (rows.start, columns.start)).tolist()
            corners = np.array([grid.corner(row, column) for row, column in cells])
            yield vectors, corners + np.array(view.offset)
