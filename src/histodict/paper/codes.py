"""Sparse codes of two images, one of each class: which class's atoms do their patches use?

Bases of every class, by method: do they look like their class, and unlike the others?

Beside the pictures, a number: for every atom, the largest |cosine| to an atom of another class. A
method whose classes share atoms cannot tell patches by who rebuilds them best.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..datasets.manifest import ImageRecord
from ..encoders import get_patch_features
from ..images.source import open_image
from ..models import TissueClassifier
from ..models.prepared_image import open_prepared_image
from ..patches.rendering import atom_mosaic
from ..utils.text_io import Row
from .plots import grid, style
from .setting import CLASS_LEARNERS, NotPossibleError, Outcome, Setting, paper_name

ATOMS = "bases"
_ATOMS_METHODS = ("dfdl", "lcksvd", "fddl")
_N_ATOMS = 40  # shown of each class


def run_atoms(setting: Setting) -> Outcome:
    """Dictionaries of the first split's training images."""
    plans = setting.plans(
        _ATOMS_METHODS, CLASS_LEARNERS, "bases are shown of methods with class atoms"
    )
    recipe = next(iter(plans.values())).recipe
    if not get_patch_features(recipe.features).are_images or recipe.n_components:
        raise NotPossibleError(
            "bases are pictures only of pixels: take vectors rgb, without components"
        )
    classes = setting.dataset.classes
    models = setting.trained(setting.tasks(plans, setting.splits)[: len(plans)])
    dictionaries = {}
    for method, model in zip(plans, models, strict=True):
        order = [model.classes_.index(name) for name in classes]
        dictionaries[paper_name(method)] = model.model_.method_.dictionaries_[order]
    rows = _atom_rows(classes, dictionaries)
    typical = {
        name: np.median([row["closest_other"] for row in rows if row["method"] == name])
        for name in dictionaries
    }
    words = ", ".join(f"{name} {value:.2f}" for name, value in typical.items())
    return Outcome(
        name=ATOMS,
        title="Bases of each class",
        note="Atoms most used by each class, each stretched to its own range. Median over the "
        f"atoms of the largest |cosine| to an atom of another class: {words}. Trained on the first "
        f"split of {setting.describe()}.",
        rows=rows,
        text=f"largest cosine to another class's atom, median: {words}",
        draw=partial(_draw_atoms, classes, dictionaries, recipe.patch_px),
    )


def _atom_rows(classes: list[str], dictionaries: dict[str, NDArray[Any]]) -> list[Row]:
    return [
        {"method": method, "class": name, "atom": atom, "closest_other": float(cosine)}
        for method, D in dictionaries.items()
        for name, cosines in zip(classes, closest_other(D), strict=True)
        for atom, cosine in enumerate(cosines)
    ]


def closest_other(D: NDArray[Any]) -> NDArray[np.float64]:
    """Per class and atom, the largest |cosine| to an atom of another class."""
    n_classes, n_atoms, n_features = D.shape
    flat = D.reshape(-1, n_features).astype(np.float64)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    cosines = np.abs(flat @ flat.T).reshape(n_classes, n_atoms, n_classes, n_atoms)
    for i in range(n_classes):
        cosines[i, :, i] = 0
    largest: NDArray[np.float64] = cosines.max(axis=(2, 3))
    return largest


