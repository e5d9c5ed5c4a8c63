"""The atoms of a model, and which of them the patches of each class use most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..images.manifest import ImageRecord
from .gallery import PatchSample
from .image_model import AtomTable
from .plan import Model


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
