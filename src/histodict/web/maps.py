"""Stored predictions and patch maps of images, comparisons of maps, tiles and thumbnails.

Predictions are stored in the folder of a job:

maps/KEY.json    the prediction as JSON, with version and state of the image file
maps/KEY.npz     the patch map, if there is one; see `PatchMap.save`

The difference of two maps is defined on the patches of the first map. Each patch is compared with
the patch of the second map whose centre is nearest, unless there is none or either is background.

The overlap of detected and true regions is counted in patches on tissue. With H hits (patches in
both), M misses (only in true regions) and A false alarms (only in detected regions), Dice is
2H / (2H + M + A) and IoU is H / (H + M + A).

Tiles form a deep-zoom pyramid, read from the image files. Level 0 is the whole image in one tile;
every further level has twice the resolution, up to that of the image. Tiles are squares of
TILE_PX pixels, or smaller at the right and lower edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch import output_key
from ..datasets.manifest import ImageRecord
from ..decision.threshold import MAX_MIN_PATCHES
from ..evaluation.measures import PatchEvaluation
from ..images.pixel_size import PixelSize
from ..images.source import ImageSource, open_image
from ..models import Model
from ..models.inputs import region_coverage, region_patch_mask
from ..models.predictions import ImagePrediction, Prediction, RegionPrediction
from ..patches.grid import PatchGrid
from ..patches.patch_map import COLOURS, NO_TISSUE, PatchMap
from ..patches.region_borders import RegionBorders, label_regions
from ..patches.rendering import encode_jpeg
from ..patches.sampling import MIN_OVERLAP
from ..utils.cache import Key, LocksByKey, LRUCache
from ..utils.files import atomic_write, file_key
from ..utils.progress import Callback, no_callback
from ..utils.text_io import write_checked_json
from .datasets import DatasetSettings
from .schema import Json, OverlapCounts
from .workspace import DamagedFileError, JsonType, read_fields, short_id, warn_once

_MAX_OUTLINES = 400  # of regions in an image
_FORMAT_VERSION = 8  # of the stored files; increase it when their content changes
_PREDICTION_FIELDS: dict[str, JsonType] = {
    "answer": object,
    "is_uncertain": bool,
    "score": object,
    "value": object,
    "grid": object,
    "words": str,
    "mpp": object,
    "mpp_from": str,
    "probabilities": dict,
    "candidates": list,
}


def compute_prediction(
    model: Model,
    record: ImageRecord,
    folder: Path,
    mpp: float | None = None,
    callback: Callback = no_callback,
) -> Json:
    """Predict an image, store prediction and patch map, and return the prediction as JSON.

    Parameters
    ----------
    model : fitted model
    record : image
    folder : folder of stored predictions
    mpp : µm per pixel of the image, used if neither the record nor the file gives it
    callback : receives the progress
    """
    state = _fingerprint(record, mpp)  # before reading: the image may be replaced in the meantime
    size = DatasetSettings(mpp=mpp).pixel_size_option(record.mpp)
    prediction = model.predict_one(
        record.path, mpp=size, callback=callback, region_of_interest=record.region_of_interest
    )
    values = prediction_to_json(prediction) | {"version": short_id(repr(state))}
    if prediction.patch_map is not None:  # before the prediction that refers to it
        prediction.patch_map.save(_prediction_file(folder, record, "npz"))
    write_checked_json(
        _prediction_file(folder, record, "json"),
        values | {"format_version": _FORMAT_VERSION, "state": state},
    )
    return values


def prediction_to_json(prediction: Prediction) -> Json:
    """Return a prediction as a JSON object; see `_PREDICTION_FIELDS`."""
    patch_map = prediction.patch_map
    return {
        "answer": prediction.top_label,
        "is_uncertain": prediction.label != prediction.top_label,
        "score": None if np.isnan(prediction.score) else float(prediction.score),
        "value": prediction.decision_value,
        "shares": prediction.proportions,
        "n_patches": prediction.n_patches,
        "words": prediction.summary(),
        "mpp": prediction.size.mpp,
        "mpp_from": prediction.size.origin,
        "probabilities": prediction.probabilities,
        "candidates": prediction.prediction_set,
        "grid": None if patch_map is None else _grid_to_json(patch_map.grid),
    }


def _grid_to_json(grid: PatchGrid) -> dict[str, float]:
    """Return the grid of a map as a JSON object, with lengths in level-0 pixels."""
    return {
        "n_rows": grid.n_rows,
        "n_columns": grid.n_columns,
        "left": grid.left,
        "top": grid.top,
        "side": grid.patch_side,
        "step": grid.step,
        "shift": grid.shift,
    }


def _fingerprint(record: ImageRecord, mpp: float | None) -> list[Any]:
    """Return a JSON array that changes with the image file, pixel size or region of interest."""
    within = [*record.region_of_interest.fingerprint()] if record.region_of_interest else []
    return [*file_key(record.path), record.mpp, mpp, *within]


def load_prediction(folder: Path, record: ImageRecord, mpp: float | None = None) -> Json | None:
    """Return a prediction stored by `compute_prediction`; None if missing or outdated."""
    path = _prediction_file(folder, record, "json")
    try:
        prediction = read_fields(path, _PREDICTION_FIELDS) if path.exists() else {}
    except DamagedFileError as error:
        warn_once(f"{error}: the prediction is computed again")
        prediction = {}
    is_present = prediction.pop("format_version", None) == _FORMAT_VERSION and prediction.pop(
        "state", None
    ) == _fingerprint(record, mpp)
    return prediction if is_present else None


def load_or_compute(
    model: Model, record: ImageRecord, folder: Path, mpp: float | None = None
) -> Json:
    """Return the stored prediction of an image, as JSON; compute it if missing or outdated."""
    return load_prediction(folder, record, mpp) or compute_prediction(model, record, folder, mpp)


def map_cache_key(folder: Path, record: ImageRecord, mpp: float | None = None) -> list[Any]:
    """Return a cache key of the map that `load_map` returns; raise KeyError if there is none."""
    _check_has_map(folder, record, mpp)
    return file_key(_prediction_file(folder, record, "npz"))


def load_map(folder: Path, record: ImageRecord, mpp: float | None = None) -> PatchMap:
    """Load the stored patch map of an image.

    Raises
    ------
    KeyError
        If the image has no stored map.
    ValueError
        If the map is damaged; the prediction is then deleted and can be computed again.
    """
    _check_has_map(folder, record, mpp)
    try:
        return PatchMap.load(_prediction_file(folder, record, "npz"))
    except (ValueError, OSError) as error:
        # Without it, the next request computes both files again.
        _prediction_file(folder, record, "json").unlink(missing_ok=True)
        raise ValueError(f"{error}: open the image again to compute a new map") from error


def _check_has_map(folder: Path, record: ImageRecord, mpp: float | None) -> None:
    prediction = load_prediction(folder, record, mpp)
    if prediction is None or prediction["grid"] is None:
        raise KeyError("this image has no patch map yet")


# --- changed decision threshold -------------------------------------------------------------------


def apply_threshold(
    model: Model, stored: Json, patch_map: PatchMap | None, path: Path
) -> Prediction:
    """Return a stored prediction at the decision threshold of a model.

    Parameters
    ----------
    model : model, whose threshold may differ from that of the stored prediction
    stored : prediction as returned by `load_prediction`
    patch_map : stored patch map; None if there is none
    path : image file
    """
    size = PixelSize(stored["mpp"], stored["mpp_from"])
    if model.finds_regions:
        assert patch_map is not None
        return model.apply_threshold(
            RegionPrediction(path, stored["answer"], stored["score"], 0, [], patch_map, size)
        )
    return model.apply_threshold(
        ImagePrediction(
            path,
            stored["answer"],
            (np.nan if stored["score"] is None else stored["score"],),
            patch_map=patch_map,
            decision_value=stored["value"],
            n_patches=stored["n_patches"],
            probabilities=stored["probabilities"],
            prediction_set=stored["candidates"],
            size=size,
        )
    )


def _prediction_file(folder: Path, record: ImageRecord, suffix: str) -> Path:
    """Return the path of the stored prediction ("json") or patch map ("npz") of an image."""
    part = f"-{short_id(repr(record.region_of_interest))}" if record.region_of_interest else ""
    return folder / f"{output_key(record.path)}{part}.{suffix}"


def render_map(
    patch_map: PatchMap, class_index: int | None, class_colours: Mapping[str, str] | None = None
) -> NDArray[np.uint8]:
    """Return a map as an RGBA image with one pixel per patch.

    Patches have the colour of their class, more opaque for large margins.

    Parameters
    ----------
    patch_map : patch map
    class_index : index of the only class to show; None for all
    class_colours : colours as #rrggbb by class name, in place of the defaults
    """
    colours, opacity = patch_map.colours()
    for index, name in enumerate(patch_map.classes):
        if class_colours and name in class_colours:
            colours[patch_map.predicted_classes == index] = list(
                bytes.fromhex(class_colours[name][1:])
            )
    alpha = opacity / max(float(opacity.max()), 1e-12)
    if class_index is not None:
        alpha = np.where(patch_map.predicted_classes == class_index, alpha, 0)
    return np.dstack([colours, 255 * alpha]).round().astype(np.uint8)


def region_outlines(patch_map: PatchMap, class_index: int, min_patches: int) -> list[list[float]]:
    """Return the outlines of regions of a class as rings [x, y, x, y, …] in level-0 pixels.

    A region is a set of at least `min_patches` connected patches. Of more than `_MAX_OUTLINES`
    regions, the largest ones are returned.
    """
    return patch_map.rings(class_index, min_patches, _MAX_OUTLINES)


# --- difference of two maps -----------------------------------------------------------------------


_UNCHANGED_COLOUR = (135, 149, 161, 70)  # translucent grey (RGBA)


@dataclass(frozen=True)
class MapDifference:
    """Predicted classes of two maps on the grid of the first one.

    Attributes
    ----------
    first : (n_rows, n_columns), classes in the first map, as indices into `classes`, or NO_TISSUE
    second : (n_rows, n_columns), classes in the second map, likewise
    classes : class names
    """

    first: NDArray[np.int16]
    second: NDArray[np.int16]
    classes: tuple[str, ...]

    @classmethod
    def from_maps(cls, first: PatchMap, second: PatchMap) -> MapDifference:
        """Compare two maps; raise ValueError unless they have the same classes, in any order."""
        if set(first.classes) != set(second.classes):
            names = [" / ".join(each.classes) for each in (first, second)]
            raise ValueError(
                f"the two models have different classes ({names[0]}, and {names[1]}): their "
                "difference is not defined. Compare the maps side by side"
            )
        order = np.array([first.classes.index(name) for name in second.classes], np.int16)
        nearest = _nearest_classes(first, second)
        reordered = np.where(nearest == NO_TISSUE, NO_TISSUE, order[nearest]).astype(np.int16)
        return cls(first.predicted_classes, reordered, first.classes)

    @property
    def is_compared(self) -> NDArray[np.bool_]:
        """Mask (n_rows, n_columns) of the patches that are tissue in both maps."""
        both: NDArray[np.bool_] = (self.first != NO_TISSUE) & (self.second != NO_TISSUE)
        return both

    def count_changes(self) -> list[list[int]]:
        """Return the number of compared patches for each pair of classes.

        Rows are classes of the first map, columns those of the second.
        """
        n, compared = len(self.classes), self.is_compared
        pairs = self.first[compared].astype(np.int64) * n + self.second[compared]
        table: list[list[int]] = np.bincount(pairs, minlength=n * n).reshape(n, n).tolist()
        return table

    @property
    def n_tissue_mismatches(self) -> int:
        """Number of patches that are tissue in only one of the maps."""
        return int(((self.first != NO_TISSUE) ^ (self.second != NO_TISSUE)).sum())

    def render(self, class_colours: Mapping[str, str] | None = None) -> NDArray[np.uint8]:
        """Return the difference as an RGBA image with one pixel per patch.

        Patches whose class differs have the colour of their class in the second map; other patches
        are grey.

        Parameters
        ----------
        class_colours : colours as #rrggbb by class name, in place of the defaults
        """
        pixels = np.zeros((*self.first.shape, 4), np.uint8)
        compared = self.is_compared
        pixels[compared] = _UNCHANGED_COLOUR
        changed = compared & (self.first != self.second)
        pixels[changed, :3] = COLOURS[self.second[changed] % len(COLOURS)].astype(np.uint8)
        for index, name in enumerate(self.classes):
            if class_colours and name in class_colours:
                pixels[changed & (self.second == index), :3] = list(
                    bytes.fromhex(class_colours[name][1:])
                )
        pixels[changed, 3] = 255
        return pixels


def _nearest_classes(first: PatchMap, second: PatchMap) -> NDArray[np.int16]:
    """Return the class indices of the second map at the patch centres of the first map."""
    grid, other_grid = first.grid, second.grid
    rows = _nearest_indices(other_grid, other_grid.top, _patch_centres(grid, grid.top, grid.n_rows))
    columns = _nearest_indices(
        other_grid, other_grid.left, _patch_centres(grid, grid.left, grid.n_columns)
    )
    has_row, has_column = rows < other_grid.n_rows, columns < other_grid.n_columns
    has_row &= rows >= 0
    has_column &= columns >= 0
    classes = np.full((grid.n_rows, grid.n_columns), NO_TISSUE, np.int16)
    classes[np.ix_(has_row, has_column)] = second.predicted_classes[
        np.ix_(rows[has_row], columns[has_column])
    ]
    return classes


def _patch_centres(grid: PatchGrid, start: float, count: int) -> NDArray[np.float64]:
    return np.arange(count, dtype=np.float64) * grid.step + (start + grid.patch_side / 2)


def _nearest_indices(
    grid: PatchGrid, start: float, centres: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the index of the nearest grid row or column of each centre, possibly out of range.

    `centres` are level-0 coordinates; `start` is `grid.top` for rows and `grid.left` for columns.
    """
    position = (centres - start - grid.patch_side / 2) / grid.step
    return np.floor(position + 0.5).astype(np.int64)


