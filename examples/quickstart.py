"""DFDL on small synthetic images: train two dictionaries, plot them and test them.

Healthy patches contain one or two nuclei, inflamed ones many small dark nuclei. The stain varies by
"patient", and test patients are not used for training.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict import DFDL
from histodict.utils.progress import Progress

SIDE = 20
PICTURE = Path("quickstart-atoms.png")


def draw_patch(n_nuclei: int, radius: float, stain: NDArray, rng: np.random.Generator) -> NDArray:
    """Return a pink patch (SIDE, SIDE, 3) in [0, 1] with soft-edged purple nuclei."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    nuclei = np.zeros((SIDE, SIDE))
    for _ in range(n_nuclei):
        y, x = rng.uniform(0, SIDE, 2)
        size = radius * rng.uniform(0.8, 1.2)
        distance = np.hypot(rows - y, (columns - x) * rng.uniform(0.8, 1.25))
        nuclei = np.maximum(nuclei, 1 / (1 + np.exp(3 * (distance - size))))
    pink, purple = np.array([0.93, 0.72, 0.82]), np.array([0.36, 0.22, 0.55])
    colours = pink + nuclei[..., None] * (purple - pink)
    return np.clip(colours * stain + 0.03 * rng.standard_normal(colours.shape), 0, 1)


def draw_patient(n_patches: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Return unit-norm RGB vectors of the patches of one patient, and their labels."""
    stain = rng.uniform(0.85, 1.1, 3)
    labels = rng.integers(0, 2, n_patches)
    patches = [
        draw_patch(rng.integers(3, 6), 2.4, stain, rng)
        if inflamed
        else draw_patch(rng.integers(1, 3), 4.0, stain, rng)
        for inflamed in labels
    ]
    X = np.stack(patches).transpose(0, 3, 1, 2).reshape(n_patches, -1).astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True), labels


def save_atoms(dictionaries: NDArray, path: Path, n_shown: int = 32) -> None:
    """Save the most used atoms of both classes as an image, each scaled to the full range."""
    rows = []
    for D in dictionaries:
        atoms = D[:n_shown].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        low, high = (
            atoms.min(axis=(1, 2, 3), keepdims=True),
            atoms.max(axis=(1, 2, 3), keepdims=True),
        )
        framed = np.pad((atoms - low) / (high - low), ((0, 0), (1, 1), (1, 1), (0, 0)))
        rows.append(np.concatenate(np.split(np.hstack(list(framed)), 2, axis=1)))
    gap = np.ones((8, rows[0].shape[1], 3))
    picture = (255 * np.concatenate([rows[0], gap, rows[1]])).astype(np.uint8)
    Image.fromarray(picture).resize((picture.shape[1] * 2, picture.shape[0] * 2), 0).save(path)


def show(progress: Progress) -> None:
    """Print the progress on one line, if the output is a terminal."""
    if sys.stdout.isatty():
        end = "\n" if progress.done == progress.total else ""
        print(f"\r  {progress.stage} {progress.done}/{progress.total}", end=end, flush=True)


def main() -> None:
    rng = np.random.default_rng(0)
    patients = [draw_patient(500, rng) for _ in range(12)]
    X, y = (np.concatenate(parts) for parts in zip(*patients[:6], strict=True))
    X_test, y_test = (np.concatenate(parts) for parts in zip(*patients[6:], strict=True))
    print(f"Training on {len(X)} patches of 6 patients (the first run compiles for some seconds)")

    started = time.perf_counter()
    model = DFDL(n_atoms=64, n_iter=20, random_state=0)
    model.fit(X, y, callback=show)
    seconds = time.perf_counter() - started
    first, second = model.n_nonzero_
    print(f"Trained in {seconds:.1f} s, with at most {first} and {second} atoms per patch")

    accuracy = model.score(X_test, y_test)
    print(f"Accuracy on {len(X_test)} patches of 6 other patients: {accuracy:.3f}")
    save_atoms(model.dictionaries_, PICTURE)
    print(f"The most used atoms, healthy above, inflamed below: {PICTURE}")


if __name__ == "__main__":
    main()
