"""Zarr folders whose metadata are invalid or name codecs that run code.

No code is run, memory stays within a limit, and rejected folders are named. Codecs that keep the
length of a chunk may change the values.
"""

from __future__ import annotations

import json
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from histodict.images import slide_reader as slide_process
from histodict.images.file_types import ImageError

from .. import json_edits
from ..folders import make_folders, packed, peak_kib, reset_peak_memory, unpack, values_of
from ..target import Case, InvariantError, Target
from ..zarr_files import payload
from .images import refusal

MOST_KIB = 2**20
_METADATA = (".zarray", ".zgroup", ".zattrs", "zarr.json", ".zmetadata")
_IDS = (
    *("pickle", "pickle", "pickle", "json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array"),
    *("categorize", "astype", "fixedscaleoffset", "quantize", "packbits", "base64", "lzma", "bz2"),
    *("zfpy", "pcodec", "n5_wrapper", "shuffle", "delta", "blosc", "zstd", "gzip", "zlib", "lz4"),
)
_NAMES = (
    *("numcodecs.pickle", "numcodecs.pickle", "vlen-utf8", "vlen-bytes", "bytes", "transpose"),
    *("sharding_indexed", "blosc", "zstd", "gzip", "crc32c", "numcodecs.zlib", "numcodecs.lzma"),
    *("numcodecs.vlen_utf8", "imagecodecs_jpeg2k", "os.system", "cast_value", "scale_offset"),
)
_DTYPES_2 = ("|O", "|O", "<U8", "|S8", "<f4", ">f4", "<i8", "|u1", "|V16", "<M8[ns]", "<c8", "<f2")
_DTYPES_3 = (
    "string",
    "bytes",
    "float32",
    "int64",
    "uint8",
    "complex64",
    "r16",
    "variable_length_bytes",
)


class ZarrCodecs(Target):
    name = "zarr_codecs"
    smoke_attempts = 40

    def setup(self, folder: Path) -> None:
        slide_process.USE_SUBPROCESS = False  # a process per failing image takes seconds
        self._folder = folder / "attacked"
        self._folder.mkdir(exist_ok=True)
        self._trace_file = folder / "was-run"
        shutil.rmtree(folder / "made", ignore_errors=True)  # left by a worker that ended
        (folder / "made").mkdir()
        self._bases = make_folders(folder / "made")
        for base in self._bases:  # loads the libraries before the memory limit applies
            self.attempt(packed(self._bases[base]), base)

    def case(self, rng: Generator) -> Case:
        base = str(rng.choice(sorted(self._bases)))
        kind = str(rng.choice(["codecs", "codecs", "metadata", "consolidated"]))
        files = self._bases[base]
        names = sorted(name for name in files if name.rsplit("/", 1)[-1] in _METADATA)
        arrays = [name for name in names if name.endswith(".zarray") or "/" in name]
        edits: list[Any] = []
        if kind == "metadata":
            for _ in range(int(rng.integers(1, 4))):
                name = str(rng.choice(names))
                edit = json_edits.json_edit(rng, json.loads(files[name]))
                edits.append(["json", name, edit])
        else:
            name = str(rng.choice([each for each in arrays if not each.endswith(".zattrs")]))
            edits += self._codec_edits(rng, name, json.loads(files[name]))
            if kind == "consolidated":
                edits.append(["consolidate", name])
        if rng.random() < 0.8:
            edits.append(["payload", str(rng.choice(["features", "coords", "s0"]))])
        return Case(f"{base}: {kind}", base, tuple(edits))

    def _codec_edits(self, rng: Generator, name: str, document: dict[str, Any]) -> list[Any]:
        if document["zarr_format"] == 2:
            made = [{"id": str(rng.choice(_IDS))} for _ in range(int(rng.integers(1, 4)))]
            for codec in made:
                if rng.random() < 0.3:
                    codec[str(rng.choice(["level", "dtype", "elementsize", "protocol"]))] = 4
            where = str(rng.choice(["compressor", "filters", "filters"]))
            values = [[where, made[0] if where == "compressor" else made]]
            if rng.random() < 0.4:
                values.append(["dtype", str(rng.choice(_DTYPES_2))])
        else:
            codecs = [{"name": str(rng.choice(_NAMES))} for _ in range(int(rng.integers(1, 4)))]
            if rng.random() < 0.5:
                codecs.insert(0, {"name": "bytes", "configuration": {"endian": "little"}})  # type: ignore[dict-item]
            values = [["codecs", codecs]]
            own = document["codecs"][0]
            if own["name"] == "sharding_indexed" and rng.random() < 0.7:
                inside = str(rng.choice(["codecs", "index_codecs"]))
                new = own["configuration"] | {inside: codecs}
                values = [["codecs", [own | {"configuration": new}]]]
            if rng.random() < 0.3:
                values.append(["data_type", str(rng.choice(_DTYPES_3))])
        return [["json", name, ["set", [key], value]] for key, value in values]

    def build(self, case: Case) -> bytes:
        files = dict(self._bases[case.base])
        consolidated = [edit[1] for edit in case.edits if edit[0] == "consolidate"]
        by_file: dict[str, list[Any]] = {}
        for what, name, *edit in case.edits:
            if what == "json" and name in files:
                by_file.setdefault(name, []).extend(edit)
        for name, edits in by_file.items():
            value = reduce(json_edits.apply_json, edits, json.loads(files[name]))
            text = json_edits.dumps(value)
            if name in consolidated:
                _consolidate(files, name, text)
            else:
                files[name] = text.encode("utf-8", "surrogatepass")
        for what, name, *_ in case.edits:
            chunks = [
                place for place in files if what == "payload" and place.startswith(f"{name}/")
            ]
            for place in chunks:
                if place.rsplit("/", 1)[-1] not in _METADATA:
                    files[place] = payload(self._trace_file)
        return packed(files)

    def attempt(self, data: bytes, base: str) -> str:
        path = self._folder / base
        unpack(data, path)
        self._trace_file.unlink(missing_ok=True)
        before = reset_peak_memory()
        try:
            values = values_of(path)
        except ImageError as error:
            return refusal(error, path)
        finally:
            if self._trace_file.exists():
                raise InvariantError("code in the folder was run")
            if peak_kib() - before > MOST_KIB:
                raise InvariantError(f"{peak_kib() - before >> 10} MiB of memory were taken")
        if not all(isinstance(each, np.ndarray) for each in values):
            raise InvariantError("no numbers")
        return "answered"


def _consolidate(files: dict[str, bytes], name: str, text: str) -> None:
    """Move the metadata of an array to the consolidated metadata of the group."""
    array = json.loads(text)
    if name.endswith("zarr.json"):
        group = json.loads(files["zarr.json"])
        known = {name.removesuffix("/zarr.json"): array}
        inline = {"kind": "inline", "must_understand": False, "metadata": known}
        files["zarr.json"] = json.dumps(group | {"consolidated_metadata": inline}).encode()
    else:
        known = {".zgroup": {"zarr_format": 2}, name: array}
        content = {"zarr_consolidated_format": 1, "metadata": known}
        files[".zmetadata"] = json.dumps(content).encode()


TARGET = ZarrCodecs()
