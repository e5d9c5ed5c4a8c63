"""Manifest of an image set, read from a table or from one folder per class."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..annotations.annotation_file import AnnotationFile, image_stem
from ..images.file_types import check_not_special, map_files_to_slides
from ..utils.files import exists
from ..utils.text_io import pluralize, relative_name, shorten, truncated_list
from ..utils.validation import check_number, describe_unknown, hint
from .folder_layout import FolderEntry, read_class_folders
from .record import (
    DATAFRAME_NAME,
    DataFrameLike,
    ImageRecord,
    ManifestError,
    check_misspelling,
    check_spelling,
    dataframe_rows,
    differ_by_one_letter,
    order_classes,
    read_csv_rows,
)

__all__ = [
    "ALIASES",
    "MANIFEST_NAME",
    "TABLE_SUFFIXES",
    "ImageRecord",
    "Manifest",
    "ManifestError",
    "check_duplicates",
    "check_files",
    "check_slides",
    "from_folder",
    "multiple_splits_warning",
    "no_patients_warning",
    "rare_class_warnings",
    "read_manifest",
]


def check_duplicates(path: Path, lines: list[int], records: list[ImageRecord]) -> None:
    """Raise ManifestError if two of the `lines` of the table at `path` list the same file."""
    first_lines: dict[Path, int] = {}
    for line, record in zip(lines, records, strict=True):
        first = first_lines.setdefault(record.path, line)
        if first != line:
            raise ManifestError(
                f"{path}, line {line}: {shorten(record.path)} is already listed in line {first}"
            )


def check_slides(source: Path, locations: Sequence[str], records: Sequence[ImageRecord]) -> None:
    """Raise ManifestError if two files belong to one slide, such as two levels of a DICOM series.

    Parameters
    ----------
    source : file or folder that lists the images, for messages
    locations : text on the position of each record in the source, for messages, such as " (line 2)"
    records : records to check
    """
    by_folder: dict[Path, list[str]] = {}
    for record in records:
        by_folder.setdefault(record.path.parent, []).append(record.path.name)
    slides = {
        folder / name: slide
        for folder, names in by_folder.items()
        for name, slide in map_files_to_slides(folder, names).items()
    }
    first: dict[str, tuple[ImageRecord, str]] = {}
    for place, record in zip(locations, records, strict=True):
        slide = slides.get(record.path)
        other, other_at = first.setdefault(slide, (record, place)) if slide else (record, place)
        if other.path != record.path:
            raise ManifestError(
                f"{source}: {shorten(other.path)}{other_at} and {shorten(record.path)}{place} "
                f"are files of the same slide ({slide}); list only one of them"
            )


def check_files(
    path: Path, lines: list[int], records: list[ImageRecord], use_features: bool
) -> None:
    """Raise ManifestError if files of the records are missing.

    Parameters
    ----------
    path : table, for messages
    lines : line of each record in the table
    records : records to check
    use_features : whether feature files replace the images, which may then be missing
    """
    missing = [
        f"{file} (line {line})"
        for line, record in zip(lines, records, strict=True)
        for file in record.files
        if not (use_features and file == record.path) and not exists(file)
    ]
    if missing:
        raise ManifestError(
            f"{path}: {pluralize(len(missing), 'file')} not found: {truncated_list(missing)}. "
            f"Paths are relative to {path.parent.absolute()}"
        )


def rare_class_warnings(
    records: Sequence[ImageRecord], source: str, noun: str = "image"
) -> list[str]:
    """Return a warning if classes have a single image, not counting images with regions.

    Parameters
    ----------
    records : images
    source : text that names the source of the images, for messages
    noun : noun for an image, for messages
    """
    counts = Counter(record.label for record in records if record.label and not record.has_regions)
    rare = [f"{k!r}{_misspelling_text(k, counts)}" for k, n in sorted(counts.items()) if n == 1]
    classes = truncated_list(rare)
    subject = f"class {classes} has" if len(rare) == 1 else f"classes {classes} each have"
    text = f"{source}: the {subject} only one {noun} and cannot be in both training and test sets"
    return [text] if rare else []


def _misspelling_text(label: str, labels: Iterable[str]) -> str:
    """Return a note on one of `labels` that differs from `label` by one letter; "" if none does."""
    names = (other for other in labels if differ_by_one_letter(label.casefold(), other.casefold()))
    similar = next(names, None)
    return f" (a misspelling of {similar!r}?)" if similar else ""


def no_patients_warning(source: Path, n_images: int, remedy: str = "Add a column 'patient'") -> str:
    """Return the warning that the patients of images are unknown.

    Parameters
    ----------
    source : file or folder that lists the images
    n_images : number of images without a patient
    remedy : advice on how to specify patients
    """
    return (
        f"{source}: no patient is specified for {pluralize(n_images, 'image')}. Each image "
        "counts as a separate patient, and if some are from the same patient, every measured "
        f"accuracy is too high. {remedy}"
    )


def multiple_splits_warning(source: Path, records: Sequence[ImageRecord]) -> str:
    """Return a warning that training uses all splits; "" if records have fewer than two splits."""
    splits = {record.split for record in records}
    if len(splits) < 2:
        return ""
    names = [repr(split) for split in sorted(filter(None, splits))]
    names += ["none"] if None in splits else []
    how = hint(python="use `manifest.select`", cli="use --split NAME")
    return (
        f"{source}: training uses the images of ALL SPLITS ({', '.join(names)}), so accuracy "
        f"measured on any of them is too high. To train on a single split, {how}"
    )


# Alternative column names by field; a column named like the field takes precedence.
ALIASES = {
    "path": ("file", "filename", "file_name", "filepath", "image", "image_path"),
    "label": ("class", "diagnosis"),
    "patient": ("group", "patient_id", "case", "case_id"),
    "slide": ("slide_id",),
    "site": ("centre", "center", "hospital"),
    "scanner": ("scanner_name", "scanner_model"),
    "batch": ("acquisition_group", "stain_batch"),
    "mpp": ("microns_per_pixel", "um_per_px"),
    "split": ("subset",),
    "mask": ("mask_path",),
}
MANIFEST_NAME = "manifest.csv"
TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
_PATIENT_REMEDY = (
    "Arrange the images as CLASS/PATIENT/IMAGE, or list them in a CSV file with a column 'patient'"
)


@dataclass(frozen=True)
class Manifest:
    """Images of a data set, with labels and patients.

    Attributes
    ----------
    records : images, or parts of images
    warnings : problems found when the manifest was read
    root : folder that image names are relative to
    positive : positive class, if there are two classes and it is set explicitly; else None
    skipped : names of excluded images, which cannot be read
    class_order : order of the class names; if empty, `order_classes` determines it
    notes : notes on how the manifest was read, such as which columns were used
    """

    records: tuple[ImageRecord, ...]
    warnings: tuple[str, ...] = ()
    root: Path = Path()
    positive: str | None = None
    skipped: tuple[str, ...] = ()
    class_order: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Label of each record."""
        return [record.label for record in self.records]

    @property
    def n_images(self) -> int:
        """Number of images; an image may have several records."""
        return len({record.path for record in self.records})

    @property
    def patients(self) -> list[str]:
        """Patient of each record."""
        return [record.patient for record in self.records]

    @property
    def classes(self) -> list[str]:
        """Class names, in `class_order` if this is set, else in the order of `order_classes`."""
        labels = {record.label for record in self.records if record.label}
        if self.class_order:
            return [name for name in self.class_order if name in labels]
        return order_classes(labels, self.positive)

    def digest(self) -> str:
        """Return the SHA-256 of names, labels and patients, independent of row order and root.

        Returns
        -------
        str
        """
        rows = sorted(
            [unicodedata.normalize("NFC", text) for text in (self.name(r), r.label, r.patient)]
            for r in self.records
        )
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def name(self, record: ImageRecord) -> str:
        """Return the name of an image: its path relative to `root`, with forward slashes.

        The classes of its region of interest, if any, are added in brackets.

        Parameters
        ----------
        record : record of this manifest

        Returns
        -------
        str
        """
        name = relative_name(self.root, record.path)
        return (
            f"{name} [{', '.join(record.region_of_interest.names)}]"
            if record.region_of_interest
            else name
        )

    def with_positive(self, name: str) -> Manifest:
        """Return the same images with `name` as the positive class.

        Parameters
        ----------
        name : one of the two classes

        Returns
        -------
        Manifest

        Raises
        ------
        ManifestError
            If the number of classes is not two, or no class has this name.
        """
        if len(self.classes) != 2:
            raise ManifestError(
                f"positive class specified, but there are {len(self.classes)} classes instead "
                f"of two: {self.classes}"
            )
        if name not in self.classes:
            names = ", ".join(self.classes)
            raise ManifestError(f"unknown positive class {name!r}; the classes are {names}")
        return replace(self, positive=name)

    def select(self, indices: Sequence[int]) -> Manifest:
        """Return a manifest of the records at these indices, in this order.

        Parameters
        ----------
        indices : indices of records

        Returns
        -------
        Manifest
        """
        return replace(self, records=tuple(self.records[index] for index in indices))

    def without_splits(self) -> Manifest:
        """Return the same images without splits, to train on all of them.

        Returns
        -------
        Manifest
        """
        return replace(self, records=tuple(replace(r, split=None) for r in self.records))


