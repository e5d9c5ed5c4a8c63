"""Readers of public data sets: images, classes and patients from folder and file names.

If a folder has a manifest.csv with patients, its list of images is used. Otherwise the layouts
below are tried, and finally one sub-folder per class. A warning reports images without a known
patient.

GlaS (Warwick-QU) has train_1.bmp, train_1_anno.bmp, … and Grade.csv in one folder. As patients
occur in both of its sets, `split` is only informative. PatchCamelyon is read from its HDF5 files,
the folder of the Kaggle competition, or folders 0/ and 1/. Of the HDF5 files, evenly spaced images
of each class are written as PNG files in the same folder.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..datasets.manifest import MANIFEST_NAME, ImageRecord, Manifest, ManifestError, read_manifest
from ..images.source import READERS
from ..utils.files import atomic_write

__all__ = [
    "DATA_VARIABLE",
    "LAYOUTS",
    "Dataset",
    "dataset_from_manifest",
    "dataset_from_records",
    "find_breakhis",
    "find_camelyon",
    "find_kather",
    "find_lc25000",
    "find_tcga",
    "find_ucsb",
    "list_images",
    "list_images_recursively",
    "list_subfolders",
    "load_datasets",
    "read_table_rows",
]


@dataclass(frozen=True)
class Dataset:
    """Classification or detection task with its images.

    Attributes
    ----------
    name : name of the task, and of the folder of its results
    images : labelled images; None if only masks define the classes
    regions : images with masks of the regions to detect; None if there are none
    region : name of the masked regions
    """

    name: str
    images: Manifest | None
    regions: Manifest | None = None
    region: str = "region"

    @property
    def classes(self) -> list[str]:
        """Class names in the paper's order, healthy first."""
        return self.images.classes if self.images else []

    @property
    def diseased_class(self) -> str | None:
        """Name of the diseased class; None unless there are two classes."""
        return self.classes[1] if len(self.classes) == 2 else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the manifest."""
        manifest = self.images or self.regions
        return manifest.warnings if manifest else ()


def dataset_from_records(
    name: str, root: Path, records: Iterable[ImageRecord], *warnings: str, reason: str = ""
) -> Dataset:
    """Create a data set from records, sorted by path.

    Images without a patient count as separate patients; a warning reports them and ends with
    `reason`. `warnings` are further warnings.
    """
    ordered = sorted(records, key=lambda record: record.path)
    n_unknown = sum(not record.patient for record in ordered)
    if n_unknown:
        unknown = (
            f"{root}: no patient is specified for {n_unknown} images. Each counts as a separate "
            f"patient, so every measured accuracy is too high. {reason}"
        )
        warnings = (unknown, *warnings)
    known = (replace(r, patient=r.patient or r.path.relative_to(root).as_posix()) for r in ordered)
    return dataset_from_manifest(name, Manifest(tuple(known), warnings, root))


def dataset_from_manifest(name: str, manifest: Manifest) -> Dataset:
    """Create a data set from a manifest, with classes, masks or both."""
    classes = manifest.classes
    return Dataset(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "data",
        images=manifest if len(classes) > 1 else None,
        regions=manifest if any(record.mask for record in manifest.records) else None,
        region=classes[-1] if len(classes) in (1, 2) else "region",
    )


# --- files --------------------------------------------------------------------------------------


def list_images(folder: Path) -> list[Path]:
    """Return the images in a folder without its sub-folders, sorted by name."""
    return sorted(path for path in folder.iterdir() if _is_image(path))


def list_images_recursively(folder: Path) -> list[Path]:
    """Return the images in a folder and its sub-folders, sorted by path."""
    return sorted(path for path in folder.rglob("*") if _is_image(path))


def _is_image(path: Path) -> bool:
    return (
        path.is_file() and path.suffix.lower() in READERS and not path.name.startswith((".", "_"))
    )


def list_subfolders(folder: Path) -> dict[str, Path]:
    """Return the visible sub-folders by name in lower case."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    return {path.name.casefold(): path for path in folders if not path.name.startswith(".")}


