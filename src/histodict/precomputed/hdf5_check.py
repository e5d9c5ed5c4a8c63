"""Checks of feature files before their values are read: memory, links, storage, missing chunks.

Damaged HDF5 files may hang or abort the library, so files are first opened in a child process.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..images import slide_reader as slide_process
from ..images.file_types import MAX_DEFLATE, ImageError, deflated_bytes
from ..utils.files import file_key

MAX_CHUNK_BYTES = 2**24
MAX_ARRAY_BYTES = 2**27
MAX_CHUNKS = 100_000  # per array, as they are read one by one
_MAX_RATIO = 4  # compression ratio of feature vectors
# Filters of the HDF5 library by their numbers, then those of h5py and hdf5plugin. Others take as
# much memory as their parameters in the file say (szip, nbit, scaleoffset).
_DEFLATE = 1
_FILTERS = {_DEFLATE: "gzip", 2: "shuffle", 3: "fletcher32"}
_PLUGINS = {32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd"}
_SPARE_BYTES = 2**26


def check_chunk(name: str, n_bytes: int, file_bytes: int) -> None:
    """Raise an error if a chunk is much larger than its file."""
    if n_bytes > max(MAX_CHUNK_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"a chunk of {name} needs {n_bytes >> 20} MiB of memory, but the file has "
            f"{file_bytes} bytes; save it again with smaller chunks, such as 64 rows"
        )


def check_whole(name: str, n_bytes: int, file_bytes: int) -> None:
    """Raise an error if an array that is read whole is much larger than its file."""
    if n_bytes > max(MAX_ARRAY_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"{name} needs {n_bytes >> 20} MiB of memory, but the file has {file_bytes} "
            "bytes; it is damaged, or must be saved without compression"
        )


def check_links(file: Any) -> None:
    """Raise an error if a file refers to another file."""
    h5l, h5o, h5d = (import_module(f"h5py.{name}") for name in ("h5l", "h5o", "h5d"))
    wrong: list[str] = []

    def visit(name: bytes, info: Any) -> str | None:
        shown = name.decode("utf-8", "replace")
        if info.type not in (h5l.TYPE_HARD, h5l.TYPE_SOFT):
            wrong.append(f"{shown!r} is a link to another file")
        elif info.type == h5l.TYPE_HARD:
            try:
                is_array = h5o.get_info(file.id, name).type == h5o.TYPE_DATASET
                settings = h5d.open(file.id, name).get_create_plist() if is_array else None
            except (KeyError, OSError, RuntimeError, ValueError):
                return None  # damaged: reported when read
            if settings is not None:
                is_virtual = settings.get_layout() == h5d.VIRTUAL
                if is_virtual or settings.get_external_count():
                    wrong.append(f"the values of {shown!r} are in another file")
        return wrong[0] if wrong else None

    file.id.links.visit(visit, info=True)
    if wrong:
        raise ValueError(f"{wrong[0]}, which is not supported; save all data in one file")


def check_dataset(dataset: Any, file_bytes: int) -> None:
    """Raise an error if the chunks of an array would take too much memory."""
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(index)[0] for index in range(settings.get_nfilters())]
    for number in filters:
        if number not in _FILTERS | _PLUGINS:
            raise ValueError(
                f"{dataset.name} uses the unsupported filter {number}; save it again with "
                "gzip or without compression"
            )
    if sum(number in _PLUGINS or number == _DEFLATE for number in filters) > 1:
        raise ValueError(f"{dataset.name} is compressed more than once; save it again")
    if dataset.chunks is None:
        return
    n_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    check_chunk(dataset.name, n_bytes, file_bytes)
    if filters and math.prod(dataset.shape):
        _check_packed(dataset, n_bytes, _DEFLATE in filters)


def _check_packed(dataset: Any, n_bytes: int, is_deflated: bool) -> None:
    """Raise an error if compressed chunks are, or decompress to more than, the size of a chunk."""
    suspects = []

    def visit(chunk: Any) -> None:
        if chunk.size > 2 * n_bytes + 4096:
            raise ValueError(f"a chunk of {dataset.name} is larger than specified")
        if is_deflated and chunk.size * MAX_DEFLATE > max(n_bytes, _SPARE_BYTES):
            suspects.append(chunk.chunk_offset)

    dataset.id.chunk_iter(visit)
    for offset in suspects:
        _, data = dataset.id.read_direct_chunk(offset)
        found = deflated_bytes(data, max(n_bytes, _SPARE_BYTES))
        if found > max(n_bytes, _SPARE_BYTES):
            raise ValueError(
                f"a chunk of {dataset.name} with {len(data)} bytes would decompress to "
                f"{found} bytes or more instead of {n_bytes}"
            )


def missing_chunks(dataset: Any) -> tuple[int, int]:
    """Return the numbers of missing and of all chunks; a contiguous array counts as one chunk."""
    if not math.prod(dataset.shape):
        return 0, 0
    if dataset.chunks is None:
        return int(dataset.id.get_storage_size() == 0), 1
    grid = zip(dataset.shape, dataset.chunks, strict=True)
    n_chunks = math.prod(-(-length // chunk) for length, chunk in grid)
    return n_chunks - dataset.id.get_num_chunks(), n_chunks


# --- child process ------------------------------------------------------------------------------

_LOCK = threading.Lock()  # one file at a time, as each needs a process


def check_in_subprocess(path: Path, read: Callable[[str], None]) -> None:
    """Raise ImageError if a child process hangs or ends when it reads the file.

    Each file is read once, until it changes. Without child processes (Windows) nothing is checked.

    Parameters
    ----------
    path : feature file
    read : module-level function that opens the file; errors that it raises are ignored, as they are
        raised again when the file is opened in this process
    """
    if slide_process.USE_SUBPROCESS:
        _check_in_subprocess(path, path.absolute(), repr(file_key(path)), read)


@lru_cache(maxsize=100_000)
def _check_in_subprocess(
    path: Path, absolute: Path, state: str, read: Callable[[str], None]
) -> None:
    try:
        with _LOCK:
            slide_process.call(read, absolute)
    except slide_process.SlideFormatError:
        pass
    except slide_process.SlideProcessDiedError as error:
        raise ImageError(
            f"{path}: the file is damaged and crashes the HDF5 library; compute the features again"
        ) from error
