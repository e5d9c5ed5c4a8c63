"""Predictions for an image, kept as files of a job; differences and overlaps of patch maps.

maps/KEY.json    the prediction: label, score, class fractions, text, position of the map's grid
maps/KEY.npz     the patch map, if there is one; see `PatchMap.save`

The difference of two maps has the patches of the first one. Each is compared with the patch of the
second map whose centre is nearest; without one, or on background, it is not compared.

The overlap of detected and true regions is counted in patches on tissue. With H patches in both, M
only in true regions and A only in detected ones, Dice is 2H / (2H + M + A) and IoU is
H / (H + M + A).

Pixels for the page, straight from the image files: deep-zoom tiles and thumbnails.

Level 0 is the whole image in one tile; every further level is twice as fine, the last is the
image's own pixels. A tile is TILE_SIDE pixels square, less at the right and lower edge.
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
from ..models.predictions import ImagePrediction, Prediction, RegionPrediction
from ..models.region_detector import mask_of, region_patch_mask
from ..patches.grid import PatchGrid
from ..patches.patch_map import COLOURS, NO_TISSUE, PatchMap, RegionBorders, label_regions
from ..patches.rendering import encode_jpeg
from ..patches.sampling import MIN_OVERLAP
from ..utils.cache import Key, LocksByKey, LRUCache
from ..utils.files import atomic_write, file_key
from ..utils.progress import Callback, no_callback
from ..utils.text_io import write_checked_json
from .datasets import DatasetSettings
from .schema import Overlap
from .workspace import DamagedFileError, log_once, read_fields, short_id

_MAX_OUTLINES = 400
_FORM = 7  # increased when the content of these files changes, so that stored ones are not used
_METADATA: dict[str, Any] = {
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


def compute_prediction(
    model: Model,
    record: ImageRecord,
    folder: Path,
    mpp: float | None = None,
    callback: Callback = no_callback,
) -> dict[str, Any]:
    """The model's answer for an image as plain values; its map, if it has one, into the folder.

    `mpp`: µm per pixel where neither the record nor the file says it.
    """
    state = _state(record, mpp)  # first: the image may be replaced meanwhile
    size = DatasetSettings(mpp=mpp).is_set(record.mpp)
    answer = model.predict_one(
        record.path, mpp=size, callback=callback, within=record.region_of_interest
    )
    facts = prediction_to_json(answer) | {"version": short_id(repr(state))}
    if answer.patch_map is not None:  # before the answer that tells of it
        answer.patch_map.save(_file(folder, record, "npz"))
    write_checked_json(_file(folder, record, "json"), facts | {"form": _FORM, "of": state})
    return facts


def prediction_to_json(answer: Prediction) -> dict[str, Any]:
    """What the page is told."""
    patch_map = answer.patch_map
    return {
        "answer": answer.label,
        "score": None if np.isnan(answer.score) else float(answer.score),
        "value": answer.value,
        "shares": answer.proportions,
        "n_patches": answer.n_patches,
        "words": answer.summary(),
        "mpp": answer.size.mpp,
        "mpp_from": answer.size.origin,
        "probabilities": answer.probabilities,
        "candidates": answer.prediction_set,
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


def _state(record: ImageRecord, mpp: float | None) -> list[Any]:
    """Another one when the image was changed under its name, or what is said of its pixel size."""
    within = [*record.region_of_interest.fingerprint()] if record.region_of_interest else []
    return [*file_key(record.path), record.mpp, mpp, *within]


def load_prediction(
    folder: Path, record: ImageRecord, mpp: float | None = None
) -> dict[str, Any] | None:
    """Return what `compute_prediction` stored; None if there is nothing for the image as it is
    now.
    """
    path = _file(folder, record, "json")
    try:
        facts = read_fields(path, _METADATA) if path.exists() else {}
    except DamagedFileError as error:
        log_once(f"{error}: it is made anew")
        facts = {}
    is_present = facts.pop("form", None) == _FORM and facts.pop("of", None) == _state(record, mpp)
    return facts if is_present else None


def compute_or_load(
    model: Model, record: ImageRecord, folder: Path, mpp: float | None = None
) -> dict[str, Any]:
    return load_prediction(folder, record, mpp) or compute_prediction(model, record, folder, mpp)


def map_version(folder: Path, record: ImageRecord, mpp: float | None = None) -> list[Any]:
    """Another one whenever `stored_map` would give another map."""
    _map_metadata(folder, record, mpp)
    return file_key(_file(folder, record, "npz"))


def stored_map(folder: Path, record: ImageRecord, mpp: float | None = None) -> PatchMap:
    _map_metadata(folder, record, mpp)
    try:
        return PatchMap.load(_file(folder, record, "npz"))
    except (ValueError, OSError) as error:
        _file(folder, record, "json").unlink(missing_ok=True)  # the next look makes both anew
        raise ValueError(f"{error}: open the image once more, and it is made anew") from error


def _map_metadata(folder: Path, record: ImageRecord, mpp: float | None) -> dict[str, Any]:
    facts = load_prediction(folder, record, mpp)
    if facts is None or facts["grid"] is None:
        raise KeyError("this image has no patch map yet")
    return facts


# --- where the line was moved -------------------------------------------------------------------


def apply_threshold(
    moved: Model, facts: dict[str, Any], patch_map: PatchMap | None, path: Path
) -> Prediction:
    """The answer of a model whose line was moved, from what was stored before: label, words and map
    as the moved model would give them.
    """
    size = PixelSize(facts["mpp"], facts["mpp_from"])
    if moved.finds_regions:
        assert patch_map is not None
        before = RegionPrediction(path, facts["answer"], facts["score"], 0, [], patch_map, size)
        return moved.apply_threshold(before)
    return moved.apply_threshold(
        ImagePrediction(
            path,
            facts["answer"],
            (np.nan if facts["score"] is None else facts["score"],),
            patch_map=patch_map,
            value=facts["value"],
            n_patches=facts["n_patches"],
            probabilities=facts["probabilities"],
            prediction_set=facts["candidates"],
            size=size,
        )
    )


def _file(folder: Path, record: ImageRecord, kind: str) -> Path:
    """Of an image, or of the part of one inside of outlines."""
    part = f"-{short_id(repr(record.region_of_interest))}" if record.region_of_interest else ""
    return folder / f"{output_key(record.path)}{part}.{kind}"


def map_image(
    patch_map: PatchMap, only: int | None, chosen: Mapping[str, str] | None = None
) -> NDArray[np.uint8]:
    """One RGBA pixel per patch: its class's colour, more opaque where it won more clearly.

    `chosen`: colours that the user has given to classes, by name, as #rrggbb.
    """
    colours, opacity = patch_map.colours()
    for place, name in enumerate(patch_map.classes):
        if chosen and name in chosen:
            colours[patch_map.predicted_classes == place] = list(bytes.fromhex(chosen[name][1:]))
    alpha = opacity / max(float(opacity.max()), 1e-12)
    if only is not None:
        alpha = np.where(patch_map.predicted_classes == only, alpha, 0)
    return np.dstack([colours, 255 * alpha]).round().astype(np.uint8)


def outlines(patch_map: PatchMap, place: int, least: int) -> list[list[float]]:
    """Rings (x, y, x, y, …) around connected patches of a class, of the largest regions."""
    return patch_map.rings(place, least, _MAX_OUTLINES)


# --- difference of two maps -----------------------------------------------------------------------


_SAME = (135, 149, 161, 70)  # grey, weak


@dataclass(frozen=True)
class MapDifference:
    """`before`, `after`: (n_rows, n_columns), places of classes in `classes`, or BLANK."""

    before: NDArray[np.int16]
    after: NDArray[np.int16]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, first: PatchMap, second: PatchMap) -> MapDifference:
        if set(first.classes) != set(second.classes):
            names = [" / ".join(each.classes) for each in (first, second)]
            raise ValueError(
                f"the two models tell other classes apart ({names[0]}, and {names[1]}): their "
                "difference means nothing. Look at them side by side"
            )
        order = np.array([first.classes.index(name) for name in second.classes], np.int16)
        found = _nearest(first, second)
        after = np.where(found == NO_TISSUE, NO_TISSUE, order[found]).astype(np.int16)
        return cls(first.predicted_classes, after, first.classes)

    @property
    def is_compared(self) -> NDArray[np.bool_]:
        """Where both see tissue."""
        both: NDArray[np.bool_] = (self.before != NO_TISSUE) & (self.after != NO_TISSUE)
        return both

    def counts(self) -> list[list[int]]:
        """Patches by what they were called before (rows) and after (columns)."""
        n, compared = len(self.classes), self.is_compared
        pairs = self.before[compared].astype(np.int64) * n + self.after[compared]
        table: list[list[int]] = np.bincount(pairs, minlength=n * n).reshape(n, n).tolist()
        return table

    @property
    def n_different(self) -> int:
        """Patches that only one of the two has judged."""
        return int(((self.before != NO_TISSUE) ^ (self.after != NO_TISSUE)).sum())

    def image(self, chosen: Mapping[str, str] | None = None) -> NDArray[np.uint8]:
        """One RGBA pixel per patch: grey where both agree, else the colour of what it is now.

        `chosen`: colours that the user has given to classes, by name, as #rrggbb.
        """
        pixels = np.zeros((*self.before.shape, 4), np.uint8)
        compared = self.is_compared
        pixels[compared] = _SAME
        changed = compared & (self.before != self.after)
        pixels[changed, :3] = COLOURS[self.after[changed] % len(COLOURS)].astype(np.uint8)
        for place, name in enumerate(self.classes):
            if chosen and name in chosen:
                pixels[changed & (self.after == place), :3] = list(bytes.fromhex(chosen[name][1:]))
        pixels[changed, 3] = 255
        return pixels


def _nearest(first: PatchMap, second: PatchMap) -> NDArray[np.int16]:
    """The second map's winners at the middles of the first one's patches."""
    own, other = first.grid, second.grid
    rows = _index_in(other, other.top, _middles(own, own.top, own.n_rows))
    columns = _index_in(other, other.left, _middles(own, own.left, own.n_columns))
    has_row, has_column = rows < other.n_rows, columns < other.n_columns
    has_row &= rows >= 0
    has_column &= columns >= 0
    found = np.full((own.n_rows, own.n_columns), NO_TISSUE, np.int16)
    found[np.ix_(has_row, has_column)] = second.predicted_classes[
        np.ix_(rows[has_row], columns[has_column])
    ]
    return found


def _middles(grid: PatchGrid, start: float, count: int) -> NDArray[np.float64]:
    return np.arange(count, dtype=np.float64) * grid.step + (start + grid.patch_side / 2)


def _index_in(grid: PatchGrid, start: float, middles: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows or columns of a grid whose patches have these middles, if they have any."""
    exact = (middles - start - grid.patch_side / 2) / grid.step
    return np.floor(exact + 0.5).astype(np.int64)


