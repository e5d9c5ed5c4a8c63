"""Data sets whose folders and file names tell class, patient and slide.

Where a name tells no patient, a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...images.manifest import ImageRecord, ManifestError
from .dataset import Dataset, images_in, images_under, sub_folders, task_of

_MASKS = "masks"

# --- names that tell everything, whichever folders they lie in ----------------------------------

# ytma10_010704_benign1_ccd.tif. The slide array and date, ytma10_010704, tell what was stained and
# scanned together: images of one such group stay on one side of a split.
_UCSB = re.compile(r"(ytma\d+_\d+)_(benign|malignant)\d+_ccd$", re.IGNORECASE)
# SOB_B_A-14-22549AB-40-001.png: class (B or M), tumour, year and slide, magnification and number.
# Year and slide are the patient; one patient, 14-13412, has images of two tumours.
_BREAKHIS = re.compile(r"SOB_([BM])_[A-Z]+-(\d+-\w+)-(\d+)-\d+$")


def find_ucsb(root: Path) -> list[Dataset]:
    """UCSB breast benchmark: benign and malignant tissue."""
    records = [
        ImageRecord(path, name[2].lower(), name[1].lower()) for path, name in _matches(root, _UCSB)
    ]
    return [task_of("ucsb-breast", root, records)] if records else []


def find_breakhis(root: Path) -> list[Dataset]:
    """Benign and malignant breast tumours, one task per magnification."""
    by_scale: dict[int, list[ImageRecord]] = {}
    for path, name in _matches(root, _BREAKHIS):
        label = {"B": "benign", "M": "malignant"}[name[1]]
        by_scale.setdefault(int(name[3]), []).append(
            ImageRecord(path, label, name[2], slide=name[2])
        )
    return [
        task_of(f"breakhis-{scale}x", root, records) for scale, records in sorted(by_scale.items())
    ]


def _matches(root: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    found = ((path, pattern.match(path.stem)) for path in images_under(root))
    return [(path, name) for path, name in found if name]


# --- one folder per class -----------------------------------------------------------------------

# TCGA-06-0137-01A-01-BS1: project, tissue source site, participant, then sample and slide.
_BARCODE = re.compile(
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
# The tumour a tile of the 2016 set was cut from, one slide each.
_PRIMARY = re.compile(r"(?P<patient>(?P<slide>CRC-Prim-HE-\d+))")


def find_tcga(root: Path) -> list[Dataset]:
    """<class>/ with TCGA's barcodes in the names, and masks/ for regions such as MVP."""
    folders = sub_folders(root)
    classes = {path.name: path for name, path in folders.items() if name != _MASKS}
    records = _of_classes(root, classes, _BARCODE)
    if not any(record.patient for record in records):
        return []
    why = "Their names have no barcode such as TCGA-06-0137."
    return [task_of(root.name, root, records, why=why)]


def find_lc25000(root: Path) -> list[Dataset]:
    """lung_image_sets/ and colon_image_sets/, or the class folders of one organ."""
    top = sub_folders(root).get("lung_colon_image_set", root)
    why = (
        "LC25000 holds about 20 turned or flipped copies of each source image: take one of each, "
        "by a published list of duplicates."
    )
    tasks = []
    for organ, labels in _LC25000.items():
        place = sub_folders(top).get(f"{organ}_image_sets", top)
        folders = sub_folders(place)
        classes = {label: folders[name] for name, label in labels.items() if name in folders}
        if len(classes) > 1:
            tasks.append(task_of(f"lc25000-{organ}", place, _of_classes(place, classes), why=why))
    return tasks


def find_kather(root: Path) -> list[Dataset]:
    """The nine tissues of NCT-CRC-HE (ADI/ … TUM/), or the eight of 2016 (01_TUMOR/ …)."""
    folders = sub_folders(root)
    newer = {name.upper(): path for name, path in folders.items() if name in _TISSUES_2018}
    older = {name: path for name, path in folders.items() if _TISSUE_2016.match(name)}
    classes = newer or older
    if len(classes) < 3:
        return []
    why = "The names of NCT-CRC-HE tiles tell no patient: test on the set CRC-VAL-HE-7K."
    return [task_of(root.name, root, _of_classes(root, classes, _PRIMARY), why=why)]


def _of_classes(
    root: Path, classes: Mapping[str, Path], pattern: re.Pattern[str] | None = None
) -> list[ImageRecord]:
    """The images of each class's folder; masks of the same name in root/masks go with them.

    The groups of `pattern` are what a file's name tells of its image: patient, slide, site.
    """
    place = sub_folders(root).get(_MASKS)
    masks = {path.stem: path for path in images_in(place)} if place else {}
    records = []
    for label, folder in classes.items():
        for path in images_in(folder):
            name = pattern.search(path.name) if pattern else None
            told: dict[str, Any] = name.groupdict() if name else {"patient": ""}
            records.append(ImageRecord(path, label, mask=masks.get(path.stem), **told))
    return records


# --- images/ and masks/ with the same names -----------------------------------------------------

_PATIENT = re.compile(r"patient_?\d+", re.IGNORECASE)
_SLIDE = re.compile(r"(tumor|normal|test)_\d+", re.IGNORECASE)


def find_camelyon(root: Path) -> list[Dataset]:
    """Tiles of slides of lymph nodes, whose masks outline tumour."""
    folders = sub_folders(root)
    if not {"images", _MASKS} <= set(folders):
        return []
    masks = {path.stem: path for path in images_in(folders[_MASKS])}
    files = images_in(folders["images"])
    missing = [path.name for path in files if path.stem not in masks]
    if missing:
        raise ManifestError(f"{root}: {len(missing)} images have no mask, {missing[0]} for one")
    records = [ImageRecord(path, "", _group(path.stem), mask=masks[path.stem]) for path in files]
    n_unknown = sum(_warned(path.stem) is None for path in files)
    warning = (
        f"{root}: NO SLIDE is known for {n_unknown} images. Those whose numbers differ in the last "
        "digit only are kept together; others of one slide may stand on both sides of a split"
    )
    task = task_of(root.name, root, records, *([warning] if n_unknown else []))
    return [replace(task, region="tumour")]


def _warned(name: str) -> str | None:
    """The patient or, in CAMELYON16, the slide in a tile's name."""
    found = _PATIENT.search(name) or _SLIDE.search(name)
    return found[0].lower() if found else None


def _group(name: str) -> str:
    # Tiles are numbered along a slide: neighbours in number overlap or touch.
    return _warned(name) or (f"{name[:-1]}x" if name.isdigit() and len(name) > 1 else name)
