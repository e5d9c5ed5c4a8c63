"""The formats of feature files: HDF5, as TRIDENT and CLAM write it, Zarr, and NumPy's .npz.

Each is opened as a `Content`; h5py and zarr are needed for their formats alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..execution.files import DAMAGED_ARRAYS, file_bytes
from ..execution.texts import one_line
from .errors import ImageError
from .feature_probe import look_first
from .feature_sizes import MAX_CHUNK_BYTES, MAX_CHUNKS, check_chunk
from .hdf5_checks import check_dataset, check_links, missing_chunks
from .npz_file import NpzFile
from .opened_slide import UnfitError

if TYPE_CHECKING:
    from .zarr_store import ZarrArray

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
    missing : number of missing chunks, and of all chunks
    """

    vectors: Any
    coords: Any
    attributes: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[int, int] = (0, 0)


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
        with reading(path):
            names = list(file)
            vectors, coords = (file[name] if name in names else None for name in (FEATURES, COORDS))
            kind = import_module("h5py").Dataset
            vectors, coords = (x if isinstance(x, kind) else None for x in (vectors, coords))
            content = _of_group(path, names, file.attrs, vectors, coords)
            missing = check_datasets(path, [x for x in (vectors, coords) if x is not None])
        yield replace(content, missing=missing)


def check_datasets(path: Path, datasets: Iterable[Any]) -> tuple[int, int]:
    """Return numbers of missing and of all chunks of HDF5 arrays; refuse too large chunks."""
    found = []
    for dataset in datasets:
        check_dataset(dataset, path.stat().st_size)
        found.append(missing_chunks(dataset))
    return sum(n for n, _ in found), sum(n for _, n in found)


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
        with reading(path):
            check_links(file)
        yield file


@contextmanager
def open_zarr(path: Path) -> Iterator[Content]:
    _library("zarr", path)
    from .zarr_store import ZarrFolder

    check = partial(_check_pieces, file_bytes(path))
    with _zarr_in_words(path):
        folder = ZarrFolder(path, MAX_CHUNK_BYTES, check)
        names = folder.arrays
        opened = {name: folder.open(name) for name in (FEATURES, COORDS) if name in names}
        vectors, coords = (
            _ZarrRows(path, opened[name].array) if name in opened else None
            for name in (FEATURES, COORDS)
        )
        homes = [folder.attributes(name) for name in ("", *opened)]
        content = _of_group(path, names, {}, vectors, coords, homes)
        missing = sum(x.missing for x in opened.values()), sum(x.chunks for x in opened.values())
    yield replace(content, missing=missing)


@contextmanager
def _zarr_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except UnfitError as error:
        raise ImageError(f"{path}: {error}") from error
    except (FileNotFoundError, PermissionError, MemoryError, ImageError):
        raise
    except Exception as error:  # zarr raises many types on damaged metadata
        raise ImageError(
            f"{path}: a part of it cannot be read ({one_line(error)}): compute its features again"
        ) from error


class _ZarrRows:
    """Zarr array whose errors name the file."""

    def __init__(self, path: Path, array: Any) -> None:
        self._path, self._array = path, array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        with _zarr_in_words(self._path):
            return np.asarray(self._array[rows])


def _check_pieces(n_bytes: int, path: str, metadata: ZarrArray) -> None:
    check_chunk(path, metadata.piece_bytes, n_bytes)
    n_chunks = math.prod(metadata.grid) * math.prod(metadata.pieces_per_shard)
    if n_chunks > MAX_CHUNKS:
        raise UnfitError(
            f"its array {path!r} has {n_chunks} chunks, more than {MAX_CHUNKS}: save it again "
            "in larger chunks"
        )


@contextmanager
def open_npz(path: Path) -> Iterator[Content]:
    """Open an .npz file; only arrays of known names are read, attributes have one value each."""
    with ExitStack() as opened:
        try:
            arrays = opened.enter_context(NpzFile(path))
            vectors, coords = (arrays.get(name) for name in (FEATURES, COORDS))
            told = {name: arrays.value(name) for name in ATTRIBUTES & set(arrays)}
        except (FileNotFoundError, PermissionError):
            raise
        except (*DAMAGED_ARRAYS, RuntimeError) as error:
            raise ImageError(
                f"{path}: not an .npz file, or damaged ({error}): write it again"
            ) from error
        yield _of_group(path, sorted(arrays), told, vectors, coords)


def _of_group(
    path: Path,
    names: Sequence[str],
    attributes: Mapping[str, Any],
    vectors: Any,
    coords: Any,
    homes: Sequence[Mapping[str, Any]] = (),
) -> Content:
    """Merge attributes of the file, the features and the coords; the latter take precedence."""
    if vectors is None:
        there = ", ".join(sorted(names)) or "none"
        raise ImageError(f"{path}: has no array `{FEATURES}`; there are: {there}")
    homes = homes or [attributes, *(getattr(x, "attrs", {}) for x in (vectors, coords))]
    told = {name: home[name] for home in homes for name in ATTRIBUTES & set(home)}
    return Content(vectors, coords, told)


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImageError(
            f"{path}: is read with {name}, which is not installed ({error}): {_EXTRA}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of libraries on damaged files to an ImageError that names the file."""
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
