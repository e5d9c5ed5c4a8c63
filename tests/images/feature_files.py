"""Feature files as others write them, for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

TRIDENT = {
    "patch_size": 256,
    "patch_size_level0": 512,
    "level0_magnification": 40,
    "target_magnification": 20,
    "overlap": 0,
    "level0_width": 6000,
    "level0_height": 5000,
}


def write_trident(
    path: Path, vectors: NDArray[Any], coords: NDArray[Any], encoder: str | None = "uni_v1", **told
) -> Path:
    """A row to a chunk, attributes of both datasets, None as a text."""
    with h5py.File(path, "w") as file:
        features = file.create_dataset(
            "features", data=vectors, maxshape=(None, *vectors.shape[1:]), chunks=True
        )
        features.attrs["encoder"] = "None" if encoder is None else encoder
        features.attrs["savetodir"] = str(path.parent)
        placed = file.create_dataset("coords", data=coords)
        for name, value in (TRIDENT | told | {"name": path.stem}).items():
            placed.attrs[name] = "None" if value is None else value
    return path


def write_clam(path: Path, vectors: NDArray[Any], coords: NDArray[Any]) -> Path:
    """No attributes at all."""
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=vectors, chunks=(1, vectors.shape[1]))
        file.create_dataset("coords", data=coords.astype(np.int32), chunks=(1, 2))
    return path


def some_vectors(n: int = 40, length: int = 6, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Vectors, and corners of a part of a grid in TRIDENT's order: column by column."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(np.arange(9), np.arange(8), indexing="ij"), -1).reshape(-1, 2)
    chosen = np.sort(rng.choice(len(cells), n, replace=False))
    return rng.standard_normal((n, length)).astype(np.float32), cells[chosen] * 512


def planted_slides(folder: Path, n_slides: int = 8, n: int = 60, length: int = 12) -> Path:
    """Slides of two classes, which differ in how much of one kind of tissue they have; a table."""
    (folder / "features").mkdir(parents=True)
    rng = np.random.default_rng(7)
    kinds = 3 * rng.standard_normal((3, length))
    lines = ["slide_id,label,case_id"]
    for number in range(n_slides):
        label = number % 2
        own = rng.choice(3, n, p=[0.5, 0.45, 0.05] if label == 0 else [0.2, 0.2, 0.6])
        vectors = (kinds[own] + rng.standard_normal((n, length))).astype(np.float32)
        name = f"TCGA-{number:02d}.DX1"  # a dot that begins no suffix
        write_trident(folder / "features" / f"{name}.h5", vectors, some_vectors(n)[1])
        lines.append(f"{name}.svs,{('normal', 'tumour')[label]},patient{number // 2}{label}")
    (folder / "slides.csv").write_text("\n".join(lines) + "\n")
    return folder / "slides.csv"
