"""Synthetic data sets as files: images by class, larger images with masks, manifests."""

from __future__ import annotations

import csv
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..utils.files import add_path_to_errors
from ..utils.validation import check_whole_number
from .tissue_generator import (
    INFLAMMATION_MAPS,
    MICRONS_PER_PIXEL,
    canvas_shape,
    make_region_image,
    make_tissue_image,
    random_stain,
)

_UNFINISHED_PREFIX = ".unfinished-"
_STALE_S = 24 * 3600


def write_synthetic_dataset(
    folder: str | Path,
    n_patients: int = 10,
    images_per_patient: int = 6,
    size: tuple[int, int] = (480, 360),
    seed: int = 0,
) -> Path:
    """Write a labelled synthetic set with its manifests to a new folder, and return the folder.

    Images `<class>/<patient>_<i>.jpg` are listed in `manifest.csv`; patients have images of both
    classes. Half as many other patients have one larger image each in `regions/`, with no, one or
    two inflamed foci and a mask of the foci; `regions/manifest.csv` lists them. Paths are relative
    to the manifest. The folder is written atomically. The same seed gives the same bytes, and the
    images of a patient do not depend on the number of patients.

    Parameters
    ----------
    folder : new or empty folder
    n_patients : number of patients with images of both classes
    images_per_patient : number of images per patient
    size : (width, height) of the images
    seed : random seed

    Returns
    -------
    Path

    Raises
    ------
    FileExistsError
        If the folder contains files.
    """
    check_whole_number("n_patients", n_patients, 1)
    check_whole_number("images_per_patient", images_per_patient, 1)
    check_whole_number("seed", seed, 0)
    canvas_shape(size)
    folder = Path(folder).resolve()
    _check_empty(folder)
    _remove_unfinished(folder)
    unfinished = folder.with_name(f".{folder.name[:50]}{_UNFINISHED_PREFIX}{secrets.token_hex(8)}")
    unfinished.mkdir(parents=True)
    try:
        with add_path_to_errors(folder):
            _write_class_images(unfinished, n_patients, images_per_patient, size, seed)
            _write_region_images(unfinished / "regions", n_patients, size, seed)
        _check_empty(folder)  # another process may have been faster
        if folder.exists():
            folder.rmdir()  # not every system renames onto an empty folder
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return folder


def cached_synthetic_dataset(folder: Path, *args: Any, **kwargs: Any) -> Path:
    """Return the folder of a synthetic set, after writing the set if it is missing.

    The function may be called by several processes at the same time.

    Parameters
    ----------
    folder : folder of the set
    *args, **kwargs : further arguments of `write_synthetic_dataset`

    Returns
    -------
    Path
    """
    if not (folder / "manifest.csv").is_file():
        with suppress(FileExistsError):
            write_synthetic_dataset(folder, *args, **kwargs)
    return folder


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder}: the folder is not empty; choose a new folder for the synthetic images"
        )


def _remove_unfinished(folder: Path) -> None:
    """Remove unfinished versions of the folder that are more than a day old."""
    for unfinished in folder.parent.glob(f".{escape(folder.name[:50])}{_UNFINISHED_PREFIX}*"):
        with suppress(OSError):
            if time.time() - unfinished.stat().st_mtime > _STALE_S:
                shutil.rmtree(unfinished)


def _write_class_images(
    folder: Path, n_patients: int, images_per_patient: int, size: tuple[int, int], seed: int
) -> None:
    classes = list(INFLAMMATION_MAPS)
    rows = []
    for patient in range(n_patients):
        stain = random_stain(_generator(seed, "stain", patient))
        for i in range(images_per_patient):
            label = classes[(patient + i) % len(classes)]
            name = f"{label}/{_patient_name(patient)}_{i + 1}.jpg"
            image = make_tissue_image(label, stain, _generator(seed, "image", patient, i), size)
            _write_jpeg(folder / name, image)
            rows.append((name, label, _patient_name(patient), MICRONS_PER_PIXEL))
    _write_manifest(folder / "manifest.csv", ("path", "label", "patient", "mpp"), sorted(rows))


def _write_region_images(folder: Path, n_patients: int, size: tuple[int, int], seed: int) -> None:
    larger = size[0] * 3 // 2, size[1] * 3 // 2
    rows = []
    for i in range((n_patients + 1) // 2):
        patient = n_patients + i
        stain = random_stain(_generator(seed, "region stain", i))
        n_regions = (1, 2, 0)[i % 3]
        image, mask = make_region_image(stain, _generator(seed, "region", i), larger, n_regions)
        name, mask_name = f"{_patient_name(patient)}_1.jpg", f"masks/{_patient_name(patient)}_1.png"
        _write_jpeg(folder / name, image)
        (folder / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / mask_name)
        label = "inflamed" if n_regions else "healthy"
        rows.append((name, label, _patient_name(patient), MICRONS_PER_PIXEL, mask_name))
    _write_manifest(folder / "manifest.csv", ("path", "label", "patient", "mpp", "mask"), rows)


def _generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return an independent random generator for a purpose and indices."""
    return np.random.default_rng([seed, *purpose.encode(), *(i + 1 for i in indices)])


def _patient_name(patient: int) -> str:
    return f"patient{patient + 1:02d}"


def _write_jpeg(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(image).save(path, quality=95, subsampling=0)


def _write_manifest(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