def read_table_rows(table: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header as dictionaries."""
    with table.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


_MASK_FOLDER = "masks"

# Each function find_… returns the tasks of a folder; an empty list if it has another layout.

# --- metadata in file names ---------------------------------------------------------------------

# ytma10_010704_benign1_ccd.tif. The slide array and date, ytma10_010704, identify what was stained
# and scanned together: images of one such group stay on one side of a split.
_UCSB = re.compile(r"(ytma\d+_\d+)_(benign|malignant)\d+_ccd$", re.IGNORECASE)
# SOB_B_A-14-22549AB-40-001.png: class (B or M), tumour, year and slide, magnification and number.
# Year and slide are the patient; one patient, 14-13412, has images of two tumours.
_BREAKHIS = re.compile(r"SOB_([BM])_[A-Z]+-(\d+-\w+)-(\d+)-\d+$")


def find_ucsb(root: Path) -> list[Dataset]:
    """Return the task of the UCSB breast benchmark, benign or malignant; [] if it is not found."""
    records = [
        ImageRecord(path, name[2].lower(), name[1].lower())
        for path, name in _match_file_names(root, _UCSB)
    ]
    return [dataset_from_records("ucsb-breast", root, records)] if records else []


def find_breakhis(root: Path) -> list[Dataset]:
    """Return a task per magnification of BreakHis, benign or malignant breast tumours.

    Return [] if no file name is of BreakHis.
    """
    by_scale: dict[int, list[ImageRecord]] = {}
    for path, name in _match_file_names(root, _BREAKHIS):
        label = {"B": "benign", "M": "malignant"}[name[1]]
        by_scale.setdefault(int(name[3]), []).append(
            ImageRecord(path, label, name[2], slide=name[2])
        )
    return [
        dataset_from_records(f"breakhis-{scale}x", root, records)
        for scale, records in sorted(by_scale.items())
    ]


def _match_file_names(root: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    found = ((path, pattern.match(path.stem)) for path in list_images_recursively(root))
    return [(path, name) for path, name in found if name]


# --- class folders ------------------------------------------------------------------------------

# TCGA-06-0137-01A-01-BS1: project, tissue source site, participant, then sample and slide.
_TCGA_BARCODE = re.compile(
    r"(?P<slide>(?P<patient>TCGA-(?P<site>[A-Z0-9]{2})-[A-Z0-9]{4})(-[A-Z0-9]{2,3})*)"
)
_LC25000 = {
    "lung": {
        "lung_n": "normal",
        "lung_aca": "adenocarcinoma",
        "lung_scc": "squamous cell carcinoma",
    },
    "colon": {"colon_n": "normal", "colon_aca": "adenocarcinoma"},
}
_TISSUES_2018 = ("adi", "back", "deb", "lym", "muc", "mus", "norm", "str", "tum")
_TISSUE_2016 = re.compile(r"0[1-8]_[a-z]+$")
# The tumour of a tile of the 2016 set, with one slide each.
_PRIMARY_TUMOUR = re.compile(r"(?P<patient>(?P<slide>CRC-Prim-HE-\d+))")


def find_tcga(root: Path) -> list[Dataset]:
    """Return the task of TCGA slides in one folder per class; [] if no file name has a barcode.

    The barcode contains the patient. Masks of regions, such as microvascular proliferation, are in
    the folder masks/.
    """
    folders = list_subfolders(root)
    classes = {path.name: path for name, path in folders.items() if name != _MASK_FOLDER}
    records = _read_labelled_folders(root, classes, _TCGA_BARCODE)
    if not any(record.patient for record in records):
        return []
    reason = "The file names have no barcode such as TCGA-06-0137."
    return [dataset_from_records(root.name, root, records, reason=reason)]


def find_lc25000(root: Path) -> list[Dataset]:
    """Return a task per organ of LC25000; [] if there are no class folders.

    These are in lung_image_sets/ and colon_image_sets/, or directly in `root`.
    """
    top = list_subfolders(root).get("lung_colon_image_set", root)
    reason = (
        "LC25000 contains about 20 rotated or flipped copies of each source image; keep one "
        "of each, using a published list of duplicates."
    )
    tasks = []
    for organ, labels in _LC25000.items():
        folder = list_subfolders(top).get(f"{organ}_image_sets", top)
        folders = list_subfolders(folder)
        classes = {label: folders[name] for name, label in labels.items() if name in folders}
        if len(classes) > 1:
            tasks.append(
                dataset_from_records(
                    f"lc25000-{organ}",
                    folder,
                    _read_labelled_folders(folder, classes),
                    reason=reason,
                )
            )
    return tasks


def find_kather(root: Path) -> list[Dataset]:
    """Return the task of Kather's tiles of colorectal cancer; [] if there are no class folders.

    These are the nine of NCT-CRC-HE (ADI/ … TUM/), or the eight of 2016 (01_TUMOR/ …).
    """
    folders = list_subfolders(root)
    newer = {name.upper(): path for name, path in folders.items() if name in _TISSUES_2018}
    older = {name: path for name, path in folders.items() if _TISSUE_2016.match(name)}
    classes = newer or older
    if len(classes) < 3:
        return []
    reason = (
        "The file names of NCT-CRC-HE do not contain the patient; test on the set CRC-VAL-HE-7K."
    )
    return [
        dataset_from_records(
            root.name, root, _read_labelled_folders(root, classes, _PRIMARY_TUMOUR), reason=reason
        )
    ]


def _read_labelled_folders(
    root: Path, class_folders: Mapping[str, Path], pattern: re.Pattern[str] | None = None
) -> list[ImageRecord]:
    """Return the images of one folder per label, with masks of the same name in root/masks.

    Named groups of `pattern` match fields of `ImageRecord` in file names, such as the patient.
    """
    mask_folder = list_subfolders(root).get(_MASK_FOLDER)
    masks = {path.stem: path for path in list_images(mask_folder)} if mask_folder else {}
    records = []
    for label, folder in class_folders.items():
        for path in list_images(folder):
            name = pattern.search(path.name) if pattern else None
            metadata: dict[str, Any] = name.groupdict() if name else {"patient": ""}
            records.append(ImageRecord(path, label, mask=masks.get(path.stem), **metadata))
    return records


# --- images/ and masks/ -------------------------------------------------------------------------

_PATIENT_PATTERN = re.compile(r"patient_?\d+", re.IGNORECASE)
_SLIDE_PATTERN = re.compile(r"(tumor|normal|test)_\d+", re.IGNORECASE)


def find_camelyon(root: Path) -> list[Dataset]:
    """Return the task of CAMELYON: tiles of lymph node slides, with masks of the tumour.

    Return [] unless there are the folders images/ and masks/.
    """
    folders = list_subfolders(root)
    if not {"images", _MASK_FOLDER} <= set(folders):
        return []
    masks = {path.stem: path for path in list_images(folders[_MASK_FOLDER])}
    files = list_images(folders["images"])
    missing = [path.name for path in files if path.stem not in masks]
    if missing:
        raise ManifestError(f"{root}: {len(missing)} images have no mask, such as {missing[0]}")
    records = [
        ImageRecord(path, "", _patient_or_tile_group(path.stem), mask=masks[path.stem])
        for path in files
    ]
    n_unknown = sum(_slide_or_patient(path.stem) is None for path in files)
    warning = (
        f"{root}: NO SLIDE is known for {n_unknown} images. Images whose numbers differ only "
        "in the last digit are grouped; others of the same slide may be in both training and "
        "test sets"
    )
    task = dataset_from_records(root.name, root, records, *([warning] if n_unknown else []))
    return [replace(task, region="tumour")]


def _slide_or_patient(name: str) -> str | None:
    """Return the patient or slide (CAMELYON16) in the name of a tile; None if it has neither."""
    found = _PATIENT_PATTERN.search(name) or _SLIDE_PATTERN.search(name)
    return found[0].lower() if found else None


def _patient_or_tile_group(name: str) -> str:
    """Return the patient or slide of a tile, by which tiles are grouped.

    If both are unknown, return the number of the tile without the last digit.
    """
    # Tiles are numbered along a slide, so consecutive numbers overlap or touch.
    return _slide_or_patient(name) or (
        f"{name[:-1]}x" if name.isdigit() and len(name) > 1 else name
    )


_GRADE_TABLE = "Grade.csv"


def find_glas(root: Path) -> list[Dataset]:
    """Return the task of GlaS, benign or malignant glands of the colon; [] without Grade.csv."""
    if not (root / _GRADE_TABLE).is_file():
        return []
    files = {path.stem: path for path in list_images(root)}
    records = [_glas_record(root, row, files) for row in _read_grades(root / _GRADE_TABLE)]
    task = dataset_from_records("glas", root, records)
    # The masks show all glands, including healthy ones, so they are no regions to detect.
    return [Dataset(task.name, task.images)]


def _read_grades(table: Path) -> list[dict[str, str]]:
    rows = [
        {str(name).strip().casefold(): str(cell).strip() for name, cell in row.items()}
        for row in read_table_rows(table)
    ]
    required = {"name", "patient id", "grade (glas)"}
    if not rows or not required <= set(rows[0]):
        raise ManifestError(f"{table}: not the table of GlaS; it must have the columns {required}")
    return [row for row in rows if row["name"]]


def _glas_record(root: Path, row: dict[str, str], files: dict[str, Path]) -> ImageRecord:
    name = row["name"]
    if name not in files:
        raise ManifestError(f"{root}: {name} is in {_GRADE_TABLE}, but the image does not exist")
    return ImageRecord(
        files[name],
        row["grade (glas)"],
        row["patient id"],
        split=name.partition("_")[0],
        mask=files.get(f"{name}_anno"),
    )


_SPLITS = ("train", "valid", "test")
_LABELS = ("normal", "tumour")
_MAX_PER_CLASS = 1000  # images per class and split that are extracted from HDF5 files
_EXTRACTED_FOLDER = "pcam-images"
_HDF5_PREFIX = "camelyonpatch_level_2_split_"  # SPLIT_x.h5, SPLIT_y.h5, SPLIT_meta.csv


def find_pcam(root: Path) -> list[Dataset]:
    """Return the task of PatchCamelyon: lymph node tiles with or without tumour in the centre.

    Return [] if no images are found.
    """
    packed = [split for split in _SPLITS if (root / f"{_HDF5_PREFIX}{split}_x.h5").is_file()]
    records = [record for split in packed for record in _extract_hdf5(root, split)]
    records = records or _read_kaggle(root) or _read_class_folders(root)
    if not records:
        return []
    limit = f"{root}: at most {_MAX_PER_CLASS} images per class and split are used"
    reason = "PCam lists slides only in the files …_meta.csv."
    return [
        dataset_from_records("pcam", root, records, *([limit] if packed else []), reason=reason)
    ]


def _extract_hdf5(root: Path, split: str) -> list[ImageRecord]:
    h5py = _load_h5py(root)
    with h5py.File(root / f"{_HDF5_PREFIX}{split}_y.h5", "r") as file:
        labels = np.asarray(file["y"]).ravel().astype(int)
    table = root / f"{_HDF5_PREFIX}{split}_meta.csv"
    slides = read_table_rows(table) if table.is_file() else []
    records = []
    with h5py.File(root / f"{_HDF5_PREFIX}{split}_x.h5", "r") as file:
        for index in _evenly_spaced_indices(labels):
            path = root / _EXTRACTED_FOLDER / split / f"{index:06d}.png"
            if not path.is_file():
                with atomic_write(path) as partial:
                    pixels = np.asarray(file["x"][index], dtype=np.uint8)
                    Image.fromarray(pixels).save(partial, format="PNG")
            slide = slides[index]["wsi"] if slides else ""
            records.append(ImageRecord(path, _LABELS[labels[index]], slide, split=split))
    return records


def _load_h5py(root: Path) -> Any:
    try:
        return import_module("h5py")
    except ImportError:
        raise ManifestError(
            f"{root}: HDF5 files need h5py; run pip install h5py, or extract the images to "
            "folders 0/ and 1/"
        ) from None


def _evenly_spaced_indices(labels: Any) -> list[int]:
    indices: list[int] = []
    for label in range(len(_LABELS)):
        of_class = np.flatnonzero(labels == label)
        step = max(1, len(of_class) / _MAX_PER_CLASS)
        indices += of_class[np.arange(0, len(of_class), step).astype(int)].tolist()
    return sorted(indices)


def _read_kaggle(root: Path) -> list[ImageRecord]:
    """Return train/<id>.tif with the labels of train_labels.csv; empty without this table."""
    table = root / "train_labels.csv"
    if not table.is_file():
        return []
    labels = {row["id"]: int(row["label"]) for row in read_table_rows(table)}
    files = [path for path in list_images(root / "train") if path.stem in labels]
    return [ImageRecord(path, _LABELS[labels[path.stem]], "") for path in files]


def _read_class_folders(root: Path) -> list[ImageRecord]:
    """Return the images of 0/ and 1/ in `root` or in train/, valid/ and test/; [] without these."""
    folders = list_subfolders(root)
    splits: dict[str | None, Path] = {s: folders[s] for s in _SPLITS if s in folders}
    records = []
    for split, folder in (splits or {None: root}).items():
        folders = list_subfolders(folder)
        if not {"0", "1"} <= set(folders):
            return []
        records += [
            ImageRecord(path, label, "", split=split)
            for name, label in zip("01", _LABELS, strict=True)
            for path in list_images(folders[name])
        ]
    return records


DATA_VARIABLE = "HISTODICT_DATA"

Layout = Callable[[Path], list[Dataset]]
LAYOUTS: dict[str, Layout] = {
    "GlaS": find_glas,
    "UCSB": find_ucsb,
    "BreakHis": find_breakhis,
    "LC25000": find_lc25000,
    "Kather CRC": find_kather,
    "PCam": find_pcam,
    "CAMELYON": find_camelyon,
    "TCGA": find_tcga,
}


def load_datasets(source: Path | str, part: str | None = None) -> list[Dataset]:
    """Return the tasks of a folder, given by its path or its name in $HISTODICT_DATA.

    Only tasks whose name contains `part` are returned, such as an organ or a magnification.
    """
    folder = _resolve_folder(source)
    is_table = folder.is_file() or (folder / MANIFEST_NAME).is_file()
    manifest = read_manifest(folder) if is_table else None
    tasks: list[Dataset] = []
    if folder.is_dir() and (manifest is None or not _has_patients(manifest)):
        found = (find(folder) for find in LAYOUTS.values())
        tasks = next((tasks for tasks in found if tasks), [])
    if not tasks:
        name = folder.stem if folder.is_file() else folder.name
        tasks = [dataset_from_manifest(name, manifest or read_manifest(folder))]
    selected = [task for task in tasks if part is None or part.casefold() in task.name.casefold()]
    if not selected:
        names = ", ".join(task.name for task in tasks)
        raise ManifestError(f"{folder}: unknown part {part!r}; the parts are {names}")
    return selected


def _resolve_folder(source: Path | str) -> Path:
    if Path(source).exists():
        return Path(os.path.normpath(source))
    home = os.environ.get(DATA_VARIABLE)
    if home and (Path(home) / source).exists():
        return Path(os.path.normpath(Path(home) / source))
    names = sorted(p.name for p in Path(home).iterdir() if p.is_dir()) if home else []
    known = f"{DATA_VARIABLE} has {', '.join(names)}" if home else f"{DATA_VARIABLE} is not set"
    raise ManifestError(f"{source}: folder or data set not found; {known}")


def _has_patients(manifest: Manifest) -> bool:
    return any(record.patient != manifest.name(record) for record in manifest.records)
