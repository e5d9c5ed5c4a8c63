"""Checks of an HDF5 file before its values are read: links, storage, sizes, missing chunks."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from .compressed_size import MAX_DEFLATE, deflated_bytes
from .feature_sizes import check_chunk

# Filters of the HDF5 library by their numbers, then those of h5py and hdf5plugin. Others take as
# much memory as their parameters in the file say (szip, nbit, scaleoffset).
_DEFLATE = 1
_FILTERS = {_DEFLATE: "gzip", 2: "shuffle", 3: "fletcher32"}
_PLUGINS = {32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd"}
_SPARE_BYTES = 2**26


def check_links(file: Any) -> None:
    """Refuse a file that refers to another file."""
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
        raise ValueError(f"{wrong[0]}, which is not supported: save all data in one file")


def check_dataset(dataset: Any, file_bytes: int) -> None:
    """Refuse an array whose chunks would take too much memory."""
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(place)[0] for place in range(settings.get_nfilters())]
    for number in filters:
        if number not in _FILTERS | _PLUGINS:
            raise ValueError(
                f"{dataset.name} is stored with the filter {number}, which is not supported: save "
                "it again with gzip or without compression"
            )
    if sum(number in _PLUGINS or number == _DEFLATE for number in filters) > 1:
        raise ValueError(f"{dataset.name} is compressed more than once: save it again")
    if dataset.chunks is None:
        return
    n_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    check_chunk(dataset.name, n_bytes, file_bytes)
    if filters and math.prod(dataset.shape):
        _check_packed(dataset, n_bytes, _DEFLATE in filters)


def _check_packed(dataset: Any, n_bytes: int, is_deflated: bool) -> None:
    """Refuse compressed chunks that are, or decompress to more than, the size of a chunk."""
    suspects = []

    def visit(chunk: Any) -> None:
        if chunk.size > 2 * n_bytes + 4096:
            raise ValueError(f"a chunk of {dataset.name} is larger than its array states")
        if is_deflated and chunk.size * MAX_DEFLATE > max(n_bytes, _SPARE_BYTES):
            suspects.append(chunk.chunk_offset)

    dataset.id.chunk_iter(visit)
    for place in suspects:
        _, data = dataset.id.read_direct_chunk(place)
        found = deflated_bytes(data, max(n_bytes, _SPARE_BYTES))
        if found > max(n_bytes, _SPARE_BYTES):
            raise ValueError(
                f"a chunk of {dataset.name} of {len(data)} bytes would decompress to {found} or "
                f"more, and its array states {n_bytes}"
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
