"""Write Zarr folders file by file, as an attacker would."""

from __future__ import annotations

import json
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE = {"type": "scale", "scale": [1.0, 0.5, 0.5]}


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.file), "w")


def payload(file: Path) -> bytes:
    return pickle.dumps(Payload(file))


def write_array_2(
    folder: Path, array: NDArray[Any], chunk: bytes | None = None, **changes: Any
) -> None:
    """Write a version 2 array of one uncompressed chunk; `chunk` replaces it, keywords the
    metadata."""
    folder.mkdir(parents=True)
    document = {
        "zarr_format": 2,
        "shape": array.shape,
        "chunks": array.shape,
        "dtype": array.dtype.str,
        "compressor": None,
        "filters": None,
        "fill_value": 0,
        "order": "C",
    }
    (folder / ".zarray").write_text(json.dumps(document | changes))
    name = ".".join(["0"] * array.ndim)
    (folder / name).write_bytes(array.tobytes() if chunk is None else chunk)


def write_array_3(
    folder: Path,
    array: NDArray[Any],
    chunk: bytes | None = None,
    codecs: list[Any] | None = None,
    chunks: tuple[int, ...] | None = None,
    **changes: Any,
) -> None:
    """Write a version 3 array; chunks are uncompressed unless `chunk` replaces them."""
    folder.mkdir(parents=True)
    chunks = chunks or array.shape
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs or [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    (folder / "zarr.json").write_text(json.dumps(document | changes))
    counts = [-(-a // b) for a, b in zip(array.shape, chunks, strict=True)]
    for place in product(*map(range, counts)):
        file = folder / "c" / "/".join(map(str, place))
        file.parent.mkdir(parents=True, exist_ok=True)
        start = [at * side for at, side in zip(place, chunks, strict=True)]
        padded = np.zeros(chunks, array.dtype)
        part = array[tuple(slice(a, a + b) for a, b in zip(start, chunks, strict=True))]
        padded[tuple(map(slice, part.shape))] = part
        file.write_bytes(padded.tobytes() if chunk is None else chunk)


def write_group(folder: Path, version: int, attributes: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
        (folder / ".zattrs").write_text(json.dumps(attributes or {}))
    else:
        group = {"zarr_format": 3, "node_type": "group", "attributes": attributes or {}}
        (folder / "zarr.json").write_text(json.dumps(group))
    return folder


def image_attributes(version: int) -> dict[str, Any]:
    """Return the attributes of an OME-Zarr image with one level, s0."""
    axes = [{"name": "c", "type": "channel"}]
    axes += [{"name": a, "type": "space", "unit": "micrometer"} for a in "yx"]
    datasets = [{"path": "s0", "coordinateTransformations": [SCALE]}]
    multiscales = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    if version == 2:
        return {"multiscales": multiscales}
    return {"ome": {"version": "0.5", "multiscales": multiscales}}
