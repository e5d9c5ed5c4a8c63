"""Data sets with one folder per class: TCGA, LC25000 and Kather's colorectal tiles.

Where file names tell the patient or slide, they are read; where not, a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ...images.manifest import Manifest, Record
from .dataset import Dataset, images_in, manifest_of, named, own_patients, sub_folders

# What a file's name tells of its image: patient, slide, site.
Told = dict[str, str]
_MASKS = "masks"


def read_classes(
    root: Path, classes: Mapping[str, Path], read_name: Callable[[str], Told], why: str
) -> Manifest:
    """The images of each class's folder; `why` is said of those whose name tells no patient.

    Masks of the same name in root/masks go with their images.
    """
    place = sub_folders(root).get(_MASKS)
    masks = {path.stem: path for path in images_in(place)} if place else {}
    records = []
    for label, folder in classes.items():
        for path in images_in(folder):
            told = read_name(path.name)
            patient = told.get("patient", path.relative_to(root).as_posix())
            slide, site = told.get("slide"), told.get("site")
            records.append(Record(path, label, patient, slide, site, mask=masks.get(path.stem)))
    n_unknown = sum("patient" not in read_name(record.path.name) for record in records)
    warnings = [own_patients(root, n_unknown, why)] if n_unknown else []
    return manifest_of(root, records, *warnings)


# --- TCGA --------------------------------------------------------------------------------------

# TCGA-06-0137-01A-01-BS1: project, tissue source site, participant, then sample and slide.
_BARCODE = re.compile(r"(TCGA-([A-Z0-9]{2})-[A-Z0-9]{4})(-[A-Z0-9]{2,3})*")


def find_tcga(root: Path) -> list[Dataset]:
    """<class>/ with TCGA's barcodes in the names, and masks/ for regions such as MVP."""
    folders = sub_folders(root)
    classes = {path.name: path for name, path in folders.items() if name != _MASKS}
    files = [path.name for folder in classes.values() for path in images_in(folder)]
    if not any(_BARCODE.search(name) for name in files):
        return []
    why = "Their names have no barcode such as TCGA-06-0137."
    manifest = read_classes(root, classes, _read_barcode, why)
    return [named(root.name, manifest)]


def _read_barcode(name: str) -> Told:
    found = _BARCODE.search(name)
    if not found:
        return {}
    return {"patient": found[1], "site": found[2], "slide": found[0]}


# --- others -------------------------------------------------------------------------------------

_LC25000 = {
    "lung": {
        "lung_n": "normal",
        "lung_aca": "adenocarcinoma",
        "lung_scc": "squamous cell carcinoma",
    },
    "colon": {"colon_n": "normal", "colon_aca": "adenocarcinoma"},
}


def _tells_nothing(name: str) -> Told:
    return {}


def find_lc25000(root: Path) -> list[Dataset]:
    """lung_image_sets/ and colon_image_sets/, or the class folders of one organ."""
    top = sub_folders(root).get("lung_colon_image_set", root)
    tasks = []
    for organ, labels in _LC25000.items():
        place = sub_folders(top).get(f"{organ}_image_sets", top)
        folders = sub_folders(place)
        classes = {label: folders[name] for name, label in labels.items() if name in folders}
        if len(classes) > 1:
            why = (
                "LC25000 holds about 20 turned or flipped copies of each source image: take one of "
                "each, by a published list of duplicates."
            )
            manifest = read_classes(place, classes, _tells_nothing, why)
            tasks.append(named(f"lc25000-{organ}", manifest))
    return tasks


_TISSUES_2018 = ("adi", "back", "deb", "lym", "muc", "mus", "norm", "str", "tum")
_TISSUE_2016 = re.compile(r"0[1-8]_[a-z]+$")
_PRIMARY = re.compile(r"CRC-Prim-HE-\d+")


def find_kather(root: Path) -> list[Dataset]:
    """The nine tissues of NCT-CRC-HE (ADI/ … TUM/), or the eight of 2016 (01_TUMOR/ …)."""
    folders = sub_folders(root)
    newer = {name.upper(): path for name, path in folders.items() if name in _TISSUES_2018}
    older = {name: path for name, path in folders.items() if _TISSUE_2016.match(name)}
    classes = newer or older
    if len(classes) < 3:
        return []
    why = "The names of NCT-CRC-HE tiles tell no patient: test on the set CRC-VAL-HE-7K."
    return [named(root.name, read_classes(root, classes, _read_primary, why))]


def _read_primary(name: str) -> Told:
    """The tumour a tile of the 2016 set was cut from, one slide each."""
    found = _PRIMARY.search(name)
    return {"patient": found[0], "slide": found[0]} if found else {}
