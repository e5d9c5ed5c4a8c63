"""Vectors in a file of AnnData (.h5ad): of `obsm["features"]` where it is there, else `X`.

`obsm["spatial"]` are the centres of patches, as Visium and squidpy have them, in level-0 pixels;
`uns["spatial"]` says how wide a patch is. Of X that is sparse only the rows asked for are unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ImageError
from .feature_formats import FEATURES, Content, check_datasets, check_hdf5, opened_hdf5, reading
from .feature_sizes import check_whole

_SPATIAL = "spatial"


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
    """The arrays of chunks that vectors and places are read from."""
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
    told = _told(file)
    _check_whole(path, file["obsm"][_SPATIAL])
    corners = np.asarray(file["obsm"][_SPATIAL][...], dtype=np.float64)[:, :2]
    corners = corners - told.get("patch_size_level0", 0.0) / 2 + told.pop("offset")
    # A round spot at the border may reach beyond it.
    return Content(_vectors(path, file), np.maximum(np.rint(corners), 0), told)


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
            f"{path}: its vectors are stored as {kind!r}: they must be an array, or sparse by rows "
            "(CSR)"
        )
    if not isinstance(chosen, import_module("h5py").Dataset):
        raise ImageError(f"{path}: its vectors are said to be an array, and are none")
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


def _told(file: Any) -> dict[str, Any]:
    """What there is to know of the patches, by the names that feature files have for it."""
    told: dict[str, Any] = {"offset": np.zeros(2)}
    spatial = file.get(f"uns/{_SPATIAL}")
    for part in spatial.values() if spatial is not None else ():
        _take(told, part.get("scalefactors"), {"patch_size_level0": "spot_diameter_fullres"})
    own = file.get("uns/histodict")
    names = {"patch_size_level0": "patch_side", "level0_mpp": "mpp", "offset": "offset"}
    _take(told, own, names)
    if own is not None and "size" in own:
        width, height = own["size"][...] + told["offset"]
        told |= {"level0_width": width, "level0_height": height}
    if own is not None and "model_digest" in own and FEATURES not in file["obsm"]:
        told["encoder"] = f"codes of the model {own['model_digest'].asstr()[()][:12]}"
    return told


def _take(told: dict[str, Any], home: Any, names: Mapping[str, str]) -> None:
    for name, there in names.items() if home is not None else ():
        if there in home:
            told[name] = home[there][()]
