"""Feature files: precomputed vectors of the patches of a slide, with positions and no pixels.

The functions in FORMATS open a file as `FeatureContent`; this module checks the content.

    features   (n, length) or (1, n, length), floating point
    coords     (n, 2) or (1, n, 2): x and y of the patches' upper left corners, in level-0 pixels
    attributes named as in TRIDENT and CLAM: patch_size, patch_size_level0, overlap,
               target_magnification, level0_width, level0_height, encoder; in CLAM patch_level and
               downsample

Sources: TRIDENT (IO.py: coords_to_h5, save_h5; WSI.py: extract_patch_features) writes None as the
text 'None'. CLAM writes features without attributes (extract_features_fp.py) and coords with
attributes (WholeSlideImage.py), both with save_hdf5 (file_utils.py).
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

from ..images.file_types import FOLDER_IMAGE_SUFFIXES, ImageError
from ..utils.files import exists, file_key, file_size
from ..utils.missing_chunks import check_missing_chunks
from ..utils.text_io import parse_json
from ..utils.validation import check_type
from .formats import (
    FEATURES,
    HISTODICT_ATTRIBUTE,
    MAX_LENGTH,
    FeatureContent,
    format_errors,
    open_hdf5,
    open_npz,
    open_zarr,
    to_python,
)
from .hdf5_check import check_array_size

# Functions that open a feature file, by its suffix.
FORMATS: dict[str, Callable[[Path], AbstractContextManager[FeatureContent]]] = {
    ".h5": open_hdf5,
    ".h5ad": open_hdf5,
    ".hdf5": open_hdf5,
    ".npz": open_npz,
    ".zarr": open_zarr,
}
_PYTORCH_SUFFIXES = (".pt", ".pth")
_DEFAULT_SIDE_PX = 256  # of a patch, if neither attributes nor coords determine it
_BLOCK_BYTES = 8 * 2**20
_MAX_ROWS, _MAX_COLUMNS = 10_000_000, 100_000  # larger shapes mean damage
_MAX_GAP = 8  # maximum difference of row numbers that are read together
_MAX_CHARACTERS = 300  # in a name
_MAX_DIFFERENCE = 0.1  # relative; magnifications that differ by less are equal


class FeatureFile:
    """Open feature file with checked content.

    Attributes
    ----------
    n_rows : number of vectors
    size : (width, height) of the slide in level-0 pixels; None if the file does not state it
    mpp : µm per level-0 pixel; None if the file does not state it
    offset : (x, y) of the image's upper left pixel in the coords; (0, 0) in files of other programs
    settings : settings of `histodict features`, if it wrote the file; else empty
    metadata : length of the vectors, encoder and magnification
    missing_chunks : number of missing chunks, which are read as the fill value
    """

    def __init__(self, path: Path, content: FeatureContent) -> None:
        self.path = path
        self._features, self._has_leading_axis = _check_features_array(path, content.features)
        self.n_rows, length = self._features.shape[-2:]
        _check_coords_array(path, content.coords, self.n_rows)
        self.missing_chunks = content.missing[0]
        self._coords, self._are_centres = content.coords, content.are_centres
        self._attributes = known = FileAttributes(path, content.attributes, content.names)
        self.settings, self.offset = known.settings, known.offset
        self.size, self.mpp = known.size, known.mpp
        self.metadata = FeatureMetadata(length, known.encoder, known.patch_px, known.magnification)

    @cached_property
    def coords(self) -> NDArray[np.int64]:
        """(n, 2), x and y of the patches' upper left corners in level-0 pixels."""
        with format_errors(self.path):
            positions = np.asarray(self._coords[...]).reshape(-1, 2)
        if self._are_centres:
            # A round spot may extend beyond the border of the image.
            positions = np.maximum(np.rint(positions - (self._attributes.side or 0.0) / 2), 0)
        if not ((positions >= 0) & (positions <= MAX_LENGTH)).all():
            raise _coords_error(self.path)
        coords = np.rint(positions).astype(np.int64)
        check_coordinates(self.path, coords, self.size, self._attributes.step)
        return coords

    @cached_property
    def side(self) -> float:
        """Side of a patch in level-0 pixels, from the attributes or the coords."""
        return self._attributes.side or self.step or _DEFAULT_SIDE_PX

    @property
    def overlap(self) -> float:
        """Overlap of patches in level-0 pixels."""
        return self._attributes.overlap(self.side)

    @cached_property
    def step(self) -> float | None:
        """Most frequent distance of neighbours in level-0 pixels; None if there are none."""
        return most_frequent_step(self.coords)[0]

    @property
    def extent(self) -> tuple[int, int]:
        """(width, height) of the image in level-0 pixels, from the attributes or the patches."""
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
        """Return vectors (n, length) as float32; raise ImageError if a value is not finite."""
        with format_errors(self.path):
            found = self._features[0, rows] if self._has_leading_axis else self._features[rows]
            vectors = np.asarray(found).astype(np.float32)
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            first = (rows.start or 0) + int(np.argmax(bad))
            raise ImageError(
                f"{self.path}: the vector of patch {first} contains NaN or infinity; compute "
                "the features again"
            )
        return vectors

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors with these row numbers, in this order."""
        found = np.empty((len(rows), self.metadata.length), np.float32)
        order = np.argsort(rows, kind="stable")
        ends = np.flatnonzero(np.diff(rows[order]) > _MAX_GAP) + 1
        for run in np.split(order, ends) if len(rows) else ():
            first, last = int(rows[run[0]]), int(rows[run[-1]])
            found[run] = self.read(slice(first, last + 1))[rows[run] - first]
        return found

    def blocks(self) -> Iterator[slice]:
        """Yield successive slices of rows, whose vectors have a few megabytes each."""
        step = max(1, _BLOCK_BYTES // (4 * self.metadata.length))
        for start in range(0, self.n_rows, step):
            yield slice(start, min(start + step, self.n_rows))

    def check_values(self) -> None:
        """Read the whole file; raise ImageError if it has no vectors or invalid values."""
        if not self.n_rows:
            raise ImageError(f"{self.path}: contains no vectors, because no tissue was detected")
        assert self.coords is not None  # reads and checks them
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
    """Read a whole feature file; raise ImageError if it has no vectors or invalid values."""
    with open_features(path) as file:
        file.check_values()


def check_has_slide_size(path: Path) -> None:
    """Raise ImageError if a feature file does not state the size of the slide; masks need it."""
    with open_features(path) as file:
        if file.size is None:
            raise ImageError(
                f"{path}: masks need the size of the slide (level0_width, level0_height), "
                "which this file lacks"
            )


def is_feature_file(path: object) -> bool:
    """Return whether a path has the suffix of a feature file and, if it is Zarr, has `features`."""
    if not isinstance(path, Path) or path.suffix.lower() not in FORMATS:
        return False
    return path.suffix.lower() not in FOLDER_IMAGE_SUFFIXES or (path / FEATURES).is_dir()


def check_has_positions(path: Path) -> None:
    """Raise ImageError if a path has the suffix of a PyTorch file, which has no positions."""
    if path.suffix.lower() not in _PYTORCH_SUFFIXES:
        return
    names = [path.with_suffix(suffix) for suffix in (".h5", ".hdf5")]
    names += [path.parent.parent / "h5_files" / name.name for name in names]  # layout of CLAM
    found = next((name for name in names if exists(name)), None)
    what = f"use {found}" if found else "use the .h5 file of this slide with features and coords"
    raise ImageError(f"{path}: {path.suffix} files contain no patch positions; {what}")


def common_metadata(paths: Iterable[object]) -> FeatureMetadata | None:
    """Return the common metadata of the feature files among the paths; None without such files.

    Raise ImageError if two files differ in their metadata, such as the encoder.
    """
    first, common = None, None
    for path in paths:
        if not is_feature_file(path):
            continue
        assert isinstance(path, Path)
        metadata = _read_metadata(path, repr(file_key(path)) if exists(path) else "")
        if common is None:
            first, common = path, metadata
        differences = metadata.differences(common)
        if differences:
            raise ImageError(
                f"{path}: the features differ from those of {first} "
                f"({'; '.join(differences)}); use files with the same settings"
            )
        common = common.fill_from(metadata)
    return common


@lru_cache(maxsize=100_000)
def _read_metadata(path: Path, cache_key: str) -> FeatureMetadata:
    with open_features(path) as file:
        return file.metadata


# --- arrays -------------------------------------------------------------------------------------


def _check_features_array(path: Path, vectors: Any) -> tuple[Any, bool]:
    """Return the checked array of vectors, and whether it has a leading axis of length 1."""
    shape = tuple(vectors.shape)
    has_leading_axis = len(shape) == 3 and shape[0] == 1
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
    if (len(shape) != 2 and not has_leading_axis) or not shape[-1]:
        raise ImageError(f"{path}: features must have shape (n_patches, n_features), not {shape}")
    if np.dtype(vectors.dtype).kind != "f":
        raise ImageError(f"{path}: features must be floating-point numbers, not {vectors.dtype}")
    return vectors, has_leading_axis


def _check_coords_array(path: Path, coords: Any, n_rows: int) -> None:
    """Raise ImageError if coords are missing or have a wrong shape or data type."""
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
        raise _coords_error(path)
    try:  # coords are read as a whole
        check_array_size("coords", 2 * n_rows * dtype.itemsize, file_size(path))
    except ValueError as error:
        raise ImageError(f"{path}: {error}") from error


def _coords_error(path: Path) -> ImageError:
    return ImageError(
        f"{path}: coords must be level-0 pixels: whole numbers from 0 to {MAX_LENGTH:,}"
    )


def most_frequent_step(coords: NDArray[np.int64]) -> tuple[float | None, float]:
    """Return the most frequent distance of neighbours in a row or column, and its frequency.

    The distance (level-0 pixels) is None without neighbours; the frequency is a fraction.
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
    """Raise ImageError if coords contradict the size of the slide or the distance of neighbours.

    `size` (width, height) and `distance` are in level-0 pixels, and None if unknown.
    """
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
    step, frequency = most_frequent_step(coords)
    if distance is not None and step is not None and step < distance / 2 and frequency > 0.5:
        raise ImageError(
            f"{path}: the distance of patches is {distance:g} pixels by the attributes "
            f"patch_size_level0 and overlap, but {step:g} by the coords; coords must be "
            "level-0 pixels"
        )


