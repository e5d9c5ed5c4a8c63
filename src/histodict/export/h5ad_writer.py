"""Writer of AnnData elements in HDF5 files (encoding of anndata 0.8 and later).

It needs h5py only. Rows of a matrix can be written block by block, and anndata with its
requirements on pandas is not needed.
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

_ENCODING_VERSIONS = {
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
_BLOCK_SIZE = 65_536  # numbers per compressed chunk, and names formatted at a time
_COMPRESSION = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


def set_encoding(element: Any, kind: str) -> Any:
    """Set the encoding attributes of a group or dataset, and return it."""
    element.attrs["encoding-type"] = kind
    element.attrs["encoding-version"] = _ENCODING_VERSIONS[kind]
    return element


@dataclass(frozen=True)
class Categorical:
    """Categorical column.

    Attributes
    ----------
    codes : index into `names` for each row; -1 for missing
    names : names of the categories
    """

    codes: NDArray[Any]
    names: list[str]

    @classmethod
    def constant(cls, name: str, n_rows: int) -> Categorical:
        """Return a column with the same category in all rows."""
        return cls(np.zeros(n_rows, np.int8), [name])

    @classmethod
    def from_values(cls, values: Iterable[str]) -> Categorical:
        """Return a categorical column with these values, one per row."""
        names, codes = np.unique(np.array(list(values), dtype=object), return_inverse=True)
        return cls(codes.astype(np.int32), [str(name) for name in names])


@dataclass(frozen=True)
class LazyIndex:
    """Row names that are formatted in blocks while they are written, to save memory.

    Attributes
    ----------
    n_rows : number of rows
    format_names : function that returns the names of a slice of rows
    """

    n_rows: int
    format_names: Callable[[slice], list[str]]


# --- values by type -------------------------------------------------------------------------------


@singledispatch
def write(value: Any, group: Any, name: str) -> None:
    """Write a value into an HDF5 group as an element of this name; None is omitted."""
    raise TypeError(f"{name}: the type {type(value).__name__} cannot be stored in an .h5ad file")


@write.register
def _(value: None, group: Any, name: str) -> None:
    """Write nothing."""


@write.register
def _(value: str, group: Any, name: str) -> None:
    set_encoding(group.create_dataset(name, data=value, dtype=_string_dtype()), "string")


@write.register(bool)
@write.register(int)
@write.register(float)
@write.register(np.number)
def _(value: float, group: Any, name: str) -> None:
    set_encoding(group.create_dataset(name, data=value), "numeric-scalar")


@write.register(dict)
def _(value: Mapping[str, Any], group: Any, name: str) -> None:
    subgroup = set_encoding(group.create_group(name), "dict")
    for key, part in value.items():
        write(part, subgroup, escape_slashes(key))


@write.register
def _(value: np.ndarray, group: Any, name: str) -> None:
    compression = _COMPRESSION if value.size > 1 else {}
    set_encoding(group.create_dataset(name, data=value, **compression), "array")


@write.register(list)
@write.register(tuple)
def _(value: list[str], group: Any, name: str) -> None:
    write(LazyIndex(len(value), lambda rows: list(value[rows])), group, name)


@write.register
def _(value: LazyIndex, group: Any, name: str) -> None:
    compression = _COMPRESSION if value.n_rows > 1 else {}
    dataset = set_encoding(
        group.create_dataset(name, (value.n_rows,), _string_dtype(), **compression), "string-array"
    )
    for start in range(0, value.n_rows, _BLOCK_SIZE):
        rows = slice(start, min(start + _BLOCK_SIZE, value.n_rows))
        dataset[rows] = value.format_names(rows)


@write.register
def _(value: Categorical, group: Any, name: str) -> None:
    subgroup = set_encoding(group.create_group(name), "categorical")
    subgroup.attrs["ordered"] = False
    write(value.codes, subgroup, "codes")
    write(value.names, subgroup, "categories")


def write_frame(group: Any, name: str, index: LazyIndex, columns: Mapping[str, Any]) -> None:
    """Write a table as an AnnData data frame.

    Parameters
    ----------
    group : HDF5 group to write into
    name : name of the table
    index : names of the rows
    columns : array or `Categorical` per column
    """
    subgroup = set_encoding(group.create_group(name), "dataframe")
    names = [escape_slashes(column) for column in columns]
    subgroup.attrs["_index"] = "_index"
    subgroup.attrs.create("column-order", np.array(names, dtype=object), dtype=_string_dtype())
    write(index, subgroup, "_index")
    for column, values in zip(names, columns.values(), strict=True):
        write(values, subgroup, column)


def escape_slashes(name: str) -> str:
    """Return a name for use in HDF5, with slashes replaced by the similar fraction slash."""
    return name.replace("/", "\N{FRACTION SLASH}")


def _string_dtype() -> Any:
    return import_module("h5py").string_dtype()


# --- sparse matrix in blocks of rows --------------------------------------------------------------


class SparseRows:
    """Sparse matrix (CSR) in an HDF5 group, to which blocks of rows are appended."""

    def __init__(self, group: Any, name: str, n_columns: int) -> None:
        self._group = set_encoding(group.create_group(name), "csr_matrix")
        self._n_columns = n_columns
        self._counts: list[NDArray[np.int64]] = []
        self._datasets = {
            part: self._group.create_dataset(
                part, (0,), kind, maxshape=(None,), chunks=(_BLOCK_SIZE,), **_COMPRESSION
            )
            for part, kind in (("data", np.float32), ("indices", np.int32))
        }

    def add(self, rows: csr_array) -> None:
        """Append rows of a matrix."""
        rows.eliminate_zeros()
        self._counts.append(np.diff(rows.indptr).astype(np.int64))
        for name, dataset in self._datasets.items():
            before = len(dataset)
            dataset.resize(before + rows.nnz, axis=0)
            dataset[before:] = getattr(rows, name)

    def finish(self) -> None:
        """Write the row pointers and the shape; call it after the last row."""
        counts = np.concatenate([np.zeros(1, np.int64), *self._counts])
        ends = np.cumsum(counts)
        kind = np.int32 if ends[-1] <= np.iinfo(np.int32).max else np.int64
        self._group.create_dataset("indptr", data=ends.astype(kind), **_COMPRESSION)
        self._group.attrs["shape"] = np.array([len(ends) - 1, self._n_columns])

    def count_nonzero(self, labels: NDArray[Any], n_labels: int) -> NDArray[np.int64]:
        """Return the number of non-zero values by row label and column, (n_labels, n_columns).

        `labels` has the label of each row, from 0 to n_labels - 1.
        """
        ends = np.concatenate([[0], np.cumsum(np.concatenate([[0], *self._counts]))[1:]])
        counts = np.zeros(n_labels * self._n_columns, np.int64)
        for start in range(0, len(labels), _BLOCK_SIZE):
            stop = min(start + _BLOCK_SIZE, len(labels))
            columns = self._datasets["indices"][ends[start] : ends[stop]]
            labels_of_values = np.repeat(labels[start:stop], np.diff(ends[start : stop + 1]))
            positions = labels_of_values.astype(np.int64) * self._n_columns + columns
            counts += np.bincount(positions, minlength=len(counts))
        return counts.reshape(n_labels, self._n_columns)
