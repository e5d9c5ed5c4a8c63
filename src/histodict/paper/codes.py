"""Experiments on the dictionaries of each class, and on the sparse codes of two images.

For every atom, the largest |cosine| to an atom of another class is reported. If classes share
atoms, patches cannot be classified by reconstruction errors. For two images, one of each class, the
codes show which class's atoms their patches use.
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
from .setting import (
    CLASS_DICTIONARY_METHODS,
    NotPossibleError,
    Outcome,
    Setting,
    make_axes_grid,
    method_style,
    paper_name,
)

ATOMS = "bases"
_ATOMS_METHODS = ("dfdl", "lcksvd", "fddl")
_N_ATOMS = 40  # atoms shown per class


def run_atoms(setting: Setting) -> Outcome:
    """Train dictionaries on the first split and draw their atoms."""
    plans = setting.plans(
        _ATOMS_METHODS,
        CLASS_DICTIONARY_METHODS,
        "this experiment needs methods with atoms per class",
    )
    recipe = next(iter(plans.values())).recipe
    if not get_patch_features(recipe.features).atoms_are_images or recipe.n_components:
        raise NotPossibleError(
            "atoms can only be displayed for pixel features; use features rgb without n_components"
        )
    classes = setting.dataset.classes
    models = setting.train_models(setting.tasks(plans, setting.splits)[: len(plans)])
    dictionaries = {}
    for method, model in zip(plans, models, strict=True):
        order = [model.class_names_.index(name) for name in classes]
        dictionaries[paper_name(method)] = model.model_.classifier_.dictionaries_[order]
    rows = _atom_rows(classes, dictionaries)
    medians = {
        name: np.median(
            [row["max_cosine_to_other_classes"] for row in rows if row["method"] == name]
        )
        for name in dictionaries
    }
    text = ", ".join(f"{name} {value:.2f}" for name, value in medians.items())
    return Outcome(
        name=ATOMS,
        title="Bases of each class",
        note=(
            "Atoms most used by each class, each scaled to its own range. Median over the atoms "
            f"of the largest |cosine| to an atom of another class: {text}. Trained on the first "
            f"split of {setting.describe()}."
        ),
        rows=rows,
        text="similarity to atoms of another class (median of the largest cosine; 1 is "
        f"identical): {text}",
        draw=partial(_draw_atoms, classes, dictionaries, recipe.patch_px),
    )


def _atom_rows(classes: list[str], dictionaries: dict[str, NDArray[Any]]) -> list[Row]:
    return [
        {
            "method": method,
            "class": name,
            "atom": atom,
            "max_cosine_to_other_classes": float(cosine),
        }
        for method, D in dictionaries.items()
        for name, cosines in zip(classes, max_cosine_to_other_classes(D), strict=True)
        for atom, cosine in enumerate(cosines)
    ]


def max_cosine_to_other_classes(D: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest |cosine| of each atom to an atom of another class, (n_classes, n_atoms).

    `D` has the atoms of each class, (n_classes, n_atoms, n_features).
    """
    n_classes, n_atoms, n_features = D.shape
    flat = D.reshape(-1, n_features).astype(np.float64)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    cosines = np.abs(flat @ flat.T).reshape(n_classes, n_atoms, n_classes, n_atoms)
    for i in range(n_classes):
        cosines[i, :, i] = 0
    largest: NDArray[np.float64] = cosines.max(axis=(2, 3))
    return largest


