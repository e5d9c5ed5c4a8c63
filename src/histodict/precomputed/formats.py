"""Formats of feature files: HDF5 of TRIDENT and CLAM, AnnData, Zarr, and NumPy .npz.

Files are opened as `FeatureContent`. HDF5 and AnnData need h5py, Zarr needs zarr.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from reprlib import repr as short
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..images.file_types import ImageError, UnreadableContentError
from ..utils.files import NPZ_ERRORS, file_size
from ..utils.text_io import shorten
from ..utils.validation import import_optional
from .hdf5_check import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    check_array_size,
    check_chunk_size,
    check_dataset,
    check_in_subprocess,
    check_links,
    count_missing_chunks,
)

if TYPE_CHECKING:
    from ..images.zarr_store import ZarrArray

FEATURES, COORDS = "features", "coords"
HISTODICT_ATTRIBUTE = "histodict"  # attribute with the settings of `histodict features`, as JSON
# Attributes that are read; others may be damaged.
ATTRIBUTES = {
    *("patch_size", "patch_size_level0", "overlap", "target_magnification", "encoder"),
    *("level0_width", "level0_height", "level0_mpp", HISTODICT_ATTRIBUTE),
    *("patch_level", "downsample", "custom_downsample"),
}
MAX_LENGTH = 2_000_000  # pixels; no slide is larger
MAGNIFICATION_AT_1_UM = 10.0  # of an image of 1 µm per pixel, by convention
_CHUNK_ROWS = 64  # rows per chunk in files written by `write_hdf5`
_DEPENDENCY_GROUP = "features"  # group of optional dependencies
LIBRARIES = {".h5": "h5py", ".h5ad": "h5py", ".hdf5": "h5py", ".zarr": "zarr"}


@dataclass(frozen=True)
class FeatureContent:
    """Content of a feature file, not yet checked; `feature_file` describes the requirements.

    Attributes
    ----------
    features, coords : arrays, or objects with `shape` and `dtype` that read an array when they are
        indexed; None if missing
    attributes : values by attribute name
    missing : (number of missing chunks, number of chunks)
    names : name in the file of each attribute whose key in `attributes` is different, for messages
    are_centres : whether the coords are the centres of patches, not their upper left corners
    """

    features: Any
    coords: Any
    attributes: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[int, int] = (0, 0)
    names: Mapping[str, str] = field(default_factory=dict)
    are_centres: bool = False


# --- HDF5 ---------------------------------------------------------------------------------------


@contextmanager
def open_hdf5(path: Path) -> Iterator[FeatureContent]:
    """Open an HDF5 file of TRIDENT or CLAM, or an AnnData file (.h5ad)."""
    _import_library("h5py", path)
    check_in_subprocess(path, try_hdf5)
    with _open_hdf5(path) as content:
        yield content


def try_hdf5(path: str) -> None:
    """Read the coords and one vector of an HDF5 file, to detect damage in a child process."""
    with _open_hdf5(Path(path)) as content:
        content.features[:1]
        if content.coords is not None:
            content.coords[...]


@contextmanager
def _open_hdf5(path: Path) -> Iterator[FeatureContent]:
    h5py = _import_library("h5py", path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise ImageError(
            f"{path}: not an HDF5 file, or damaged ({shorten(error)}); compute the features again"
        ) from error
    is_anndata = path.suffix.lower() == ".h5ad"
    with file:
        with format_errors(path):
            check_links(file)
            found = _anndata_arrays(file) if is_anndata else map(file.get, (FEATURES, COORDS))
            arrays = [x if isinstance(x, h5py.Dataset) else None for x in found]
            missing = _check_datasets(path, [x for x in arrays if x is not None])
            if is_anndata:
                content = _anndata_content(path, file)
            else:
                vectors, coords = arrays
                content = _merge_attributes(path, list(file), file.attrs, vectors, coords)
        yield replace(content, missing=missing)


def _check_datasets(path: Path, datasets: Iterable[Any]) -> tuple[int, int]:
    """Check HDF5 datasets; return the numbers of their missing chunks and of all their chunks."""
    found = []
    for dataset in datasets:
        check_dataset(dataset, path)
        found.append(count_missing_chunks(dataset))
    return sum(n for n, _ in found), sum(n for _, n in found)


# --- Zarr ---------------------------------------------------------------------------------------


@contextmanager
def open_zarr(path: Path) -> Iterator[FeatureContent]:
    """Open a Zarr folder with the arrays `features` and `coords`."""
    _import_library("zarr", path)
    from ..images.zarr_store import ZarrFolder

    check = partial(_check_chunks, file_size(path))
    with format_errors(path):
        folder = ZarrFolder(path, MAX_CHUNK_BYTES, check)
        names = folder.arrays
        opened = {name: folder.open(name) for name in (FEATURES, COORDS) if name in names}
        vectors, coords = (
            _ZarrRows(path, opened[name].array) if name in opened else None
            for name in (FEATURES, COORDS)
        )
        attribute_sets = [folder.attributes(name) for name in ("", *opened)]
        content = _merge_attributes(path, names, {}, vectors, coords, attribute_sets)
        missing = (
            sum(x.n_missing for x in opened.values()),
            sum(x.n_chunks for x in opened.values()),
        )
    yield replace(content, missing=missing)


class _ZarrRows:
    """Zarr array that raises ImageError, with the name of the file, if it cannot be read."""

    def __init__(self, path: Path, array: Any) -> None:
        self._path, self._array = path, array
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        with format_errors(self._path):
            return np.asarray(self._array[rows])


def _check_chunks(file_bytes: int, path: str, metadata: ZarrArray) -> None:
    """Raise an error if the chunks of the array at `path` are too large or too many."""
    check_chunk_size(path, metadata.inner_chunk_bytes, file_bytes)
    n_chunks = math.prod(metadata.grid) * math.prod(metadata.chunks_per_shard)
    if n_chunks > MAX_CHUNKS:
        raise UnreadableContentError(
            f"the array {path!r} has {n_chunks} chunks, more than {MAX_CHUNKS}; save it again "
            "with larger chunks"
        )


# --- all formats --------------------------------------------------------------------------------


def _merge_attributes(
    path: Path,
    names: Sequence[str],
    attributes: Mapping[str, Any],
    vectors: Any,
    coords: Any,
    attribute_sets: Sequence[Mapping[str, Any]] = (),
) -> FeatureContent:
    """Return content with the attributes of the file, the features and the coords.

    If two of these have an attribute of the same name, the later one is used. `attribute_sets`,
    unless empty, replaces `attributes` and the attributes of both arrays.
    """
    if vectors is None:
        available = ", ".join(sorted(names)) or "none"
        raise ImageError(f"{path}: no array {FEATURES!r}; the file has: {available}")
    attribute_sets = attribute_sets or [
        attributes,
        *(getattr(x, "attrs", {}) for x in (vectors, coords)),
    ]
    values = {name: source[name] for source in attribute_sets for name in ATTRIBUTES & set(source)}
    return FeatureContent(vectors, coords, values)


def check_libraries(paths: Iterable[Any]) -> None:
    """Raise ImageError if a package that reads one of the feature files is not installed."""
    first_of = {path.suffix.lower(): path for path in paths if isinstance(path, Path)}
    for suffix in LIBRARIES.keys() & first_of:
        _import_library(LIBRARIES[suffix], first_of[suffix])


def _import_library(name: str, path: Path) -> Any:
    """Return an imported package; if it is missing, raise ImageError for the file `path`."""
    try:
        return import_optional(name, _DEPENDENCY_GROUP, str(path))
    except ImportError as error:
        raise ImageError(str(error)) from error


@contextmanager
def format_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of libraries, on damaged files, to ImageError with the file name."""
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError, ImageError):
        raise
    except UnreadableContentError as error:
        raise ImageError(f"{path}: {error}") from error
    except Exception as error:  # libraries raise many types on damaged files
        raise ImageError(
            f"{path}: part of the file cannot be read ({type(error).__name__}: "
            f"{shorten(error)}); compute the features again"
        ) from error


