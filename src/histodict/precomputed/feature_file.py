"""Feature files: precomputed vectors of the patches of a slide, with positions and no pixels.

FORMATS has a function for each suffix that opens a file as `Content`; the content is checked here.

    features   (n, length) or (1, n, length), floating point
    coords     (n, 2) or (1, n, 2): x and y of the patches' upper left corners, in level-0 pixels
    attributes named as in TRIDENT and CLAM: patch_size, patch_size_level0, overlap,
               target_magnification, level0_width, level0_height, encoder; in CLAM patch_level and
               downsample

See the source of TRIDENT (IO.py: coords_to_h5, save_h5; WSI.py: extract_patch_features), which
writes None as the text 'None', and of CLAM (file_utils.py: save_hdf5; extract_features_fp.py, whose
features have no attributes; WholeSlideImage.py, whose coords have).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.file_types import FOLDER_IMAGES, ImageError
from ..utils.files import exists, file_bytes, file_key
from ..utils.missing_chunks import check_missing_chunks
from ..utils.text_io import parse_json
from ..utils.validation import check_kind
from .formats import (
    FEATURES,
    HISTODICT_ATTRIBUTE,
    MAX_LENGTH,
    Content,
    format_errors,
    open_hdf5,
    open_npz,
    open_zarr,
    to_python,
)
from .hdf5_check import check_whole

# Functions that open a feature file, by its suffix.
FORMATS: dict[str, Callable[[Path], AbstractContextManager[Content]]] = {
    ".h5": open_hdf5,
    ".h5ad": open_hdf5,
    ".hdf5": open_hdf5,
    ".npz": open_npz,
    ".zarr": open_zarr,
}
_TENSORS = (".pt", ".pth")
_DEFAULT_SIDE_PX = 256  # of a patch without metadata or neighbours
_BLOCK_BYTES = 8 * 2**20
_MAX_ROWS, _MAX_COLUMNS = 10_000_000, 100_000  # larger shapes mean damage
_MAX_GAP = 8  # unneeded rows that are read with those before and after them
_MAX_CHARACTERS = 300  # characters of a name
_MAX_DIFFERENCE = 0.1  # relative, of magnifications, as pixel sizes of images differ


class FeatureFile:
    """Open feature file with checked content.

    Attributes
    ----------
    size : (width, height) of the slide in level-0 pixels; None if the file does not state it
    offset : position of the image's (0, 0) in the coords, in files written by histodict
    settings : settings of a file written by `histodict features`; else empty
    missing_chunks : number of missing chunks, which are read as their fill value
    """

    def __init__(self, path: Path, content: Content) -> None:
        self.path = path
        self._features, self._is_nested = _read_features(path, content.features)
        self.n_rows, length = self._features.shape[-2:]
        _check_shape(path, content.coords, self.n_rows)
        self.missing_chunks = content.missing[0]
        self._coords, self._are_centres = content.coords, content.are_centres
        self._metadata = Metadata(path, content.attributes, content.names)
        self.settings = self._metadata.settings
        self.size = self._metadata.size
        self.mpp = self._metadata.mpp
        self.offset = self._metadata.offset
        self.origin = FeatureMetadata(
            length, self._metadata.encoder, self._metadata.patch_px, self._metadata.magnification
        )

    @cached_property
    def coords(self) -> NDArray[np.int64]:
        """(n, 2) of int64: level-0 x and y of the patches' upper left corners."""
        with format_errors(self.path):
            positions = np.asarray(self._coords[...]).reshape(-1, 2)
        if self._are_centres:
            # A round spot may extend beyond the border of the image.
            positions = np.maximum(np.rint(positions - (self._metadata.side or 0.0) / 2), 0)
        if not ((positions >= 0) & (positions <= MAX_LENGTH)).all():
            raise _no_pixels(self.path)
        coords = np.rint(positions).astype(np.int64)
        check_coordinates(self.path, coords, self.size, self._metadata.step)
        return coords

    @cached_property
    def side(self) -> float:
        """Side of a patch in level-0 pixels, from the file or derived from the coords."""
        return self._metadata.side or self.step or _DEFAULT_SIDE_PX

    @property
    def overlap(self) -> float:
        """Overlap of patches in level-0 pixels."""
        return self._metadata.overlap(self.side)

    @cached_property
    def step(self) -> float | None:
        """Most frequent distance of neighbours in a row or a column; None without neighbours."""
        return modal_step(self.coords)[0]

    @property
    def extent(self) -> tuple[int, int]:
        """(width, height) of the image, from the file or from the extent of the patches."""
        width, height = self.size or self._max_extent()
        extent = width - self.offset[0], height - self.offset[1]
        if min(extent) < 1:
            raise ImageError(
                f"{self.path}: the patches end at ({width}, {height}), outside the image; "
                f"correct the offset {self.offset} in the attribute 'histodict' or compute "
                "the features again"
            )
        return extent

    def _max_extent(self) -> tuple[int, int]:
        x, y = (self.coords.max(axis=0, initial=0) + round(self.side)).tolist()
        return x, y

    def read(self, rows: slice) -> NDArray[np.float32]:
        """Return vectors (n, length); raise ImageError for values that are not finite."""
        with format_errors(self.path):
            found = self._features[0, rows] if self._is_nested else self._features[rows]
            vectors = np.asarray(found).astype(np.float32)
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            first = (rows.start or 0) + int(np.argmax(bad))
            raise ImageError(
                f"{self.path}: the vector of patch {first} contains NaN or infinity; compute "
                "the features again"
            )
        return vectors

    def read_some(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of these rows, in this order; adjacent rows are read together."""
        found = np.empty((len(rows), self.origin.length), np.float32)
        order = np.argsort(rows, kind="stable")
        ends = np.flatnonzero(np.diff(rows[order]) > _MAX_GAP) + 1
        for run in np.split(order, ends) if len(rows) else ():
            first, last = int(rows[run[0]]), int(rows[run[-1]])
            found[run] = self.read(slice(first, last + 1))[rows[run] - first]
        return found

    def blocks(self) -> Iterator[slice]:
        """Yield slices of rows that cover the file, of a few megabytes each."""
        step = max(1, _BLOCK_BYTES // (4 * self.origin.length))
        for start in range(0, self.n_rows, step):
            yield slice(start, min(start + step, self.n_rows))

    def check(self) -> None:
        """Read the whole file; raise ImageError if no model can learn from it."""
        if not self.n_rows:
            raise ImageError(f"{self.path}: contains no vectors, because no tissue was detected")
        assert self.coords is not None  # reading them checks them
        for rows in self.blocks():
            self.read(rows)


@contextmanager
def open_features(path: Path) -> Iterator[FeatureFile]:
    """Open a feature file; raise ImageError if it cannot be read."""
    if not exists(path):
        raise ImageError(f"{path}: file not found; check the name and the folder")
    with FORMATS[path.suffix.lower()](path) as content:
        refused = check_missing_chunks(path, *content.missing)
        if refused:
            raise ImageError(refused)
        with format_errors(path):
            file = FeatureFile(path, content)
        yield file


def check_features(path: Path) -> None:
    """Read a whole file; raise ImageError if no model can learn from it."""
    with open_features(path) as file:
        file.check()


def check_has_slide_size(path: Path) -> None:
    """Raise ImageError if a feature file lacks the size of its slide, which masks require."""
    with open_features(path) as file:
        if file.size is None:
            raise ImageError(
                f"{path}: masks need the size of the slide (level0_width, level0_height), "
                "which this file lacks"
            )


def is_feature_file(path: object) -> bool:
    """Return whether a path is a feature file; Zarr folders need an array `features`."""
    if not isinstance(path, Path) or path.suffix.lower() not in FORMATS:
        return False
    return path.suffix.lower() not in FOLDER_IMAGES or (path / FEATURES).is_dir()


def check_has_positions(path: Path) -> None:
    """Raise ImageError for PyTorch files, which CLAM and others write beside the feature files."""
    if path.suffix.lower() not in _TENSORS:
        return
    names = [path.with_suffix(suffix) for suffix in (".h5", ".hdf5")]
    names += [path.parent.parent / "h5_files" / name.name for name in names]  # layout of CLAM
    found = next((name for name in names if exists(name)), None)
    what = f"use {found}" if found else "use the .h5 file of this slide with features and coords"
    raise ImageError(f"{path}: {path.suffix} files contain no patch positions; {what}")


def common_metadata(paths: Iterable[object]) -> FeatureMetadata | None:
    """Return the common metadata of all feature files among the paths; None without such files.

    Raise ImageError if encoders differ, as a model would learn their difference.
    """
    first, common = None, None
    for path in paths:
        if not is_feature_file(path):
            continue
        assert isinstance(path, Path)
        metadata = _origin_of(path, repr(file_key(path)) if exists(path) else "")
        if common is None:
            first, common = path, metadata
        differences = metadata.differences(common)
        if differences:
            raise ImageError(
                f"{path}: the features differ from those of {first} "
                f"({'; '.join(differences)}); use files with the same settings"
            )
        common = common.filled_from(metadata)
    return common


@lru_cache(maxsize=100_000)
def _origin_of(path: Path, state: str) -> FeatureMetadata:
    with open_features(path) as file:
        return file.origin


# --- arrays -------------------------------------------------------------------------------------


def _read_features(path: Path, vectors: Any) -> tuple[Any, bool]:
    """Return the vectors, and whether they have a leading axis of length 1."""
    shape = tuple(vectors.shape)
    is_nested = len(shape) == 3 and shape[0] == 1
    if len(shape) == 1:
        raise ImageError(
            f"{path}: contains one vector of {shape[0]} values for the whole slide; the "
            "features of patches are needed"
        )
    if len(shape) >= 2 and (shape[-2] > _MAX_ROWS or shape[-1] > _MAX_COLUMNS):
        raise ImageError(
            f"{path}: the header specifies {shape[-2]} vectors of {shape[-1]} values, more "
            "than supported; the file is damaged or not a feature file"
        )
    if (len(shape) != 2 and not is_nested) or not shape[-1]:
        raise ImageError(f"{path}: features must have shape (n_patches, n_features), not {shape}")
    if np.dtype(vectors.dtype).kind != "f":
        raise ImageError(f"{path}: features must be floating-point numbers, not {vectors.dtype}")
    return vectors, is_nested


def _check_shape(path: Path, coords: Any, n_rows: int) -> None:
    if coords is None:
        raise ImageError(
            f"{path}: the array 'coords' is missing; it contains x and y of each patch in "
            "level-0 pixels"
        )
    if tuple(coords.shape) not in ((n_rows, 2), (1, n_rows, 2)):
        raise ImageError(
            f"{path}: coords must have shape ({n_rows}, 2) for {n_rows} vectors, not "
            f"{tuple(coords.shape)}"
        )
    dtype = np.dtype(coords.dtype)
    if dtype.kind not in "iuf":
        raise _no_pixels(path)
    try:  # coords are read as a whole
        check_whole("coords", 2 * n_rows * dtype.itemsize, file_bytes(path))
    except ValueError as error:
        raise ImageError(f"{path}: {error}") from error


def _no_pixels(path: Path) -> ImageError:
    return ImageError(
        f"{path}: coords must be level-0 pixels: whole numbers from 0 to {MAX_LENGTH:,}"
    )


def modal_step(coords: NDArray[np.int64]) -> tuple[float | None, float]:
    """Return the most frequent distance of neighbouring patches, and its relative frequency.

    Neighbours are in the same row or column. The distance is None without neighbours.
    """
    distances = []
    for along, across in ((0, 1), (1, 0)):
        ordered = coords[np.lexsort((coords[:, along], coords[:, across]))]
        is_aligned = np.diff(ordered[:, across]) == 0
        distances.append(np.diff(ordered[:, along])[is_aligned])
    steps, counts = np.unique(np.concatenate(distances), return_counts=True)
    steps, counts = steps[steps > 0], counts[steps > 0]
    if not len(steps):
        return None, 0.0
    modal = int(np.argmax(counts))
    return float(steps[modal]), float(counts[modal] / counts.sum())


def check_coordinates(
    path: Path, coords: NDArray[np.int64], size: tuple[int, int] | None, distance: float | None
) -> None:
    """Raise ImageError if coords contradict the slide's `size` or the `distance` of neighbours."""
    if len(coords) > 1 and (coords == coords[0]).all():
        raise ImageError(
            f"{path}: all {len(coords)} patches have the same coords, "
            f"{tuple(coords[0].tolist())}; compute the features again"
        )
    if size is not None and (coords >= size).any():
        x, y = coords.max(axis=0).tolist()
        raise ImageError(
            f"{path}: the coords extend to ({x}, {y}), but the slide has {size[0]} x "
            f"{size[1]} pixels (level0_width, level0_height); coords must be level-0 pixels"
        )
    step, frequency = modal_step(coords)
    if distance is not None and step is not None and step < distance / 2 and frequency > 0.5:
        raise ImageError(
            f"{path}: the distance of patches is {distance:g} pixels by the attributes "
            f"patch_size_level0 and overlap, but {step:g} by the coords; coords must be "
            "level-0 pixels"
        )


# --- attributes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureMetadata:
    """Metadata of vectors; known values must be equal for all files of a model.

    Attributes
    ----------
    length : length of a vector
    encoder : name of the encoder
    patch_px : side of a patch in pixels, at `magnification`
    magnification : magnification at which patches were cut
    """

    length: int
    encoder: str | None = None
    patch_px: int | None = None
    magnification: float | None = None

    def differences(self, other: FeatureMetadata) -> list[str]:
        """Describe the differences of values that are known in both."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [
            f"{_DESCRIPTIONS[name]} {own}, not {known}"
            for name, own, known in pairs
            if own is not None and known is not None and not _alike(own, known)
        ]

    def filled_from(self, other: FeatureMetadata) -> FeatureMetadata:
        """Return a copy with unknown values taken from the other."""
        known = asdict(other) | self.to_dict()
        return replace(self, **known)

    def to_dict(self) -> dict[str, Any]:
        """Return the known values."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FeatureMetadata:
        """Create metadata from the result of `to_dict`; raise ValueError for invalid values."""
        check_kind("vectors", values, "dict[str, Any]")
        known = {field.name for field in fields(cls)}
        if "length" not in values or set(values) - known:
            raise ValueError(
                f"unknown or missing metadata of vectors: expected {sorted(known)}, not "
                f"{sorted(values)}"
            )
        metadata = cls(**values)
        for field in fields(cls):
            check_kind(field.name, getattr(metadata, field.name), str(field.type))
        return metadata


def _alike(own: Any, known: Any) -> bool:
    """Compare values; magnifications derived from pixel sizes differ slightly by scanner."""
    return abs(own / known - 1) <= _MAX_DIFFERENCE if isinstance(own, float) else bool(own == known)


_DESCRIPTIONS = {
    "length": "vectors of length",
    "encoder": "encoder",
    "patch_px": "patch size in pixels",
    "magnification": "magnification",
}


# --- schema ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Range:
    """Numbers from `low` to `high`; integers if `whole`."""

    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:,.12g} to {self.high:,.12g}"

    def __contains__(self, number: float) -> bool:
        is_inside = self.low <= number <= self.high  # False for NaN
        return is_inside and (not self.whole or number == round(number))


