"""Grouping of the files of slides that consist of several files.

DICOM has a file per level of the pyramid, and OpenSlide opens the whole series from any of them.
VMS, VMU and NDPI sets have an index that lists the other files. MRXS has its data in a separate
folder (`readers.FOLDER_FORMATS`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..execution.dicom_header import SUFFIX as _DICOM
from ..execution.dicom_header import series_of

_INDEXES = (".vms", ".vmu", ".ndpis")
_MEMBERS = (".jpg", ".jpeg", ".ndpi", ".tif", ".tiff")  # images that an index may name
_NAME = re.compile(rb"^[^=\r\n]+=([^\r\n]+)", re.MULTILINE)
_MAX_BYTES = 2**20


def other_parts(folder: Path, names: Sequence[str]) -> set[str]:
    """Return the names of files in a folder that are not the main file of their slide.

    The main file is the index if it can be opened, else the first file. In a DICOM series it is the
    file with the most frames, which is the base level, and the first by name if there are several.
    """
    groups: dict[str, list[str]] = {}
    for name, slide in slides_of(folder, names, names).items():
        groups.setdefault(slide, []).append(name)
    parts = set[str]()
    for own in groups.values():
        parts.update(sorted(own, key=lambda name: _rank(folder, name))[1:])
    return parts


def one_per_slide(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return one file per slide, and the other files."""
    by_folder: dict[Path, list[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, []).append(path.name)
    parts = {
        folder / name for folder, names in by_folder.items() for name in other_parts(folder, names)
    }
    return [p for p in paths if p not in parts], [p for p in paths if p in parts]


def _rank(folder: Path, name: str) -> tuple[bool, int, str]:
    series = series_of(folder / name) if _ends(name, _DICOM) else None
    return not _ends(name, *_INDEXES), -series.n_frames if series else 0, name


def slides_of(
    folder: Path, names: Iterable[str], there: Iterable[str] | None = None
) -> dict[str, str]:
    """Return the slide of each file name that belongs to a slide of several files.

    there : all names in the folder, if known
    """
    chosen = {name for name in names if _ends(name, _DICOM, *_INDEXES, *_MEMBERS)}
    found = {}
    if any(not _ends(name, _DICOM) for name in chosen):
        there = _names_in(folder) if there is None else there
        for index in sorted(name for name in there if _ends(name, *_INDEXES)):
            slide = f"{folder / index}"
            members = _members(folder / index) & chosen
            found.update(dict.fromkeys(members, slide))
            if index in chosen and not _ends(index, ".ndpis"):  # no reader opens it
                found[index] = slide
    for name in chosen:
        series = series_of(folder / name) if _ends(name, _DICOM) else None
        if series is not None:
            found[name] = f"DICOM series {series.uid}"
    return found


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _ends(name: str, *endings: str) -> bool:
    return name.lower().endswith(endings)


def _members(index: Path) -> set[str]:
    """Return the names of the files in an index, which are in the same folder."""
    try:
        if not index.is_file():
            return set()
        with index.open("rb") as file:
            text = file.read(_MAX_BYTES)
    except OSError:
        return set()
    return {name.decode("utf-8", "surrogateescape").strip() for name in _NAME.findall(text)}