# --- overlap with masks ---------------------------------------------------------------------------


_FINEST = 300  # cells along the longer side of a mask whose outlines are drawn


@dataclass(frozen=True)
class Fractions:
    dice: float
    iou: float


def overlap(record: ImageRecord, patch_map: PatchMap) -> Overlap:
    """Hits, misses and false alarms against the record's mask or label, for regions from
    1, 2, … connected patches on.
    """
    tissue = patch_map.tissue
    places, sizes = label_regions(patch_map.predicted_classes == 1)
    places, truth = places[tissue], region_patch_mask(record, patch_map)[tissue]
    margins = patch_map.margins[..., 1][tissue]

    def counts(least: int) -> list[int]:
        found = np.concatenate([[False], sizes >= least])[places]
        table: list[int] = PatchEvaluation(margins, truth, found).table().tolist()
        return table[:3]

    return [counts(least) for least in range(1, MAX_MIN_PATCHES + 1)]


def pooled_overlap(overlaps: Iterable[Overlap | None], least: float) -> Fractions | None:
    """Of all images together, for regions from so many patches on; None: there is nothing to tell.

    Where one image's overlap is not known, none is told: the others would stand for all.
    """
    place, known = round(least) - 1, list(overlaps)
    if not known or any(one is None or not 0 <= place < len(one) for one in known):
        return None
    hits, misses, alarms = (sum(one[place][k] for one in known if one) for k in range(3))
    union = hits + misses + alarms
    return Fractions(2 * hits / (union + hits), hits / union) if union else None


