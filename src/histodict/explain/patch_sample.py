"""Real patches with their codes: how often atoms are used, by whom most, who is built alike.

The atoms of a model, and which of them the patches of each class use most.
"""

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
from ..models.patch_pipeline import map_images
from ..models.plan import Model
from ..models.prepared_image import no_tissue_message, open_prepared_image
from ..utils.files import NPZ_ERRORS, atomic_write
from ..utils.parallel import Threads
from ..utils.progress import Callback, no_callback

N_PATCHES = 2000
_MAX_CHUNKS = 4  # of an image; a slide has hundreds


@dataclass(frozen=True)
class PatchSample:
    """Per patch: the place of its image, its level-0 corner and side, and its code."""

    images: NDArray[np.int64]
    corners: NDArray[np.int64]
    side: NDArray[np.float64]
    codes: csr_array

    @classmethod
    def of(
        cls,
        model: ImagePipeline,
        records: Sequence[ImageRecord],
        seed: int,
        callback: Callback = no_callback,
        n_patches: int = N_PATCHES,
    ) -> PatchSample:
        """About so many patches on tissue, as many from every image; the images in parallel."""
        wanted = -(-n_patches // len(records))
        method = copy(model.method_).set_params(n_jobs=1)

        order = content_order(records)  # as patches are drawn at random

        def work(rank: int) -> PatchSample | None:
            rng, place = np.random.default_rng([seed, rank]), order[rank]
            return _of_image(model, method, records[place], place, wanted, rng)

        found = map_images(work, len(records), "gallery", callback, Threads(model.n_jobs))
        parts: list[PatchSample] = [part for part in found if part is not None]
        if not parts:
            raise ValueError(no_tissue_message(f"any of the {len(records)} images", model.recipe))
        return cls(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.corners for part in parts]),
            np.concatenate([part.side for part in parts]),
            vstack([part.codes for part in parts], format="csr"),
        )

    @property
    def n_bytes(self) -> int:
        codes = self.codes.data, self.codes.indices, self.codes.indptr
        return sum(array.nbytes for array in (self.images, self.corners, self.side, *codes))

    def save(self, path: Path) -> None:
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
        """A ValueError says that the file is damaged."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                parts = arrays["data"], arrays["indices"], arrays["indptr"]
                codes = csr_array(parts, shape=tuple(arrays["shape"]))
                return cls(arrays["images"], arrays["corners"], arrays["side"], codes)
        except (FileNotFoundError, PermissionError):
            raise
        except NPZ_ERRORS as error:
            raise ValueError(f"{path}: its training patches are damaged; remove it") from error

    @classmethod
    def read_if_whole(cls, path: Path) -> PatchSample | None:
        """None if it is not there, or damaged, which is said."""
        if not path.is_file():
            return None
        try:
            return cls.read(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"{path}: is damaged and taken for missing ({error})", stacklevel=2)
            return None

    def at(self, patches: NDArray[np.int64]) -> PatchSample:
        """These patches alone."""
        rows = self.images[patches], self.corners[patches], self.side[patches]
        return PatchSample(*rows, self.codes[patches])

    def fractions(self, groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
        """(n_groups, n_codes): the share of each group's patches whose code uses an atom.

        `groups`: the place of every patch's group. A group without patches uses nothing.
        """
        return self._means((self.codes != 0).astype(np.float64), groups, n_groups)

    def mean_weights(self, groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
        """The same of the atoms' weights, with their signs; patches that do not use one have 0."""
        return self._means(self.codes.astype(np.float64), groups, n_groups)

    @staticmethod
    def _means(values: csr_array, groups: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
        places = groups, np.arange(len(groups))
        member = csr_array((np.ones(len(groups)), places), (n_groups, len(groups)))
        sums: NDArray[np.float64] = (member @ values).toarray()
        return sums / np.maximum(np.bincount(groups, minlength=n_groups), 1)[:, None]

    def top_patches(
        self, atom: int, n_patches: int = 8, owners: NDArray[np.int64] | None = None
    ) -> list[tuple[int, float]]:
        """Patches in whose code the atom weighs most, with the weight; at most two of an image.

        `owners`: the place of every image's patient; where they are known, no more of a patient
        than are needed.
        """
        weights = self.codes[:, [atom]].toarray().ravel()
        order = np.argsort(-np.abs(weights), kind="stable")
        if owners is None:
            return self._first(order, weights, n_patches)
        n_users = len(np.unique(owners[self.images[weights != 0]]))
        most = min(2, -(-n_patches // max(1, n_users)))
        return self._first(order, weights, n_patches, owners[self.images], most)

    def nearest_patches(self, code: csr_array, n_patches: int = 6) -> list[tuple[int, float]]:
        """Patches whose codes point the same way as this one (1, n_codes), with the cosine."""
        products = (self.codes @ code.T).toarray().ravel()
        norms = np.sqrt(self.codes.power(2).sum(axis=1)) * float(np.sqrt(code.power(2).sum()))
        likeness = products / np.maximum(np.asarray(norms).ravel(), 1e-12)
        return self._first(np.argsort(-likeness, kind="stable"), likeness, n_patches)

    def _first(
        self,
        order: NDArray[np.int64],
        values: NDArray[np.float64],
        n_patches: int,
        owners: NDArray[np.int64] | None = None,
        most: int = 2,
    ) -> list[tuple[int, float]]:
        """In this order, at most so many of an owner: of a patch's image, if not said."""
        chosen: list[tuple[int, float]] = []
        seen: dict[int, int] = {}
        whose = self.images if owners is None else owners
        for patch in order.tolist():
            owner = int(whose[patch])
            if values[patch] == 0 or len(chosen) == n_patches:
                break
            if seen.get(owner, 0) < most:
                seen[owner] = seen.get(owner, 0) + 1
                chosen.append((patch, float(values[patch])))
        return chosen


def _of_image(
    model: ImagePipeline,
    method: PatchClassifier,
    record: ImageRecord,
    place: int,
    wanted: int,
    rng: np.random.Generator,
) -> PatchSample | None:
    """Patches of a few chunks of the image, taken at random."""
    found: list[NDArray[np.int64]] = []
    vectors: list[NDArray[np.float32]] = []
    image = record.path, record.mpp, model.recipe, model.mpp_, model.cache, model.feature_metadata_
    with open_prepared_image(*image, record.region_of_interest) as view:
        grid = view.grid()
        chunks = [chunk for chunk in grid.chunks() if view.inside(grid, *chunk).any()]
        for number in rng.permutation(len(chunks))[:_MAX_CHUNKS]:
            rows, columns = chunks[number]
            tissue, of_chunk = view.chunk_features(grid, rows, columns)
            chosen = rng.permutation(len(of_chunk))[: wanted - sum(map(len, found))]
            found.append(np.add(np.argwhere(tissue), (rows.start, columns.start))[chosen])
            vectors.append(of_chunk[chosen])
            if sum(map(len, found)) == wanted:
                break
    cells = np.concatenate(found) if found else np.empty((0, 2), np.int64)
    if len(cells) == 0:
        return None
    codes = method.encode(model.project(np.concatenate([v for v in vectors if len(v)])))[0]
    corners = np.array([grid.corner(row, column) for row, column in cells.tolist()])
    return PatchSample(
        np.full(len(cells), place), corners, np.full(len(cells), grid.patch_side), codes
    )


@dataclass(frozen=True)
class AtomUsage:
    """One atom: per label the share of its patches that use it; the patches that use it most.

    patches : (place in the gallery, weight), the largest |weight| first
    """

    atom: int
    fractions: dict[str, float]
    patches: list[tuple[int, float]]


@dataclass(frozen=True)
class ClassAtomUsage:
    """The atoms of one class: how many, how many of them are used at all, and the most used.

    per_patch : how many of them a patch of each label uses on average
    """

    name: str
    n_atoms: int
    n_active: int
    per_patch: dict[str, float]
    atoms: list[AtomUsage]


def most_used_atoms(
    atoms: AtomTable,
    gallery: PatchSample,
    labels: Sequence[str],
    classes: Sequence[str],
    n_atoms: int,
    owners: NDArray[np.int64] | None = None,
    only: Sequence[int] | None = None,
) -> list[ClassAtomUsage]:
    """Per class its `n_atoms` atoms that most of its own patches use; `only`: among these.

    `labels`: of every patch of the gallery; `owners`: of every image, its patient. Where no patch
    is of a class, use by all patches puts its atoms in order. Atoms that no patch uses are left
    out.
    """
    names = [name for name in classes if name in set(labels)]
    names += sorted(set(labels) - set(names))
    shares = gallery.fractions(np.array([names.index(label) for label in labels]), len(names))
    everywhere = gallery.fractions(np.zeros(len(labels), np.int64), 1)[0]
    found = []
    for place, name in enumerate(classes):
        own = np.flatnonzero(atoms.classes == place)
        used = own[everywhere[own] > 0]
        shown = used if only is None else used[np.isin(used, only)]
        use = shares[names.index(name)] if name in names else everywhere
        order = shown[np.lexsort((-everywhere[shown], -use[shown]))]
        per_patch = dict(zip(names, shares[:, own].sum(axis=1).tolist(), strict=True))
        best = [_usage(gallery, int(atom), names, shares, owners) for atom in order[:n_atoms]]
        found.append(ClassAtomUsage(name, len(own), len(used), per_patch, best))
    return found


def _usage(
    gallery: PatchSample,
    atom: int,
    names: list[str],
    shares: NDArray[np.float64],
    owners: NDArray[np.int64] | None,
) -> AtomUsage:
    by_label = dict(zip(names, shares[:, atom].tolist(), strict=True))
    return AtomUsage(atom, by_label, gallery.top_patches(atom, owners=owners))


def patient_indices(records: Sequence[ImageRecord]) -> NDArray[np.int64]:
    """The place of every record's patient; a record that names none is its own."""
    names = [record.patient or str(record.path) for record in records]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def patch_labels(model: Model, gallery: PatchSample, records: Sequence[ImageRecord]) -> list[str]:
    """What every patch of the gallery is, as its record says and the model asks."""
    labels = [""] * len(gallery.images)
    for image in np.unique(gallery.images).tolist():
        own = np.flatnonzero(gallery.images == image)
        side = float(gallery.side[own[0]])
        found = model.patch_labels(records[image], gallery.corners[own], side)
        for place, label in zip(own.tolist(), found, strict=True):
            labels[place] = label
    return labels
