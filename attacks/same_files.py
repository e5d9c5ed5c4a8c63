"""Whether two runs left the same files, bit for bit but for what the time of day decides."""

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

# What a run that was killed may leave: nobody reads it, and it is swept a day later.
_LEFTOVERS = re.compile(r"\..*\.(partial|unfinished)[.-].*")
# Files of the running server that differ after a restart: log, progress, token, lock.
_DIARY = {"worker.lock", "log.txt", "progress.jsonl", "token", "open.html", "server.lock"}
# A job of the page has a random name.
_JOB = re.compile(r"(?<=/jobs/)[0-9a-f]{12}(?=/)")
# The checksum of a JSON file (`execution.sealed`).
_DIGEST = re.compile(r"(?<=^{\"sha256\": \")[0-9a-f]{64}")
_NUMBERS = re.compile(r"-?\d[\d.,:e+-]*")
_TEXTS = (".csv", ".json", ".html", ".svg", ".txt")


def files_of(folder: Path) -> dict[str, Path]:
    """The files that count, by their place in the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(map(_LEFTOVERS.fullmatch, parts)) and path.name not in _DIARY:
            found[_JOB.sub("JOB", "/".join(parts))] = path
    return found


def differences(one: Path, two: Path, timed: Collection[str] = ()) -> list[str]:
    """The places of files that only one of the folders has, or that differ.

    timed : patterns of files of which the numbers may differ, for they are those of a clock
    """
    here, there = files_of(one), files_of(two)
    unlike = []
    for name in sorted(here.keys() & there.keys()):
        by_clock = any(fnmatchcase(name, pattern) for pattern in timed)
        if content(here[name], by_clock) != content(there[name], by_clock):
            unlike.append(name)
    return sorted(here.keys() ^ there.keys()) + unlike


def content(path: Path, timed: bool = False) -> Any:
    """What is compared of a file."""
    if path.suffix == ".npz":  # a zip file, which holds the time of day
        with suppress(ValueError, OSError, EOFError, BadZipFile), np.load(path) as arrays:
            return {name: (arrays[name].dtype, arrays[name].tobytes()) for name in arrays}
    if not timed:
        return path.read_bytes()
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return table.schema.names, table.num_rows
    if path.suffix in _TEXTS:
        text = path.read_text(encoding="utf-8")
        return _NUMBERS.sub("#", _DIGEST.sub("", text))
    return path.stat().st_size > 0