def true_rings(record: ImageRecord, size: tuple[int, int]) -> list[list[float]]:
    """Rings (x, y, x, y, …) around the regions of the record's mask, in an image of this size."""
    side = max(1.0, max(size) / _FINEST)
    x, y = np.meshgrid(*(np.arange(0, length, side) for length in size))
    cells = mask_of(record, "").coverage(x, y, side) >= MIN_OVERLAP
    return [
        np.minimum(ring * side, size).ravel().tolist()
        for polygon in RegionBorders(cells.astype(np.int32)).polygons(1)
        for ring in polygon
    ]


TILE_SIDE = 512
_THUMBNAIL_SIDE = 220
_TILE_BYTES = 96 * 2**20  # encoded tiles
_PIXEL_BYTES = 768 * 2**20  # open images


def n_levels(size: tuple[int, int]) -> int:
    """Levels from the whole image in one tile to its own pixels."""
    return max(0, (max(size) - 1).bit_length() - (TILE_SIDE - 1).bit_length()) + 1


class Tiles:
    """Images, kept open as long as there is room; their tiles, in memory; thumbnails, on disk."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for thumbnails, so that a large set opens at once the second time."""
        self._folder = folder
        self._sources: LRUCache[ImageSource] = LRUCache(_PIXEL_BYTES)
        self._tiles: LRUCache[bytes] = LRUCache(_TILE_BYTES)
        self._writing = LocksByKey()

    def open(self, record: ImageRecord) -> ImageSource:
        """The image, opened before or now; one that has changed on disk is opened anew.

        It is never closed here: another thread may be reading. It goes when nobody holds it.
        """

        def opened() -> tuple[ImageSource, int]:
            source = open_image(record.path, record.mpp)
            source.read(0, 0, 1, 1)
            return source, source.memory_bytes

        return self._sources.get(_key(record), opened)

    def tile(self, record: ImageRecord, level: int, column: int, row: int) -> bytes:
        """A tile as JPEG; raises KeyError where there is none."""

        def encoded() -> tuple[bytes, int]:
            data = encode_jpeg(_read_tile(self.open(record), level, column, row))
            return data, len(data)

        return self._tiles.get(_tile_key(record, level, column, row), encoded)

    def cached_tile(self, record: ImageRecord, level: int, column: int, row: int) -> bytes | None:
        """A tile that was made before; None if it has to be made."""
        return self._tiles.find(_tile_key(record, level, column, row))

    def thumbnail_file(self, record: ImageRecord) -> Path:
        """Where the small picture is or will be."""
        name = hashlib.sha256(str(file_key(record.path)).encode()).hexdigest()[:24]
        return self._folder / name[:2] / f"{name}.jpg"

    def thumbnail(self, record: ImageRecord) -> Path:
        """The file of a small picture, made if it is not there."""
        path = self.thumbnail_file(record)
        with self._writing.held((path.name,)):  # two threads must not write the same file
            if not path.is_file():
                with open_image(record.path, record.mpp) as source:
                    data = encode_jpeg(source.thumbnail(_THUMBNAIL_SIDE))
                with atomic_write(path) as partial:
                    partial.write_bytes(data)
        return path


def _key(record: ImageRecord) -> Key:
    return (repr(file_key(record.path)), record.mpp)


def _tile_key(record: ImageRecord, *place: int) -> Key:
    return (*_key(record), *place)


def _read_tile(source: ImageSource, level: int, column: int, row: int) -> NDArray[np.uint8]:
    count = n_levels(source.size)
    factor = 2 ** (count - 1 - level) if 0 <= level < count else 0
    x, y = column * TILE_SIDE * factor, row * TILE_SIDE * factor
    if not (factor and 0 <= x < source.size[0] and 0 <= y < source.size[1]):
        raise KeyError("there is no such tile")
    width, height = (
        min(TILE_SIDE * factor, side - at) for side, at in zip(source.size, (x, y), strict=True)
    )
    return source.read(x, y, width, height, float(factor))
