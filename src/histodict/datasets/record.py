"""Records of images, class order, and readers of tables.

Of two classes, the last one is the positive class: it has scores above 0, warm colours in maps, and
sensitivity refers to it. It is set by the user or guessed from the class names.

Tables are separated by comma, semicolon or tab, in UTF-8 with or without BOM. A DataFrame is read
like the lines of a CSV file, without importing pandas or Polars.
"""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path, PurePath
from typing import Any, Protocol

from ..annotations.annotation_file import AnnotationFile
from ..images.source import READERS
from ..precomputed.feature_file import FORMATS, is_feature_file
from ..utils.text_io import pluralize, shorten
from ..utils.validation import hint

HEALTHY_NAMES = frozenset(
    {"healthy", "health", "normal", "benign", "udh", "negative", "control", "controls", "no tumour"}
)
DISEASE_NAMES = frozenset(
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
    """Return the distinct class names, sorted.

    Of two classes, the positive class is the last. It is `positive`, or guessed from the names if
    this is None or not one of them. If no class can be guessed, the names stay sorted.
    """
    classes = sorted(set(names))
    if len(classes) == 2:
        positive_class = positive if positive in classes else guess_positive_class(classes)
        return classes[::-1] if classes[0] == positive_class else classes
    return classes


def guess_positive_class(classes: Sequence[str]) -> str | None:
    """Guess the positive class of two from the names; return None if this is not possible.

    If one name means healthy, the other class is positive. If neither name means healthy, the class
    that is named after a disease is positive, unless both are.
    """
    if len(classes) != 2:
        return None
    diseased = [name for name in classes if not is_healthy(name)]
    if len(diseased) == 2:
        diseased = [name for name in classes if _first_word(name) in DISEASE_NAMES]
    return diseased[0] if len(diseased) == 1 else None


def is_healthy(name: str) -> bool:
    """Return whether a class name means healthy, such as "0_normal" or "normal tissue"."""
    plain = _strip_number_prefix(name)
    return (
        plain in HEALTHY_NAMES
        or _first_word(name) in HEALTHY_NAMES
        or _NEGATED.match(plain) is not None
    )


def _strip_number_prefix(name: str) -> str:
    """Return a class name in lower case without a leading number: "normal" for "0_Normal"."""
    return re.sub(r"^[\W\d_]+", "", name.strip().casefold())


def _first_word(name: str) -> str:
    return re.split(r"[\W_]+", _strip_number_prefix(name))[0]


DATAFRAME_NAME = "DataFrame"  # used in messages instead of a file name


class DataFrameLike(Protocol):
    """Common interface of pandas and Polars DataFrames."""

    @property
    def columns(self) -> Iterable[Any]:
        """Column names."""

    def __getitem__(self, name: Any, /) -> Any: ...


def is_dataframe(source: object) -> bool:
    """Return whether an object has the interface of a DataFrame."""
    return hasattr(source, "columns") and hasattr(source, "__getitem__")


def dataframe_rows(frame: DataFrameLike) -> list[tuple[int, list[str]]]:
    """Return (row number, cells as text) of the header (row −1) and of each row (from 0)."""
    if not is_dataframe(frame):
        raise TypeError(
            "images with labels must be a folder, a CSV file, a DataFrame or a Manifest, not "
            f"{type(frame).__name__}"
        )
    cells = zip(
        *([_format_cell(cell) for cell in column] for column in _columns(frame)), strict=True
    )
    header = [str(name) for name in frame.columns]
    return [(-1, header), *((line, list(row)) for line, row in enumerate(cells))]


def _columns(frame: DataFrameLike) -> list[Any]:
    """Return the columns in order, not by name, as pandas allows duplicate names."""
    if hasattr(frame, "items"):
        return [column for _, column in frame.items()]
    return [frame[name] for name in frame.columns]


def _format_cell(cell: Any) -> str:
    """Return a cell as text: "" if missing, "7" for 7.0."""
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    # NaN and NaT differ from themselves; pandas.NA has no truth value.
    if cell is None or type(cell).__name__ == "NAType" or cell != cell:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


class ManifestError(ValueError):
    """Exception raised if a list of images cannot be used; the message states where and why."""


def check_spelling(source: Path, labels: list[str]) -> None:
    """Raise ManifestError if labels differ only in case, white space or Unicode form."""
    spellings: dict[str, set[str]] = {}
    for label in labels:
        key = unicodedata.normalize("NFC", label).strip().casefold()
        spellings.setdefault(key, set()).add(label)
    for names in spellings.values():
        if len(names) > 1:
            raise ManifestError(
                f"{source}: the labels {shorten(sorted(names))} differ only in case or white "
                "space; use one spelling per class"
            )


_MIN_LETTERS = 5  # shorter class names are not compared
_MIN_RATIO = 5  # a class is rare if another class has at least this multiple of its images


def check_misspelling(source: Path, labels: Sequence[str], allowed: Collection[str]) -> None:
    """Raise ManifestError if the names of a rare and a frequent class differ by one letter.

    Parameters
    ----------
    source : file or folder that lists the images, for messages
    labels : label of each image
    allowed : rare classes whose names are correct
    """
    counts = Counter(label for label in labels if label)
    for rare, frequent in permutations(counts, 2):
        if (
            rare not in allowed
            and counts[rare] * _MIN_RATIO <= counts[frequent]
            and differ_by_one_letter(rare.casefold(), frequent.casefold())
        ):
            how = hint(
                python=f"pass allow_classes=[{rare!r}] to read_manifest",
                cli=f"give --allow-class {rare!r}",
                web="give it a name that differs more",
            )
            raise ManifestError(
                f"{source}: the class {rare!r} ({pluralize(counts[rare], 'image')}) may be a "
                f"misspelling of {frequent!r} ({counts[frequent]} images). Correct it or, if it "
                f"is a class of its own, {how}"
            )


def differ_by_one_letter(first: str, second: str) -> bool:
    """Return whether words differ by a letter that is changed, missing, or swapped with the next.

    Differences that distinguish classes do not count: a first letter ("typical", "atypical"), a
    digit, a single letter ("type a", "type b").
    """
    short, long = sorted((first, second), key=len)
    if len(short) < _MIN_LETTERS or len(long) - len(short) > 1 or long.endswith(short):
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short)
    )
    if len(short) < len(long):
        changed, is_one = long[start], short[start:] == long[start + 1 :]
    else:
        rest, other = short[start:], long[start:]
        is_swapped = rest[:2] == other[1::-1] and rest[2:] == other[2:]
        changed, is_one = long[start : start + 1], rest[1:] == other[1:] or is_swapped
    is_letter = changed.isalpha() and short[max(0, start - 1) : start].isalpha()
    return is_one and is_letter