def read_manifest(
    source: Path | str | DataFrameLike,
    columns: Mapping[str, str] | None = None,
    *,
    labelled: bool = True,
    features: Path | str | None = None,
    allow_classes: Collection[str] = (),
) -> Manifest:
    """Read the images of a CSV file, a folder or a DataFrame.

    A folder is read from its manifest.csv or, without one, from one sub-folder per class.
    Sub-folders of a class are patients, sub-folders of a patient are slides. Class folders may be
    in folders of splits, such as train and test. A DataFrame is read like the same table in a CSV
    file. Each image without a patient counts as a separate patient, with a warning.

    Parameters
    ----------
    source : folder, DataFrame, or CSV file with a header, separated by comma, semicolon or tab, in
        UTF-8 with or without BOM. Paths are relative to the folder of the CSV file, or to the
        working directory for a DataFrame. Columns: path and label; optionally patient, slide, site,
        scanner, batch, mpp (µm per pixel), split and mask (see `ALIASES` for other names). The
        label is optional if there is a mask.
    columns : column of a field, such as {"patient": "source_image"}; None for the default names
    labelled : whether a table must have labels or masks; not required for prediction
    features : folder of feature files that replace the images; None to use the images. Files are
        named like the slides in the column path or, without this column, in the column slide.
    allow_classes : correct names of rare classes that differ from another class by one letter

    Returns
    -------
    Manifest

    Raises
    ------
    ManifestError
        If the source cannot be used; the message states where and why.
    """
    if features is not None:
        from .folder_layout import FeatureFolder

        folder = FeatureFolder(Path(features))
        named = _read_source(source, columns or {}, labelled, use_features=True)
        records = folder.replace_by_feature_files(named.records)
        manifest = replace(named, records=records, root=folder.folder)
    else:
        manifest = _read_source(source, columns or {}, labelled)
    if labelled:
        name = source if isinstance(source, str | Path) else DATAFRAME_NAME
        check_misspelling(Path(name), manifest.labels, allow_classes)
    return manifest


