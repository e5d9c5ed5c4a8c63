"""Zarr folders, opened by zarr through a read-only store that checks metadata and chunks.

zarr receives only metadata accepted by `zarr_metadata` and chunks of the requested array, each
checked before decompression. Consolidated metadata are not used.
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..execution.texts import one_line
from .compressed_size import unpacked_bytes
from .opened_slide import UnfitError
from .zarr_metadata import ZarrArray, check_array

_MAX_METADATA_BYTES = 2**24
_OVERHEAD_BYTES = 1024  # headers and checksums of a compressed piece
_EMPTY = b"\xff" * 16  # of a shard's index: this chunk was not written


class NoZarrError(Exception):
    """A folder holds no Zarr group."""


@dataclass(frozen=True)
class OpenedArray:
    """array : a zarr array; missing, chunks : numbers of missing and of all chunks"""

    array: Any
    metadata: ZarrArray
    missing: int
    chunks: int


class ZarrFolder:
    """The groups and arrays in a folder.

    check_pieces : raises an error if the pieces of an array are too large
    spare_bytes : chunks that decompress to at most this length are not checked further
    """

    def __init__(
        self, folder: Path, check_pieces: Callable[[str, ZarrArray], None], spare_bytes: int
    ) -> None:
        self.folder = folder
        self._check_pieces = check_pieces
        self._spare_bytes = spare_bytes
        self._files = _files_below(folder)
        if not {"zarr.json", ".zgroup"} & self._files:
            raise NoZarrError("there is no zarr group in this folder (zarr.json, or .zgroup)")

    @cached_property
    def arrays(self) -> list[str]:
        """Return the names of the arrays at the top level of the folder."""
        found = [name.split("/") for name in self._files if name.count("/") == 1]
        kept = [parent for parent, file in found if file == ".zarray"]
        others = [parent for parent, file in found if file == "zarr.json"]
        kept += [name for name in others if self._document(name).get("node_type") == "array"]
        return sorted(set(kept))

    def attributes(self, path: str = "") -> dict[str, Any]:
        """Return the attributes of a group or array."""
        if self._named(path, "zarr.json") in self._files:
            found = self._document(path).get("attributes", {})
        else:
            name = self._named(path, ".zattrs")
            found = _read_json(self.folder, name) if name in self._files else {}
        if not isinstance(found, dict):
            raise ValueError(f"the attributes of {path or 'the folder'!r} are not a JSON object")
        return found

    def open(self, path: str) -> OpenedArray:
        """Open an array; raise an error that states what is not accepted."""
        try:
            metadata = check_array(self._document(path))
        except ValueError as error:
            raise UnfitError(f"its array {path!r} is not supported: {one_line(error)}") from error
        self._check_pieces(path, metadata)
        present = self._present(path, metadata)
        n_chunks = math.prod(metadata.grid)
        n_missing = n_chunks - len(present)
        if metadata.index_bytes:
            n_chunks, n_missing = self._count_pieces(metadata, present)
        document = {f"{path}/{metadata.file}": metadata.document}
        check = partial(_check_piece, metadata, self._spare_bytes)
        store = _store_class()(self.folder, document, present, metadata, check)
        array = import_module("zarr").open_array(store, path=path, mode="r")
        return OpenedArray(array, metadata, n_missing, n_chunks)

    def _document(self, path: str) -> dict[str, Any]:
        for name in ("zarr.json", ".zarray"):
            if self._named(path, name) in self._files:
                found = _read_json(self.folder, self._named(path, name))
                if isinstance(found, dict):
                    return found
                break
        raise ValueError(f"there is no array {path!r} in this folder, or its metadata are damaged")

    @staticmethod
    def _named(path: str, name: str) -> str:
        return f"{path}/{name}" if path else name

    def _present(self, path: str, metadata: ZarrArray) -> dict[str, tuple[int, ...]]:
        """Return the names of existing chunk files with the positions of the chunks."""
        start = f"{path}/{metadata.key(())}"
        n_before, grid = len(start), metadata.grid
        found = {}
        for name in self._files:
            if name.startswith(start):
                numbers = name[n_before:].replace("/", ".").split(".")
                if len(numbers) == len(grid) and all(map(_is_number, numbers)):
                    position = tuple(map(int, numbers))
                    inside = all(map(operator.lt, position, grid))
                    if inside and f"{path}/{metadata.key(position)}" == name:
                        found[name] = position
        return found

    def _count_pieces(
        self, metadata: ZarrArray, present: Mapping[str, tuple[int, ...]]
    ) -> tuple[int, int]:
        """Return the numbers of all and of missing chunks of an array in shards."""
        total = math.prod(-(-a // b) for a, b in zip(metadata.shape, metadata.pieces, strict=True))
        found = 0
        for name, position in present.items():
            index = _read(self.folder, name, *_index_place(metadata))
            entries = np.frombuffer(index[: len(index) // 16 * 16], np.uint8).reshape(-1, 16)
            if len(entries) < math.prod(metadata.pieces_per_shard):
                raise ValueError(f"the shard {name} is cut short: copy it again")
            there = (entries != 255).any(axis=1).reshape(metadata.pieces_per_shard)
            offsets = entries[there.ravel(), :8].copy().view("<u8")
            if not metadata.index_at_end and (offsets < metadata.index_bytes).any():
                raise ValueError(f"chunks of the shard {name} overlap its index: it is damaged")
            # Chunks of the last shards may be outside the array.
            ends = zip(metadata.shape, position, metadata.chunks, metadata.pieces, strict=True)
            inside = tuple(slice(-(-(a - at * b) // c)) for a, at, b, c in ends)
            found += int(np.count_nonzero(there[inside]))
        return total, total - found


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) < 20


# --- files --------------------------------------------------------------------------------------


def _files_below(folder: Path) -> set[str]:
    """Return the names of all files below the folder; raise an error if there is a link.

    A link could give access to files outside the folder.
    """
    found: set[str] = set()
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                name = f"{above}{entry.name}"
                if entry.is_symlink():
                    raise UnfitError(
                        f"there are links in this folder ({entry.name}), which are not followed: "
                        "copy it with what they lead to (cp -rL)"
                    )
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    found.add(name)
    return found


def _read_json(folder: Path, name: str) -> Any:
    data = _read(folder, name, 0, _MAX_METADATA_BYTES + 1)
    if len(data) > _MAX_METADATA_BYTES:
        raise ValueError(f"{name} is larger than {_MAX_METADATA_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is damaged ({error})") from error


def _read(folder: Path, name: str, start: int, length: int | None) -> bytes:
    """Read bytes of a regular file from a position; a negative one counts from the end."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(folder / name, flags | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{name} is not a regular file")
        file.seek(max(0, found.st_size + start) if start < 0 else start)
        return file.read(-1 if length is None else length)


