"""Feature vectors of an encoder from three data sets, sampled once and stored."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.models.feature_extraction import extract_features, extraction_recipe
from histodict.precomputed.feature_file import open_features

from .regions import tiles

FOLDERS = {"ucsb": "ucsb-breast", "glas": "glas-colon", "camelyon": "camelyon-tumour"}
_COLUMNS = {"ucsb": {"patient": "group"}}
_PER_IMAGE = {"ucsb": 120, "glas": 120, "camelyon": 256}


@dataclass(frozen=True)
class Cells:
    """Feature vectors with their units, patients and labels.

    X : feature vectors (n, length)
    units : unit of each vector, which has one label: its image, or for the masked tiles of camelyon
    the vector itself
    patients, labels : of each vector
    """

    X: NDArray[np.float32]
    units: NDArray[np.int64]
    patients: NDArray[Any]
    labels: NDArray[Any]

    def select(self, own: NDArray[np.bool_]) -> Cells:
        return Cells(self.X[own], self.units[own], self.patients[own], self.labels[own])


def read_cells(name: str, folder: Path) -> Cells:
    """Return the vectors of a set by its short name; they are stored in `folder`."""
    file = folder / f"cells-{name}.npz"
    if not file.exists():
        _draw(name, folder, file)
    with np.load(file) as stored:
        X = stored["X"].astype(np.float32)
        return Cells(X, stored["units"], stored["patients"], stored["labels"])


def halves(cells: Cells, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the vectors of half of the patients; both halves have all classes."""
    rng = np.random.default_rng(seed)
    last = cells.labels == np.unique(cells.labels)[-1]
    share = {p: last[cells.patients == p].mean() for p in np.unique(cells.patients)}
    order = sorted(rng.permutation(list(share)), key=lambda p: round(share[p]))
    return np.isin(cells.patients, order[rng.integers(2) :: 2])


def _draw(name: str, folder: Path, file: Path) -> None:
    source = Path(os.environ["HISTODICT_DATA"]) / FOLDERS[name]
    manifest = tiles(source) if name == "camelyon" else _listed(name, source)
    recipe = extraction_recipe("efficientnet-lite0", {})
    done = extract_features(recipe, manifest.records, folder / "features" / name)
    if done.failures:
        raise RuntimeError(f"{done.failures[0]}")
    rng = np.random.default_rng(0)
    X, units, patients, labels = [], [], [], []
    for place, (record, path) in enumerate(zip(manifest.records, done.files, strict=True)):
        with open_features(path) as features:
            rows = np.sort(rng.permutation(features.n_rows)[: _PER_IMAGE[name]])
            X.append(features.read_rows(rows).astype(np.float16))
            corners = features.coords[rows]
        own = [record.label] * len(rows)
        if record.mask is not None:
            own = _by_mask(record.mask, corners, recipe.patch_px)
        labels += own
        units += [place] * len(rows)
        patients += [record.patient] * len(rows)
    ids = np.arange(len(labels)) if name == "camelyon" else np.array(units)
    np.savez(file, X=np.concatenate(X), units=ids, patients=patients, labels=labels)


def _listed(name: str, source: Path) -> Manifest:
    return read_manifest(source / "manifest.csv", _COLUMNS.get(name, {}))


def _by_mask(path: Path, corners: NDArray[np.int64], side: int) -> list[str]:
    mask = np.asarray(Image.open(path)) > 0
    shares = [mask[y : y + side, x : x + side].mean() for x, y in corners.tolist()]
    return ["tumour" if share >= 0.5 else "other" for share in shares]
