"""What an experiment needs to know of a data set, and how the layouts read file names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ...images.manifest import ImageRecord, Manifest
from ...images.readers import READERS


@dataclass(frozen=True)
class Dataset:
    """One task: a question with its images.

    name : also names the folder of its results
    images : labelled images; None where only masks say what is where
    regions : images whose masks outline what is looked for; None where there are none
    region : what the masks outline
    """

    name: str
    images: Manifest | None
    regions: Manifest | None = None
    region: str = "region"

    @property
    def classes(self) -> list[str]:
        """In the paper's order: healthy first."""
        return self.images.classes if self.images else []

    @property
    def diseased(self) -> str | None:
        """Of two classes, the one whose images must not be missed; None for more classes."""
        return self.classes[1] if len(self.classes) == 2 else None

    @property
    def warnings(self) -> tuple[str, ...]:
        manifest = self.images or self.regions
        return manifest.warnings if manifest else ()


def task_of(
    name: str, root: Path, records: Iterable[ImageRecord], *warnings: str, why: str = ""
) -> Dataset:
    """The data set of records, in order of their paths.

    An image without a patient counts as its own; `why` is said at the end of that warning.
    """
    ordered = sorted(records, key=lambda record: record.path)
    n_unknown = sum(not record.patient for record in ordered)
    if n_unknown:
        unknown = (
            f"{root}: NO PATIENT is known for {n_unknown} images, and each counts as its own: "
            f"every accuracy measured on them is too good. {why}"
        )
        warnings = (unknown, *warnings)
    known = (replace(r, patient=r.patient or r.path.relative_to(root).as_posix()) for r in ordered)
    return named(name, Manifest(tuple(known), warnings, root))


def named(name: str, manifest: Manifest) -> Dataset:
    """The data set of a manifest, with classes, masks or both."""
    classes = manifest.classes
    return Dataset(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "data",
        images=manifest if len(classes) > 1 else None,
        regions=manifest if any(record.mask for record in manifest.records) else None,
        region=classes[-1] if len(classes) in (1, 2) else "region",
    )


# --- files --------------------------------------------------------------------------------------


def images_in(folder: Path) -> list[Path]:
    """Images directly in a folder, by name."""
    return sorted(path for path in folder.iterdir() if _is_image(path))


def images_under(folder: Path) -> list[Path]:
    """Images in a folder and its sub-folders, by name."""
    return sorted(path for path in folder.rglob("*") if _is_image(path))


def _is_image(path: Path) -> bool:
    return (
        path.is_file() and path.suffix.lower() in READERS and not path.name.startswith((".", "_"))
    )


def sub_folders(folder: Path) -> dict[str, Path]:
    """By name in lower case."""
    places = sorted(path for path in folder.iterdir() if path.is_dir())
    return {path.name.casefold(): path for path in places if not path.name.startswith(".")}


def read_rows(table: Path) -> list[dict[str, str]]:
    """Of a CSV file with a header."""
    with table.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))
