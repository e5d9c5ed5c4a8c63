"""PatchCamelyon: its HDF5 files, the folder of the Kaggle competition, or 0/ and 1/ in folders.

HDF5 holds pixels, not files. Some images of each class, spread evenly over the file, are written as
PNG beside it, once.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...execution.files import atomic_write
from ...images.manifest import ImageRecord, ManifestError
from .dataset import Dataset, images_in, read_rows, sub_folders, task_of

_SPLITS = ("train", "valid", "test")
_LABELS = ("normal", "tumour")
_MAX_PER_CLASS = 1000
_IMAGES = "pcam-images"
_PACKED = "camelyonpatch_level_2_split_"  # SPLIT_x.h5, SPLIT_y.h5, SPLIT_meta.csv


def find(root: Path) -> list[Dataset]:
    """Tumour in the middle of a tile of a lymph node, or not."""
    packed = [split for split in _SPLITS if (root / f"{_PACKED}{split}_x.h5").is_file()]
    records = [record for split in packed for record in _unpacked(root, split)]
    records = records or _from_table(root) or _from_folders(root)
    if not records:
        return []
    limit = f"{root}: at most {_MAX_PER_CLASS} images of each class and split are used"
    why = "PCam tells slides in the files …_meta.csv alone."
    return [task_of("pcam", root, records, *([limit] if packed else []), why=why)]


def _unpacked(root: Path, split: str) -> list[ImageRecord]:
    h5py = _load_h5py(root)
    with h5py.File(root / f"{_PACKED}{split}_y.h5", "r") as file:
        labels = np.asarray(file["y"]).ravel().astype(int)
    table = root / f"{_PACKED}{split}_meta.csv"
    slides = read_rows(table) if table.is_file() else []
    records = []
    with h5py.File(root / f"{_PACKED}{split}_x.h5", "r") as file:
        for place in _chosen(labels):
            path = root / _IMAGES / split / f"{place:06d}.png"
            if not path.is_file():
                with atomic_write(path) as partial:
                    pixels = np.asarray(file["x"][place], dtype=np.uint8)
                    Image.fromarray(pixels).save(partial, format="PNG")
            slide = slides[place]["wsi"] if slides else ""
            records.append(ImageRecord(path, _LABELS[labels[place]], slide, split=split))
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
        step = max(1, len(own) / _MAX_PER_CLASS)
        places += own[np.arange(0, len(own), step).astype(int)].tolist()
    return sorted(places)


def _from_table(root: Path) -> list[ImageRecord]:
    """train/<id>.tif with train_labels.csv, columns id and label."""
    table = root / "train_labels.csv"
    if not table.is_file():
        return []
    labels = {row["id"]: int(row["label"]) for row in read_rows(table)}
    files = [path for path in images_in(root / "train") if path.stem in labels]
    return [ImageRecord(path, _LABELS[labels[path.stem]], "") for path in files]


def _from_folders(root: Path) -> list[ImageRecord]:
    """0/ and 1/, of all images or within train/, valid/ and test/."""
    folders = sub_folders(root)
    inside: dict[str | None, Path] = {s: folders[s] for s in _SPLITS if s in folders}
    records = []
    for split, place in (inside or {None: root}).items():
        folders = sub_folders(place)
        if not {"0", "1"} <= set(folders):
            return []
        records += [
            ImageRecord(path, label, "", split=split)
            for name, label in zip("01", _LABELS, strict=True)
            for path in images_in(folders[name])
        ]
    return records
