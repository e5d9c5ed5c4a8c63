"""Compare the files of two runs bit for bit, except for timestamps."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow.parquet

# Partial files of a killed run: never read, and removed a day later.
_LEFTOVERS = re.compile(r"\..*\.(partial|unfinished)[.-].*")
# Files of the running server that differ after a restart: log, progress, token, lock.
_VOLATILE = {"worker.lock", "log.txt", "progress.jsonl", "token", "open.html", "server.lock"}
# A job of the page has a random name.
_JOB = re.compile(r"(?<=/jobs/)[0-9a-f]{12}(?=/)")
# The checksum of a JSON file (`utils.text_io`).
_DIGEST = re.compile(r"(?<=^{\"sha256\": \")[0-9a-f]{64}")
# The checksum and the dates in the header of a model file.
_MODEL_TIMES = re.compile(rb"(?<=sha256\\\": \\\")[0-9a-f]{64}|\d{4}-\d\d-\d\d")
_NUMBERS = re.compile(r"-?\d[\d.,:e+-]*")
_TEXT_SUFFIXES = (".csv", ".json", ".html", ".svg", ".txt")


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files to compare, by their path in the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_leftover = any(map(_LEFTOVERS.fullmatch, parts))
        if path.is_file() and not is_leftover and path.name not in _VOLATILE:
            found[_JOB.sub("JOB", "/".join(parts))] = path
    return found


def differences(one: Path, two: Path, timed: Collection[str] = ()) -> list[str]:
    """Return the paths of files that differ or exist in one of the folders only.

    timed : patterns of files whose numbers may differ because they are times
    """
    here, there = files_of(one), files_of(two)
    unlike = []
    for name in sorted(here.keys() & there.keys()):
        by_clock = any(fnmatchcase(name, pattern) for pattern in timed)
        if content(here[name], by_clock) != content(there[name], by_clock):
            unlike.append(name)
    return sorted(here.keys() ^ there.keys()) + unlike


def content(path: Path, timed: bool = False) -> Any:
    """Return the part of a file that is compared."""
    if path.suffix == ".npz":  # a zip file, which contains timestamps
        with suppress(ValueError, OSError, EOFError, BadZipFile), np.load(path) as arrays:
            return {name: (arrays[name].dtype, arrays[name].tobytes()) for name in arrays}
    if not timed:
        return path.read_bytes()
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return table.schema.names, table.num_rows
    if path.suffix == ".histodict":
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        return _MODEL_TIMES.sub(b"#", data[8:start]), data[start:]
    if path.suffix in _TEXT_SUFFIXES:
        text = path.read_text(encoding="utf-8")
        return _NUMBERS.sub("#", _DIGEST.sub("", text))
    return path.stat().st_size > 0
