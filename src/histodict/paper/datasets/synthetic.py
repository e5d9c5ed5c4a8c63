"""Drawn tissue, for experiments without any data."""

from __future__ import annotations

from pathlib import Path

from ...demo.sets import write_synthetic_set
from ...images.manifest import read_manifest
from .dataset import Dataset


def draw_synthetic(
    folder: Path, n_patients: int, images_per_patient: int, size: tuple[int, int]
) -> Dataset:
    """Healthy and inflamed tissue, and larger images with inflamed regions; drawn once."""
    if not (folder / "manifest.csv").is_file():
        write_synthetic_set(folder, n_patients, images_per_patient, size)
    return Dataset(
        "synthetic",
        read_manifest(folder / "manifest.csv"),
        read_manifest(folder / "regions" / "manifest.csv"),
        region="inflamed",
        diseased="inflamed",
    )
