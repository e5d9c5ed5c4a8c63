"""Extraction of feature vectors into one feature file per image; finished files are skipped.

    DIR/NAME.h5    features (n, length), coords (n, 2) and attributes as TRIDENT writes them, and
                   the settings of the extraction (attribute `histodict`, JSON)

NAME is the name of the image file without suffix. A file is renamed to its final name when it is
complete, so several processes can fill a folder. Files made with other settings raise an error and
are not changed.
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
from ..utils.parallel import Executor, ThreadExecutor, map_blocks
from ..utils.progress import Callback, Progress, cumulative_shares, no_callback
from ..utils.text_io import failure_reason, printable, shorten
from .prepared_image import PreparedImage, chunk_progress, extraction_settings, open_prepared_image
from .recipe import PRESETS, Recipe

_FORMAT_VERSION = 2  # version of the file's content


@dataclass(frozen=True)
class ExtractionResult:
    """Result of `extract_features`.

    Attributes
    ----------
    files : feature files, in the order of the images, without images that failed
    failures : (image, reason) for each image that failed
    n_skipped : number of images whose feature file was up to date
    """

    files: list[Path]
    failures: list[tuple[Path, str]]
    n_skipped: int


def extraction_recipe(features: str, settings: dict[str, str]) -> Recipe:
    """Return the recipe for extracting feature vectors: a preset with changed settings.

    Parameters
    ----------
    features : name of pixel features or of an encoder
    settings : changed settings, as text by name

    Raises
    ------
    ValueError
        If feature vectors cannot be computed with these features, or a setting has no effect on
        them.
    """
    kind = get_patch_features(features)
    if kind.is_precomputed:
        raise ValueError(
            f"features {features!r} come from feature files and cannot be computed. Name another "
            "encoder"
        )
    base = PRESETS["fast" if kind.uses_context else "embeddings"]
    changes = {} if kind.uses_context else {"patch_px": load_encoder(features).stride_px}
    unknown = sorted(set(settings) - _FEATURE_SETTINGS)
    if unknown:
        raise ValueError(
            f"--set {unknown[0]} has no effect on features. Settings with an effect: "
            f"{', '.join(sorted(_FEATURE_SETTINGS))}"
        )
    recipe = base.with_changes(features=features, **changes).parse_settings(settings)
    kind.check_grid(recipe.patch_px, recipe.grid_stride_px)
    return recipe


_FEATURE_SETTINGS = {
    *("patch_px", "stride_px", "downsample", "mpp", "stain", "min_tissue_fraction"),
    *("context_scale", "augment_patches", "border_mode"),
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
    """Write a feature file for every image without an up-to-date feature file.

    Parameters
    ----------
    recipe : settings, from `extraction_recipe`
    images : records of the images
    folder : output folder
    mpp : pixel size (µm) of images for which neither file nor record gives one, or
        `PixelSizeOption`
    n_jobs : number of threads; None uses all cores
    callback : receives the progress
    executor : runs the images in parallel
    """
    default_size = PixelSizeOption.from_mpp(mpp)
    files = _output_files(images, folder)
    fingerprints = [_extraction_fingerprint(recipe, record, default_size) for record in images]
    finished = [_is_up_to_date(*pair) for pair in zip(files, fingerprints, strict=True)]
    todo = [
        (
            record.path.absolute(),
            default_size.with_table_mpp(record.mpp),
            file.absolute(),
            fingerprint,
        )
        for record, file, fingerprint, is_done in zip(
            images, files, fingerprints, finished, strict=True
        )
        if not is_done
    ]
    image_progress = no_callback if executor else callback
    extract = partial(_extract_image, recipe, 1 if executor else n_jobs, image_progress)
    reasons = (executor or ThreadExecutor(1)).map(extract, todo, on_worker_death=str)
    fractions = cumulative_shares(
        [0 if f else estimated_bytes(r.path) for r, f in zip(images, finished, strict=True)]
    )
    callback(Progress("vectors", 0, len(images), work=fractions[0]))
    written, failures = [], []
    for n, (record, file, is_done) in enumerate(zip(images, files, finished, strict=True)):
        reason = "" if is_done else next(reasons)
        if reason:
            failures.append((record.path, reason))
        else:
            written.append(file)
        callback(Progress("vectors", n + 1, len(images), work=fractions[n + 1]))
    return ExtractionResult(written, failures, sum(finished))


def _output_files(images: Sequence[ImageRecord], folder: Path) -> list[Path]:
    """Return the output file of each image; raise ValueError if two images have the same file.

    Two names that differ only in upper and lower case count as the same file.
    """
    files = [folder / f"{record.path.stem}.h5" for record in images]
    first: dict[str, Path] = {}
    for record, file in zip(images, files, strict=True):
        other = first.setdefault(file.name.casefold(), record.path)
        if other != record.path:
            raise ValueError(
                f"{other} and {record.path} have the same output file {file}. Rename one, or "
                "write their features to two folders"
            )
    return files


def _extraction_fingerprint(
    recipe: Recipe, record: ImageRecord, default_size: PixelSizeOption
) -> dict[str, Any]:
    """Return everything that determines the content of a feature file, as a JSON object.

    The keys are "recipe", "image" and "size" (pixel size).
    """
    settings = extraction_settings(recipe) | {
        "format_version": _FORMAT_VERSION,
        "version": version("histodict"),
    }
    image = file_key(record.path) if exists(record.path) else []
    return {
        "recipe": settings,
        "image": image,
        "size": list(astuple(default_size.with_table_mpp(record.mpp))),
    }


def _is_up_to_date(file: Path, fingerprint: dict[str, Any]) -> bool:
    """Return whether the feature file exists and matches the image and its pixel size.

    Raises ValueError if the file is damaged or was made with other settings.
    """
    if not file.exists():
        return False
    try:
        with open_features(file) as features:
            stored = features.settings
    except ImageError as error:
        raise ValueError(f"{error}. Remove it, or choose another folder (--output)") from error
    if stored.get("recipe") != fingerprint["recipe"]:
        old = stored.get("recipe", {})
        differences = [
            f"{k}: {shorten(old[k])} in the file, {v} now"
            for k, v in fingerprint["recipe"].items()
            if old.get(k, v) != v
        ]
        reason = "; ".join(differences) or "the file is not from `histodict features`"
        raise ValueError(
            f"{file}: features were computed with other settings ({reason}). Choose another "
            "folder (--output), or delete the feature files in this one"
        )
    return all(stored.get(name) == fingerprint[name] for name in ("image", "size"))


def _extract_image(
    recipe: Recipe,
    n_jobs: int | None,
    callback: Callback,
    task: tuple[Path, PixelSizeOption, Path, dict[str, Any]],
) -> str:
    """Write the feature file of an image; return the error message, or an empty string.

    `task` has the image, its pixel size option, its feature file and its fingerprint.
    """
    image, default_size, file, fingerprint = task
    try:
        size = default_size.resolve(image)
        with open_prepared_image(image, size.user_mpp, recipe) as prepared:
            _write_feature_file(file, prepared, recipe, fingerprint, n_jobs, callback)
    except Exception as error:
        return failure_reason(error)
    return ""


def _write_feature_file(
    file: Path,
    prepared: PreparedImage,
    recipe: Recipe,
    fingerprint: dict[str, Any],
    n_jobs: int | None,
    callback: Callback,
) -> None:
    grid, kind = prepared.grid(), get_patch_features(recipe.features)
    metadata = fingerprint | {"grid": asdict(grid), "offset": list(prepared.offset)}
    attributes = {
        "": {HISTODICT_ATTRIBUTE: json.dumps(metadata)},
        FEATURES: {
            "encoder": recipe.features,
            "name": printable(file.stem),
            "savetodir": printable(str(file.parent)),
        },
        COORDS: _trident_attributes(prepared, grid)
        | {"name": printable(file.stem), "savetodir": printable(str(file.parent))},
    }
    with atomic_write(file) as partial_file:
        chunks = _compute_chunks(prepared, grid, n_jobs, callback)
        if not write_hdf5(partial_file, chunks, kind.precision, attributes):
            raise ImageError(f"{prepared.path}: no tissue found, hence no feature vectors")


def _trident_attributes(prepared: PreparedImage, grid: PatchGrid) -> dict[str, Any]:
    """Return the attributes of the dataset `coords` in the files of TRIDENT, by name.

    Attributes that depend on the pixel size are omitted if it is unknown.
    """
    side = round(grid.patch_side)
    attributes: dict[str, Any] = {
        "patch_size": grid.patch_px,
        "patch_size_level0": side,
        "overlap": grid.patch_px - grid.stride_px,
        "level0_width": prepared.size[0] + prepared.offset[0],
        "level0_height": prepared.size[1] + prepared.offset[1],
    }
    if prepared.mpp is not None:
        attributes["level0_mpp"] = prepared.mpp
        attributes["level0_magnification"] = MAGNIFICATION_AT_1_UM / prepared.mpp
        attributes["target_magnification"] = MAGNIFICATION_AT_1_UM / (
            prepared.mpp * grid.downsample
        )
    return attributes


def _compute_chunks(
    prepared: PreparedImage, grid: PatchGrid, n_jobs: int | None, callback: Callback
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Yield feature vectors and patch corners (x, y) in level-0 pixels, chunk by chunk."""

    def compute_chunk(chunk: tuple[slice, slice]) -> Any:
        return chunk, *prepared.chunk_features(grid, *chunk)

    chunks = list(prepared.chunks(grid))
    report = chunk_progress(chunks, prepared.size, callback)
    results = map_blocks(compute_chunk, chunks, n_jobs)
    for n_done, ((rows, columns), tissue, vectors) in enumerate(results, 1):
        if len(vectors):
            positions = np.add(np.argwhere(tissue), (rows.start, columns.start)).tolist()
            corners = np.array([grid.corner(row, column) for row, column in positions])
            yield vectors, corners + np.array(prepared.offset)
        report(n_done)
