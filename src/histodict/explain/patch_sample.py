"""Sample of patches with their sparse codes, and the atoms that each class uses most."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from ..datasets.manifest import ImageRecord
from ..datasets.survey import content_order
from ..methods.patch_classifier import PatchClassifier
from ..models.image_pipeline import AtomTable, ImagePipeline
from ..models.inputs import no_tissue_message
from ..models.patch_pipeline import map_with_progress
from ..models.plan import Model
from ..models.prepared_image import open_prepared_image
from ..utils.files import NPZ_ERRORS, atomic_write
from ..utils.parallel import ThreadExecutor
from ..utils.progress import Callback, no_callback

N_PATCHES = 2000
_MAX_CHUNKS = 4  # chunks read per image; a slide has hundreds


@dataclass(frozen=True)
class PatchSample:
    """Random patches of several images, with their codes.

    Attributes
    ----------
    images : (n,), index of the image of each patch
    corners : (n, 2), x and y of the upper left corner in level-0 pixels
    side : (n,), side of the patch in level-0 pixels
    codes : (n, n_codes), sparse codes
    """

    images: NDArray[np.int64]
    corners: NDArray[np.int64]
    side: NDArray[np.float64]
    codes: csr_array

    @classmethod
    def from_records(
        cls,
        model: ImagePipeline,
        records: Sequence[ImageRecord],
        seed: int,
        callback: Callback = no_callback,
        n_patches: int = N_PATCHES,
    ) -> PatchSample:
        """Sample tissue patches in parallel, the same number from each image if possible.

        Parameters
        ----------
        model : model that computes the codes
        records : images
        seed : random seed
        callback : receives the progress
        n_patches : approximate number of patches

        Raises
        ------
        ValueError
            If no image shows tissue.
        """
        n_per_image = -(-n_patches // len(records))
        method = copy(model.classifier_).set_params(n_jobs=1)

        order = content_order(records)  # so that the sample does not depend on the order of records

        def sample_at(position: int) -> PatchSample | None:
            rng, index = np.random.default_rng([seed, position]), order[position]
            return _sample_image(model, method, records[index], index, n_per_image, rng)

        samples = map_with_progress(
            sample_at, len(records), "gallery", callback, ThreadExecutor(model.n_jobs)
        )
        non_empty: list[PatchSample] = [part for part in samples if part is not None]
        if not non_empty:
            raise ValueError(no_tissue_message(f"any of the {len(records)} images", model.recipe))
        return cls(
            np.concatenate([part.images for part in non_empty]),
            np.concatenate([part.corners for part in non_empty]),
            np.concatenate([part.side for part in non_empty]),
            vstack([part.codes for part in non_empty], format="csr"),
        )

    @property
    def n_bytes(self) -> int:
        """Total size of the arrays in bytes."""
        codes = self.codes.data, self.codes.indices, self.codes.indptr
        return sum(array.nbytes for array in (self.images, self.corners, self.side, *codes))

    def save(self, path: Path) -> None:
        """Write the sample to a compressed npz file."""
        arrays: dict[str, Any] = {
            "images": self.images,
            "corners": self.corners,
            "side": self.side,
            "data": self.codes.data,
            "indices": self.codes.indices,
            "indptr": self.codes.indptr,
            "shape": self.codes.shape,
        }
        with atomic_write(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def read(cls, path: Path) -> PatchSample:
        """Read a sample from the file of `save`; raise ValueError if it is damaged."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                csr_parts = arrays["data"], arrays["indices"], arrays["indptr"]
                codes = csr_array(csr_parts, shape=tuple(arrays["shape"]))
                return cls(arrays["images"], arrays["corners"], arrays["side"], codes)
        except (FileNotFoundError, PermissionError):
            raise
        except NPZ_ERRORS as error:
            raise ValueError(
                f"{path}: its training patches are damaged. Remove the file"
            ) from error

    @classmethod
    def read_or_none(cls, path: Path) -> PatchSample | None:
        """Read a sample; return None if the file is missing, and warn if it is damaged."""
        if not path.is_file():
            return None
        try:
            return cls.read(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"{path}: is damaged and is computed again ({error})", stacklevel=2)
            return None

    def select(self, patches: NDArray[np.int64]) -> PatchSample:
        """Return the sample that consists of the patches at these indices."""
        columns = self.images[patches], self.corners[patches], self.side[patches]
        return PatchSample(*columns, self.codes[patches])

    def fractions(self, groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
        """Return the fraction of the patches of each group that use each atom, (n_groups, n_codes).

        `groups` (n,) is the group index of each patch. Groups without patches get 0.
        """
        return self._means((self.codes != 0).astype(np.float64), groups, n_groups)

    def mean_weights(self, groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
        """Return the mean code of each atom in each group, (n_groups, n_codes); see `fractions`."""
        return self._means(self.codes.astype(np.float64), groups, n_groups)

    @staticmethod
    def _means(values: csr_array, groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
        indices = groups, np.arange(len(groups))
        membership = csr_array((np.ones(len(groups)), indices), (n_groups, len(groups)))
        sums: NDArray[np.float64] = (membership @ values).toarray()
        return sums / np.maximum(np.bincount(groups, minlength=n_groups), 1)[:, None]

    def top_patches(
        self, atom: int, n_patches: int = 8, patients: NDArray[np.int64] | None = None
    ) -> list[tuple[int, float]]:
        """Return (index, code) of the patches with the largest |code| of an atom, in order.

        Parameters
        ----------
        atom : index of the atom
        n_patches : number of patches
        patients : patient index of each image. At most two patches are from one patient, or only
            one if there are enough patients. If None, at most two patches are from one image
        """
        weights = self.codes[:, [atom]].toarray().ravel()
        order = np.argsort(-np.abs(weights), kind="stable")
        if patients is None:
            return self._select_first(order, weights, n_patches)
        n_patients = len(np.unique(patients[self.images[weights != 0]]))
        max_per_patient = min(2, -(-n_patches // max(1, n_patients)))
        return self._select_first(order, weights, n_patches, patients[self.images], max_per_patient)

    def nearest_patches(self, code: csr_array, n_patches: int = 6) -> list[tuple[int, float]]:
        """Return (index, cosine) of the patches whose codes are most similar to a code, best first.

        `code` has the shape (1, n_codes). At most two patches come from one image.
        """
        products = (self.codes @ code.T).toarray().ravel()
        norms = np.sqrt(self.codes.power(2).sum(axis=1)) * float(np.sqrt(code.power(2).sum()))
        cosines = products / np.maximum(np.asarray(norms).ravel(), 1e-12)
        return self._select_first(np.argsort(-cosines, kind="stable"), cosines, n_patches)

    def _select_first(
        self,
        order: NDArray[np.int64],
        values: NDArray[np.float64],
        n_patches: int,
        groups: NDArray[np.int64] | None = None,
        max_per_group: int = 2,
    ) -> list[tuple[int, float]]:
        """Return (index, value) of the first patches in `order` with values other than 0.

        At most `max_per_group` patches are from one group. `groups` is the group index of each
        patch; by default, each image is a group.
        """
        chosen: list[tuple[int, float]] = []
        n_chosen: dict[int, int] = {}
        group_of_patch = self.images if groups is None else groups
        for patch in order.tolist():
            group = int(group_of_patch[patch])
            if values[patch] == 0 or len(chosen) == n_patches:
                break
            if n_chosen.get(group, 0) < max_per_group:
                n_chosen[group] = n_chosen.get(group, 0) + 1
                chosen.append((patch, float(values[patch])))
        return chosen


def _sample_image(
    model: ImagePipeline,
    method: PatchClassifier,
    record: ImageRecord,
    image_index: int,
    n_patches: int,
    rng: np.random.Generator,
) -> PatchSample | None:
    """Sample random patches from a few random chunks of an image; None without tissue."""
    positions: list[NDArray[np.int64]] = []
    vectors: list[NDArray[np.float32]] = []
    settings = (
        record.path,
        record.mpp,
        model.recipe,
        model.mpp_,
        model.cache,
        model.feature_metadata_,
    )
    with open_prepared_image(*settings, record.region_of_interest) as image:
        grid = image.grid()
        chunks = [chunk for chunk in grid.chunks() if image.inside_mask(grid, *chunk).any()]
        for index in rng.permutation(len(chunks))[:_MAX_CHUNKS]:
            rows, columns = chunks[index]
            is_tissue, chunk_vectors = image.chunk_features(grid, rows, columns)
            chosen = rng.permutation(len(chunk_vectors))[: n_patches - sum(map(len, positions))]
            positions.append(np.add(np.argwhere(is_tissue), (rows.start, columns.start))[chosen])
            vectors.append(chunk_vectors[chosen])
            if sum(map(len, positions)) == n_patches:
                break
    selected = np.concatenate(positions) if positions else np.empty((0, 2), np.int64)
    if len(selected) == 0:
        return None
    codes = method.encode(model.project(np.concatenate([v for v in vectors if len(v)])))[0]
    corners = np.array([grid.corner(row, column) for row, column in selected.tolist()])
    return PatchSample(
        np.full(len(selected), image_index), corners, np.full(len(selected), grid.patch_side), codes
    )


@dataclass(frozen=True)
class AtomUsage:
    """Usage of one atom.

    Attributes
    ----------
    atom : index of the atom
    fractions : for each label, the fraction of the patches with this label that use the atom
    patches : (index in the sample, code of the atom) of patches, by decreasing |code|
    """

    atom: int
    fractions: dict[str, float]
    patches: list[tuple[int, float]]


@dataclass(frozen=True)
class ClassAtomUsage:
    """Usage of the atoms of one class.

    Attributes
    ----------
    name : class name
    n_atoms : number of atoms of the class
    n_active : number of atoms of the class that at least one patch uses
    per_patch : for each label, the mean number of atoms of the class that a patch uses
    atoms : usage of the most used atoms
    """

    name: str
    n_atoms: int
    n_active: int
    per_patch: dict[str, float]
    atoms: list[AtomUsage]


def most_used_atoms(
    atoms: AtomTable,
    sample: PatchSample,
    labels: Sequence[str],
    classes: Sequence[str],
    n_atoms: int,
    patients: NDArray[np.int64] | None = None,
    candidates: Sequence[int] | None = None,
) -> list[ClassAtomUsage]:
    """Return the atoms of each class that the largest fractions of patches of the class use.

    For classes without patches, the fractions of all patches are used. Unused atoms are omitted.

    Parameters
    ----------
    atoms : atoms of the model
    sample : sample of patches
    labels : label of each patch
    classes : class names
    n_atoms : maximum number of atoms per class
    patients : patient index of each image
    candidates : indices of the atoms to choose from; None for all
    """
    names = [name for name in classes if name in set(labels)]
    names += sorted(set(labels) - set(names))
    fractions = sample.fractions(np.array([names.index(label) for label in labels]), len(names))
    overall = sample.fractions(np.zeros(len(labels), np.int64), 1)[0]
    by_class = []
    for index, name in enumerate(classes):
        of_class = np.flatnonzero(atoms.classes == index)
        active = of_class[overall[of_class] > 0]
        allowed = active if candidates is None else active[np.isin(active, candidates)]
        usage = fractions[names.index(name)] if name in names else overall
        order = allowed[np.lexsort((-overall[allowed], -usage[allowed]))]
        per_patch = dict(zip(names, fractions[:, of_class].sum(axis=1).tolist(), strict=True))
        usages = [
            _atom_usage(sample, int(atom), names, fractions, patients) for atom in order[:n_atoms]
        ]
        by_class.append(ClassAtomUsage(name, len(of_class), len(active), per_patch, usages))
    return by_class


def _atom_usage(
    sample: PatchSample,
    atom: int,
    names: list[str],
    fractions: NDArray[np.float64],
    patients: NDArray[np.int64] | None,
) -> AtomUsage:
    by_label = dict(zip(names, fractions[:, atom].tolist(), strict=True))
    return AtomUsage(atom, by_label, sample.top_patches(atom, patients=patients))


def patient_indices(records: Sequence[ImageRecord]) -> NDArray[np.int64]:
    """Return the patient index of each record; a record without a patient counts as a patient."""
    names = [record.patient or str(record.path) for record in records]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def patch_labels(model: Model, sample: PatchSample, records: Sequence[ImageRecord]) -> list[str]:
    """Return the label of each patch, which the model derives from the image's label or mask."""
    labels = [""] * len(sample.images)
    for image in np.unique(sample.images).tolist():
        patches = np.flatnonzero(sample.images == image)
        side = float(sample.side[patches[0]])
        image_labels = model.patch_labels(records[image], sample.corners[patches], side)
        for patch, label in zip(patches.tolist(), image_labels, strict=True):
            labels[patch] = label
    return labels