def _draw_atoms(classes: list[str], dictionaries: dict[str, NDArray[Any]], patch_px: int) -> Figure:
    """A sheet of atoms per method (rows) and class (columns)."""
    n_lines = -(-min(_N_ATOMS, next(iter(dictionaries.values())).shape[1]) // 10)
    height = 0.35 + 0.36 * n_lines
    figure, axes = grid(len(dictionaries), len(classes), width=3.6, height=height)
    for line, (method, D) in zip(axes, dictionaries.items(), strict=True):
        for place, name, atoms in zip(line, classes, D, strict=True):
            place.imshow(atom_mosaic(atoms, patch_px, _N_ATOMS), interpolation="nearest")
            place.set_title(f"{method}: {name}")
            place.set_axis_off()
    return figure


CODES = "codes"
_CODES_METHODS = ("dfdl", "lcksvd")
# Patches whose codes are shown: more would only blacken the picture.
_MAX_PATCHES = 400
_IMAGE_SIDE = 600
_BORDER = "#cc0000"


@dataclass(frozen=True)
class ImageCodes:
    """Codes (n_patches, n_classes · n_atoms) of an image, atoms class by class.

    own_class_fraction : share of the summed |codes| that falls on the image's own class
    """

    method: str
    truth: str
    codes: csr_array
    own_class_fraction: float


def run_codes(setting: Setting) -> Outcome:
    """Codes of two test images, by models of the first split."""
    plans = setting.plans(
        _CODES_METHODS, CLASS_LEARNERS, "codes are shown of methods with class atoms"
    )
    classes = setting.dataset.classes
    tasks = setting.tasks(plans, setting.splits)[: len(plans)]
    models = setting.trained(tasks)
    shown = _one_of_each(setting, tasks[0].split.test)
    codes = [
        _codes(model, record, classes, paper_name(method))
        for method, model in zip(plans, models, strict=True)
        for record in shown
    ]
    shares: list[Row] = [
        {"method": part.method, "truth": part.truth, "own_class_fraction": part.own_class_fraction}
        for part in codes
    ]
    words = "; ".join(
        f"{s['method']} on {s['truth']} {s['own_class_fraction']:.0%}" for s in shares
    )
    names = " and ".join(setting.images.name(record) for record in shown)
    pictures = {record.label: _render(record.path) for record in shown}
    return Outcome(
        name=CODES,
        title="Sparse codes of two images",
        note=f"Non-zero codes of the patches of {names}, which were not trained on; the red line "
        f"parts the atoms of the classes. Share of |codes| on the image's own side: {words}. "
        f"First split of {setting.describe()}.",
        rows=[row for part in codes for row in _code_rows(part, classes)],
        more={"shares": shares},
        text=f"share of |codes| on the own class: {words}",
        draw=partial(_draw_codes, codes, pictures, classes),
    )


def _one_of_each(setting: Setting, tested: list[int]) -> list[ImageRecord]:
    """The first tested image of each of the first and last class."""
    records = setting.images.select(tested).records
    ends = (setting.dataset.classes[0], setting.dataset.classes[-1])
    return [next(record for record in records if record.label == name) for name in ends]


def _codes(
    model: TissueClassifier, record: ImageRecord, classes: list[str], method: str
) -> ImageCodes:
    vectors = _features(model, record)
    step = -(-len(vectors) // _MAX_PATCHES)
    S, _ = model.model_.method_.encode(model.model_.project(vectors[:: max(step, 1)]))
    parts = np.split(np.arange(S.shape[1]), len(classes))
    order = np.concatenate([parts[model.classes_.index(name)] for name in classes])
    S = csr_array(S[:, order])
    weight = np.asarray(abs(S).sum(axis=0)).ravel().reshape(len(classes), -1).sum(axis=1)
    share = weight[classes.index(record.label)] / max(weight.sum(), 1e-12)
    return ImageCodes(method, record.label, S, float(share))


def _features(model: TissueClassifier, record: ImageRecord) -> NDArray[np.float32]:
    """All patches on tissue, as the recipe makes vectors of them."""
    with open_prepared_image(record.path, record.mpp, model.recipe, model.model_.mpp_) as view:
        grid = view.grid()
        parts = [view.chunk_features(grid, *chunk)[1] for chunk in grid.chunks()]
    return np.concatenate([part for part in parts if len(part)])


def _code_rows(part: ImageCodes, classes: list[str]) -> list[Row]:
    n_atoms = part.codes.shape[1] // len(classes)
    entries: Any = part.codes.tocoo()
    return [
        {
            "method": part.method,
            "truth": part.truth,
            "patch": int(patch),
            "atom": int(atom) % n_atoms,
            "atom_class": classes[int(atom) // n_atoms],
            "code": float(code),
        }
        for patch, atom, code in zip(entries.row, entries.col, entries.data, strict=True)
    ]


def _render(path: Path) -> NDArray[np.uint8]:
    with open_image(path) as source:
        return source.thumbnail(min(_IMAGE_SIDE, max(source.size)))


def _draw_codes(
    codes: list[ImageCodes], pictures: dict[str, NDArray[Any]], classes: list[str]
) -> Figure:
    """The images, and below each one its codes by every method, with the class border."""
    methods = list(dict.fromkeys(part.method for part in codes))
    names = list(pictures)
    figure, axes = grid(1 + len(methods), len(names), width=3.8, height=2.1)
    for place, (name, picture) in zip(axes[0], pictures.items(), strict=True):
        place.imshow(picture)
        place.set_title(f"image of {name}")
        place.set_axis_off()
    for part in codes:
        place = axes[1 + methods.index(part.method), names.index(part.truth)]
        _scatter_codes(place, part, classes)
    return figure


def _scatter_codes(place: Axes, part: ImageCodes, classes: list[str]) -> None:
    entries: Any = part.codes.tocoo()
    colour, _ = style(part.method)
    place.scatter(entries.col, entries.data, 3, color=colour, linewidths=0, rasterized=True)
    n_codes = part.codes.shape[1]
    for i in range(1, len(classes)):
        place.axvline(i * n_codes / len(classes) - 0.5, color=_BORDER, linewidth=1.2)
    place.set_xlim(-0.5, n_codes - 0.5)
    place.set_title(f"{part.method} on {part.truth}: {part.own_class_fraction:.0%} on its own side")
    place.set_xlabel(f"atoms: {' | '.join(classes)}")
    place.set_ylabel("code")
