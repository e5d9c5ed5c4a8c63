"""Manifests without files, and simulated predictions that depend on the patient."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.model_selection.protocols import Repeat

ROOT = Path("/data/set")

# Images (benign, malignant) of each patient, as in two public data sets.
GLAS = {
    "1": (4, 12), "2": (0, 20), "3": (5, 8), "4": (12, 6), "5": (8, 0), "6": (0, 4),
    "7": (0, 20), "8": (0, 1), "9": (16, 0), "10": (19, 4), "11": (4, 12), "12": (0, 1),
    "13": (3, 0), "14": (0, 1), "15": (3, 0), "16": (0, 2),
}  # fmt: skip
UCSB = {f"g{i}": (3, 3) for i in range(8)} | {"g8": (2, 2), "g9": (6, 0)}


def manifest_of(
    counts: Mapping[str, tuple[int, ...]], classes: tuple[str, ...] = ("benign", "malignant")
) -> Manifest:
    """Return a manifest with these numbers of images per class for each patient."""
    records = [
        ImageRecord(ROOT / label / f"{patient}_{i}.png", label, patient)
        for patient, numbers in counts.items()
        for label, number in zip(classes, numbers, strict=True)
        for i in range(number)
    ]
    return Manifest(tuple(records), root=ROOT)


def clustered(rng: np.random.Generator, n_patients: int, n_repeats: int = 1) -> list[Repeat]:
    """Return scores (mostly above 0 for the second class) with a shift per patient of one class."""
    sizes = rng.integers(2, 13, n_patients)
    patients = np.repeat(np.arange(n_patients), sizes)
    labels = patients % 2
    shared = 1.5 * labels - 0.75 + rng.normal(size=n_patients)[patients]
    return [
        Repeat(labels, patients, shared + rng.normal(0, 0.7, len(labels))) for _ in range(n_repeats)
    ]
