"""Explanation of a patch prediction by the dictionary atoms that represent it.

A patch vector y is coded as s over the atoms of all classes. The part of class i reconstructs
δ_i(s)D and leaves the residual ‖y − δ_i(s)D‖. The class with the smallest residual is predicted.
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
NO_TISSUE_HERE = "No tissue found here: background, or unstained mucin or lumen"
Chunk = tuple[NDArray[np.bool_], NDArray[np.float32]]


class CachedPreparedImage(PreparedImage):
    """Prepared image with a cache of the features of its chunks."""

    def add(self, chunks: LRUCache[Chunk], key: Key) -> None:
        """Set the cache and the key of the prepared image in it."""
        self._chunks, self._key = chunks, key

    def chunk_features(self, grid: PatchGrid, rows: slice, columns: slice) -> Chunk:
        """Return tissue mask and features of a chunk, from the cache."""
        make = super().chunk_features

        def compute() -> tuple[Chunk, int]:
            chunk = make(grid, rows, columns)
            return chunk, sum(part.nbytes for part in chunk)

        return self._chunks.get((*self._key, repr((grid, rows, columns))), compute)


def patch_centre(
    patch_map: PatchMap, row: int, column: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the level-0 coordinates x and y of a patch's centre."""
    x, y = patch_map.grid.corner(row, column)
    half = patch_map.grid.patch_side / 2
    return np.array(x + half), np.array(y + half)


def explain(
    model: Model,
    prepared_image: PreparedImage,
    patch_map: PatchMap,
    gallery: PatchSample | None,
    row: int,
    column: int,
) -> dict[str, Any]:
    """Return the explanation of a patch as JSON values.

    Parameters
    ----------
    model : fitted model
    prepared_image : image as prepared for the model
    patch_map : patch map of the image
    gallery : training patches of the model; None if there are none
    row, column : position of the patch
    """
    grid = patch_map.grid
    if not (0 <= row < grid.n_rows and 0 <= column < grid.n_columns):
        raise KeyError("there is no such patch")
    predicted = int(patch_map.predicted_classes[row, column])
    x, y = grid.corner(row, column)
    patch_fields: dict[str, Any] = {
        "row": row,
        "column": column,
        "x": x,
        "y": y,
        "side": grid.patch_side,
    }
    if predicted == NO_TISSUE:
        reason = _exclusion_reason(prepared_image, patch_centre(patch_map, row, column))
        return patch_fields | {"winner": None, "words": reason}
    patches = model.model_
    patch = grid.read(prepared_image, slice(row, row + 1), slice(column, column + 1))
    normalized = prepared_image.normalize(patch)[0]
    vector = patches.project(_patch_vector(prepared_image, grid, row, column))
    # For one patch, starting threads takes longer than the computation.
    code, distances = copy(patches.classifier_).set_params(n_jobs=1).encode(vector)
    parts = _decompose_patch(model.class_names_, patches.atoms(), vector[0], code, distances[0])
    for atom in parts["atoms"]:
        atom["name"] = patches.atom_annotations.get(atom["atom"]).name
    return patch_fields | {
        "winner": model.class_names_[predicted],
        "words": _explanation_text(
            model.class_names_, predicted, distances[0], parts["is_residual"]
        ),
        "picture": png_data_uri(magnify(normalized)),
        **parts,
        "similar": [
            {"patch": n, "likeness": value}
            for n, value in (gallery.nearest_patches(code) if gallery else [])
        ],
    }


def _exclusion_reason(
    prepared_image: PreparedImage, centre: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> str:
    """Return why a patch around this point is not predicted."""
    quality = prepared_image.quality
    if quality is not None and not quality.is_usable(*centre):
        return "This tissue is excluded: it is blurred, folded or under pen marks."
    return f"{NO_TISSUE_HERE}. Patches without tissue are excluded."


def _patch_vector(
    prepared: PreparedImage, grid: PatchGrid, row: int, column: int
) -> NDArray[np.float32]:
    """Return the feature vector (1, n_features) of a patch, from its chunk."""
    for rows, columns in grid.chunks():
        if rows.start <= row < rows.stop and columns.start <= column < columns.stop:
            tissue, vectors = prepared.chunk_features(grid, rows, columns)
            flat = np.ravel_multi_index((row - rows.start, column - columns.start), tissue.shape)
            index = np.count_nonzero(tissue.ravel()[:flat])
            return vectors[index : index + 1]
    raise KeyError("there is no such patch")


def _explanation_text(
    names: list[str], predicted: int, distances: NDArray[np.float64], residual: bool
) -> str:
    best, second = np.argsort(distances)[:2].tolist()
    least, next_distance = f"{distances[best]:.2f}", f"{distances[second]:.2f}"
    if residual and distances[best] == distances[second]:
        message = "No atom fits this patch: it has no predicted class."
    elif residual:
        message = (
            f"Atoms of {names[best]} reconstruct this patch best: their residual is {least}, "
            f"that of {names[second]} {next_distance}."
        )
    else:
        message = (
            f"This patch is closest to {names[best]}: its distance is {least}, that of "
            f"{names[second]} {next_distance}."
        )
    if predicted != best:
        message += (
            f" The map shows it as {names[predicted]}, because the map applies the decision "
            "threshold of the image and may smooth over neighbouring patches."
        )
    return message


def _decompose_patch(
    names: list[str],
    atoms: AtomTable | None,
    vector: NDArray[np.float32],
    code: csr_array,
    distances: NDArray[np.float64],
) -> dict[str, Any]:
    """Return distance and reconstruction per class, and the atoms with the largest weights.

    Reconstructions are missing for methods whose atoms do not belong to classes.
    """
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
    for atom_row in rows:
        atom_row["class"] = names[int(atoms.classes[atom_row["atom"]])]
    rebuilt = [_class_reconstruction(atoms, weights, index) for index in range(len(names))]
    if atoms.patch_px is not None:
        limits = float(vector.min()), float(vector.max())
        parts["vector"] = png_data_uri(render_vector(vector, atoms.patch_px, limits))
        for entry, pixels in zip(classes, rebuilt, strict=True):
            entry["rebuilt"] = png_data_uri(render_vector(pixels, atoms.patch_px, limits))
    # The distances of some methods have further terms, and are not residuals.
    residuals = np.linalg.norm(vector - np.stack(rebuilt), axis=1)
    return parts | {"is_residual": bool(np.allclose(residuals, distances, atol=1e-3))}


def _class_reconstruction(
    atoms: AtomTable, weights: NDArray[np.float64], class_index: int
) -> NDArray[np.float64]:
    """Return the reconstruction (n_features,) by the atoms of a class."""
    used = np.flatnonzero((atoms.classes == class_index) & (weights != 0))
    reconstruction: NDArray[np.float64] = weights[used] @ atoms.D[used]
    return reconstruction
