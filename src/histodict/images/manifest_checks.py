"""What is wrong with a list of images, said with the line or the files it concerns."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..execution.files import exists
from ..execution.texts import pluralize, shorten, truncated_list
from ..parameters import hint
from .records import ImageRecord, ManifestError
from .slide_sets import slides_of


def check_duplicates(path: Path, lines: list[int], records: list[ImageRecord]) -> None:
    first_lines: dict[Path, int] = {}
    for line, record in zip(lines, records, strict=True):
        first = first_lines.setdefault(record.path, line)
        if first != line:
            raise ManifestError(
                f"{path}, line {line}: {shorten(record.path)} is already in line {first}"
            )


def check_slides(source: Path, places: Sequence[str], records: Sequence[ImageRecord]) -> None:
    """Refuse two files of one slide, such as two levels of a DICOM series.

    places : position of each record in the source, for messages
    """
    by_folder: dict[Path, list[str]] = {}
    for record in records:
        by_folder.setdefault(record.path.parent, []).append(record.path.name)
    slides = {
        folder / name: slide
        for folder, names in by_folder.items()
        for name, slide in slides_of(folder, names).items()
    }
    first: dict[str, tuple[ImageRecord, str]] = {}
    for place, record in zip(places, records, strict=True):
        slide = slides.get(record.path)
        other, there = first.setdefault(slide, (record, place)) if slide else (record, place)
        if other.path != record.path:
            raise ManifestError(
                f"{source}: {shorten(other.path)}{there} and {shorten(record.path)}{place} are "
                f"files of the same slide ({slide}): list only one of them"
            )


def check_files(path: Path, lines: list[int], records: list[ImageRecord], by_name: bool) -> None:
    """`by_name`: only their masks must be there."""
    missing = [
        f"{file} (line {line})"
        for line, record in zip(lines, records, strict=True)
        for file in record.files
        if not (by_name and file == record.path) and not exists(file)
    ]
    if missing:
        raise ManifestError(
            f"{path}: {pluralize(len(missing), 'file')} not there: {truncated_list(missing)}. "
            "Paths are "
            f"relative to the folder {path.parent.absolute()}"
        )


def check_spelling(source: Path, labels: list[str]) -> None:
    """Refuse labels that would be different classes by an accident of typing."""
    spellings: dict[str, set[str]] = {}
    for label in labels:
        key = unicodedata.normalize("NFC", label).strip().casefold()
        spellings.setdefault(key, set()).add(label)
    for names in spellings.values():
        if len(names) > 1:
            raise ManifestError(
                f"{source}: the labels {shorten(sorted(names))} differ only in case or blanks; "
                "write them alike if they are one class"
            )


def unused_labels(records: Sequence[ImageRecord], where: str, one: str = "image") -> list[str]:
    """Where masks say what is in an image, its label is no class."""
    counts = Counter(record.label for record in records if record.label and not record.is_mapped)
    return [
        f"{where}: the class {label!r} has one {one} only: it cannot be both trained on and tested"
        for label, count in sorted(counts.items())
        if count == 1
    ]


def no_patients(source: Path, n_images: int, remedy: str = "Add a column 'patient'") -> str:
    return (
        f"{source}: NO PATIENT is given for {pluralize(n_images, 'image')}. Each counts as its own "
        "patient: if some come from the same patient, every accuracy measured on them is too good. "
        f"{remedy}"
    )


def warn_multiple_splits(source: Path, records: Sequence[ImageRecord]) -> str:
    """For who learns from all of them; empty where there is one split, or none."""
    splits = {record.split for record in records}
    if len(splits) < 2:
        return ""
    names = [repr(split) for split in sorted(filter(None, splits))]
    names += ["none"] if None in splits else []
    how = hint(python="use `manifest.select`", cli="give --split NAME")
    return (
        f"{source}: images of ALL SPLITS are learnt from ({', '.join(names)}): accuracy measured "
        f"on any of them is too good. To learn from one, {how}"
    )
