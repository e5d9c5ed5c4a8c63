"""Vectors in a file of AnnData (.h5ad): of `obsm["features"]` where it is there, else `X`.

`obsm["spatial"]` are the centres of patches, as Visium and squidpy have them, in level-0 pixels;
`uns["spatial"]` is the width of a patch. In files of LazySlide (wsidata), which have
`uns["tile_spec"]`, they are the upper left corners. Only the requested rows of a sparse X are
decompressed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ImageError
from .feature_attributes import MAGNIFICATION_AT_1_UM, MAX_LENGTH, Metadata, to_python
from .feature_formats import FEATURES, Content, check_datasets, check_hdf5, opened_hdf5, reading
from .feature_sizes import check_whole

_SPATIAL = "spatial"
# Where attributes come from, for messages.
_NAMES = {
    "patch_size_level0": "uns['spatial'] (spot_diameter_fullres) or uns['histodict']['patch_side']",
    "level0_mpp": "uns['histodict']['mpp']",
}
_LAZYSLIDE_NAMES = {
    "patch_size": "uns['tile_spec']['width']",
    "patch_size_level0": "uns['tile_spec'] (width times base_downsample)",
    "overlap": "uns['tile_spec'] (width less stride_width)",
    "target_magnification": "uns['tile_spec'] (magnification by mpp or base_downsample)",
    "level0_mpp": "uns['slide_properties']['mpp']",
}
_MOST_VALUES = 100  # of an element that should hold one or two numbers


@contextmanager
def open_h5ad(path: Path) -> Iterator[Content]:
    check_hdf5(path)
    with open_h5ad_here(path) as content:
        yield content


@contextmanager
def open_h5ad_here(path: Path) -> Iterator[Content]:
    """Without another process that looks first."""
    with opened_hdf5(path) as file:
        with reading(path):
            missing = check_datasets(path, _arrays_read(file))
            content = replace(_content(path, file), missing=missing)
        yield content


def _arrays_read(file: Any) -> list[Any]:
    """Return the arrays that hold vectors and positions."""
    kind = import_module("h5py").Dataset
    chosen = file.get(f"obsm/{FEATURES}", file.get("X"))
    parts = [chosen, file.get(f"obsm/{_SPATIAL}")]
    if chosen is not None and not isinstance(chosen, kind):
        parts += [chosen.get(name) for name in ("data", "indices", "indptr")]
    return [part for part in parts if isinstance(part, kind)]


def _content(path: Path, file: Any) -> Content:
    if "obsm" not in file or ("X" not in file and FEATURES not in file["obsm"]):
        raise ImageError(f"{path}: is no AnnData file: it has no X, or no obsm")
    if _SPATIAL not in file["obsm"]:
        raise ImageError(
            f"{path}: says nothing of where the patches lie; it must have obsm['spatial'], x and y "
            "of their centres in level-0 pixels"
        )
    attributes, offset, are_corners = _attributes(path, file)
    coords = file["obsm"][_SPATIAL]
    if getattr(coords, "ndim", 0) != 2 or coords.shape[1] < 2 or coords.dtype.kind not in "iuf":
        raise ImageError(
            f"{path}: its obsm['spatial'] must be an array of numbers with the columns x and y"
        )
    _check_whole(path, coords)
    corners = np.asarray(coords[:, :2], dtype=np.float64) + offset
    metadata = Metadata(path, attributes, _LAZYSLIDE_NAMES if are_corners else _NAMES)
    if not are_corners:
        # A round spot may extend beyond the border of the image.
        corners = np.maximum(np.rint(corners - (metadata.side or 0.0) / 2), 0)
    return Content(_vectors(path, file), corners, attributes)


def _check_whole(path: Path, dataset: Any) -> None:
    if np.dtype(dataset.dtype).kind not in "iuf":
        raise ValueError(f"{dataset.name} holds no numbers")
    n_bytes = math.prod(dataset.shape) * dataset.dtype.itemsize
    check_whole(dataset.name, n_bytes, path.stat().st_size)


def _vectors(path: Path, file: Any) -> Any:
    chosen = file["obsm"][FEATURES] if FEATURES in file["obsm"] else file["X"]
    kind = chosen.attrs.get("encoding-type", "array")
    if kind == "csr_matrix":
        _check_whole(path, chosen["indptr"])
        return _SparseRows(chosen)
    if kind != "array":
        raise ImageError(
            f"{path}: its vectors are stored as {short(kind)}: they must be an array, or sparse "
            "by rows (CSR)"
        )
    if not isinstance(chosen, import_module("h5py").Dataset):
        raise ImageError(f"{path}: its vectors are declared as an array but are not one")
    return chosen


class _SparseRows:
    """A CSR matrix in a file; a slice of it is an array. What is damaged raises a ValueError."""

    def __init__(self, group: Any) -> None:
        self.shape = tuple(int(n) for n in group.attrs["shape"])
        self._data, self._indices = group["data"], group["indices"]
        self.dtype = self._data.dtype
        self._ends: NDArray[np.int64] = group["indptr"][...].astype(np.int64)
        is_whole = len(self._ends) == self.shape[0] + 1 and self._ends[0] == 0
        lengths = np.diff(self._ends)
        if not is_whole or (lengths < 0).any() or self._ends[-1] > len(self._data):
            raise ValueError("the rows of its sparse matrix do not follow each other")
        if lengths.max(initial=0) > self.shape[1]:
            raise ValueError("a row of its sparse matrix has more values than columns")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        from scipy.sparse import csr_array

        start, stop, _ = rows.indices(self.shape[0])
        ends = self._ends[start : stop + 1]
        own = slice(ends[0], ends[-1])
        columns = self._indices[own]
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            raise ValueError("its sparse matrix has a column too many")
        parts = self._data[own], columns, ends - ends[0]
        found: NDArray[Any] = csr_array(parts, shape=(stop - start, self.shape[1])).toarray()
        return found


def _attributes(path: Path, file: Any) -> tuple[dict[str, Any], NDArray[np.float64], bool]:
    """Return attributes by the names of feature files, the offset of the image in OpenSlide's
    coordinates, and whether `obsm["spatial"]` holds corners.
    """
    uns = _group(file, "uns")
    tiles = _group(uns, "tile_spec")
    if tiles is not None:
        return _of_lazyslide(path, tiles, _group(uns, "slide_properties")), np.zeros(2), True
    found: dict[str, Any] = {}
    spatial = _group(uns, _SPATIAL)
    for name in spatial if spatial is not None else ():
        factors = _group(_group(spatial, name), "scalefactors")
        found |= _values(factors, {"patch_size_level0": "spot_diameter_fullres"})
    own = _group(uns, "histodict")
    found |= _values(own, {"patch_size_level0": "patch_side", "level0_mpp": "mpp"})
    place = _values(own, {"offset": "offset", "size": "size"})
    offset = _pair(path, "uns['histodict']['offset']", place.get("offset", (0, 0)), 0)
    if "size" in place:
        size = _pair(path, "uns['histodict']['size']", place["size"], 1)
        found |= dict(zip(("level0_width", "level0_height"), size + offset, strict=True))
    digest = _values(own, {"digest": "model_digest"}).get("digest")
    if isinstance(digest, bytes | str) and FEATURES not in file["obsm"]:
        text = digest.decode("utf-8", "replace") if isinstance(digest, bytes) else digest
        found["encoder"] = f"codes of the model {text[:12]}"
    return found, offset, False


def _of_lazyslide(path: Path, tiles: Any, slide: Any) -> dict[str, Any]:
    """Return attributes from `TileSpec` and `SlideProperties` of wsidata, used by LazySlide.

    Its tiles have a side of `int(width * base_downsample)` level-0 pixels.
    """
    names = ("width", "height", "stride_width", "stride_height", "base_downsample", "mpp")
    spec = _numbers(path, "tile_spec", tiles, names)
    known = _numbers(path, "slide_properties", slide, ("mpp", "magnification"))
    for one, other in (("width", "height"), ("stride_width", "stride_height")):
        if spec.get(one) != spec.get(other):
            raise ImageError(
                f"{path}: its tiles are not square (uns['tile_spec']: {one} "
                f"{spec.get(one)}, {other} {spec.get(other)}): cut square tiles, with the same "
                "stride both ways, and compute the features again"
            )
    found: dict[str, Any] = {}
    width, reduced = spec.get("width"), spec.get("base_downsample")
    if width is not None:
        found["patch_size"] = width
        if "stride_width" in spec:
            found["overlap"] = width - spec["stride_width"]
        if reduced is not None:
            found["patch_size_level0"] = float(np.floor(width * reduced))
    if "mpp" in known:
        found["level0_mpp"] = known["mpp"]
    mpp = spec.get("mpp")
    if mpp is None and reduced is not None and "mpp" in known:
        mpp = known["mpp"] * reduced
    if mpp is not None:
        found["target_magnification"] = MAGNIFICATION_AT_1_UM / mpp
    elif reduced is not None and "magnification" in known:
        found["target_magnification"] = known["magnification"] / reduced
    shape = _values(slide, {"shape": "shape"}).get("shape")
    if shape is not None:
        height, width = _pair(path, "uns['slide_properties']['shape']", shape, 1)
        found |= {"level0_width": width, "level0_height": height}
    return found


def _numbers(path: Path, home: str, group: Any, names: Iterable[str]) -> dict[str, float]:
    """Return positive numbers of a group, without missing ones."""
    found = {}
    for name, value in _values(group, {name: name for name in names}).items():
        plain = to_python(value)
        if plain is None:
            continue
        if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 < plain < 1e9:
            raise _error(path, f"uns[{home!r}][{name!r}]", plain, "a number greater than 0")
        found[name] = float(plain)
    return found


def _pair(path: Path, name: str, value: Any, low: int) -> NDArray[np.float64]:
    words = f"two whole numbers from {low} to {MAX_LENGTH:,}"
    plain = to_python(value)
    try:
        pair = np.asarray(plain, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise _error(path, name, plain, words) from error
    if pair.shape != (2,) or not ((pair >= low) & (pair <= MAX_LENGTH)).all():
        raise _error(path, name, plain, words)
    return np.rint(pair)


def _error(path: Path, name: str, value: Any, words: str) -> ImageError:
    return ImageError(
        f"{path}: its {name} must be {words}, not {short(value)}: write the file again"
    )


def _group(home: Any, name: str) -> Any:
    """Return the group of this name in another; None if there is no such group."""
    found = home.get(name) if home is not None else None
    return found if hasattr(found, "keys") else None


def _values(group: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return values of a group by new names, without subgroups and missing names."""
    found = {}
    for name, there in names.items() if group is not None else ():
        dataset = group.get(there)
        if hasattr(dataset, "dtype"):
            # A large value is not read; it is refused later, as it is not a number.
            found[name] = dataset[()] if (dataset.size or 0) <= _MOST_VALUES else dataset
    return found
