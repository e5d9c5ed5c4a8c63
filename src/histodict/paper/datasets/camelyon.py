"""Tiles of CAMELYON slides: images/ and masks/ with the same names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ...images.manifest import ManifestError, Record
from .dataset import Dataset, images_in, sub_folders, task_of

_PATIENT = re.compile(r"patient_?\d+", re.IGNORECASE)
_SLIDE = re.compile(r"(tumor|normal|test)_\d+", re.IGNORECASE)


def find(root: Path) -> list[Dataset]:
    """Regions of tumour in lymph nodes."""
    folders = sub_folders(root)
    if not {"images", "masks"} <= set(folders):
        return []
    masks = {path.stem: path for path in images_in(folders["masks"])}
    files = images_in(folders["images"])
    missing = [path.name for path in files if path.stem not in masks]
    if missing:
        raise ManifestError(f"{root}: {len(missing)} images have no mask, {missing[0]} for one")
    records = [Record(path, "", _group(path.stem), mask=masks[path.stem]) for path in files]
    n_unknown = sum(_told(path.stem) is None for path in files)
    warning = (
        f"{root}: NO SLIDE is known for {n_unknown} images. Those whose numbers differ in the last "
        "digit only are kept together; others of one slide may stand on both sides of a split"
    )
    task = task_of(root.name, root, records, *([warning] if n_unknown else []))
    return [replace(task, region="tumour")]


def _told(name: str) -> str | None:
    """The patient or, in CAMELYON16, the slide in a tile's name."""
    found = _PATIENT.search(name) or _SLIDE.search(name)
    return found[0].lower() if found else None


def _group(name: str) -> str:
    # Tiles are numbered along a slide: neighbours in number overlap or touch.
    return _told(name) or (f"{name[:-1]}x" if name.isdigit() and len(name) > 1 else name)
