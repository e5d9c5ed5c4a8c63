"""How AnnData lies in an HDF5 file: elements that say what they are (anndata 0.8 and later).

Written with h5py alone, so that the rows of a matrix can come one block after another, and no
package is needed to write that asks for another version of pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_VERSIONS = {
    "anndata": "0.1.0",
    "csr_matrix": "0.1.0",
    "dict": "0.1.0",
    "array": "0.2.0",
    "categorical": "0.2.0",
    "dataframe": "0.2.0",
    "numeric-scalar": "0.2.0",
    "string": "0.2.0",
    "string-array": "0.2.0",
}
_BLOCK = 65_536  # of numbers that are packed together, and of names that are made at a time
_PACKED = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


def load_h5py(what: str) -> Any:
    """The package; `what` it is needed for, said where it is missing."""
    try:
        return import_module("h5py")
    except ImportError as error:
        raise ImportError(
            f"{what} needs h5py, which is not installed: pip install 'histodict[anndata]'"
        ) from error


def set_encoding(element: Any, kind: str) -> Any:
    """Says of a group or a dataset what it is."""
    element.attrs["encoding-type"] = kind
    element.attrs["encoding-version"] = _VERSIONS[kind]
    return element


@dataclass(frozen=True)
class Categorical:
    """Per row the place of its name, -1 where it has none."""

    codes: NDArray[Any]
    names: list[str]

    @classmethod
    def constant(cls, name: str, n_rows: int) -> Categorical:
        return cls(np.zeros(n_rows, np.int8), [name])

    @classmethod
    def of(cls, values: Iterable[str]) -> Categorical:
        names, codes = np.unique(np.array(list(values), dtype=object), return_inverse=True)
        return cls(codes.astype(np.int32), [str(name) for name in names])


@dataclass(frozen=True)
class LazyIndex:
    """One per row, made when they are written: of a slide's patches there are millions."""

    n_rows: int
    make: Callable[[slice], list[str]]


# --- values, each written as what it is ----------------------------------------------------------


@singledispatch
def write(value: Any, group: Any, name: str) -> None:
    """An element of this name in a group."""
    raise TypeError(f"{name}: an .h5ad file has no place for a {type(value).__name__}")


@write.register
def _(value: None, group: Any, name: str) -> None:
    """What is not known is not there."""


@write.register
def _(value: str, group: Any, name: str) -> None:
    set_encoding(group.create_dataset(name, data=value, dtype=_text()), "string")


@write.register(bool)
@write.register(int)
@write.register(float)
@write.register(np.number)
def _(value: float, group: Any, name: str) -> None:
    set_encoding(group.create_dataset(name, data=value), "numeric-scalar")


@write.register(dict)
def _(value: Mapping[str, Any], group: Any, name: str) -> None:
    inside = set_encoding(group.create_group(name), "dict")
    for key, part in value.items():
        write(part, inside, plain(key))


@write.register
def _(value: np.ndarray, group: Any, name: str) -> None:
    how = _PACKED if value.size > 1 else {}
    set_encoding(group.create_dataset(name, data=value, **how), "array")


@write.register(list)
@write.register(tuple)
def _(value: list[str], group: Any, name: str) -> None:
    write(LazyIndex(len(value), lambda rows: list(value[rows])), group, name)


@write.register
def _(value: LazyIndex, group: Any, name: str) -> None:
    how = _PACKED if value.n_rows > 1 else {}
    found = set_encoding(
        group.create_dataset(name, (value.n_rows,), _text(), **how), "string-array"
    )
    for start in range(0, value.n_rows, _BLOCK):
        rows = slice(start, min(start + _BLOCK, value.n_rows))
        found[rows] = value.make(rows)


@write.register
def _(value: Categorical, group: Any, name: str) -> None:
    inside = set_encoding(group.create_group(name), "categorical")
    inside.attrs["ordered"] = False
    write(value.codes, inside, "codes")
    write(value.names, inside, "categories")


def write_frame(group: Any, name: str, index: LazyIndex, columns: Mapping[str, Any]) -> None:
    """A table of columns, each an array or a `Categorical`, with the names of its rows."""
    inside = set_encoding(group.create_group(name), "dataframe")
    names = [plain(column) for column in columns]
    inside.attrs["_index"] = "_index"
    inside.attrs.create("column-order", np.array(names, dtype=object), dtype=_text())
    write(index, inside, "_index")
    for column, values in zip(names, columns.values(), strict=True):
        write(values, inside, column)


def plain(name: str) -> str:
    """A name for a key: in HDF5 a slash parts names, and the fraction slash looks the same."""
    return name.replace("/", "\N{FRACTION SLASH}")


def _text() -> Any:
    return import_module("h5py").string_dtype()


# --- a sparse matrix whose rows come block by block ----------------------------------------------


class SparseRows:
    """A CSR matrix in a group; `add` appends rows, `end` says how many there were."""

    def __init__(self, group: Any, name: str, n_columns: int) -> None:
        self._group = set_encoding(group.create_group(name), "csr_matrix")
        self._n_columns = n_columns
        self._counts: list[NDArray[np.int64]] = []
        self._parts = {
            part: self._group.create_dataset(
                part, (0,), kind, maxshape=(None,), chunks=(_BLOCK,), **_PACKED
            )
            for part, kind in (("data", np.float32), ("indices", np.int32))
        }

    def add(self, rows: csr_array) -> None:
        rows.eliminate_zeros()
        self._counts.append(np.diff(rows.indptr).astype(np.int64))
        for name, dataset in self._parts.items():
            before = len(dataset)
            dataset.resize(before + rows.nnz, axis=0)
            dataset[before:] = getattr(rows, name)

    def end(self) -> None:
        counts = np.concatenate([np.zeros(1, np.int64), *self._counts])
        ends = np.cumsum(counts)
        kind = np.int32 if ends[-1] <= np.iinfo(np.int32).max else np.int64
        self._group.create_dataset("indptr", data=ends.astype(kind), **_PACKED)
        self._group.attrs["shape"] = np.array([len(ends) - 1, self._n_columns])

    def count(self, labels: NDArray[Any], n_labels: int) -> NDArray[np.int64]:
        """Per label and column in how many rows the column is not 0: (n_labels, n_columns)."""
        ends = np.concatenate([[0], np.cumsum(np.concatenate([[0], *self._counts]))[1:]])
        found = np.zeros(n_labels * self._n_columns, np.int64)
        for start in range(0, len(labels), _BLOCK):
            stop = min(start + _BLOCK, len(labels))
            columns = self._parts["indices"][ends[start] : ends[stop]]
            own = np.repeat(labels[start:stop], np.diff(ends[start : stop + 1]))
            places = own.astype(np.int64) * self._n_columns + columns
            found += np.bincount(places, minlength=len(found))
        return found.reshape(n_labels, self._n_columns)