def to_python(value: Any) -> Any:
    """Convert an attribute of HDF5, NumPy or Zarr to Python; missing and "None" become None."""
    if getattr(value, "shape", ()) is None:  # h5py.Empty, which anndata writes for None
        return None
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, tuple):
        value = list(value)
    return None if isinstance(value, str) and value == "None" else value


def write_hdf5(
    path: Path,
    blocks: Iterable[tuple[NDArray[Any], NDArray[np.int64]]],
    dtype: type,
    attributes: Mapping[str, Mapping[str, Any]],
) -> int:
    """Write a feature file with the names of TRIDENT, and return the number of vectors.

    Without vectors no dataset is written, as the length of a vector is unknown.

    Parameters
    ----------
    path : new file
    blocks : successive blocks of vectors (n, length) and coords (n, 2)
    dtype : type of the stored vectors
    attributes : attributes of each dataset, by its name; "" is the name of the file itself
    """
    h5py = _import_library("h5py", path)
    with h5py.File(path, "w") as file:
        for vectors, coords in blocks:
            for name, rows in ((FEATURES, vectors.astype(dtype)), (COORDS, coords)):
                if name not in file:
                    chunk = (min(_CHUNK_ROWS, len(rows)), rows.shape[1])
                    maxshape = (None, rows.shape[1])
                    file.create_dataset(name, data=rows, maxshape=maxshape, chunks=chunk)
                    continue
                file[name].resize(len(file[name]) + len(rows), axis=0)
                file[name][-len(rows) :] = rows
        for name, values in attributes.items():
            target = file.get(name or "/", file)
            target.attrs.update(values)
        return len(file[COORDS]) if COORDS in file else 0