# --- overlap with masks ---------------------------------------------------------------------------


_MAX_MASK_CELLS = 300  # grid cells along the longer side of a mask


@dataclass(frozen=True)
class OverlapScores:
    """Dice coefficient and intersection over union, each from 0 to 1."""

    dice: float
    iou: float


def count_overlap(record: ImageRecord, patch_map: PatchMap) -> OverlapCounts:
    """Return the overlap of detected regions with the true regions of an image.

    Row k - 1 has the numbers of hits, misses and false alarms, in patches, if detected regions of
    fewer than k connected patches are ignored.
    """
    tissue = patch_map.tissue
    regions, sizes = label_regions(patch_map.predicted_classes == 1)
    regions, truth = regions[tissue], region_patch_mask(record, patch_map)[tissue]
    margins = patch_map.margins[..., 1][tissue]

    def counts(min_patches: int) -> list[int]:
        detected = np.concatenate([[False], sizes >= min_patches])[regions]
        table: list[int] = PatchEvaluation(margins, truth, detected).confusion_counts().tolist()
        return table[:3]

    return [counts(min_patches) for min_patches in range(1, MAX_MIN_PATCHES + 1)]


def pooled_overlap(
    overlaps: Iterable[OverlapCounts | None], min_patches: float
) -> OverlapScores | None:
    """Return Dice and IoU of the pooled patches of all images.

    They are None if the overlap of an image is unknown, if there is no image, or if no patch is in
    a true or detected region.

    Parameters
    ----------
    overlaps : result of `count_overlap` for each image; None if unknown
    min_patches : minimum number of connected patches of a region
    """
    index, known = round(min_patches) - 1, list(overlaps)
    if not known or any(counts is None or not 0 <= index < len(counts) for counts in known):
        return None
    hits, misses, alarms = (sum(counts[index][k] for counts in known if counts) for k in range(3))
    union = hits + misses + alarms
    return OverlapScores(2 * hits / (union + hits), hits / union) if union else None


