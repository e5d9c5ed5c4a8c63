"""Public data sets, read as they are unpacked: which images, classes and, above all, patients.

A folder with a manifest.csv that names patients is read by it. Any other folder is held against
the layouts below, and at last read as one sub-folder per class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ...images.manifest import MANIFEST_NAME, Manifest, ManifestError, read_manifest
from . import file_names, glas, pcam
from .dataset import Dataset, named

__all__ = ["DATA_VARIABLE", "LAYOUTS", "Dataset", "load_datasets"]

DATA_VARIABLE = "HISTODICT_DATA"

# A layout finds its tasks in a folder, or nothing if the folder is laid out otherwise.
Layout = Callable[[Path], list[Dataset]]
LAYOUTS: dict[str, Layout] = {
    "GlaS": glas.find,
    "UCSB": file_names.find_ucsb,
    "BreakHis": file_names.find_breakhis,
    "LC25000": file_names.find_lc25000,
    "Kather CRC": file_names.find_kather,
    "PCam": pcam.find,
    "CAMELYON": file_names.find_camelyon,
    "TCGA": file_names.find_tcga,
}


def load_datasets(source: Path | str, part: str | None = None) -> list[Dataset]:
    """The tasks of a folder, or of a folder in $HISTODICT_DATA by its name.

    `part` keeps those whose name contains it, such as an organ or a magnification.
    """
    folder = _folder(source)
    is_table = folder.is_file() or (folder / MANIFEST_NAME).is_file()
    manifest = read_manifest(folder) if is_table else None
    tasks: list[Dataset] = []
    if folder.is_dir() and (manifest is None or not _has_patients(manifest)):
        found = (find(folder) for find in LAYOUTS.values())
        tasks = next((tasks for tasks in found if tasks), [])
    if not tasks:
        name = folder.stem if folder.is_file() else folder.name
        tasks = [named(name, manifest or read_manifest(folder))]
    kept = [task for task in tasks if part is None or part.casefold() in task.name.casefold()]
    if not kept:
        names = ", ".join(task.name for task in tasks)
        raise ManifestError(f"{folder}: no part is called {part!r}; there are {names}")
    return kept


def _folder(source: Path | str) -> Path:
    if Path(source).exists():
        return Path(os.path.normpath(source))
    home = os.environ.get(DATA_VARIABLE)
    if home and (Path(home) / source).exists():
        return Path(os.path.normpath(Path(home) / source))
    names = sorted(p.name for p in Path(home).iterdir() if p.is_dir()) if home else []
    known = f"{DATA_VARIABLE} has {', '.join(names)}" if home else f"{DATA_VARIABLE} is not set"
    raise ManifestError(f"{source}: there is no such folder, and none of this name; {known}")


def _has_patients(manifest: Manifest) -> bool:
    return any(record.patient != manifest.name(record) for record in manifest.records)