# --- AnnData ------------------------------------------------------------------------------------
# Vectors are in obsm["features"] or, without it, in X; only the requested rows of a sparse X are
# decompressed. obsm["spatial"] contains the centres of patches in level-0 pixels, as in Visium and
# squidpy, and uns["spatial"] the side of a patch. In files of LazySlide (wsidata), which have
# uns["tile_spec"], obsm["spatial"] contains the upper left corners.

_SPATIAL = "spatial"
# Origin of attributes, for messages.
_ANNDATA_NAMES = {
    "patch_size_level0": "uns['spatial'] (spot_diameter_fullres) or uns['histodict']['patch_side']",
    "level0_mpp": "uns['histodict']['mpp']",
}
_LAZYSLIDE_NAMES = {
    "patch_size": "uns['tile_spec']['width']",
    "patch_size_level0": "uns['tile_spec'] (width times base_downsample)",
    "overlap": "uns['tile_spec'] (width minus stride_width)",
    "target_magnification": "uns['tile_spec'] (magnification from mpp or base_downsample)",
    "level0_mpp": "uns['slide_properties']['mpp']",
}
_MAX_VALUES = 100  # of a dataset that should contain one or two numbers


def _anndata_arrays(file: Any) -> list[Any]:
    """Return the datasets of an AnnData file with vectors and positions; None for missing ones."""
    vectors = file.get(f"obsm/{FEATURES}", file.get("X"))
    parts = [vectors, file.get(f"obsm/{_SPATIAL}")]
    if hasattr(vectors, "keys"):
        parts += [vectors.get(name) for name in ("data", "indices", "indptr")]
    return parts


def _anndata_content(path: Path, file: Any) -> FeatureContent:
    """Return the content of an open AnnData file."""
    if "obsm" not in file or ("X" not in file and FEATURES not in file["obsm"]):
        raise ImageError(f"{path}: not an AnnData file: X or obsm is missing")
    if _SPATIAL not in file["obsm"]:
        raise ImageError(
            f"{path}: obsm['spatial'] is missing; it contains x and y of the patch centres in "
            "level-0 pixels"
        )
    attributes, offset, are_corners = _anndata_attributes(path, file)
    coords = file["obsm"][_SPATIAL]
    if getattr(coords, "ndim", 0) != 2 or coords.shape[1] < 2 or coords.dtype.kind not in "iuf":
        raise ImageError(
            f"{path}: obsm['spatial'] must be a numeric array with the columns x and y"
        )
    _check_read_whole(path, coords)
    positions = np.asarray(coords[:, :2], dtype=np.float64) + offset
    names = _LAZYSLIDE_NAMES if are_corners else _ANNDATA_NAMES
    vectors = _anndata_features(path, file)
    return FeatureContent(vectors, positions, attributes, names=names, are_centres=not are_corners)