def mask_outlines(record: ImageRecord, size: tuple[int, int]) -> list[list[float]]:
    """Return the outlines of the regions in a mask as rings [x, y, x, y, …] in level-0 pixels.

    `size` is the (width, height) of the image.
    """
    side = max(1.0, max(size) / _MAX_MASK_CELLS)
    x, y = np.meshgrid(*(np.arange(0, length, side) for length in size))
    is_region = region_coverage(record, "").coverage(x, y, side) >= MIN_OVERLAP
    return [
        np.minimum(ring * side, size).ravel().tolist()
        for polygon in RegionBorders(is_region.astype(np.int32)).polygons(1)
        for ring in polygon
    ]


# --- tiles and thumbnails -------------------------------------------------------------------------


TILE_PX = 512
_THUMBNAIL_PX = 220
_MAX_TILE_BYTES = 96 * 2**20  # of cached encoded tiles
_MAX_IMAGE_BYTES = 768 * 2**20  # of cached open images


def count_levels(size: tuple[int, int]) -> int:
    """Return the number of levels of the tile pyramid of an image of this (width, height)."""
    return max(0, (max(size) - 1).bit_length() - (TILE_PX - 1).bit_length()) + 1


class TileCache:
    """Cache of open images and tiles in memory, and of thumbnails on disk."""

    def __init__(self, folder: Path) -> None:
        """Create the caches; thumbnails are stored in `folder`."""
        self._folder = folder
        self._sources: LRUCache[ImageSource] = LRUCache(_MAX_IMAGE_BYTES)
        self._tiles: LRUCache[bytes] = LRUCache(_MAX_TILE_BYTES)
        self._locks = LocksByKey()

    def open(self, record: ImageRecord) -> ImageSource:
        """Return the open image from the cache; open it again if the file has changed.

        Images are closed by the garbage collector, because other threads may be reading them.
        """

        def open_cached() -> tuple[ImageSource, int]:
            source = open_image(record.path, record.mpp)
            source.read(0, 0, 1, 1)
            return source, source.memory_bytes

        return self._sources.get(_source_key(record), open_cached)

    def tile(self, record: ImageRecord, level: int, column: int, row: int) -> bytes:
        """Return a tile of the pyramid as JPEG; raise KeyError if it is outside the image."""

        def encode() -> tuple[bytes, int]:
            data = encode_jpeg(_read_tile(self.open(record), level, column, row))
            return data, len(data)

        return self._tiles.get(_tile_key(record, level, column, row), encode)

    def cached_tile(self, record: ImageRecord, level: int, column: int, row: int) -> bytes | None:
        """Return a tile of the pyramid as JPEG; None if it is not cached."""
        return self._tiles.find(_tile_key(record, level, column, row))

    def thumbnail_file(self, record: ImageRecord) -> Path:
        """Return the path of an image's thumbnail, without creating the file."""
        name = hashlib.sha256(str(file_key(record.path)).encode()).hexdigest()[:24]
        return self._folder / name[:2] / f"{name}.jpg"

    def ensure_thumbnail_file(self, record: ImageRecord) -> Path:
        """Return the path of an image's thumbnail; create the file if it does not exist."""
        path = self.thumbnail_file(record)
        with self._locks.acquire((path.name,)):  # two threads must not write the same file
            if not path.is_file():
                with open_image(record.path, record.mpp) as source:
                    data = encode_jpeg(source.thumbnail(_THUMBNAIL_PX))
                with atomic_write(path) as partial:
                    partial.write_bytes(data)
        return path


def _source_key(record: ImageRecord) -> Key:
    return (repr(file_key(record.path)), record.mpp)


def _tile_key(record: ImageRecord, *position: int) -> Key:
    return (*_source_key(record), *position)


def _read_tile(source: ImageSource, level: int, column: int, row: int) -> NDArray[np.uint8]:
    count = count_levels(source.size)
    factor = 2 ** (count - 1 - level) if 0 <= level < count else 0
    x, y = column * TILE_PX * factor, row * TILE_PX * factor
    if not (factor and 0 <= x < source.size[0] and 0 <= y < source.size[1]):
        raise KeyError("the tile does not exist")
    width, height = (
        min(TILE_PX * factor, side - start) for side, start in zip(source.size, (x, y), strict=True)
    )
    return source.read(x, y, width, height, float(factor))
