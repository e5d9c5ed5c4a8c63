"""The atoms of a model, and which of them the patches of each class use most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.manifest import Record
from ..images.masks import RegionMask
from ..images.readers import open_image
from ..methods.residual_rule import ResidualClassifier
from ..patches.vectors import are_pictures
from .gallery import Gallery
from .patch_model import HALF, PatchModel
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier
from .whole_image_model import WholeImageModel


@dataclass(frozen=True)
class Atoms:
    """The atoms that codes are over, where the method has such: D (n, n_features), their classes.

    `patch_px` is the side of the pictures that they are; None for vectors that are no pictures.
    """

    D: NDArray[Any]
    classes: NDArray[np.int64]
    patch_px: int | None

    @classmethod
    def of(cls, model: PatchModel | WholeImageModel) -> Atoms | None:
        if not isinstance(model, PatchModel) or not isinstance(model.method_, ResidualClassifier):
            return None
        D, classes = model.method_.labelled_atoms()
        if len(D) != model.method_.n_codes_:
            return None
        side = model.recipe.patch_px
        is_pixels = model.projection_ is None and are_pictures(D.shape[1], side)
        return cls(D, classes, side if is_pixels else None)


@dataclass(frozen=True)
class AtomUse:
    """One atom: per label the share of its patches that use it; the patches that use it most.

    users : (place in the gallery, weight), the largest |weight| first
    """

    atom: int
    shares: dict[str, float]
    users: list[tuple[int, float]]


@dataclass(frozen=True)
class ClassUse:
    """The atoms of one class: how many, how many of them are used at all, and the most used.

    per_patch : how many of them a patch of each label uses on average
    """

    name: str
    n_atoms: int
    n_used: int
    per_patch: dict[str, float]
    most_used: list[AtomUse]


def most_used(
    atoms: Atoms, gallery: Gallery, labels: Sequence[str], classes: Sequence[str], n_atoms: int
) -> list[ClassUse]:
    """Per class its `n_atoms` atoms that most of its own patches use.

    `labels`: of every patch of the gallery. Where no patch is of a class, use by all patches puts
    its atoms in order. Atoms that no patch uses are left out.
    """
    names = [name for name in classes if name in set(labels)]
    names += sorted(set(labels) - set(names))
    shares = gallery.shares(np.array([names.index(label) for label in labels]), len(names))
    everywhere = gallery.shares(np.zeros(len(labels), np.int64), 1)[0]
    found = []
    for place, name in enumerate(classes):
        own = np.flatnonzero(atoms.classes == place)
        used = own[everywhere[own] > 0]
        use = shares[names.index(name)] if name in names else everywhere
        order = used[np.lexsort((-everywhere[used], -use[used]))]
        per_patch = dict(zip(names, shares[:, own].sum(axis=1).tolist(), strict=True))
        best = [_use(gallery, int(atom), names, shares) for atom in order[:n_atoms]]
        found.append(ClassUse(name, len(own), len(used), per_patch, best))
    return found


def _use(gallery: Gallery, atom: int, names: list[str], shares: NDArray[np.float64]) -> AtomUse:
    by_label = dict(zip(names, shares[:, atom].tolist(), strict=True))
    return AtomUse(atom, by_label, gallery.users_of(atom))


def patch_labels(
    model: TissueClassifier | RegionDetector, gallery: Gallery, records: Sequence[Record]
) -> list[str]:
    """The label of every patch: its image's; of a detector, whether it lies in a region."""
    if isinstance(model, TissueClassifier):
        return [records[place].label or "no label" for place in gallery.images.tolist()]
    other, region = model.classes_
    inside = np.zeros(len(gallery.images), bool)
    for place in np.unique(gallery.images).tolist():
        own = gallery.images == place
        inside[own] = _in_region(records[place], gallery, own, region)
    return [region if is_inside else other for is_inside in inside.tolist()]


def _in_region(
    record: Record, gallery: Gallery, own: NDArray[np.bool_], region: str
) -> NDArray[np.bool_]:
    """Of an image's own patches: at least half in the mask, or by the label without one."""
    if record.mask is None:
        return np.full(int(own.sum()), record.label == region)
    with open_image(record.path, record.mpp) as source:
        mask = RegionMask.read(record.mask, source.size)
    x, y = gallery.corners[own].T.astype(np.float64)
    return mask.share(x, y, float(gallery.side[own][0])) >= HALF
