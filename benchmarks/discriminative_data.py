"""Vectors of all images, computed once, and the two sides of a split made of them.

| kind | vectors |
|---|---|
| pixels | those of the preset `default` |
| cells | those of the preset `embeddings`, projected by components of the training side |

One file per image and kind, `FOLDER/<set>-<kind>/<place>.npy`, half precision: all grid patches on
tissue. Files that are there are not made again, so the cells may come from another machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histodict.evaluation.protocols import k_folds
from histodict.evaluation.splits import Split
from histodict.execution.array_cache import ArrayCache
from histodict.images.manifest import Manifest, read_manifest
from histodict.patches.projection import Projection
from histodict.pipeline.view import open_view
from histodict.recipes import Recipe, preset

SETS = ("ucsb-breast", "glas-colon")
RECIPES = {"pixels": preset("default"), "cells": preset("embeddings")}
PENALTIES = {"pixels": 0.4, "cells": 0.1}
N_FOLDS = 2


@dataclass(frozen=True)
class Place:
    """Where the images and their vectors are; `n_judged`: patches judged per image, at most."""

    data: Path
    vectors: Path
    cache: Path | None = None
    n_judged: int = 200

    def file(self, name: str, kind: str, image: int) -> Path:
        return self.vectors / f"{name}-{kind}" / f"{image:03d}.npy"


@dataclass(frozen=True)
class Sides:
    """Training patches X with labels y, and of every image the patches to judge.

    images : per image of the split, training images first, its projected vectors
    labels, patients : (n_images,); n_train : how many of the images are the training side's
    """

    X: NDArray[np.float32]
    y: NDArray[np.int64]
    images: list[NDArray[np.float32]] = field(repr=False)
    labels: NDArray[np.int64]
    patients: list[str]
    n_train: int


@lru_cache(maxsize=4)
def manifest_of(data: Path, name: str) -> Manifest:
    return read_manifest(data / name)


def split_of(manifest: Manifest, repeat: int, fold: int) -> Split:
    return list(k_folds(manifest, N_FOLDS, random_state=repeat))[fold]


# --- vectors -------------------------------------------------------------------------------------


def missing_vectors(place: Place, sets: Iterable[str], kinds: Iterable[str]) -> list[tuple]:
    """(set, kind, image) of all files that are not there yet."""
    return [
        (name, kind, image)
        for name in sets
        for kind in kinds
        for image in range(len(manifest_of(place.data, name).records))
        if not place.file(name, kind, image).exists()
    ]


def write_vectors(place: Place, name: str, kind: str, image: int) -> None:
    record = manifest_of(place.data, name).records[image]
    cache = ArrayCache(place.cache) if place.cache else None
    vectors = _grid_vectors(record.path, record.mpp, RECIPES[kind], cache)
    file = place.file(name, kind, image)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    with partial.open("wb") as stream:
        np.save(stream, vectors.astype(np.float16), allow_pickle=False)
    os.replace(partial, file)


def _grid_vectors(
    path: Path, mpp: float | None, recipe: Recipe, cache: ArrayCache | None
) -> NDArray[np.float32]:
    with open_view(path, mpp, recipe, cache=cache) as view:
        grid = view.grid()
        found = [view.chunk_vectors(grid, *chunk)[1] for chunk in grid.chunks()]
    return np.concatenate([part for part in found if len(part)])


# --- the sides of a split ------------------------------------------------------------------------


def load_sides(
    place: Place, name: str, kind: str, repeat: int, fold: int, n_per_class: int
) -> Sides:
    """The same patches for every method: what is drawn depends on the split alone."""
    manifest = manifest_of(place.data, name)
    split = split_of(manifest, repeat, fold)
    order = [*split.train, *split.test]
    labels = np.searchsorted(manifest.classes, [manifest.labels[i] for i in order])
    n_train = len(split.train)
    stored = [np.load(place.file(name, kind, i), mmap_mode="r") for i in order]
    wanted = [-(-n_per_class // int(np.sum(labels[:n_train] == c))) for c in labels[:n_train]]
    rng = np.random.default_rng([repeat, fold])
    parts = [_draw(rows, n, rng) for rows, n in zip(stored, wanted, strict=False)]
    X = np.concatenate(parts)
    y = np.repeat(labels[:n_train], [len(part) for part in parts])
    project = _projection(X, RECIPES[kind])
    # Another generator, so that the judged patches do not depend on n_per_class.
    rng = np.random.default_rng([repeat, fold, 1])
    images = [project(_draw(rows, place.n_judged, rng)) for rows in stored]
    patients = [manifest.patients[i] for i in order]
    return Sides(project(X), y.astype(np.int64), images, labels.astype(np.int64), patients, n_train)


def _projection(X: NDArray[np.float32], recipe: Recipe) -> Callable[..., Any]:
    if not recipe.components:
        return np.ascontiguousarray
    return Projection.fit(X, recipe.components, whiten=recipe.whiten)


def _draw(rows: NDArray[Any], n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Up to n rows at random, in single precision."""
    chosen = np.sort(rng.permutation(len(rows))[:n])
    return np.asarray(rows[chosen], dtype=np.float32)