@dataclass(frozen=True)
class ImageRecord:
    """Metadata of one image.

    Attributes
    ----------
    path : image or feature file
    label : class name; empty if only a mask or annotations define the classes
    patient : name of the patient; the name of the image if the patient is unknown
    slide : name of the slide; None if unknown
    site : hospital or laboratory; None if unknown
    mpp : µm per level-0 pixel from a table; None if the table states none
    split : name of the split, such as "train"; None if there is none
    mask : mask image of a region; None if there is none
    annotations : outlines of regions with class names; None if there are none
    region_of_interest : outlines that limit the analysed area; None for the whole image
    image : original image, if `path` is a feature file and the image exists; else None
    error : reason why the image cannot be read, if already known; else empty
    scanner : name or model of the scanner; None if unknown
    batch : group of images that were prepared or acquired together; None if unknown
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
    def has_patient(self) -> bool:
        """Whether the patient is known, so that `patient` is not the name of the image."""
        return is_known_patient(self.patient, self.path)

    @property
    def display_image(self) -> Path:
        """Original image if there is one, otherwise `path`."""
        return self.image or self.path

    @property
    def files(self) -> list[Path]:
        """Files of the image, its mask, annotations and region of interest."""
        outlines = [
            annotations.path
            for annotations in (self.annotations, self.region_of_interest)
            if annotations is not None
        ]
        return [self.path, *([self.mask] if self.mask else []), *outlines]

    @property
    def has_regions(self) -> bool:
        """Whether a mask or annotations define the classes of regions of the image."""
        return self.mask is not None or self.annotations is not None


def is_known_patient(patient: str, image: object) -> bool:
    """Return whether `patient` is neither empty nor the name of the image."""
    return bool(patient) and PurePath(patient).name != PurePath(str(image)).name


def count_patients(pairs: Iterable[tuple[str, object]]) -> tuple[int, int]:
    """Return the number of known patients, and the number of images without a known patient.

    `pairs` contains the (patient, path) of each image.
    """
    known = [patient if is_known_patient(patient, image) else None for patient, image in pairs]
    return len(set(known) - {None}), known.count(None)


def describe_patients(n_patients: int, n_unknown: int) -> str:
    """Return a text such as "6 patients" or "patients unknown".

    Parameters
    ----------
    n_patients : number of known patients
    n_unknown : number of images without a known patient
    """
    if not n_patients:
        return "patients unknown"
    text = pluralize(n_patients, "patient")
    return text + (f" and {pluralize(n_unknown, 'image')} without patient" if n_unknown else "")


def read_csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) of each line of a table, except blank lines."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        if path.suffix.lower() in READERS:
            raise ManifestError(
                f"{path}: is an image; give a folder with one sub-folder per class, or a CSV file"
            ) from error
        raise ManifestError(f"{path}: not UTF-8; save the table as 'CSV UTF-8'") from error
    header = text.lstrip().partition("\n")[0]
    separator = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ManifestError(f"{path}, line {reader.line_num}: {error}") from error


# Suffixes to remove from the name of a slide; other parts may contain dots, as in TCGA.
_IMAGE_SUFFIXES = (*(f".ome{kind}" for kind in (".tif", ".tiff", ".zarr")), *READERS)


def normalize_unicode(name: str) -> str:
    """Return the NFC form of a name, in which accented letters are single characters."""
    return unicodedata.normalize("NFC", name)


def slide_stems(name: str) -> Iterator[str]:
    """Yield possible stems of the feature and annotation files of a slide.

    These are the file `name` of the slide without and with its suffix.
    """
    for suffix in (*_IMAGE_SUFFIXES, *FORMATS):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            yield normalize_unicode(name[: -len(suffix)])
    yield normalize_unicode(name)


def annotation_stems(path: Path) -> list[str]:
    """Return possible stems of the annotation files of an image.

    For a feature file, they include the possible names of its slide, with each image suffix.
    """
    names = [*slide_stems(path.name), normalize_unicode(path.stem)]
    if is_feature_file(path):
        names += [f"{normalize_unicode(path.stem)}{suffix}" for suffix in _IMAGE_SUFFIXES]
    return list(dict.fromkeys(names))
