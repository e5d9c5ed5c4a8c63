"""Damaged images and slides: pixels of the stated size, or an error that names the file.

No process may die, use more than a gigabyte of memory or, as the runner checks, take more than ten
seconds.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from histodict.images.source import ImageError, ImageSource, open_image

from ..image_bases import make_bases
from ..target import Case, InvariantError, Target

_MOST_KIB = 2**20  # the process that decodes slides has its own limit
_STATUS = Path("/proc/self/status")
_MAX_MESSAGE_LENGTH = 1000
# Headers, where damage has the largest effect.
_NUMBERS = (0, 1, 2, 3, 7, 8, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)

Edit = list[Any]  # ["run", at, hex], ["cut", length], ["png", chunk, at, hex]


class Images(Target):
    """Files of every supported format, from flipped bytes to implausible sizes."""

    name = "images"

    def setup(self, folder: Path) -> None:
        self._folder = folder
        self._peak_kib = peak_kib()
        self._bases = make_bases()
        self._fields = {name: _fields(name, data) for name, data in self._bases.items()}
        self._ways = {
            "bits flipped": self._flips,
            "runs overwritten": self._runs,
            "cut short": self._cut,
            "spliced": self._splices,
            "header": self._headers,
        }

    def case(self, rng: Generator) -> Case:
        base = str(rng.choice(list(self._bases)))
        way = str(rng.choice(list(self._ways)))
        edits = self._ways[way](base, rng)
        return Case(f"{_kind(base)}: {way}", base, tuple(edits))

    def build(self, case: Case) -> bytes:
        data = bytearray(self._bases[case.base])
        for edit in case.edits:
            _apply(data, edit)
        return bytes(data)

    def attempt(self, data: bytes, base: str) -> str:
        path = self._folder / base
        path.write_bytes(data)
        try:
            with open_image(path) as source:
                read_regions(source)
        except ImageError as error:
            return refusal(error, path)
        finally:
            if peak_kib() - self._peak_kib > _MOST_KIB:
                raise InvariantError("more than a gigabyte of memory was taken")
        return "answered"

    # --- ways to damage a file ------------------------------------------------------------------

    def _flips(self, base: str, rng: Generator) -> list[Edit]:
        data = self._bases[base]
        places = rng.integers(0, len(data), int(rng.integers(1, 20)))
        return [
            ["run", int(at), bytes([data[at] ^ 1 << int(rng.integers(8))]).hex()] for at in places
        ]

    def _runs(self, base: str, rng: Generator) -> list[Edit]:
        """Overwrite runs of bytes, in pieces of 4 bytes so that minimising can leave some out."""
        edits: list[Edit] = []
        for at in rng.integers(0, len(self._bases[base]), int(rng.integers(1, 4))):
            run = rng.bytes(int(rng.integers(1, 200)))
            if rng.random() < 0.3:
                run = bytes([run[0]]) * len(run)
            edits += [["run", int(at) + i, run[i : i + 4].hex()] for i in range(0, len(run), 4)]
        return edits

    def _cut(self, base: str, rng: Generator) -> list[Edit]:
        return [["cut", int(rng.integers(1, len(self._bases[base])))]]

    def _splices(self, base: str, rng: Generator) -> list[Edit]:
        """Copy parts of the file, or of another of its kind, to a wrong place."""
        alike = [name for name in self._bases if _kind(name) == _kind(base)]
        edits: list[Edit] = []
        for _ in range(int(rng.integers(1, 4))):
            data = self._bases[str(rng.choice(alike))]
            start, to = int(rng.integers(len(data))), int(rng.integers(len(self._bases[base])))
            part = data[start : start + int(rng.integers(4, 400))]
            edits += [["run", to + i, part[i : i + 8].hex()] for i in range(0, len(part), 8)]
        return edits

    def _headers(self, base: str, rng: Generator) -> list[Edit]:
        """Overwrite one to four sizes, offsets, counts or types by implausible ones."""
        fields = self._fields[base]
        chosen = rng.integers(0, len(fields), int(rng.integers(1, 5)))
        return [_odd_number(fields[i], rng) for i in chosen]


# --- edits --------------------------------------------------------------------------------------


def _apply(data: bytearray, edit: Edit) -> None:
    what, at, *text = edit
    if what == "cut":
        del data[at:]
    elif what == "run":
        run = bytes.fromhex(text[0])[: max(0, len(data) - at)]
        data[at : at + len(run)] = run
    else:
        _overwrite_chunk(data, at, *text)


def _overwrite_chunk(data: bytearray, chunk: int, at: int, run: str) -> None:
    """Overwrite bytes of a PNG chunk and correct its checksum."""
    start, length = _png_chunks(bytes(data))[chunk]
    new = bytes.fromhex(run)[: max(0, length - at)]
    data[start + 8 + at : start + 8 + at + len(new)] = new
    end = start + 8 + length
    data[end : end + 4] = struct.pack(">I", zlib.crc32(data[start + 4 : end]))


def _odd_number(field: Edit, rng: Generator) -> Edit:
    """Return an edit of a field [how, …, width, order]: an extreme, near or arbitrary number."""
    *place, width, order = field
    value = int(rng.choice(_NUMBERS)) if rng.random() < 0.7 else int(rng.integers(2**32))
    if rng.random() < 0.2:
        value = int(rng.integers(0, 300))
    return [*place, (value % 2 ** (8 * width)).to_bytes(width, order).hex()]


# --- positions of header fields -----------------------------------------------------------------


def _kind(base: str) -> str:
    suffix = base.rsplit(".", 1)[1]
    return {"tiff": "tif"}.get(suffix, suffix)


def _fields(name: str, data: bytes) -> list[Edit]:
    """Return [how, where …, width, byte order] of every number in a file's header."""
    kind = _kind(name)
    if kind == "png":
        chunks = _png_chunks(data)
        inside = [["png", 0, at, 4 if at < 8 else 1, "big"] for at in (0, 4, 8, 9, 10, 11, 12)]
        return [*inside * 3, *(["run", start, 4, "big"] for start, _ in chunks)]
    if kind == "bmp":
        return [["run", at, 4, "little"] for at in (*range(2, 18, 4), *range(18, 54, 4))]
    if kind == "jpg":
        return _jpeg_fields(data)
    return _tiff_fields(data)


