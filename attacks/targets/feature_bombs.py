"""Feature files whose content takes far more memory than their size, and damaged ones.

Each file is refused by name or read, within a memory limit; values protected by a checksum are
unchanged.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

from numpy.random import Generator

from histodict.images import slide_reader as slide_process
from histodict.images.file_types import ImageError

from .. import byte_edits
from ..feature_bombs import BOMBS
from ..folders import (
    are_undamaged,
    files_of,
    make_files,
    packed,
    peak_kib,
    reset_peak_memory,
    unpack,
    values_of,
)
from ..target import Case, InvariantError, Target
from .images import refusal

MOST_KIB = 400 * 2**10
_GUARDED = (".npz",)  # by checksums of the whole content
_MIB = (512, 768, 1024)
_BOMBS = sorted(set(BOMBS) - {"zarr: sparse"})  # a zip file does not preserve holes
_NUMBERS = (0, 1, 2**16, 2**24, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)


class FeatureBombs(Target):
    name = "feature_bombs"
    smoke_attempts = 40

    def setup(self, folder: Path) -> None:
        self._folder = folder / "attacked"
        self._made = folder / "made"
        for each in (self._folder, self._made, folder / "files"):
            each.mkdir(exist_ok=True)
        self._bases = make_files(folder / "files")
        self._bombs: dict[tuple[str, int], dict[str, bytes]] = {}
        slide_process.REPLY_TIMEOUT_S = 6
        # Load the libraries before the memory limit applies.
        for base, data in self._bases.items():
            self.attempt(data, base)

    def case(self, rng: Generator) -> Case:
        if rng.random() < 0.15:
            name = str(rng.choice(_BOMBS))
            base, bomb = f"bomb{BOMBS[name][0]}", ["bomb", name, int(rng.choice(_MIB))]
            flips = [byte_edits.flipped(rng, 10_000) for _ in range(int(rng.integers(0, 3)))]
            return Case(f"bomb, {name}", base, (bomb, *flips))
        base = str(rng.choice(sorted(self._bases)))
        n_bytes = len(self._bases[base])
        edits: list[Any] = []
        for _ in range(int(rng.integers(1, 5))):
            if rng.random() < 0.5:
                number = int(rng.choice(_NUMBERS)) if rng.random() < 0.8 else 2**20
                width = int(rng.choice([4, 8]))
                run = (number % 2 ** (8 * width)).to_bytes(width, "little").hex()
                edits.append(["write", int(rng.integers(n_bytes)), run])
            else:
                edits.append(byte_edits.flipped(rng, n_bytes))
        return Case(f"{base}: bytes", base, tuple(edits))

    def build(self, case: Case) -> bytes:
        edits = case.edits
        if not edits or edits[0][0] != "bomb":
            return _edited(self._bases[case.base], edits)
        files = self._bomb(*edits[0][1:])
        largest = max(files, key=lambda name: len(files[name]))
        files = files | {largest: _edited(files[largest], edits[1:])}
        return packed(files) if case.base.endswith(".zarr") else files[largest]

    def _bomb(self, name: str, n_mib: int) -> dict[str, bytes]:
        if (name, n_mib) not in self._bombs:
            ending, write = BOMBS[name]
            path = write(self._made / f"bomb{ending}", n_mib)
            is_folder = path.is_dir()
            self._bombs[name, n_mib] = files_of(path) if is_folder else {"": path.read_bytes()}
            _remove(path)
        return self._bombs[name, n_mib]

    def attempt(self, data: bytes, base: str) -> str:
        path = self._folder / base
        _remove(path)
        if path.suffix == ".zarr":
            unpack(data, path)
        else:
            path.write_bytes(data)
        del data
        before = reset_peak_memory()
        try:
            values = values_of(path)
        except ImageError as error:
            return refusal(error, path)
        finally:
            taken = peak_kib() - before
            if taken > MOST_KIB:
                raise InvariantError(f"{taken >> 10} MiB of memory were taken")
        if path.suffix in _GUARDED and path.stem == "a" and not are_undamaged(path, values):
            raise InvariantError("values of a damaged file were accepted")
        return "read"


def _edited(data: bytes, edits: Iterable[Any]) -> bytes:
    return reduce(byte_edits.apply_bytes, edits, data)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


TARGET = FeatureBombs()