# --- attributes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureMetadata:
    """Metadata of feature vectors; all feature files of a model must have the same.

    Attributes
    ----------
    length : length of a vector
    encoder : name of the encoder; None if unknown
    patch_px : side of a patch in pixels at `magnification`; None if unknown
    magnification : magnification of the patches; None if unknown
    """

    length: int
    encoder: str | None = None
    patch_px: int | None = None
    magnification: float | None = None

    def differences(self, other: FeatureMetadata) -> list[str]:
        """Return a description of each value that is known in both metadata and differs."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [
            f"{_DESCRIPTIONS[name]} {own}, not {known}"
            for name, own, known in pairs
            if own is not None and known is not None and not _are_equal(own, known)
        ]

    def fill_from(self, other: FeatureMetadata) -> FeatureMetadata:
        """Return a copy in which unknown values are taken from `other`."""
        known = asdict(other) | self.to_dict()
        return replace(self, **known)

    def to_dict(self) -> dict[str, Any]:
        """Return the known values by attribute name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FeatureMetadata:
        """Create metadata from the result of `to_dict`; raise ValueError for invalid values."""
        check_type("vectors", values, "dict[str, Any]")
        known = {field.name for field in fields(cls)}
        if "length" not in values or set(values) - known:
            raise ValueError(
                f"unknown or missing metadata of vectors: expected {sorted(known)}, not "
                f"{sorted(values)}"
            )
        metadata = cls(**values)
        for field in fields(cls):
            check_type(field.name, getattr(metadata, field.name), str(field.type))
        return metadata


