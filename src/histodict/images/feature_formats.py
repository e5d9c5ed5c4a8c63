"""The formats of feature files: HDF5, as TRIDENT and CLAM write it, Zarr, and NumPy's .npz.

Each is opened as a `Content`; h5py and zarr are needed for their formats alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.files import DAMAGED_ARRAYS
from ..execution.texts import one_line
from .errors import ImageError
from .feature_probe import look_first

FEATURES, COORDS = "features", "coords"
OWN = "histodict"  # of files that were made here: with which settings, as JSON
# What is asked for beside the arrays; others are not read, as they may be damaged.
ATTRIBUTES = {
    *("patch_size", "patch_size_level0", "overlap", "target_magnification", "encoder"),
    *("level0_width", "level0_height", "level0_mpp", OWN),
    *("patch_level", "downsample", "custom_downsample"),
}
_ROWS_TOGETHER = 64  # that lie together in a file that is written here
_EXTRA = "pip install 'histodict[features]'"


@dataclass(frozen=True)
class Content:
    """What a file holds, as it is; see `feature_file` for what it must be.

    vectors, coords : arrays, or what has a shape and a dtype and gives an array for a slice of
        rows; they are read when they are asked for. Where there are no coords, None
    """

    vectors: Any
    coords: Any
    attributes: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def open_hdf5(path: Path) -> Iterator[Content]:
    check_hdf5(path)
    with open_hdf5_here(path) as content:
        yield content


def check_hdf5(path: Path) -> None:
    """Refuses a file that the library hangs or ends on."""
    _library("h5py", path)
    look_first(path)


@contextmanager
def open_hdf5_here(path: Path) -> Iterator[Content]:
    """Without another process that looks first."""
    with opened_hdf5(path) as file:
        yield _of_group(path, file, import_module("h5py").Dataset)


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """The file itself, whatever it holds."""
    h5py = _library("h5py", path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise ImageError(
            f"{path}: is no HDF5 file, or a damaged one ({error}): compute its features again"
        ) from error
    with file:
        yield file


@contextmanager
def open_zarr(path: Path) -> Iterator[Content]:
    zarr = _library("zarr", path)
    try:
        group = zarr.open_group(str(path), mode="r")
    except Exception as error:  # of a store that is none, zarr raises all sorts
        raise ImageError(f"{path}: is no Zarr group ({error}): make it again") from error
    yield _of_group(path, group, zarr.Array)


@contextmanager
def open_npz(path: Path) -> Iterator[Content]:
    """Its arrays are read whole; attributes are further arrays, of one value each."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (FileNotFoundError, PermissionError):
        raise
    except DAMAGED_ARRAYS as error:
        raise ImageError(f"{path}: is no .npz file, or a damaged one: make it again") from error
    told = {name: found[name] for name in ATTRIBUTES & set(found)}
    yield Content(_named(path, found, FEATURES), found.get(COORDS), told)


def _of_group(path: Path, group: Any, kind: type) -> Content:
    """Attributes of the file, of the features and of the coords, the latter first."""
    with reading(path):
        arrays = {name: group[name] for name in group if isinstance(group[name], kind)}
        vectors, coords = _named(path, arrays, FEATURES), arrays.get(COORDS)
        homes = [group, vectors, *([] if coords is None else [coords])]
        told = {name: home.attrs[name] for home in homes for name in ATTRIBUTES & set(home.attrs)}
        return Content(vectors, coords, told)


def _named(path: Path, arrays: Mapping[str, Any], name: str) -> Any:
    if name not in arrays:
        there = ", ".join(sorted(arrays)) or "none"
        raise ImageError(f"{path}: has no array `{name}`; there are: {there}")
    return arrays[name]


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImageError(
            f"{path}: is read with {name}, which is not installed ({error}): {_EXTRA}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise whatever a library raises on a damaged file as an ImageError that names the file."""
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        raise ImageError(
            f"{path}: a part of it cannot be read ({type(error).__name__}: {one_line(error)}): "
            "compute its features again"
        ) from error


def write_hdf5(
    path: Path,
    parts: Iterable[tuple[NDArray[Any], NDArray[np.int64]]],
    dtype: type,
    attributes: Mapping[str, Mapping[str, Any]],
) -> int:
    """Vectors and coords, part by part, as TRIDENT names them; how many there are.

    `attributes`: of features, of coords, and under "" of the file itself. Of no vectors at all no
    dataset is made, as their length is not known.
    """
    h5py = _library("h5py", path)
    with h5py.File(path, "w") as file:
        for vectors, coords in parts:
            for name, rows in ((FEATURES, vectors.astype(dtype)), (COORDS, coords)):
                if name not in file:
                    some = (min(_ROWS_TOGETHER, len(rows)), rows.shape[1])
                    endless = (None, rows.shape[1])
                    file.create_dataset(name, data=rows, maxshape=endless, chunks=some)
                    continue
                file[name].resize(len(file[name]) + len(rows), axis=0)
                file[name][-len(rows) :] = rows
        for name, told in attributes.items():
            home = file.get(name or "/", file)
            home.attrs.update(told)
        return len(file[COORDS]) if COORDS in file else 0
