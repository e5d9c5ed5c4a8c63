"""The why of a call: what a patch was rebuilt from, and what each class left over.

A patch vector y is coded as s over the atoms of all classes; a class's own part rebuilds δ_i(s)D
and leaves the residual ‖y − δ_i(s)D‖. The class that leaves least wins the patch.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..explain.patch_sample import PatchSample
from ..models import Model
from ..models.image_pipeline import AtomTable
from ..models.prepared_image import PreparedImage
from ..patches.grid import PatchGrid
from ..patches.patch_map import NO_TISSUE, PatchMap
from ..patches.rendering import magnify, png_data_uri, render_vector
from ..utils.cache import Key, LRUCache

_N_ATOMS = 8
NO_TISSUE_FOUND = "No tissue found here: background, or unstained mucin or lumen"
Chunk = tuple[NDArray[np.bool_], NDArray[np.float32]]


class CachedPreparedImage(PreparedImage):
    """A view that stays open: whoever asks of one patch soon asks of another in its chunk."""

    def add(self, chunks: LRUCache[Chunk], key: Key) -> None:
        """`key`: all that decides what the view shows."""
        self._chunks, self._key = chunks, key

    def chunk_features(self, grid: PatchGrid, rows: slice, columns: slice) -> Chunk:
        make = super().chunk_features

        def made() -> tuple[Chunk, int]:
            chunk = make(grid, rows, columns)
            return chunk, sum(part.nbytes for part in chunk)

        return self._chunks.get((*self._key, repr((grid, rows, columns))), made)


def centre_of(
    patch_map: PatchMap, row: int, column: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Level-0 x and y of a patch's middle."""
    x, y = patch_map.grid.corner(row, column)
    half = patch_map.grid.patch_side / 2
    return np.array(x + half), np.array(y + half)


def explain(
    model: Model,
    view: PreparedImage,
    patch_map: PatchMap,
    gallery: PatchSample | None,
    row: int,
    column: int,
) -> dict[str, Any]:
    """What the page shows of one patch of the map; `view`: its image, as the model sees it.

    gallery : the model's training patches; a model from a file has none here
    """
    grid = patch_map.grid
    if not (0 <= row < grid.n_rows and 0 <= column < grid.n_columns):
        raise KeyError("there is no such patch")
    winner = int(patch_map.predicted_classes[row, column])
    x, y = grid.corner(row, column)
    facts: dict[str, Any] = {"row": row, "column": column, "x": x, "y": y, "side": grid.patch_side}
    if winner == NO_TISSUE:
        words = f"{NO_TISSUE_FOUND}. Patches without tissue are left out."
        if view.quality is not None and not view.quality.is_usable(
            *centre_of(patch_map, row, column)
        ):
            words = "This tissue is not judged: it is blurred, folded or under pen marks."
        return facts | {"winner": None, "words": words}
    patches = model.model_
    patch = grid.read(view, slice(row, row + 1), slice(column, column + 1))
    seen = view.normalise(patch)[0]
    vector = patches.project(_vector_of(view, grid, row, column))
    # One patch needs no threads: to start them takes longer.
    code, distances = copy(patches.method_).set_params(n_jobs=1).encode(vector)
    parts = _parts(model.classes_, patches.atoms(), vector[0], code, distances[0])
    for line in parts["atoms"]:
        line["name"] = patches.atom_annotations.of(line["atom"]).name
    return facts | {
        "winner": model.classes_[winner],
        "words": _text(model.classes_, winner, distances[0], parts["is_residual"]),
        "picture": png_data_uri(magnify(seen)),
        **parts,
        "similar": [
            {"patch": n, "likeness": value}
            for n, value in (gallery.nearest_patches(code) if gallery else [])
        ],
    }


def _vector_of(view: PreparedImage, grid: PatchGrid, row: int, column: int) -> NDArray[np.float32]:
    """The patch's vector (1, n_features), read with its chunk, as when the map was made."""
    for rows, columns in grid.chunks():
        if rows.start <= row < rows.stop and columns.start <= column < columns.stop:
            tissue, vectors = view.chunk_features(grid, rows, columns)
            flat = np.ravel_multi_index((row - rows.start, column - columns.start), tissue.shape)
            place = np.count_nonzero(tissue.ravel()[:flat])
            return vectors[place : place + 1]
    raise KeyError("there is no such patch")


def _text(names: list[str], winner: int, distances: NDArray[np.float64], residual: bool) -> str:
    best, second = np.argsort(distances)[:2].tolist()
    near, far = f"{distances[best]:.2f}", f"{distances[second]:.2f}"
    if residual and distances[best] == distances[second]:
        words = "No building block fits this patch: it speaks for no class."
    elif residual:
        words = (
            f"Building blocks of {names[best]} rebuild this patch best: they leave {near} of it "
            f"over, those of {names[second]} {far}."
        )
    else:
        words = (
            f"This patch is closest to {names[best]}: its distance is {near}, that of "
            f"{names[second]} {far}."
        )
    if winner != best:
        words += (
            f" On the map, though, it counts as {names[winner]}: there a patch is judged as the "
            "image is, from where the model draws its line, and may be judged with its neighbours."
        )
    return words


def _parts(
    names: list[str],
    atoms: AtomTable | None,
    vector: NDArray[np.float32],
    code: csr_array,
    distances: NDArray[np.float64],
) -> dict[str, Any]:
    """Per class its distance and its rebuilt patch; the atoms that weigh most."""
    weights = code.toarray()[0]
    classes: list[dict[str, Any]] = [
        {"name": name, "residual": float(distance)}
        for name, distance in zip(names, distances, strict=True)
    ]
    used = np.argsort(-np.abs(weights), kind="stable")[:_N_ATOMS]
    rows: list[dict[str, Any]] = [
        {"atom": int(k), "weight": float(weights[k])} for k in used if weights[k]
    ]
    parts = {"classes": classes, "atoms": rows, "n_atoms_used": int(np.count_nonzero(weights))}
    if atoms is None:
        return parts | {"is_residual": False}
    for line in rows:
        line["class"] = names[int(atoms.classes[line["atom"]])]
    rebuilt = [_rebuilt(atoms, weights, place) for place in range(len(names))]
    if atoms.patch_px is not None:
        ends = float(vector.min()), float(vector.max())
        parts["vector"] = png_data_uri(render_vector(vector, atoms.patch_px, ends))
        for entry, pixels in zip(classes, rebuilt, strict=True):
            entry["rebuilt"] = png_data_uri(render_vector(pixels, atoms.patch_px, ends))
    # Some methods weigh more than the residual: their distances are not what is left over.
    left = np.linalg.norm(vector - np.stack(rebuilt), axis=1)
    return parts | {"is_residual": bool(np.allclose(left, distances, atol=1e-3))}


def _rebuilt(atoms: AtomTable, weights: NDArray[np.float64], place: int) -> NDArray[np.float64]:
    """The part of a patch that the atoms of a class make up; few of them have a weight."""
    own = np.flatnonzero((atoms.classes == place) & (weights != 0))
    part: NDArray[np.float64] = weights[own] @ atoms.D[own]
    return part