def _are_equal(value: Any, other: Any) -> bool:
    """Return whether two values are equal; floats (magnifications) may differ by 10 %."""
    is_float = isinstance(value, float)
    return abs(value / other - 1) <= _MAX_DIFFERENCE if is_float else bool(value == other)


_DESCRIPTIONS = {
    "length": "vectors of length",
    "encoder": "encoder",
    "patch_px": "patch size in pixels",
    "magnification": "magnification",
}


# --- schema ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Range:
    """Range of the numbers from `low` to `high`; only whole numbers if `is_whole`."""

    low: float
    high: float
    is_whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        return f"{kind} from {self.low:,.12g} to {self.high:,.12g}"

    def __contains__(self, number: float) -> bool:
        is_inside = self.low <= number <= self.high  # False for NaN
        return is_inside and (not self.is_whole or number == round(number))


# Ranges of the numeric attributes, which are all optional.
_RANGES = {
    "patch_size": _Range(1, MAX_LENGTH, is_whole=True),
    "patch_size_level0": _Range(1, MAX_LENGTH),
    "overlap": _Range(-MAX_LENGTH, MAX_LENGTH, is_whole=True),
    "target_magnification": _Range(1e-3, 1e4),
    "level0_width": _Range(1, MAX_LENGTH, is_whole=True),
    "level0_height": _Range(1, MAX_LENGTH, is_whole=True),
    "level0_mpp": _Range(1e-4, 1e4),
    "patch_level": _Range(0, 100, is_whole=True),
    "downsample": _Range(1e-3, 1e6),
    "custom_downsample": _Range(1e-3, 1e6),
}


