"""Which of two classes is the one to be found: as asked for, or by its name.

It stands second, and everything downstream goes by that: it scores above 0, is drawn warm, and is
what sensitivity and misses are about.

A DataFrame as the lines of a CSV file, without asking for the library that made it.

One image and what is known of it.

Tables as spreadsheets save them: comma, semicolon or tabulator, UTF-8 with or without BOM.

What a slide is called by the files that belong to it, of features or of outlines.
"""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..annotations.annotation_file import AnnotationFile
from ..images.source import READERS
from ..precomputed.feature_file import FORMATS, is_feature_file

HEALTHY = frozenset(
    {"healthy", "health", "normal", "benign", "udh", "negative", "control", "controls", "no tumour"}
)
DISEASED = frozenset(
    {
        "tumor",
        "tumour",
        "cancer",
        "carcinoma",
        "adenocarcinoma",
        "malignant",
        "metastasis",
        "lesion",
    }
)
_NEGATED = re.compile(r"(no|not|non)[ _-]|(un|non)(affected|involved|inflamed|diseased)")


def order_classes(names: Iterable[str], positive: str | None = None) -> list[str]:
    """Sorted but, of two, with the one to be found at the end."""
    classes = sorted(set(names))
    if len(classes) == 2:
        last = positive if positive in classes else guess_positive_class(classes)
        return classes[::-1] if classes[0] == last else classes
    return classes


def guess_positive_class(classes: Sequence[str]) -> str | None:
    """Of two classes the one that is not healthy by its name, or the only one that is a disease's;
    None where neither decides.
    """
    if len(classes) != 2:
        return None
    ill = [name for name in classes if not is_healthy(name)]
    if len(ill) == 2:
        ill = [name for name in classes if _first_word(name) in DISEASED]
    return ill[0] if len(ill) == 1 else None


def is_healthy(name: str) -> bool:
    """Also "0_normal" and "normal tissue"."""
    plain = _plain(name)
    return plain in HEALTHY or _first_word(name) in HEALTHY or _NEGATED.match(plain) is not None


def _plain(name: str) -> str:
    return re.sub(r"^[\W\d_]+", "", name.strip().casefold())


def _first_word(name: str) -> str:
    return re.split(r"[\W_]+", _plain(name))[0]


FRAME_NAME = "DataFrame"  # in messages, where a file's name would stand


class Frame(Protocol):
    """What pandas and Polars have in common."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def __getitem__(self, name: Any, /) -> Any: ...


def is_dataframe(source: object) -> bool:
    return hasattr(source, "columns") and hasattr(source, "__getitem__")


def dataframe_rows(frame: Frame) -> list[tuple[int, list[str]]]:
    """(line, cells) of the header, then of every row; rows are counted from 0."""
    if not is_dataframe(frame):
        raise TypeError(
            "images with labels are given as a folder, a CSV file, a DataFrame or a Manifest, not "
            f"as {type(frame).__name__}"
        )
    cells = zip(*([_text(cell) for cell in column] for column in _columns(frame)), strict=True)
    header = [str(name) for name in frame.columns]
    return [(-1, header), *((line, list(row)) for line, row in enumerate(cells))]


def _columns(frame: Frame) -> list[Any]:
    """In their order. In pandas two may have one name, under which there is a table of both."""
    if hasattr(frame, "items"):
        return [column for _, column in frame.items()]
    return [frame[name] for name in frame.columns]


def _text(cell: Any) -> str:
    """A cell as a CSV file has it: nothing for what is missing, 7 for the 7.0 beside a gap."""
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    # NaN and NaT are not even equal to themselves; NA of pandas has no truth at all.
    if cell is None or type(cell).__name__ == "NAType" or cell != cell:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


class ManifestError(ValueError):
    """The list of images cannot be used; the message says where and why."""


@dataclass(frozen=True)
class ImageRecord:
    """One image. `label` is empty where only a mask or outlines say what is where.

    mask, drawn : what is where: a picture of the region, or outlines of it
    within : outlines outside of which nothing is looked at
    scanner, batch : scanner; group of images that were prepared or acquired together
    image : where its pixels are, if `path` is a feature file and they are anywhere
    trouble : why there is nothing to be read of it, if that is known before
    """

    path: Path
    label: str
    patient: str
    slide: str | None = None
    site: str | None = None
    mpp: float | None = None
    split: str | None = None
    mask: Path | None = None
    annotations: AnnotationFile | None = None
    region_of_interest: AnnotationFile | None = None
    image: Path | None = None
    error: str = ""
    scanner: str | None = None
    batch: str | None = None

    @property
    def display_image(self) -> Path:
        """What to show of it."""
        return self.image or self.path

    @property
    def files(self) -> list[Path]:
        """The image's, and those that say what is where, or where to look."""
        drawings = [
            drawing.path
            for drawing in (self.annotations, self.region_of_interest)
            if drawing is not None
        ]
        return [self.path, *([self.mask] if self.mask else []), *drawings]

    @property
    def is_mapped(self) -> bool:
        """Whether a mask or outlines say what is where in it."""
        return self.mask is not None or self.annotations is not None


def read_csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: the text is not UTF-8 ({error}); save it as 'CSV UTF-8'"
        ) from error
    header = text.lstrip().partition("\n")[0]
    separator = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ManifestError(f"{path}, line {reader.line_num}: {error}") from error


# Suffixes that are no part of a slide's name; a name may have dots of its own, as those of TCGA do.
_OF_IMAGES = (*(f".ome{kind}" for kind in (".tif", ".tiff", ".zarr")), *READERS)


def normalize_unicode(name: str) -> str:
    """A letter with its accent may be one sign or two, which nobody sees: here it is one."""
    return unicodedata.normalize("NFC", name)


def slide_stems(name: str) -> Iterator[str]:
    """What a slide may be called: its file without its ending, or just so."""
    for ending in (*_OF_IMAGES, *FORMATS):
        if name.lower().endswith(ending) and len(name) > len(ending):
            yield normalize_unicode(name[: -len(ending)])
    yield normalize_unicode(name)


def annotation_stems(path: Path) -> list[str]:
    """What files of outlines for an image are called; those for a feature file, like its slide."""
    names = [*slide_stems(path.name), normalize_unicode(path.stem)]
    if is_feature_file(path):
        names += [f"{normalize_unicode(path.stem)}{ending}" for ending in _OF_IMAGES]
    return list(dict.fromkeys(names))
