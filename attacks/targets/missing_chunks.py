"""Images and feature files with missing chunks: refused with their number, or unchanged.

If missing chunks are allowed, there is a warning, and the other chunks are unchanged.
"""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.random import Generator

import histodict
from histodict.images import slide_reader as slide_process
from histodict.images.file_types import ImageError
from histodict.images.source import open_image
from histodict.precomputed.feature_file import open_features

from ..folders import COORDS, LINK, VECTORS, are_undamaged, make_folders, packed, unpack, values_of
from ..target import Case, InvariantError, Target
from .images import refusal

_METADATA = (".zarray", ".zgroup", ".zattrs", "zarr.json")
_WAYS = ("lost", "lost", "lost", "lost", "folder", "link", "empty", "renamed", "renamed", "cut")
_HARMLESS = ("stray",)  # edits that change nothing


class MissingChunks(Target):
    name = "missing_chunks"
    smoke_attempts = 40

    def setup(self, folder: Path) -> None:
        slide_process.USE_SUBPROCESS = False  # a process per failing image takes seconds
        self._folder = folder / "attacked"
        self._folder.mkdir(exist_ok=True)
        shutil.rmtree(folder / "made", ignore_errors=True)  # left by a worker that ended
        (folder / "made").mkdir()
        self._bases = make_folders(folder / "made")

    def case(self, rng: Generator) -> Case:
        base = str(rng.choice([*sorted(self._bases), "chunks.h5"]))
        if base == "chunks.h5":
            lost = rng.random(15) < rng.choice([0.0, 0.1, 0.5, 1.0])
            return Case(f"{base}: lost", base, tuple(np.flatnonzero(lost).tolist()))
        way = str(rng.choice([*_WAYS, *_HARMLESS, "in shards"]))
        names = [n for n in sorted(self._bases[base]) if n.rsplit("/", 1)[-1] not in _METADATA]
        sharded = [n for n in names if "s." in base and not n.startswith("coords")]
        if way == "in shards":
            names, way = (sharded, way) if sharded else (names, "lost")
        n_lost = int(rng.integers(1, 1 + rng.choice([1, 3, len(names)])))
        chosen = rng.choice(names, min(n_lost, len(names)), replace=False)
        edits = tuple([way, str(name), int(rng.integers(2**16))] for name in chosen)
        return Case(f"{base}: {way}", base, edits)

    def build(self, case: Case) -> bytes:
        if case.base == "chunks.h5":
            return self._hdf5(case.edits)
        files = dict(self._bases[case.base])
        for way, name, number in case.edits:
            data = files[name]
            if way == "stray":
                files[f"{name}.part"] = data
                continue
            del files[name]
            if way == "folder":
                files[f"{name}/inside"] = data
            elif way == "link":
                files[name] = f"{LINK}../elsewhere".encode()
            elif way == "empty":
                files[name] = b""
            elif way == "cut":
                files[name] = data[: number % max(1, len(data))]
            elif way == "renamed":
                files[f"{name}{number}"] = data
            elif way == "in shards":
                files[name] = _without_one(data, number)
        return packed(files)

    def _hdf5(self, lost: tuple[int, ...]) -> bytes:
        path = self._folder / "made.h5"
        with h5py.File(path, "w") as file:
            for name, values, first in (("features", VECTORS, 0), ("coords", COORDS, 10)):
                chunks = (8, 3) if name == "features" else (8, 2)
                made = file.create_dataset(name, values.shape, values.dtype, chunks=chunks)
                n_across = values.shape[1] // chunks[1]
                for place in range(5 * n_across):
                    row, column = place // n_across * 8, place % n_across * chunks[1]
                    part = np.s_[row : row + 8, column : column + chunks[1]]
                    if first + place not in lost:
                        made[part] = values[part]
        return path.read_bytes()

    def attempt(self, data: bytes, base: str) -> str:
        path = self._folder / base
        if base.endswith(".h5"):
            path.write_bytes(data)
        else:
            unpack(data, path)
        try:
            values = values_of(path)
        except ImageError as error:
            outcome, n_reported = refusal(error, path), _number_reported(str(error))
        else:
            if not are_undamaged(path, values):
                raise InvariantError("chunks are missing, and the values changed without a warning")
            return "answered as before"
        if n_reported is None:
            return outcome
        self._allowed(path, n_reported)
        return "refused with the number"

    def _allowed(self, path: Path, n_reported: int) -> None:
        """Require the same number of missing chunks in a warning and in the result."""
        with histodict.allow_missing_chunks(), warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            try:
                n_missing = _missing_chunks(path)
                values_of(path)
            except ImageError as error:  # too little is left for a result
                refusal(error, path)
                return
        message = {_number_reported(str(each.message)) for each in reported}
        if n_missing != n_reported or message != {n_reported}:
            raise InvariantError(
                f"{n_reported} chunks are missing, but {n_missing} and {message} are reported"
            )


def _missing_chunks(path: Path) -> Any:
    if path.name.endswith(".ome.zarr"):
        return open_image(path).missing_chunks  # type: ignore[attr-defined]
    with open_features(path) as file:
        return file.missing_chunks


def _number_reported(message: str) -> int | None:
    found = re.search(r"(\d+) of its \d+ chunks are missing", message)
    return int(found[1]) if found else None


def _without_one(data: bytes, number: int) -> bytes:
    """Return a shard whose index marks a chunk as not written, with a correct checksum."""
    import google_crc32c

    index = bytearray(data[-16 * _n_inner(data) - 4 : -4])
    at = number % (len(index) // 16) * 16
    index[at : at + 16] = b"\xff" * 16
    checksum = google_crc32c.value(bytes(index)).to_bytes(4, "little")
    return data[: -len(index) - 4] + bytes(index) + checksum


def _n_inner(data: bytes) -> int:
    """Return the number of chunks in a shard of this target, located by the index checksum."""
    import google_crc32c

    for n in (6, *range(1, 65)):
        index = data[-16 * n - 4 : -4]
        if google_crc32c.value(index).to_bytes(4, "little") == data[-4:]:
            return n
    raise ValueError("no shard")


TARGET = MissingChunks()