class FileAttributes:
    """Validated attributes of a feature file; ImageError is raised if one is invalid.

    Parameters
    ----------
    path : feature file, for messages
    attributes : values by name as in `_RANGES`; unknown names and None are ignored
    names : names of attributes in the file that differ from these, for messages; None for none

    Attributes
    ----------
    encoder, magnification, patch_px : see `FeatureMetadata`
    side : side of a patch in level-0 pixels; None if unknown
    size, mpp, settings : see `FeatureFile`
    """

    def __init__(
        self, path: Path, attributes: Mapping[str, Any], names: Mapping[str, str] | None = None
    ) -> None:
        self._path, self._names = path, names or {}
        plain = {name: to_python(value) for name, value in attributes.items()}
        numbers = {
            name: self._read_number(name, plain[name], allowed)
            for name, allowed in _RANGES.items()
            if plain.get(name) is not None
        }
        self._numbers = numbers
        self.encoder = self._read_name("encoder", plain.get("encoder"))
        self.settings = self._read_settings(plain.get(HISTODICT_ATTRIBUTE))
        self.mpp = numbers.get("level0_mpp")
        self.magnification = numbers.get("target_magnification")
        self.patch_px = round(numbers["patch_size"]) if "patch_size" in numbers else None
        self.side = self._read_side()
        self.size = self._read_size()
        overlap = numbers.get("overlap", 0.0)
        if self.patch_px is not None and overlap >= self.patch_px:
            raise self._error("overlap", overlap, f"less than patch_size ({self.patch_px})")

    @property
    def offset(self) -> tuple[int, int]:
        """(x, y) of the image's upper left pixel in the coords."""
        x, y = self.settings.get("offset", (0, 0))
        return x, y

    def overlap(self, side: float) -> float:
        """Return the overlap of patches of this `side`, both in level-0 pixels."""
        overlap = self._numbers.get("overlap", 0.0)
        return overlap * side / self.patch_px if self.patch_px else 0.0

    @property
    def step(self) -> float | None:
        """Distance of neighbouring patches in level-0 pixels; None if unknown, as for CLAM."""
        if self.side is None or "overlap" not in self._numbers:
            return None
        return self.side - self.overlap(self.side)

    def _read_side(self) -> float | None:
        """Return the side of a patch in level-0 pixels, for CLAM from patch_size and downsample."""
        side = self._numbers.get("patch_size_level0")
        if side is None and self.patch_px is not None and "patch_level" in self._numbers:
            downsample = self._numbers.get("downsample")
            if downsample is None and self._numbers["patch_level"] == 0:
                downsample = 1.0
            if downsample is not None:
                side = self.patch_px * downsample * self._numbers.get("custom_downsample", 1.0)
                if side not in _RANGES["patch_size_level0"]:
                    expected = f"such that the side of a patch is {_RANGES['patch_size_level0']}"
                    raise self._error("downsample", downsample, f"{expected} level-0 pixels")
        return side

    def _read_size(self) -> tuple[int, int] | None:
        lengths = [self._numbers.get(name) for name in ("level0_width", "level0_height")]
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

    def _read_number(self, name: str, value: Any, allowed: _Range) -> float:
        """Return `value` as a number in the range `allowed`; its first number if it is a pair."""
        parts = value if isinstance(value, list) and len(value) in (1, 2) else [value]
        numbers = [_to_float(part) for part in parts]
        if any(number is None or number not in allowed for number in numbers):
            raise self._error(name, value, str(allowed))
        first, last = numbers[0], numbers[-1]
        assert first is not None and last is not None
        if abs(last - first) > _MAX_DIFFERENCE * abs(first):
            raise self._error(name, value, "equal for x and y")
        return first

    def _read_text(self, name: str, value: Any) -> str | None:
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is not None and not isinstance(value, str):
            raise self._error(name, value, "text")
        return value or None

    def _read_name(self, name: str, value: Any) -> str | None:
        """Return a text; raise ImageError if it is long or has several lines."""
        text = self._read_text(name, value)
        if text is not None and not (text.isprintable() and len(text) <= _MAX_CHARACTERS):
            raise self._error(name, text, f"one line of at most {_MAX_CHARACTERS} characters")
        return text

    def _read_settings(self, value: Any) -> dict[str, Any]:
        """Return the settings of `histodict features`, parsed from JSON in an attribute."""
        text = self._read_text(HISTODICT_ATTRIBUTE, value)
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


def _to_float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_offset(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(type(n) is int and 0 <= n <= MAX_LENGTH for n in value)