_Source = Path | str | DataFrameLike


def _read_source(
    source: _Source, columns: Mapping[str, str], labelled: bool, *, use_features: bool = False
) -> Manifest:
    """Read a manifest; with `use_features`, images may be missing and slides may replace paths."""
    if not isinstance(source, str | Path):
        return _read_rows(
            Path(DATAFRAME_NAME), dataframe_rows(source), columns, labelled, use_features
        )
    source = Path(os.path.normpath(source))
    if not source.exists():
        raise ManifestError(f"{source}: file or folder not found")
    check_not_special(source, ManifestError)
    if source.is_dir():
        check_not_special(source / MANIFEST_NAME, ManifestError)
    if source.is_dir() and (source / MANIFEST_NAME).is_file():
        table = _read_source(source / MANIFEST_NAME, columns, labelled, use_features=use_features)
        note = f"the table {source / MANIFEST_NAME} is used; folders are not searched"
        return replace(table, notes=(note, *table.notes))
    if source.is_file():
        return _read_rows(source, read_csv_rows(source), columns, labelled, use_features)
    if columns:
        raise ManifestError(
            f"{source}: column names were specified, but the folder has no {MANIFEST_NAME}"
        )
    return from_folder(source)


# --- class folders -------------------------------------------------------------------------------


def from_folder(folder: Path, entries: Sequence[FolderEntry] | None = None) -> Manifest:
    """Read a folder with one sub-folder per class; for `entries` see `read_class_folders`."""
    layout = read_class_folders(folder, entries)
    if not layout.images:
        missing = f"found neither {MANIFEST_NAME} nor a sub-folder of images per class"
        raise ManifestError(f"{folder}: {layout.describe_unassigned() or missing}")
    records = [
        ImageRecord(
            location.path,
            location.label,
            location.patient or relative_name(folder, location.path),
            location.slide,
            split=location.split,
        )
        for location in layout.images
    ]
    check_spelling(folder, [record.label for record in records])
    check_slides(folder, [""] * len(records), records)
    warnings = [
        f"{place}: skipped files that are not images: {truncated_list(names)}"
        for place, names in layout.skipped.items()
    ]
    if layout.unassigned:
        names = truncated_list([relative_name(folder, path) for path in layout.unassigned])
        warnings.append(f"{folder}: skipped images outside the class folders: {names}")
    warnings += [
        f"{place}: skipped, as the folder contains no images" for place in layout.empty_folders
    ]
    n_without_patient = sum(place.patient is None for place in layout.images)
    if n_without_patient:
        warnings.append(no_patients_warning(folder, n_without_patient, _PATIENT_REMEDY))
    return Manifest(tuple(records), (*warnings, *rare_class_warnings(records, str(folder))), folder)


