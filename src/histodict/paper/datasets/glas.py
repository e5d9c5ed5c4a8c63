"""GlaS (Warwick-QU): train_1.bmp, train_1_anno.bmp, … and Grade.csv, all in one folder.

Patients are in both of the official sets, so `split` is kept as information only.
"""

from __future__ import annotations

from pathlib import Path

from ...images.manifest import ImageRecord, ManifestError
from .dataset import Dataset, images_in, read_rows, task_of

_TABLE = "Grade.csv"


def find(root: Path) -> list[Dataset]:
    """Benign and malignant glands of the colon; masks outline the glands."""
    if not (root / _TABLE).is_file():
        return []
    files = {path.stem: path for path in images_in(root)}
    records = [_record(root, row, files) for row in _rows(root / _TABLE)]
    found = task_of("glas", root, records)
    # The masks show glands, healthy ones too: they are not what is to be found.
    return [Dataset(found.name, found.images)]


def _rows(table: Path) -> list[dict[str, str]]:
    rows = [
        {str(name).strip().casefold(): str(cell).strip() for name, cell in row.items()}
        for row in read_rows(table)
    ]
    wanted = {"name", "patient id", "grade (glas)"}
    if not rows or not wanted <= set(rows[0]):
        raise ManifestError(f"{table}: is not GlaS's table; it must have the columns {wanted}")
    return [row for row in rows if row["name"]]


def _record(root: Path, row: dict[str, str], files: dict[str, Path]) -> ImageRecord:
    name = row["name"]
    if name not in files:
        raise ManifestError(f"{root}: {name} is in {_TABLE}, but there is no image of this name")
    return ImageRecord(
        files[name],
        row["grade (glas)"],
        row["patient id"],
        split=name.partition("_")[0],
        mask=files.get(f"{name}_anno"),
    )