def _draw_atoms(classes: list[str], dictionaries: dict[str, NDArray[Any]], patch_px: int) -> Figure:
    """Draw a mosaic of atoms per method (rows) and class (columns)."""
    n_lines = -(-min(_N_ATOMS, next(iter(dictionaries.values())).shape[1]) // 10)
    height = 0.35 + 0.36 * n_lines
    figure, axes = make_axes_grid(len(dictionaries), len(classes), width=3.6, height=height)
    for row_axes, (method, D) in zip(axes, dictionaries.items(), strict=True):
        for ax, name, atoms in zip(row_axes, classes, D, strict=True):
            ax.imshow(atom_mosaic(atoms, patch_px, _N_ATOMS), interpolation="nearest")
            ax.set_title(f"{method}: {name}")
            ax.set_axis_off()
    return figure


CODES = "codes"
_CODES_METHODS = ("dfdl", "lcksvd")
# Number of patches whose codes are shown; more would overcrowd the figure.
_MAX_PATCHES = 400
_THUMBNAIL_PX = 600
_BORDER_COLOUR = "#cc0000"


@dataclass(frozen=True)
class ImageCodes:
    """Sparse codes (n_patches, n_classes · n_atoms) of an image, with atoms sorted by class.

    Attributes
    ----------
    method : name of the method
    truth : class of the image
    codes : sparse codes of the patches
    own_class_fraction : fraction of the summed |codes| on atoms of the image's class
    """

    method: str
    truth: str
    codes: csr_array
    own_class_fraction: float


def run_codes(setting: Setting) -> Outcome:
    """Compute and draw the codes of two test images by models of the first split."""
    plans = setting.plans(
        _CODES_METHODS,
        CLASS_DICTIONARY_METHODS,
        "this experiment needs methods with atoms per class",
    )
    classes = setting.dataset.classes
    tasks = setting.tasks(plans, setting.splits)[: len(plans)]
    models = setting.train_models(tasks)
    records = _first_image_of_two_classes(setting, tasks[0].split.test)
    codes = [
        _image_codes(model, record, classes, paper_name(method))
        for method, model in zip(plans, models, strict=True)
        for record in records
    ]
    fractions: list[Row] = [
        {"method": part.method, "truth": part.truth, "own_class_fraction": part.own_class_fraction}
        for part in codes
    ]
    summary = "; ".join(
        f"{row['method']} on {row['truth']} {row['own_class_fraction']:.0%}" for row in fractions
    )
    names = " and ".join(setting.images.name(record) for record in records)
    images = {record.label: _read_thumbnail(record.path) for record in records}
    return Outcome(
        name=CODES,
        title="Sparse codes of two images",
        note=(
            f"Non-zero codes of the patches of {names}, which are not in the training set; red "
            "lines separate the atoms of the classes. Fraction of |codes| on atoms of the "
            f"image's own class: {summary}. First split of {setting.describe()}."
        ),
        rows=[row for part in codes for row in _code_rows(part, classes)],
        extra_tables={"shares": fractions},
        text=f"fraction of the absolute codes on atoms of the image's own class: {summary}",
        draw=partial(_draw_codes, codes, images, classes),
    )


def _first_image_of_two_classes(setting: Setting, indices: list[int]) -> list[ImageRecord]:
    """Return the first image of the first and of the last class, among the images `indices`."""
    records = setting.images.select(indices).records
    labels = (setting.dataset.classes[0], setting.dataset.classes[-1])
    return [next(record for record in records if record.label == name) for name in labels]


def _image_codes(
    model: TissueClassifier, record: ImageRecord, classes: list[str], method: str
) -> ImageCodes:
    vectors = _tissue_vectors(model, record)
    step = -(-len(vectors) // _MAX_PATCHES)
    S, _ = model.model_.classifier_.encode(model.model_.project(vectors[:: max(step, 1)]))
    parts = np.split(np.arange(S.shape[1]), len(classes))
    order = np.concatenate([parts[model.class_names_.index(name)] for name in classes])
    S = csr_array(S[:, order])
    weight = np.asarray(abs(S).sum(axis=0)).ravel().reshape(len(classes), -1).sum(axis=1)
    fraction = weight[classes.index(record.label)] / max(weight.sum(), 1e-12)
    return ImageCodes(method, record.label, S, float(fraction))


def _tissue_vectors(model: TissueClassifier, record: ImageRecord) -> NDArray[np.float32]:
    """Return the feature vectors (n_patches, n_features) of all tissue patches of an image."""
    with open_prepared_image(record.path, record.mpp, model.recipe, model.model_.mpp_) as image:
        grid = image.grid()
        parts = [image.chunk_features(grid, *chunk)[1] for chunk in grid.chunks()]
    return np.concatenate([part for part in parts if len(part)])


def _code_rows(image_codes: ImageCodes, classes: list[str]) -> list[Row]:
    n_atoms = image_codes.codes.shape[1] // len(classes)
    entries: Any = image_codes.codes.tocoo()
    return [
        {
            "method": image_codes.method,
            "truth": image_codes.truth,
            "patch": int(patch),
            "atom": int(atom) % n_atoms,
            "atom_class": classes[int(atom) // n_atoms],
            "code": float(code),
        }
        for patch, atom, code in zip(entries.row, entries.col, entries.data, strict=True)
    ]


def _read_thumbnail(path: Path) -> NDArray[np.uint8]:
    with open_image(path) as source:
        return source.thumbnail(min(_THUMBNAIL_PX, max(source.size)))


def _draw_codes(
    codes: list[ImageCodes], images: dict[str, NDArray[Any]], classes: list[str]
) -> Figure:
    """Draw each image above its codes by every method, and separate the atoms of classes."""
    methods = list(dict.fromkeys(image_codes.method for image_codes in codes))
    names = list(images)
    figure, axes = make_axes_grid(1 + len(methods), len(names), width=3.8, height=2.1)
    for ax, (name, image) in zip(axes[0], images.items(), strict=True):
        ax.imshow(image)
        ax.set_title(f"image of {name}")
        ax.set_axis_off()
    for image_codes in codes:
        ax = axes[1 + methods.index(image_codes.method), names.index(image_codes.truth)]
        _scatter_codes(ax, image_codes, classes)
    return figure


def _scatter_codes(ax: Axes, image_codes: ImageCodes, classes: list[str]) -> None:
    entries: Any = image_codes.codes.tocoo()
    colour, _ = method_style(image_codes.method)
    ax.scatter(entries.col, entries.data, 3, color=colour, linewidths=0, rasterized=True)
    n_codes = image_codes.codes.shape[1]
    for i in range(1, len(classes)):
        ax.axvline(i * n_codes / len(classes) - 0.5, color=_BORDER_COLOUR, linewidth=1.2)
    ax.set_xlim(-0.5, n_codes - 0.5)
    fraction = f"{image_codes.own_class_fraction:.0%}"
    ax.set_title(f"{image_codes.method} on {image_codes.truth}: {fraction} on the own class")
    ax.set_xlabel(f"atoms: {' | '.join(classes)}")
    ax.set_ylabel("code")
