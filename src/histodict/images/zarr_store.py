"""Reader of Zarr folders (versions 2 and 3) from untrusted sources, with the package zarr.

The metadata of a Zarr array name the codecs of its chunks, and the codec `pickle` can run code.
Only the codecs, data types and layouts listed here are accepted. zarr receives new metadata built
from the checked metadata, and chunks checked before decompression. Links are errors; consolidated
metadata are ignored. "Inner chunks" are the chunks in a shard or, without shards, all chunks.
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import OffsetByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from ..utils.text_io import shorten
from .file_types import UnreadableContentError, decompressed_size

# Accepted codecs and their parameters, for Zarr 2 and 3. A chunk has at most one compressor.
_COMPRESSORS = {
    "blosc": {"cname", "clevel", "shuffle", "blocksize", "typesize"},
    "gzip": {"level"},
    "zstd": {"level", "checksum"},
}
CODECS_2 = _COMPRESSORS | {"lz4": {"acceleration"}, "zlib": {"level"}}
CODECS_3 = _COMPRESSORS | {"bytes": {"endian"}, "crc32c": set(), "transpose": {"order"}}
_FILTERS_2 = {"delta": {"dtype", "astype"}, "shuffle": {"elementsize"}}
_SHARDING_PARAMETERS = {"chunk_shape", "codecs", "index_codecs", "index_location"}
_CHECKSUM_BYTES = 4
_KEYS_3 = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
}
_DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"bool", "float16", "float32", "float64"}
_DTYPE_2 = re.compile(r"[<>|][biuf][1248]")
_IS_INT = re.compile(r"[0-9]{1,19}").fullmatch
_FILL = re.compile(r"NaN|-?Infinity|0x[0-9a-fA-F]{2,16}")
_MAX_DIMENSIONS = 8
_MAX_LENGTH = 2**40  # maximum length of an axis
_MAX_INNER_CHUNKS = 10**6  # in a shard
_MAX_METADATA_BYTES = 2**24
_OVERHEAD_BYTES = 1024  # headers and checksums of a compressed inner chunk
_MISSING_ENTRY = b"\xff" * 16  # entry of a missing inner chunk in the index of a shard
_SAVE_AGAIN = "save it again with the codec zstd or blosc"

Codec = tuple[str, dict[str, Any]]  # name and parameters


@dataclass(frozen=True)
class OpenedArray:
    """Open zarr array with its metadata and the numbers of missing and of all inner chunks."""

    array: Any
    metadata: ZarrArray
    n_missing: int
    n_chunks: int


class ZarrFolder:
    """Zarr folder; the constructor raises UnreadableContentError if it contains no Zarr group.

    Parameters
    ----------
    folder : path of the folder
    unchecked_bytes : size in bytes up to which the decompressed size of a chunk is not checked
    check_metadata : function of the path and the metadata of an array that may raise an error
    """

    def __init__(
        self,
        folder: Path,
        unchecked_bytes: int,
        check_metadata: Callable[[str, ZarrArray], None] | None = None,
    ) -> None:
        self.folder, self.unchecked_bytes = folder, unchecked_bytes
        self._check_metadata, self._files = check_metadata, _list_files(folder)
        if not {"zarr.json", ".zgroup"} & self._files:
            raise UnreadableContentError(
                "not a complete Zarr folder: neither zarr.json nor .zgroup was found; copy it again"
            )

    @cached_property
    def arrays(self) -> list[str]:
        """Names of the arrays at the top level of the folder."""
        found = [name.split("/") for name in self._files if name.count("/") == 1]
        names = [name for name, file in found if file == ".zarray"]
        others = [name for name, file in found if file == "zarr.json"]
        names += [name for name in others if self._read_metadata(name).get("node_type") == "array"]
        return sorted(set(names))

    def attributes(self, path: str = "") -> dict[str, Any]:
        """Return the attributes of a group or array."""
        start = f"{path}/" if path else ""
        if f"{start}zarr.json" in self._files:
            found = self._read_metadata(path).get("attributes", {})
        else:
            name = f"{start}.zattrs"
            found = _read_json(self.folder, name) if name in self._files else {}
        if not isinstance(found, dict):
            raise ValueError(f"the attributes of {path or 'the folder'!r} are not a JSON object")
        return found

    def open(self, path: str) -> OpenedArray:
        """Open an array; raise UnreadableContentError if its metadata are not accepted."""
        try:
            metadata = parse_metadata(self._read_metadata(path))
        except ValueError as error:
            raise UnreadableContentError(
                f"the array {path!r} is not supported: {shorten(error)}"
            ) from error
        if self._check_metadata is not None:
            self._check_metadata(path, metadata)
        present = self._find_chunk_files(path, metadata)
        n_chunks = math.prod(metadata.grid)
        n_missing = n_chunks - len(present)
        if metadata.index[1]:
            n_chunks, n_missing = self._count_chunks(metadata, present)
        store = _CheckedStore(self, path, metadata, present)
        array = zarr.open_array(store, path=path, mode="r")
        return OpenedArray(array, metadata, n_missing, n_chunks)

    def _read_metadata(self, path: str) -> dict[str, Any]:
        for name in ("zarr.json", ".zarray"):
            file = f"{path}/{name}" if path else name
            if file in self._files:
                found = _read_json(self.folder, file)
                if isinstance(found, dict):
                    return found
                break
        raise ValueError(f"the array {path!r} is missing or its metadata are damaged")

    def _find_chunk_files(self, path: str, metadata: ZarrArray) -> dict[str, tuple[int, ...]]:
        """Map the name of each existing chunk file to the position of the chunk in the grid."""
        start, grid = f"{path}/{metadata.key(())}", metadata.grid
        found = {}
        for name in self._files:
            numbers = name[len(start) :].replace("/", ".").split(".")
            if name.startswith(start) and len(numbers) == len(grid) and all(map(_IS_INT, numbers)):
                position = tuple(map(int, numbers))
                is_inside = all(map(operator.lt, position, grid))
                if is_inside and f"{path}/{metadata.key(position)}" == name:
                    found[name] = position
        return found

    def _count_chunks(
        self, metadata: ZarrArray, shards: Mapping[str, tuple[int, ...]]
    ) -> tuple[int, int]:
        """Return the numbers of all and of missing inner chunks; `shards` is {name: position}."""
        inner, n_present, (index_start, index_bytes) = metadata.inner_chunks, 0, metadata.index
        total = math.prod(-(-a // b) for a, b in zip(metadata.shape, inner, strict=True))
        for name, position in shards.items():
            index = _read_bytes(self.folder, name, index_start, index_bytes)
            entries = np.frombuffer(index[: len(index) // 16 * 16], np.uint8).reshape(-1, 16)
            if len(entries) < math.prod(metadata.chunks_per_shard):
                raise ValueError(f"the shard {name} is truncated; copy it again")
            is_present = (entries != 255).any(axis=1).reshape(metadata.chunks_per_shard)
            offsets = entries[is_present.ravel(), :8].copy().view("<u8")
            if index_start == 0 and (offsets < index_bytes).any():
                raise ValueError(f"the shard {name} is damaged: its chunks overlap its index")
            # Inner chunks of the last shards may be outside the array.
            ends = zip(metadata.shape, position, metadata.chunks, inner, strict=True)
            inside = tuple(slice(-(-(a - at * b) // c)) for a, at, b, c in ends)
            n_present += int(np.count_nonzero(is_present[inside]))
        return total, total - n_present


def _list_files(folder: Path) -> set[str]:
    """Return the relative names of all files in a folder; raise an error if there are links."""
    files, pending = set[str](), [""]
    while pending:
        parent = pending.pop()
        with os.scandir(folder / parent) as entries:
            for entry in entries:
                name = f"{parent}{entry.name}"
                if entry.is_symlink():
                    raise UnreadableContentError(
                        f"the folder contains links ({entry.name}), which are not followed; "
                        "copy it with the linked files (cp -rL)"
                    )
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    files.add(name)
    return files


def _read_json(folder: Path, name: str) -> Any:
    data = _read_bytes(folder, name, 0, _MAX_METADATA_BYTES + 1)
    if len(data) > _MAX_METADATA_BYTES:
        raise ValueError(f"{name} is larger than {_MAX_METADATA_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is damaged ({error})") from error


def _read_bytes(folder: Path, name: str, start: int, length: int) -> bytes:
    """Return at most `length` bytes of a regular file; a negative `start` counts from the end."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(folder / name, flags | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        file.seek(max(0, status.st_size + start) if start < 0 else start)
        return file.read(length)