def _check_read_whole(path: Path, dataset: Any) -> None:
    """Raise ValueError if a dataset is not numeric, or too large to be read at once."""
    if np.dtype(dataset.dtype).kind not in "iuf":
        raise ValueError(f"{dataset.name} is not numeric")
    n_bytes = math.prod(dataset.shape) * dataset.dtype.itemsize
    check_array_size(dataset.name, n_bytes, path.stat().st_size)


def _anndata_features(path: Path, file: Any) -> Any:
    """Return the vectors of an open AnnData file, as a dataset or `_SparseRows`."""
    vectors = file["obsm"][FEATURES] if FEATURES in file["obsm"] else file["X"]
    kind = vectors.attrs.get("encoding-type", "array")
    if kind == "csr_matrix":
        _check_read_whole(path, vectors["indptr"])
        return _SparseRows(vectors)
    if kind != "array":
        raise ImageError(
            f"{path}: unsupported encoding {short(kind)} of the vectors; supported are arrays "
            "and CSR matrices"
        )
    if not isinstance(vectors, _import_library("h5py", path).Dataset):
        raise ImageError(f"{path}: the vectors are declared as an array, but are none")
    return vectors


class _SparseRows:
    """CSR matrix in a file, whose slices are dense arrays; damage raises ValueError."""

    def __init__(self, group: Any) -> None:
        self.shape = tuple(int(n) for n in group.attrs["shape"])
        self._data, self._indices = group["data"], group["indices"]
        self.dtype = self._data.dtype
        self._ends: NDArray[np.int64] = group["indptr"][...].astype(np.int64)
        is_whole = len(self._ends) == self.shape[0] + 1 and self._ends[0] == 0
        lengths = np.diff(self._ends)
        if not is_whole or (lengths < 0).any() or self._ends[-1] > len(self._data):
            raise ValueError("the sparse matrix has invalid row pointers")
        if lengths.max(initial=0) > self.shape[1]:
            raise ValueError("the sparse matrix has more values in a row than columns")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        from scipy.sparse import csr_array

        start, stop, _ = rows.indices(self.shape[0])
        ends = self._ends[start : stop + 1]
        values = slice(ends[0], ends[-1])
        columns = self._indices[values]
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            raise ValueError("the sparse matrix has invalid column indices")
        parts = self._data[values], columns, ends - ends[0]
        dense: NDArray[Any] = csr_array(parts, shape=(stop - start, self.shape[1])).toarray()
        return dense


def _anndata_attributes(path: Path, file: Any) -> tuple[dict[str, Any], NDArray[np.float64], bool]:
    """Return attributes, (x, y) of the image's upper left pixel, and whether coords are corners."""
    uns = _get_group(file, "uns")
    tiles = _get_group(uns, "tile_spec")
    if tiles is not None:
        return (
            _lazyslide_attributes(path, tiles, _get_group(uns, "slide_properties")),
            np.zeros(2),
            True,
        )
    found: dict[str, Any] = {}
    spatial = _get_group(uns, _SPATIAL)
    for name in spatial if spatial is not None else ():
        factors = _get_group(_get_group(spatial, name), "scalefactors")
        found |= _read_values(factors, {"patch_size_level0": "spot_diameter_fullres"})
    settings = _get_group(uns, "histodict")
    found |= _read_values(settings, {"patch_size_level0": "patch_side", "level0_mpp": "mpp"})
    geometry = _read_values(settings, {"offset": "offset", "size": "size"})
    offset = _parse_pair(path, "uns['histodict']['offset']", geometry.get("offset", (0, 0)), 0)
    if "size" in geometry:
        size = _parse_pair(path, "uns['histodict']['size']", geometry["size"], 1)
        found |= dict(zip(("level0_width", "level0_height"), size + offset, strict=True))
    digest = _read_values(settings, {"digest": "model_digest"}).get("digest")
    if isinstance(digest, bytes | str) and FEATURES not in file["obsm"]:
        text = digest.decode("utf-8", "replace") if isinstance(digest, bytes) else digest
        found["encoder"] = f"codes of the model {text[:12]}"
    return found, offset, False