# --- tables --------------------------------------------------------------------------------------


def _read_rows(
    path: Path,
    rows: list[tuple[int, list[str]]],
    columns: Mapping[str, str],
    labelled: bool,
    use_features: bool,
) -> Manifest:
    """Read a manifest from the (line, cells) of each row; the first row contains column names."""
    if not rows:
        raise ManifestError(
            f"{path}: the file is empty; the first line must contain the column names"
        )
    (_, header), *rows = rows
    required = ("path", "label") if labelled else ("path",)
    column_indices = _find_columns(path, header, columns, required, use_features)
    table = [(line, _row_to_fields(path, line, row, header, column_indices)) for line, row in rows]
    if not table:
        raise ManifestError(f"{path}: the table has no rows below the header")
    check_spelling(path, [cells.get("label", "") for _, cells in table])
    records = [_make_record(f"{path}, line {line}", path.parent, c, required) for line, c in table]
    lines = [line for line, _ in table]
    check_duplicates(path, lines, records)
    check_files(path, lines, records, use_features)
    check_slides(path, [f" (line {line})" for line in lines], records)
    n_without_patient = sum(not cells.get("patient", "").strip() for _, cells in table)
    warnings = [no_patients_warning(path, n_without_patient)] if n_without_patient else []
    renamed = [
        f"{field} is read from column {header[index].strip()!r}"
        for field, index in column_indices.items()
        if field not in columns and header[index].strip().casefold() != field
    ]
    notes = (f"{path}: {', '.join(renamed)}",) if renamed else ()
    warnings += rare_class_warnings(records, str(path))
    return Manifest(tuple(records), tuple(warnings), path.parent, notes=notes)


def _row_to_fields(
    path: Path, line: int, row: list[str], header: list[str], column_indices: Mapping[str, int]
) -> dict[str, str]:
    if len(row) != len(header):
        raise ManifestError(
            f"{path}, line {line}: {len(row)} values, but the header has {len(header)} columns"
        )
    return {field: row[index] for field, index in column_indices.items()}


