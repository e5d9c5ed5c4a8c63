"""PatchCamelyon: its HDF5 files, the folder of the Kaggle competition, or 0/ and 1/ in folders.

HDF5 holds pixels, not files. Some images of each class, spread evenly over the file, are written as
PNG beside it, once.
"""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...execution.files import written_whole
from ...images.manifest import ManifestError, Record
from .dataset import Dataset, images_in, manifest_of, named, own_patients, sub_folders

_SPLITS = ("train", "valid", "test")
_LABELS = ("normal", "tumour")
_MOST_PER_CLASS = 1000
_PICTURES = "pcam-images"


def find(root: Path) -> list[Dataset]:
    """Tumour in the middle of a tile of a lymph node, or not."""
    if not root.is_dir():
        return []
    packed = {split: root / _packed(split, "x") for split in _SPLITS}
    packed = {split: path for split, path in packed.items() if path.is_file()}
    records: list[Record] = []
    for split in packed:
        records += _unpacked(root, split)
    records = records or _from_table(root) or _from_folders(root)
    if not records:
        return []
    n_unknown = sum(record.patient == _own(root, record.path) for record in records)
    why = "PCam tells slides in the files …_meta.csv alone."
    warnings = [own_patients(root, n_unknown, why)] if n_unknown else []
    if packed:
        warnings.append(
            f"{root}: at most {_MOST_PER_CLASS} images of each class and split are used"
        )
    return [named("pcam", manifest_of(root, records, *warnings))]


def _own(root: Path, path: Path) -> str:
    """The name of an image whose patient is not known."""
    return path.relative_to(root).as_posix()


def _packed(split: str, part: str) -> str:
    suffix = "csv" if part == "meta" else "h5"
    return f"camelyonpatch_level_2_split_{split}_{part}.{suffix}"


# --- HDF5 ---------------------------------------------------------------------------------------


def _unpacked(root: Path, split: str) -> list[Record]:
    h5py = _load_h5py(root)
    with h5py.File(root / _packed(split, "y"), "r") as file:
        labels = np.asarray(file["y"]).ravel().astype(int)
    slides = _slides(root / _packed(split, "meta"))
    records = []
    with h5py.File(root / _packed(split, "x"), "r") as file:
        for place in _chosen(labels):
            path = root / _PICTURES / split / f"{place:06d}.png"
            if not path.is_file():
                _write(path, np.asarray(file["x"][place], dtype=np.uint8))
            patient = slides[place] if slides else _own(root, path)
            records.append(Record(path, _LABELS[labels[place]], patient, split=split))
    return records


def _load_h5py(root: Path) -> Any:
    try:
        return import_module("h5py")
    except ImportError:
        raise ManifestError(
            f"{root}: these are HDF5 files: install h5py (pip install h5py), or unpack them into "
            "folders 0/ and 1/"
        ) from None


def _chosen(labels: Any) -> list[int]:
    places: list[int] = []
    for label in range(len(_LABELS)):
        own = np.flatnonzero(labels == label)
        step = max(1, len(own) / _MOST_PER_CLASS)
        places += own[np.arange(0, len(own), step).astype(int)].tolist()
    return sorted(places)


def _slides(table: Path) -> list[str]:
    if not table.is_file():
        return []
    with table.open(newline="", encoding="utf-8-sig") as file:
        return [row["wsi"] for row in csv.DictReader(file)]


def _write(path: Path, pixels: Any) -> None:
    with written_whole(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


# --- files --------------------------------------------------------------------------------------


def _from_table(root: Path) -> list[Record]:
    """train/<id>.tif with train_labels.csv, columns id and label."""
    table = root / "train_labels.csv"
    if not table.is_file():
        return []
    with table.open(newline="", encoding="utf-8-sig") as file:
        labels = {row["id"]: int(row["label"]) for row in csv.DictReader(file)}
    files = images_in(root / "train")
    return [
        Record(path, _LABELS[labels[path.stem]], _own(root, path))
        for path in files
        if path.stem in labels
    ]


def _from_folders(root: Path) -> list[Record]:
    """0/ and 1/, of all images or within train/, valid/ and test/."""
    places = {split: sub_folders(root).get(split) for split in _SPLITS}
    inside: dict[str | None, Path] = {s: place for s, place in places.items() if place}
    records = []
    for split, place in (inside or {None: root}).items():
        folders = sub_folders(place)
        if not {"0", "1"} <= set(folders):
            return []
        for name in ("0", "1"):
            label = _LABELS[int(name)]
            records += [
                Record(path, label, _own(root, path), split=split)
                for path in images_in(folders[name])
            ]
    return records