def _index_place(metadata: ZarrArray) -> tuple[int, int]:
    return (-metadata.index_bytes if metadata.index_at_end else 0), metadata.index_bytes


def _max_bytes(metadata: ZarrArray) -> int:
    """Return the largest possible length of a chunk file, for incompressible data."""
    n_pieces = math.prod(metadata.pieces_per_shard)
    return n_pieces * (metadata.stored_bytes * 11 // 10 + _OVERHEAD_BYTES) + metadata.index_bytes


# --- store --------------------------------------------------------------------------------------


def _check_piece(metadata: ZarrArray, spare: int, data: bytes) -> None:
    """Refuse a compressed piece that would decompress to more than its array states."""
    own = data[: len(data) - metadata.trailing_bytes]
    n_bytes = unpacked_bytes(metadata.compressor, own, max(spare, metadata.stored_bytes))
    most = metadata.stored_bytes
    if metadata.compressor in ("gzip", "zlib", "zstd"):  # the result may be an upper bound
        most = max(most, spare)
    if n_bytes > most:
        raise ValueError(
            f"a chunk of {len(data)} bytes would decompress to {n_bytes} or more, its array states "
            f"{metadata.stored_bytes}: it is damaged, copy it again"
        )


def _check_shard(metadata: ZarrArray, check: Callable[[bytes], None], data: bytes) -> None:
    """Check every piece of a shard."""
    start, length = _index_place(metadata)
    first = max(0, len(data) + start)
    index = data[first : first + length][: length // 16 * 16]
    for at in range(0, len(index) - 15, 16):
        entry = index[at : at + 16]
        if entry != _EMPTY:
            offset, n_bytes = (int.from_bytes(entry[a : a + 8], "little") for a in (0, 8))
            check(data[offset : offset + n_bytes])


@cache
def _store_class() -> Any:
    """Return the store class; importing zarr is deferred until it is needed."""
    base: Any = import_module("zarr.abc.store").Store

    class CheckedStore(base):
        """Read-only store with the metadata and chunks of one array."""

        supports_writes = supports_deletes = supports_partial_writes = False
        supports_listing = True

        def __init__(
            self,
            folder: Path,
            documents: Mapping[str, bytes],
            chunks: Collection[str],
            metadata: ZarrArray,
            check: Callable[[bytes], None],
        ) -> None:
            super().__init__(read_only=True)
            self._folder, self._documents, self._chunks = folder, documents, chunks
            self._metadata, self._check = metadata, check

        def __eq__(self, other: object) -> bool:
            return self is other

        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            if prototype is None:
                prototype = import_module("zarr.core.buffer").default_buffer_prototype()
            if key in self._documents:
                return prototype.buffer.from_bytes(self._documents[key])
            if key not in self._chunks:
                return None
            data = await asyncio.to_thread(self._chunk, key, *_start_and_length(byte_range))
            return prototype.buffer.from_bytes(data)

        def _chunk(self, key: str, start: int, length: int | None) -> bytes:
            most = _max_bytes(self._metadata)
            data = _read(self._folder, key, start, min(most + 1, length or most + 1))
            if len(data) > most:
                raise ValueError(f"{key} is larger than its array states: it is damaged")
            if not self._metadata.index_bytes:
                self._check(data)
            elif (start, length) == (0, None):
                _check_shard(self._metadata, self._check, data)
            elif (start, length) != _index_place(self._metadata):
                self._check(data)
            return data

        async def get_partial_values(self, prototype: Any, key_ranges: Any) -> list[Any]:
            return [await self.get(key, prototype, place) for key, place in key_ranges]

        async def exists(self, key: str) -> bool:
            return key in self._documents or key in self._chunks

        async def list(self) -> Any:
            for key in (*self._documents, *self._chunks):
                yield key

        async def list_prefix(self, prefix: str) -> Any:
            for key in (*self._documents, *self._chunks):
                if key.startswith(prefix):
                    yield key

        async def list_dir(self, prefix: str) -> Any:
            start = f"{prefix.rstrip('/')}/" if prefix else ""
            for name in {
                key[len(start) :].split("/")[0]
                for key in (*self._documents, *self._chunks)
                if key.startswith(start)
            }:
                yield name

        async def set(self, key: str, value: Any) -> None:
            raise NotImplementedError("it is read-only")

        async def delete(self, key: str) -> None:
            raise NotImplementedError("it is read-only")

        async def set_partial_values(self, key_start_values: Any) -> None:
            raise NotImplementedError("it is read-only")

    return CheckedStore


def _start_and_length(byte_range: Any) -> tuple[int, int | None]:
    """Return start and length of a byte request of zarr; a negative start counts from the end."""
    if byte_range is None:
        return 0, None
    if hasattr(byte_range, "suffix"):
        return -byte_range.suffix, byte_range.suffix
    if hasattr(byte_range, "offset"):
        return byte_range.offset, None
    return byte_range.start, byte_range.end - byte_range.start