def _find_columns(
    path: Path,
    header: list[str],
    columns: Mapping[str, str],
    required: Sequence[str],
    use_features: bool,
) -> dict[str, int]:
    """Return the index of the column of each field; raise ManifestError if a column is missing."""
    names = [name.strip().casefold() for name in header]
    for unknown in sorted(set(columns) - set(ALIASES)):
        option = hint(python="columns", cli="--column")
        raise ManifestError(f"{option}: {describe_unknown('field', unknown, ALIASES)}")
    indices = {}
    for field in ALIASES:
        candidates = _matching_columns(field, names, columns)
        if len(candidates) > 1:
            names_found = [header[index] for index in candidates]
            how = hint(
                python=f"choose one with columns={{{field!r}: …}}",
                cli=f"choose one with --column {field}=NAME",
                web="rename the others",
            )
            raise ManifestError(
                f"{path}: the columns {shorten(names_found)} all match the field {field!r}; {how}"
            )
        if candidates:
            indices[field] = candidates[0]
        elif field in columns:
            raise ManifestError(
                f"{path}: column {columns[field]!r} not found; the columns are "
                f"{shorten(', '.join(header))}"
            )
    if use_features and "slide" in indices:
        indices.setdefault("path", indices["slide"])
    missing = [field for field in required if field not in indices]
    if "mask" in indices and missing == ["label"]:
        return indices
    if missing:
        raise _missing_columns_error(path, header, missing, has_slides="slide" in indices)
    return indices


def _missing_columns_error(
    path: Path, header: list[str], missing: Sequence[str], *, has_slides: bool
) -> ManifestError:
    """Return the exception for a table that has no columns for the fields `missing`."""
    how = hint(
        python=f", or give columns={{{missing[0]!r}: …}}",
        cli=f", or give --column {missing[0]}=COLUMN",
        web="",
    )
    if missing[0] == "path" and has_slides:
        how += ". If the slides have feature files, name their folder with "
        how += hint(python="features=…", cli="--features")
    return ManifestError(
        f"{path}: no column for {' and '.join(missing)}; the columns are "
        f"{shorten(', '.join(header))}. Rename a column{how}"
    )


def _matching_columns(field: str, names: list[str], columns: Mapping[str, str]) -> list[int]:
    if field in columns:
        wanted: tuple[str, ...] = (columns[field].strip().casefold(),)
    else:
        taken = {name.strip().casefold() for name in columns.values()}
        wanted = (field,) if field in names else ALIASES[field]
        wanted = tuple(name for name in wanted if name not in taken)
    return [index for index, name in enumerate(names) if name in wanted]


def _make_record(
    location: str, folder: Path, cells: Mapping[str, str], required: Sequence[str]
) -> ImageRecord:
    cells = {field: cell.strip() for field, cell in cells.items()}
    for field in required:
        if cells.get(field) == "":
            raise ManifestError(f"{location}: the field {field!r} is empty")
    path = _parse_path(folder, cells["path"])
    return ImageRecord(
        path=path,
        label=cells.get("label", ""),
        patient=cells.get("patient") or relative_name(folder, path),
        slide=cells.get("slide") or None,
        site=cells.get("site") or None,
        scanner=cells.get("scanner") or None,
        batch=cells.get("batch") or None,
        mpp=_parse_mpp(location, cells.get("mpp", "")),
        split=cells.get("split") or None,
        **_mask_or_annotation(_parse_path(folder, cells["mask"]) if cells.get("mask") else None),
    )


def _mask_or_annotation(path: Path | None) -> dict[str, Any]:
    """Return the field of `ImageRecord` for a file in the mask column: annotations or mask."""
    return {"annotations": AnnotationFile(path)} if path and image_stem(path) else {"mask": path}


def _parse_path(folder: Path, cell: str) -> Path:
    """Return a cell as a path relative to `folder`; backslashes of Windows are accepted."""
    return Path(os.path.normpath(os.path.join(folder, cell.replace("\\", "/"))))


def _parse_mpp(location: str, cell: str) -> float | None:
    if not cell:
        return None
    try:
        return check_number("mpp", float(cell.replace(",", ".")), exclusive=True)
    except ValueError:
        raise ManifestError(
            f"{location}: mpp must be a positive number (µm per pixel) or empty, not "
            f"{shorten(repr(cell))}"
        ) from None