def _lazyslide_attributes(path: Path, tiles: Any, slide: Any) -> dict[str, Any]:
    """Return attributes from the `TileSpec` and `SlideProperties` of LazySlide (wsidata)."""
    names = ("width", "height", "stride_width", "stride_height", "base_downsample", "mpp")
    spec = _read_numbers(path, "tile_spec", tiles, names)
    properties = _read_numbers(path, "slide_properties", slide, ("mpp", "magnification"))
    for one, other in (("width", "height"), ("stride_width", "stride_height")):
        if spec.get(one) != spec.get(other):
            raise ImageError(
                f"{path}: the tiles are not square (uns['tile_spec']: {one} {spec.get(one)}, "
                f"{other} {spec.get(other)}); use square tiles with equal strides and compute "
                "the features again"
            )
    found: dict[str, Any] = {}
    width, downsample = spec.get("width"), spec.get("base_downsample")
    if width is not None:
        found["patch_size"] = width
        if "stride_width" in spec:
            found["overlap"] = width - spec["stride_width"]
        if downsample is not None:
            # As LazySlide computes it.
            found["patch_size_level0"] = float(np.floor(width * downsample))
    if "mpp" in properties:
        found["level0_mpp"] = properties["mpp"]
    mpp = spec.get("mpp")
    if mpp is None and downsample is not None and "mpp" in properties:
        mpp = properties["mpp"] * downsample
    if mpp is not None:
        found["target_magnification"] = MAGNIFICATION_AT_1_UM / mpp
    elif downsample is not None and "magnification" in properties:
        found["target_magnification"] = properties["magnification"] / downsample
    shape = _read_values(slide, {"shape": "shape"}).get("shape")
    if shape is not None:
        height, width = _parse_pair(path, "uns['slide_properties']['shape']", shape, 1)
        found |= {"level0_width": width, "level0_height": height}
    return found


def _read_numbers(path: Path, parent: str, group: Any, names: Iterable[str]) -> dict[str, float]:
    """Return the positive numbers with these names in a group, which is named `parent`."""
    found = {}
    for name, value in _read_values(group, {name: name for name in names}).items():
        plain = to_python(value)
        if plain is None:
            continue
        if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 < plain < 1e9:
            raise _error(path, f"uns[{parent!r}][{name!r}]", plain, "a number greater than 0")
        found[name] = float(plain)
    return found


