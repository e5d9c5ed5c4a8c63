"""Metadata of Zarr arrays (versions 2 and 3), read as JSON and checked before an array is opened.

A Zarr array names the codecs that decode its chunks, and among those of numcodecs is `pickle`,
which can run code. Only the codecs, data types and layouts listed here are accepted. zarr receives
a document built from the checked values, never that of the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .zarr_codecs import (
    CHECKSUM_BYTES,
    CODECS_2,
    FILTERS_2,
    SAVE_AGAIN,
    chain,
    check_codec,
    compressor,
    named_2,
    named_3,
)

_SHARDING = {"chunk_shape", "codecs", "index_codecs", "index_location"}
_DTYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
}
_DTYPE_2 = re.compile(r"[<>|][biuf][1248]")
_FILL = re.compile(r"NaN|-?Infinity|0x[0-9a-fA-F]{2,16}")
_KEYS_3 = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
}
_MAX_DIMENSIONS = 8
_MAX_LENGTH = 2**40  # of an axis
_MAX_INNER = 10**6  # chunks in a shard


@dataclass(frozen=True)
class ZarrArray:
    """Checked metadata of one array.

    chunks : shape of the part in one file; pieces : shape of the part that is decoded at once,
        smaller than `chunks` if the file is a shard
    stored_bytes : length of a decompressed piece before its filters are reversed
    compressor : name of the codec that compresses pieces, None if there is none
    trailing_bytes : checksums that follow a compressed piece
    key : function from the position of a chunk in the grid to the name of its file
    index_at_end, index_bytes : position and length of a shard's index; 0 without shards
    file, document : file name and content of the metadata that zarr receives
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    pieces: tuple[int, ...]
    dtype: np.dtype[Any]
    stored_bytes: int
    compressor: str | None
    trailing_bytes: int
    key: Callable[[Sequence[int]], str]
    index_at_end: bool
    index_bytes: int
    file: str
    document: bytes

    @property
    def piece_bytes(self) -> int:
        """Memory of a decoded piece."""
        return math.prod(self.pieces) * self.dtype.itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(-(-a // b) for a, b in zip(self.shape, self.chunks, strict=True))

    @property
    def pieces_per_shard(self) -> tuple[int, ...]:
        return tuple(a // b for a, b in zip(self.chunks, self.pieces, strict=True))


def check_array(document: Any) -> ZarrArray:
    """Return the checked metadata of an array; raise ValueError for what is not accepted."""
    if not isinstance(document, dict):
        raise ValueError("its metadata are not a JSON object")
    version = document.get("zarr_format")
    if version == 2:
        return _version_2(document)
    if version == 3:
        return _version_3(document)
    raise ValueError(f"its Zarr version is {version!r}; 2 and 3 are supported")


def _version_2(document: Mapping[str, Any]) -> ZarrArray:
    shape, chunks = _shapes(document.get("shape"), document.get("chunks"))
    text = document.get("dtype")
    if not isinstance(text, str) or not _DTYPE_2.fullmatch(text):
        raise _unknown_dtype(text)
    dtype = _dtype(text)
    separator = _one_of(document.get("dimension_separator", "."), (".", "/"))
    filters = document.get("filters") or []
    compressed = document.get("compressor")
    for each in _list(filters):
        check_codec(named_2(each), FILTERS_2)
        for name in {"dtype", "astype"} & set(each):
            _dtype(each[name])
    if compressed is not None:
        check_codec(named_2(compressed), CODECS_2)
    clean = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": text,
        "compressor": compressed,
        "filters": filters or None,
        "fill_value": _fill_value(document.get("fill_value")),
        "order": _one_of(document.get("order"), ("C", "F")),
        "dimension_separator": separator,
    }
    itemsize = 8 if filters else dtype.itemsize  # a filter may change the type
    return ZarrArray(
        shape=shape,
        chunks=chunks,
        pieces=chunks,
        dtype=dtype,
        stored_bytes=math.prod(chunks) * itemsize,
        compressor=compressed and compressed["id"],
        trailing_bytes=0,
        key=_keys("", separator),
        index_at_end=False,
        index_bytes=0,
        file=".zarray",
        document=json.dumps(clean).encode(),
    )


def _version_3(document: Mapping[str, Any]) -> ZarrArray:
    others = {k for k in set(document) - _KEYS_3 if not _may_be_ignored(document[k])}
    if others:
        raise ValueError(f"its metadata have the unknown field {min(others)!r}")
    if document.get("node_type") != "array" or document.get("storage_transformers"):
        raise ValueError("its metadata are not those of an array, or it has storage transformers")
    grid = _configuration(document.get("chunk_grid"), "regular", {"chunk_shape"})
    shape, chunks = _shapes(document.get("shape"), grid.get("chunk_shape"))
    dtype = _dtype(document.get("data_type"))
    encoding, key = _key_encoding(document.get("chunk_key_encoding"))
    codecs = [named_3(each) for each in _list(document.get("codecs"))]
    pieces, index_at_end, index_bytes = chunks, False, 0
    if any(name == "sharding_indexed" for name, _ in codecs):
        shards, pieces, index_at_end, index_bytes, inner = _sharding(codecs, chunks)
        written = [{"name": "sharding_indexed", "configuration": shards}]
    else:
        inner, written = codecs, chain(codecs)
    compressed_by, trailing = compressor(inner)
    clean = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": encoding,
        "fill_value": _fill_value(document.get("fill_value"), 0),
        "codecs": written,
        "attributes": {},
    }
    return ZarrArray(
        shape=shape,
        chunks=chunks,
        pieces=pieces,
        dtype=dtype,
        stored_bytes=math.prod(pieces) * dtype.itemsize + CHECKSUM_BYTES * len(inner),
        compressor=compressed_by,
        trailing_bytes=trailing,
        key=key,
        index_at_end=index_at_end,
        index_bytes=index_bytes,
        file="zarr.json",
        document=json.dumps(clean).encode(),
    )


# --- shards -------------------------------------------------------------------------------------


def _sharding(
    codecs: Sequence[tuple[str, dict[str, Any]]], chunks: tuple[int, ...]
) -> tuple[dict[str, Any], tuple[int, ...], bool, int, list[tuple[str, dict[str, Any]]]]:
    """Return configuration, shape and codecs of pieces, and position and length of the index."""
    if len(codecs) != 1 or set(codecs[0][1]) - _SHARDING:
        raise ValueError(f"its shards have further codecs, which is not supported: {SAVE_AGAIN}")
    given = codecs[0][1]
    _, pieces = _shapes(chunks, given.get("chunk_shape"))
    if any(a % b for a, b in zip(chunks, pieces, strict=True)):
        raise ValueError("its shards are not divided into whole chunks")
    counts = [a // b for a, b in zip(chunks, pieces, strict=True)]
    if math.prod(counts) > _MAX_INNER:
        raise ValueError(f"its shards hold {math.prod(counts)} chunks, more than {_MAX_INNER}")
    index = [named_3(each) for each in _list(given.get("index_codecs"))]
    names = [name for name, _ in index]
    if names not in (["bytes"], ["bytes", "crc32c"]) or index[0][1].get("endian") != "little":
        raise ValueError("the index of its shards is compressed or not little-endian")
    location = _one_of(given.get("index_location", "end"), ("start", "end"))
    inner = [named_3(each) for each in _list(given.get("codecs"))]
    clean = {
        "chunk_shape": pieces,
        "codecs": chain(inner),
        "index_codecs": chain(index),
        "index_location": location,
    }
    n_bytes = 16 * math.prod(counts) + CHECKSUM_BYTES * (len(names) - 1)
    return clean, pieces, location == "end", n_bytes, inner


# --- shapes, types and names --------------------------------------------------------------------


def _shapes(shape: Any, chunks: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for lengths, least in ((shape, 0), (chunks, 1)):
        is_list = isinstance(lengths, list | tuple) and 0 < len(lengths) <= _MAX_DIMENSIONS
        if not is_list or not all(type(n) is int and least <= n <= _MAX_LENGTH for n in lengths):
            raise ValueError("its shape, or that of its chunks, is not a list of lengths")
    if len(shape) != len(chunks):
        raise ValueError(f"it has {len(shape)} axes, and its chunks have {len(chunks)}")
    return tuple(shape), tuple(chunks)


def _dtype(name: Any) -> np.dtype[Any]:
    try:
        found = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError):
        found = None
    if found is None or found.name not in _DTYPES:
        raise _unknown_dtype(name)
    return found


def _unknown_dtype(name: Any) -> ValueError:
    return ValueError(
        f"its data type is {str(name)[:60]!r}, but only numbers are supported, not objects or "
        "texts: save it again as numbers"
    )


def _fill_value(value: Any, default: Any = None) -> Any:
    if value is None:
        return default
    if isinstance(value, bool | int | float) or (isinstance(value, str) and _FILL.fullmatch(value)):
        return value
    raise ValueError("its fill value is not a number")


def _key_encoding(encoding: Any) -> tuple[dict[str, Any], Callable[[Sequence[int]], str]]:
    """Return the checked encoding and the function from chunk positions to file names."""
    given = {"name": encoding} if isinstance(encoding, str) else encoding
    name = given.get("name") if isinstance(given, dict) else None
    usual = {"default": "/", "v2": "."}
    if name not in usual:
        raise ValueError("its encoding of chunk names is unknown")
    configuration = _configuration(given, name, {"separator"})
    separator = _one_of(configuration.get("separator", usual[name]), (".", "/"))
    clean = {"name": name, "configuration": {"separator": separator}}
    return clean, _keys(f"c{separator}" if name == "default" else "", separator)


def _keys(start: str, separator: str) -> Callable[[Sequence[int]], str]:
    return lambda position: start + separator.join(map(str, position))


def _configuration(given: Any, name: str, known: set[str]) -> dict[str, Any]:
    found = given.get("configuration") or {} if isinstance(given, dict) else None
    if not isinstance(found, dict) or given.get("name") != name or set(found) - known:
        raise ValueError(f"its chunks are not laid out as a {name} grid")
    return found


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("its codecs are not a list")
    return value


def _one_of(value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"its metadata say {str(value)[:60]!r}, not {' or '.join(known)}")
    return str(value)


def _may_be_ignored(field: Any) -> bool:
    """Return whether an extension field of version 3 is optional."""
    return isinstance(field, dict) and field.get("must_understand") is False
