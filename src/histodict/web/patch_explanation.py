"""Explanation of a patch prediction by the dictionary atoms that represent it.

The feature vector y of a patch has the sparse code s over the atoms of all classes, the rows of D.
With δ_i(s), the code with weights of other classes than i set to 0, the residual of class i is
‖y − δ_i(s)D‖. The class with the smallest residual is predicted.
"""

from __future__ import annotations

from copy import copy

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
from .schema import Json

_MAX_SHOWN_ATOMS = 8
NO_TISSUE_MESSAGE = "No tissue found here: background, or unstained mucin or lumen"
# Tissue mask of a chunk's patches (rows, columns), and features of tissue patches (n, n_features).
ChunkFeatures = tuple[NDArray[np.bool_], NDArray[np.float32]]


class CachedPreparedImage(PreparedImage):
    """Prepared image that caches the features of its chunks."""

    def set_cache(self, cache: LRUCache[ChunkFeatures], key: Key) -> None:
        """Set the cache, which all images share, and the key of this image."""
        self._feature_cache, self._key = cache, key

    def chunk_features(self, grid: PatchGrid, rows: slice, columns: slice) -> ChunkFeatures:
        """Return tissue mask and features of a part of the grid; compute them if not cached."""
        make = super().chunk_features

        def compute() -> tuple[ChunkFeatures, int]:
            chunk = make(grid, rows, columns)
            return chunk, sum(array.nbytes for array in chunk)

        return self._feature_cache.get((*self._key, repr((grid, rows, columns))), compute)


def patch_centre(
    patch_map: PatchMap, row: int, column: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the level-0 coordinates x and y of the centre of a patch, as 0-d arrays."""
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
) -> Json:
    """Return the explanation of the prediction of a patch as a JSON object.

    Parameters
    ----------
    model : fitted model
    prepared_image : image as prepared for the model
    patch_map : patch map of the image
    gallery : training patches of the model; None if there are none
    row, column : position of the patch in the map
    """
    grid = patch_map.grid
    if not (0 <= row < grid.n_rows and 0 <= column < grid.n_columns):
        raise KeyError("there is no such patch")
    predicted = int(patch_map.predicted_classes[row, column])
    x, y = grid.corner(row, column)
    patch_fields: Json = {"row": row, "column": column, "x": x, "y": y, "side": grid.patch_side}
    if predicted == NO_TISSUE:
        reason = _exclusion_reason(prepared_image, patch_centre(patch_map, row, column))
        return patch_fields | {"winner": None, "words": reason}
    patches = model.model_
    patch = grid.read(prepared_image, slice(row, row + 1), slice(column, column + 1))
    normalized = prepared_image.normalize(patch)[0]
    vector = patches.project(_patch_vector(prepared_image, grid, row, column))
    # For one patch, starting threads takes longer than the computation.
    code, distances = copy(patches.classifier_).set_params(n_jobs=1).encode(vector)
    fields = _decompose_patch(model.class_names_, patches.atoms(), vector[0], code, distances[0])
    for atom in fields["atoms"]:
        atom["name"] = patches.atom_annotations.get(atom["atom"]).name
    return patch_fields | {
        "winner": model.class_names_[predicted],
        "words": _explanation_text(
            model.class_names_, predicted, distances[0], fields["is_residual"]
        ),
        "picture": png_data_uri(magnify(normalized)),
        **fields,
        "similar": [
            {"patch": n, "likeness": value}
            for n, value in (gallery.nearest_patches(code) if gallery else [])
        ],
    }


def _exclusion_reason(
    prepared_image: PreparedImage, centre: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> str:
    """Return a sentence with the reason why the patch at `centre` (x, y) is not predicted."""
    quality = prepared_image.quality
    if quality is not None and not quality.is_usable(*centre):
        return "This tissue is excluded: it is blurred, folded or under pen marks."
    return f"{NO_TISSUE_MESSAGE}. Patches without tissue are excluded."


def _patch_vector(
    prepared: PreparedImage, grid: PatchGrid, row: int, column: int
) -> NDArray[np.float32]:
    """Return the feature vector (1, n_features) of a tissue patch, from its chunk."""
    for rows, columns in grid.chunks():
        if rows.start <= row < rows.stop and columns.start <= column < columns.stop:
            tissue, vectors = prepared.chunk_features(grid, rows, columns)
            flat = np.ravel_multi_index((row - rows.start, column - columns.start), tissue.shape)
            index = np.count_nonzero(tissue.ravel()[:flat])
            return vectors[index : index + 1]
    raise KeyError("there is no such patch")


def _explanation_text(
    names: list[str], predicted: int, distances: NDArray[np.float64], is_residual: bool
) -> str:
    best, second = np.argsort(distances)[:2].tolist()
    smallest, next_distance = f"{distances[best]:.2f}", f"{distances[second]:.2f}"
    if is_residual and distances[best] == distances[second]:
        message = "No atom fits this patch: it has no predicted class."
    elif is_residual:
        message = (
            f"Atoms of {names[best]} reconstruct this patch best: their residual is {smallest}, "
            f"that of {names[second]} {next_distance}."
        )
    else:
        message = (
            f"This patch is closest to {names[best]}: its distance is {smallest}, that of "
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
) -> Json:
    """Return distance and reconstruction of a vector per class, and the most used atoms, as JSON.

    `distances` (n_classes,) are the distances of `vector` to the classes. There are no
    reconstructions if `atoms` is None, because the atoms of the method do not belong to classes.
    """
    weights = code.toarray()[0]
    classes: list[Json] = [
        {"name": name, "residual": float(distance)}
        for name, distance in zip(names, distances, strict=True)
    ]
    used = np.argsort(-np.abs(weights), kind="stable")[:_MAX_SHOWN_ATOMS]
    rows: list[Json] = [{"atom": int(k), "weight": float(weights[k])} for k in used if weights[k]]
    fields = {"classes": classes, "atoms": rows, "n_atoms_used": int(np.count_nonzero(weights))}
    if atoms is None:
        return fields | {"is_residual": False}
    for atom_row in rows:
        atom_row["class"] = names[int(atoms.classes[atom_row["atom"]])]
    rebuilt = [_class_reconstruction(atoms, weights, index) for index in range(len(names))]
    if atoms.patch_px is not None:
        limits = float(vector.min()), float(vector.max())
        fields["vector"] = png_data_uri(render_vector(vector, atoms.patch_px, limits))
        for entry, pixels in zip(classes, rebuilt, strict=True):
            entry["rebuilt"] = png_data_uri(render_vector(pixels, atoms.patch_px, limits))
    # The distances of some methods have further terms, and are not residuals.
    residuals = np.linalg.norm(vector - np.stack(rebuilt), axis=1)
    return fields | {"is_residual": bool(np.allclose(residuals, distances, atol=1e-3))}


def _class_reconstruction(
    atoms: AtomTable, weights: NDArray[np.float64], class_index: int
) -> NDArray[np.float64]:
    """Return the reconstruction (n_features,) of a vector by the atoms of one class."""
    used = np.flatnonzero((atoms.classes == class_index) & (weights != 0))
    reconstruction: NDArray[np.float64] = weights[used] @ atoms.D[used]
    return reconstruction