def _png_chunks(data: bytes) -> list[tuple[int, int]]:
    """Yield the offset of each chunk and its stated length."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((at, length))
        at += 12 + length
    return chunks


def _jpeg_fields(data: bytes) -> list[Edit]:
    """Return the length of each segment and its first bytes, without the pixels."""
    fields: list[Edit] = []
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        (length,) = struct.unpack(">H", data[at + 2 : at + 4])
        fields.append(["run", at + 2, 2, "big"])
        if 0xC0 <= data[at + 1] <= 0xC2:  # precision, height, width, then the colours
            fields += [["run", at + 5, 2, "big"], ["run", at + 7, 2, "big"]] * 3
            fields += [["run", at + i, 1, "big"] for i in range(4, length + 2)]
        at += 2 + length
    return [*fields, *(["run", at + i, 1, "big"] for i in range(2, 14))]


def _tiff_fields(data: bytes) -> list[Edit]:
    """Return tag, type, count and value of each directory entry, and the values it points at."""
    big = data[2] == 43
    head, step, word = (8, 20, 8) if big else (2, 12, 4)
    fields: list[Edit] = []
    (at,) = struct.unpack_from("<Q" if big else "<I", data, 8 if big else 4)
    while at:
        (n_entries,) = struct.unpack_from("<Q" if big else "<H", data, at)
        for entry in range(at + head, at + head + n_entries * step, step):
            fields += [["run", entry, 2, "little"], ["run", entry + 2, 2, "little"]]
            fields += [["run", entry + 4, word, "little"]]
            fields += [["run", entry + 4 + word, word, "little"]] * 3
            pointed = int.from_bytes(data[entry + 4 + word : entry + 4 + 2 * word], "little")
            if 8 < pointed < len(data) - 64:
                fields += [["run", pointed + i, 4, "little"] for i in (0, 4, 8)]
        following = at + head + n_entries * step
        fields.append(["run", following, word, "little"])
        at = int.from_bytes(data[following : following + word], "little")
    return fields


# --- invariants ---------------------------------------------------------------------------------


def read_regions(source: ImageSource) -> None:
    """Read a thumbnail and some regions; raise Find if their size differs from the stated one."""
    width, height = source.size
    if width < 1 or height < 1:
        raise InvariantError(f"an image of {width} x {height} pixels")
    if max(source.thumbnail(64).shape) > 64:
        raise InvariantError("a thumbnail larger than requested")
    for x, y in ((0, 0), (width - 40, height - 40)):
        for downsample in (1.0, 2.7):
            region = source.read(x, y, 54, 54, downsample)
            if region.shape != (round(54 / downsample),) * 2 + (3,) or region.dtype != np.uint8:
                raise InvariantError(f"a region of shape {region.shape} at reduction {downsample}")


def refusal(error: ImageError, path: Path) -> str:
    text = str(error)
    if not text.startswith(f"{path}: "):
        raise InvariantError(f"the error does not name the file: {text}") from error
    if "\n" in text or not len(str(path)) + 10 < len(text) < _MAX_MESSAGE_LENGTH:
        raise InvariantError(f"the error is not one line of text: {text[:2000]}") from error
    return "refused, process died" if "the process that read it" in text else "refused"


def peak_kib() -> int:
    """Return the peak memory of this process in KiB; 0 if the system does not report it."""
    if not _STATUS.exists():
        return 0
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


TARGET = Images()