def _parse_pair(path: Path, name: str, value: Any, minimum: int) -> NDArray[np.float64]:
    """Return two whole numbers of at least `minimum`; raise ImageError for any other value."""
    expected = f"two whole numbers from {minimum} to {MAX_LENGTH:,}"
    plain = to_python(value)
    try:
        pair = np.asarray(plain, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise _error(path, name, plain, expected) from error
    if pair.shape != (2,) or not ((pair >= minimum) & (pair <= MAX_LENGTH)).all():
        raise _error(path, name, plain, expected)
    return np.rint(pair)


def _error(path: Path, name: str, value: Any, expected: str) -> ImageError:
    return ImageError(
        f"{path}: {name} must be {expected}, not {short(value)}; write the file again"
    )


def _get_group(parent: Any, name: str) -> Any:
    """Return the subgroup with this name; None if it or the parent is missing."""
    found = parent.get(name) if parent is not None else None
    return found if hasattr(found, "keys") else None


def _read_values(group: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return existing values of a group by new name; `names` maps these names to keys."""
    found = {}
    for name, key in names.items() if group is not None else ():
        dataset = group.get(key)
        if hasattr(dataset, "dtype"):
            # A large value is not read; it is rejected later, as it is not a number.
            found[name] = dataset[()] if (dataset.size or 0) <= _MAX_VALUES else dataset
    return found


# --- .npz ---------------------------------------------------------------------------------------

_NPY_SUFFIX = ".npy"
_COMPRESSIONS = (ZIP_STORED, ZIP_DEFLATED)  # LZMA takes as much memory as the file states
_MAX_HEADER_BYTES = 10_000
_MAX_VALUE_BYTES = 2**20


@contextmanager
def open_npz(path: Path) -> Iterator[FeatureContent]:
    """Open an .npz file with the arrays features and coords, and one array per attribute."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(ZipFile(path))
            members = {
                member.filename.removesuffix(_NPY_SUFFIX): member
                for member in file.infolist()
                if member.filename.endswith(_NPY_SUFFIX)
            }
            arrays = {
                name: _NpzArray(file, members[name], path.stat().st_size)
                for name in sorted((ATTRIBUTES | {FEATURES, COORDS}) & set(members))
            }
            attributes = {name: arrays[name].read_attribute() for name in ATTRIBUTES & set(arrays)}
        except (FileNotFoundError, PermissionError):
            raise
        except (*NPZ_ERRORS, RuntimeError) as error:
            raise ImageError(
                f"{path}: not an .npz file, or damaged ({shorten(error)}); write it again"
            ) from error
        vectors, coords = (arrays.get(name) for name in (FEATURES, COORDS))
        yield _merge_attributes(path, sorted(members), attributes, vectors, coords)


class _NpzArray:
    """Array in an .npz file, whose size is checked; it is read when it is first indexed."""

    def __init__(self, file: ZipFile, member: ZipInfo, file_bytes: int) -> None:
        self._file, self._member, self._file_bytes = file, member, file_bytes
        if member.compress_type not in _COMPRESSIONS:
            raise ValueError(
                f"{member.filename} has an unsupported compression; only deflate is supported"
            )
        with file.open(member) as stream:
            # Not all of the header: a damaged one may have gigabytes.
            head = BytesIO(stream.read(_MAX_HEADER_BYTES))
        self.shape, self._is_fortran, self.dtype = _read_header(head)
        self._start = head.tell()
        self.n_bytes = math.prod(self.shape) * self.dtype.itemsize
        if self.dtype.hasobject or self._start + self.n_bytes != member.file_size:
            raise ValueError(f"{member.filename} does not have the length stated in its header")
        self._values: NDArray[Any] | None = None

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if self._values is None:
            try:
                self._values = self._read()
            except (zlib.error, EOFError, BadZipFile) as error:
                raise ValueError(f"{self._member.filename} is damaged: {error}") from error
        found: NDArray[Any] = self._values[index]
        return found

    def read_attribute(self) -> NDArray[Any]:
        """Return the array; raise ValueError if it is too large for an attribute."""
        if self.n_bytes > _MAX_VALUE_BYTES:
            raise ValueError(f"{self._member.filename} is too large for an attribute")
        return self[...]

    def _read(self) -> NDArray[Any]:
        check_array_size(self._member.filename, self.n_bytes, self._file_bytes)
        with self._file.open(self._member) as stream:
            stream.read(self._start)
            data = stream.read(self.n_bytes)
            if len(data) != self.n_bytes or stream.read(1):  # the end verifies the checksum
                raise ValueError(f"{self._member.filename} is truncated")
        values: NDArray[Any] = np.frombuffer(data, self.dtype)
        is_fortran = self._is_fortran
        return values.reshape(self.shape[::-1]).T if is_fortran else values.reshape(self.shape)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and data type of an .npy file."""
    version = npy.read_magic(stream)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the .npy format is not supported")
    shape, is_fortran, dtype = read(stream, max_header_size=_MAX_HEADER_BYTES)
    if any(length < 0 for length in shape):
        raise ValueError("a negative length")
    return shape, is_fortran, dtype