# --- store --------------------------------------------------------------------------------------

_StoreBase: Any = Store  # its methods differ between versions of zarr


class _CheckedStore(_StoreBase):
    """Read-only Zarr store of one array: its checked metadata and the chunk files in `chunks`."""

    supports_writes = supports_deletes = supports_partial_writes = supports_listing = False

    def __init__(self, folder: ZarrFolder, path: str, metadata: ZarrArray, chunks: Any) -> None:
        super().__init__(read_only=True)
        self._folder, self._unchecked_bytes = folder.folder, folder.unchecked_bytes
        self._metadata, self._chunks = metadata, chunks
        self._documents = {f"{path}/{metadata.file}": metadata.document}
        # The largest possible file of a chunk, for incompressible data.
        max_bytes = metadata.stored_bytes * 11 // 10 + _OVERHEAD_BYTES
        self._max_bytes = math.prod(metadata.chunks_per_shard) * max_bytes + metadata.index[1]

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        if key in self._documents:
            data = self._documents[key]
        elif key in self._chunks:
            data = await asyncio.to_thread(self._read_chunk, key, *_parse_byte_range(byte_range))
        else:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> list[Any]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return key in self._documents or key in self._chunks

    async def _raise_read_only(self, *arguments: Any) -> Any:
        raise NotImplementedError("the store is read-only and cannot be listed")

    set = delete = set_partial_values = list = list_prefix = list_dir = _raise_read_only

    def _read_chunk(self, key: str, start: int, length: int | None) -> bytes:
        """Return `length` bytes (None: all) of a chunk file, after checking the chunks in them."""
        index, max_bytes = self._metadata.index, self._max_bytes
        data = _read_bytes(self._folder, key, start, min(max_bytes + 1, length or max_bytes + 1))
        if len(data) > max_bytes:
            raise ValueError(f"{key} is damaged: it is larger than its array")
        if index[1] and (start, length) == (0, None):
            self._check_shard(data, *index)
        elif not index[1] or (start, length) != index:
            self._check_chunk(data)
        return data

    def _check_shard(self, data: bytes, start: int, length: int) -> None:
        """Check every inner chunk of a shard; `start` and `length` are those of its index."""
        first = max(0, len(data) + start) if start < 0 else 0
        index = data[first : first + length][: length // 16 * 16]
        for at in range(0, len(index) - 15, 16):
            entry = index[at : at + 16]
            if entry != _MISSING_ENTRY:
                offset, n_bytes = (int.from_bytes(entry[a : a + 8], "little") for a in (0, 8))
                self._check_chunk(data[offset : offset + n_bytes])

    def _check_chunk(self, data: bytes) -> None:
        """Raise ValueError if an inner chunk would decompress to more than the metadata state."""
        compressor, stated = self._metadata.compressor, self._metadata.stored_bytes
        compressed = data[: len(data) - self._metadata.trailing_bytes]
        limit = max(self._unchecked_bytes, stated)
        n_bytes = decompressed_size(compressor, compressed, limit)
        # For some compressors the result may be an upper bound.
        if n_bytes > (limit if compressor in ("gzip", "zlib", "zstd") else stated):
            raise ValueError(
                f"a chunk of {len(data)} bytes would decompress to {n_bytes} bytes or more "
                f"instead of {stated}; it is damaged; copy it again"
            )


def _parse_byte_range(byte_range: Any) -> tuple[int, int | None]:
    """Return start (negative: from the end) and length (None: to the end) of zarr's byte range."""
    if byte_range is None:
        return 0, None
    match byte_range:
        case SuffixByteRequest(suffix=length):
            return -length, length
        case OffsetByteRequest(offset=start):
            return start, None
    return byte_range.start, byte_range.end - byte_range.start


# --- metadata -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZarrArray:
    """Checked metadata of one array.

    Attributes
    ----------
    shape : shape of the array
    chunks : shape of the part of the array in one file, a chunk or a shard
    inner_chunks : shape of an inner chunk; equal to `chunks` without shards
    dtype : data type of the array
    stored_bytes : size of a decompressed inner chunk before its filters are reversed
    compressor : name of the codec that compresses inner chunks; None if there is none
    prefix : start of the names of chunk files
    separator : separator of the numbers in the names of chunk files
    file, document : name and content of the metadata file that zarr receives
    trailing_bytes : size of the checksums that follow a compressed inner chunk
    index : start (negative: from the end) and size of the index of a shard; size 0 without shards
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    inner_chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    stored_bytes: int
    compressor: str | None
    prefix: str
    separator: str
    file: str
    document: bytes
    trailing_bytes: int = 0
    index: tuple[int, int] = (0, 0)

    def key(self, position: Sequence[int]) -> str:
        """Return the name of the file of a chunk by its position in the grid."""
        return self.prefix + self.separator.join(map(str, position))

    @property
    def inner_chunk_bytes(self) -> int:
        """Memory of a decoded inner chunk."""
        return math.prod(self.inner_chunks) * self.dtype.itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chunk files along each axis."""
        return tuple(-(-a // b) for a, b in zip(self.shape, self.chunks, strict=True))

    @property
    def chunks_per_shard(self) -> tuple[int, ...]:
        """Number of inner chunks in a shard along each axis."""
        return tuple(a // b for a, b in zip(self.chunks, self.inner_chunks, strict=True))


def parse_metadata(document: Mapping[str, Any]) -> ZarrArray:
    """Parse the content of zarr.json or .zarray; raise ValueError if it is not accepted."""
    version = document.get("zarr_format")
    if version == 2:
        return _parse_version_2(document)
    if version == 3:
        return _parse_version_3(document)
    raise ValueError(f"Zarr version {version!r}; supported are 2 and 3")


def _parse_version_2(document: Mapping[str, Any]) -> ZarrArray:
    shape, chunks = _parse_shapes(document.get("shape"), document.get("chunks"))
    dtype = _parse_dtype(document.get("dtype"), _DTYPE_2)
    separator = _check_choice(document.get("dimension_separator", "."), (".", "/"))
    filters = document.get("filters") or []
    compressor = document.get("compressor")
    parsed = _parse_codecs(filters, version=2)
    _check_codecs(parsed, _FILTERS_2)
    for _, parameters in parsed:
        for name in {"dtype", "astype"} & parameters.keys():
            _parse_dtype(parameters[name])
    if compressor is not None:
        _check_codecs(_parse_codecs([compressor], version=2), CODECS_2)
    clean = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": document["dtype"],
        "compressor": compressor,
        "filters": filters or None,
        "fill_value": _check_fill_value(document.get("fill_value")),
        "order": _check_choice(document.get("order"), ("C", "F")),
        "dimension_separator": separator,
    }
    itemsize = 8 if filters else dtype.itemsize  # a filter may change the type
    return ZarrArray(
        shape=shape,
        chunks=chunks,
        inner_chunks=chunks,
        dtype=dtype,
        stored_bytes=math.prod(chunks) * itemsize,
        compressor=compressor and compressor["id"],
        prefix="",
        separator=separator,
        file=".zarray",
        document=json.dumps(clean).encode(),
    )


def _parse_version_3(document: Mapping[str, Any]) -> ZarrArray:
    for name in sorted(set(document) - _KEYS_3):
        field = document[name]
        if not isinstance(field, dict) or field.get("must_understand") is not False:
            raise ValueError(f"the metadata have an unknown field {name!r}")
    if document.get("node_type") != "array" or document.get("storage_transformers"):
        raise ValueError("the metadata do not describe an array, or they have storage transformers")
    grid = _parse_configuration(document.get("chunk_grid"), "regular", {"chunk_shape"})
    shape, chunks = _parse_shapes(document.get("shape"), grid.get("chunk_shape"))
    dtype = _parse_dtype(document.get("data_type"))
    encoding, separator = _parse_key_encoding(document.get("chunk_key_encoding"))
    inner = _parse_codecs(document.get("codecs"))
    inner_chunks, index = chunks, (0, 0)
    if any(name == "sharding_indexed" for name, _ in inner):
        written, inner_chunks, inner, index = _parse_sharding(inner, chunks)
    else:
        written = _check_codecs(inner)
    compressor, trailing_bytes = _find_compressor(inner)
    clean = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": encoding, "configuration": {"separator": separator}},
        "fill_value": _check_fill_value(document.get("fill_value"), 0),
        "codecs": written,
        "attributes": {},
    }
    return ZarrArray(
        shape=shape,
        chunks=chunks,
        inner_chunks=inner_chunks,
        dtype=dtype,
        stored_bytes=math.prod(inner_chunks) * dtype.itemsize + _CHECKSUM_BYTES * len(inner),
        compressor=compressor,
        prefix=f"c{separator}" if encoding == "default" else "",
        separator=separator,
        file="zarr.json",
        document=json.dumps(clean).encode(),
        trailing_bytes=trailing_bytes,
        index=index,
    )


def _parse_sharding(
    codecs: Sequence[Codec], chunks: tuple[int, ...]
) -> tuple[list[dict[str, Any]], tuple[int, ...], list[Codec], tuple[int, int]]:
    """Return the sharding codec as JSON, and the properties of inner chunks and of the index.

    These are the shape and the codecs of inner chunks, and (start, size) of the index of a shard in
    bytes. A negative start counts from the end of the shard.
    """
    if len(codecs) != 1 or set(codecs[0][1]) - _SHARDING_PARAMETERS:
        raise ValueError(f"additional codecs of shards are not supported; {_SAVE_AGAIN}")
    configuration = codecs[0][1]
    _, inner_chunks = _parse_shapes(chunks, configuration.get("chunk_shape"))
    if any(a % b for a, b in zip(chunks, inner_chunks, strict=True)):
        raise ValueError("the shards are not divided into whole chunks")
    n_inner = math.prod(a // b for a, b in zip(chunks, inner_chunks, strict=True))
    if n_inner > _MAX_INNER_CHUNKS:
        raise ValueError(f"the shards have {n_inner} chunks, more than {_MAX_INNER_CHUNKS}")
    index = _parse_codecs(configuration.get("index_codecs"))
    names = [name for name, _ in index]
    if names not in (["bytes"], ["bytes", "crc32c"]) or index[0][1].get("endian") != "little":
        raise ValueError("the index of the shards is compressed or not little-endian")
    location = _check_choice(configuration.get("index_location", "end"), ("start", "end"))
    inner = _parse_codecs(configuration.get("codecs"))
    clean = {
        "chunk_shape": inner_chunks,
        "codecs": _check_codecs(inner),
        "index_codecs": _check_codecs(index),
        "index_location": location,
    }
    n_bytes = 16 * n_inner + _CHECKSUM_BYTES * (len(names) - 1)
    written = [{"name": "sharding_indexed", "configuration": clean}]
    return written, inner_chunks, inner, (-n_bytes if location == "end" else 0, n_bytes)


def _parse_codecs(codecs: Any, version: int = 3) -> list[Codec]:
    """Return the names and parameters of codecs in the metadata of this Zarr version."""
    if not isinstance(codecs, list):
        raise ValueError("the codecs are not a list")
    key = "id" if version == 2 else "name"
    found = []
    for each in codecs:
        codec = {"name": each} if isinstance(each, str) else each
        if not isinstance(codec, dict) or not isinstance(codec.get(key), str):
            raise ValueError("a codec has no name")
        parameters = {name: value for name, value in codec.items() if name != key}
        if version == 3:
            others = set(parameters) - {"configuration"}
            parameters = parameters.get("configuration") or {}
            if not isinstance(parameters, dict) or others:
                raise ValueError(f"the codec {codec[key][:60]!r} has unknown parameters")
        found.append((codec[key], parameters))
    return found


def _check_codecs(
    codecs: Sequence[Codec], valid: Mapping[str, set[str]] = CODECS_3
) -> list[dict[str, Any]]:
    """Return codecs as JSON; raise ValueError for a codec or parameter not in `valid`."""
    for name, parameters in codecs:
        if name not in valid:
            raise ValueError(
                f"the codec {name[:60]!r} is not accepted, because unknown codecs may run "
                f"code; accepted are {', '.join(sorted(valid))}; {_SAVE_AGAIN}"
            )
        for parameter, value in parameters.items():
            is_plain = value is None or isinstance(value, bool | int | float | str)
            is_order = isinstance(value, list) and all(type(n) is int for n in value)
            if parameter not in valid[name] or not (is_plain or (name == "transpose" and is_order)):
                raise ValueError(f"the codec {name!r} has an unknown parameter {parameter[:60]!r}")
    return [{"name": name, "configuration": parameters} for name, parameters in codecs]


def _find_compressor(codecs: Sequence[Codec]) -> tuple[str | None, int]:
    """Return the compressor (None if none) and the size in bytes of the checksums that follow."""
    found, n_checksums = None, 0
    for name, _ in codecs:
        n_checksums += name == "crc32c"
        if name in _COMPRESSORS:
            if found is not None:
                raise ValueError(f"the array is compressed more than once; {_SAVE_AGAIN}")
            found, n_checksums = name, 0
    return found, _CHECKSUM_BYTES * n_checksums


def _parse_shapes(shape: Any, chunks: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for lengths, least in ((shape, 0), (chunks, 1)):
        is_list = isinstance(lengths, list | tuple) and 0 < len(lengths) <= _MAX_DIMENSIONS
        if not is_list or not all(type(n) is int and least <= n <= _MAX_LENGTH for n in lengths):
            raise ValueError("the shape or chunk shape is not a list of lengths")
    if len(shape) != len(chunks):
        raise ValueError(f"the array has {len(shape)} axes, but its chunks have {len(chunks)}")
    return tuple(shape), tuple(chunks)


def _parse_dtype(name: Any, pattern: re.Pattern[str] | None = None) -> np.dtype[Any]:
    dtype = None
    if isinstance(name, str) and (pattern is None or pattern.fullmatch(name)):
        with suppress(TypeError, ValueError):
            dtype = np.dtype(name)
    if dtype is None or dtype.name not in _DTYPES:
        raise ValueError(
            f"data type {str(name)[:60]!r}; only numbers are supported; save it again as numbers"
        )
    return dtype


def _check_fill_value(value: Any, default: Any = None) -> Any:
    if value is None:
        return default
    if isinstance(value, bool | int | float) or (isinstance(value, str) and _FILL.fullmatch(value)):
        return value
    raise ValueError("the fill value is not a number")


def _parse_key_encoding(encoding: Any) -> tuple[str, str]:
    """Return the name and the separator of an encoding of chunk file names."""
    parsed = {"name": encoding} if isinstance(encoding, str) else encoding
    separators = {"default": "/", "v2": "."}
    name = parsed.get("name") if isinstance(parsed, dict) else None
    if not isinstance(name, str) or name not in separators:
        raise ValueError("the encoding of chunk names is unknown")
    configuration = _parse_configuration(parsed, name, {"separator"})
    return name, _check_choice(configuration.get("separator", separators[name]), (".", "/"))


def _parse_configuration(entry: Any, name: str, valid: set[str]) -> dict[str, Any]:
    values = entry.get("configuration") or {} if isinstance(entry, dict) else None
    if not isinstance(values, dict) or entry.get("name") != name or set(values) - valid:
        raise ValueError(f"the chunks are not on a {name} grid")
    return values


def _check_choice(value: Any, valid: Sequence[str]) -> str:
    if value not in valid:
        raise ValueError(
            f"the metadata contain {str(value)[:60]!r} instead of {' or '.join(valid)}"
        )
    return str(value)