# Ranges of attributes, all optional.
_RANGES = {
    "patch_size": _Range(1, MAX_LENGTH, whole=True),
    "patch_size_level0": _Range(1, MAX_LENGTH),
    "overlap": _Range(-MAX_LENGTH, MAX_LENGTH, whole=True),
    "target_magnification": _Range(1e-3, 1e4),
    "level0_width": _Range(1, MAX_LENGTH, whole=True),
    "level0_height": _Range(1, MAX_LENGTH, whole=True),
    "level0_mpp": _Range(1e-4, 1e4),
    "patch_level": _Range(0, 100, whole=True),
    "downsample": _Range(1e-3, 1e6),
    "custom_downsample": _Range(1e-3, 1e6),
}


class Metadata:
    """Validated attributes of a feature file; ImageError names the file and an invalid attribute.

    Parameters
    ----------
    path : feature file, for messages
    attributes : values by the names above; unknown names and missing values (None, or the text
        'None' of TRIDENT) are ignored
    names : names of attributes in this file, for messages, if they differ from those above

    Attributes
    ----------
    patch_px : side of a patch in pixels, at the magnification it was cut at
    side : side of a patch in level-0 pixels
    size : (width, height) of the slide in level-0 pixels
    settings : settings of a file that `histodict features` wrote; else empty
    """

    def __init__(
        self, path: Path, attributes: Mapping[str, Any], names: Mapping[str, str] | None = None
    ) -> None:
        self._path, self._names = path, names or {}
        plain = {name: to_python(value) for name, value in attributes.items()}
        found = {
            name: self._number(name, plain[name], allowed)
            for name, allowed in _RANGES.items()
            if plain.get(name) is not None
        }
        self._found = found
        self.encoder = self._name("encoder", plain.get("encoder"))
        self.settings = self._settings(plain.get(HISTODICT_ATTRIBUTE))
        self.mpp = found.get("level0_mpp")
        self.magnification = found.get("target_magnification")
        self.patch_px = round(found["patch_size"]) if "patch_size" in found else None
        self.side = self._side()
        self.size = self._size()
        overlap = found.get("overlap", 0.0)
        if self.patch_px is not None and overlap >= self.patch_px:
            raise self._error("overlap", overlap, f"less than patch_size ({self.patch_px})")

    @property
    def offset(self) -> tuple[int, int]:
        """Position of the image's (0, 0) in the coords."""
        x, y = self.settings.get("offset", (0, 0))
        return x, y

    def overlap(self, side: float) -> float:
        """Return the overlap of patches in level-0 pixels; attributes give it in patch pixels."""
        overlap = self._found.get("overlap", 0.0)
        return overlap * side / self.patch_px if self.patch_px else 0.0

    @property
    def step(self) -> float | None:
        """Distance of neighbouring patches in level-0 pixels; None if side or overlap is unknown.

        Files of CLAM, with one grid per piece of tissue, state no overlap.
        """
        if self.side is None or "overlap" not in self._found:
            return None
        return self.side - self.overlap(self.side)

    def _side(self) -> float | None:
        """Return the side of a patch; CLAM gives it in pixels of a level, with the downsample."""
        side = self._found.get("patch_size_level0")
        if side is None and self.patch_px is not None and "patch_level" in self._found:
            downsample = self._found.get("downsample")
            if downsample is None and self._found["patch_level"] == 0:
                downsample = 1.0
            if downsample is not None:
                side = self.patch_px * downsample * self._found.get("custom_downsample", 1.0)
                if side not in _RANGES["patch_size_level0"]:
                    expected = f"such that the side of a patch is {_RANGES['patch_size_level0']}"
                    raise self._error("downsample", downsample, f"{expected} level-0 pixels")
        return side

    def _size(self) -> tuple[int, int] | None:
        lengths = [self._found.get(name) for name in ("level0_width", "level0_height")]
        if lengths[0] is None or lengths[1] is None:
            return None
        size = round(lengths[0]), round(lengths[1])
        if self.offset[0] >= size[0] or self.offset[1] >= size[1]:
            raise self._error(
                f"{HISTODICT_ATTRIBUTE} (offset)",
                list(self.offset),
                f"inside the slide of size {size}",
            )
        return size

    def _number(self, name: str, value: Any, allowed: _Range) -> float:
        """Return a number in its range; CLAM gives one for x and one for y, which must agree."""
        parts = value if isinstance(value, list) and len(value) in (1, 2) else [value]
        numbers = [_as_number(part) for part in parts]
        if any(number is None or number not in allowed for number in numbers):
            raise self._error(name, value, str(allowed))
        first, last = numbers[0], numbers[-1]
        assert first is not None and last is not None
        if abs(last - first) > _MAX_DIFFERENCE * abs(first):
            raise self._error(name, value, "equal for x and y")
        return first

    def _text(self, name: str, value: Any) -> str | None:
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is not None and not isinstance(value, str):
            raise self._error(name, value, "text")
        return value or None

    def _name(self, name: str, value: Any) -> str | None:
        """Return a short text of one line."""
        text = self._text(name, value)
        if text is not None and not (text.isprintable() and len(text) <= _MAX_CHARACTERS):
            raise self._error(name, text, f"one line of at most {_MAX_CHARACTERS} characters")
        return text

    def _settings(self, value: Any) -> dict[str, Any]:
        text = self._text(HISTODICT_ATTRIBUTE, value)
        if text is None:
            return {}
        try:
            settings = parse_json(text)
        except ValueError as error:
            raise self._error(HISTODICT_ATTRIBUTE, text, f"JSON ({error})") from error
        if not isinstance(settings, dict):
            raise self._error(HISTODICT_ATTRIBUTE, text, "a JSON object")
        if not _is_offset(settings.get("offset", [0, 0])):
            expected = f"two whole numbers from 0 to {MAX_LENGTH:,}"
            raise self._error(f"{HISTODICT_ATTRIBUTE} (offset)", settings["offset"], expected)
        for name in ("recipe", "grid"):
            if not isinstance(settings.get(name, {}), dict):
                raise self._error(
                    f"{HISTODICT_ATTRIBUTE} ({name})", settings[name], "a JSON object"
                )
        return settings

    def _error(self, name: str, value: Any, requirement: str) -> ImageError:
        key = self._names.get(name, name)
        return ImageError(
            f"{self._path}: the attribute {key} must be {requirement}, not {short(value)}; "
            "correct it or compute the features again"
        )


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_offset(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(type(n) is int and 0 <= n <= MAX_LENGTH for n in value)
