"""Bases of every class, by method: do they look like their class, and unlike the others?

Beside the pictures, a number: for every atom, the largest |cosine| to an atom of another class. A
method whose classes share atoms cannot tell patches by who rebuilds them best.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..execution.tables import Row
from ..networks import get_patch_features
from ..patches.pictures import atom_mosaic
from .look import grid
from .outcome import Outcome
from .published import paper_name
from .setting import CLASS_LEARNERS, NotPossibleError, Setting

NAME = "bases"
_DEFAULTS = ("dfdl", "lcksvd", "fddl")
_N_ATOMS = 40  # shown of each class


def run(setting: Setting) -> Outcome:
    """Dictionaries of the first split's training images."""
    plans = setting.plans(_DEFAULTS, CLASS_LEARNERS, "bases are shown of methods with class atoms")
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
    rows = _rows(classes, dictionaries)
    typical = {
        name: np.median([row["closest_other"] for row in rows if row["method"] == name])
        for name in dictionaries
    }
    words = ", ".join(f"{name} {value:.2f}" for name, value in typical.items())
    return Outcome(
        name=NAME,
        title="Bases of each class",
        note="Atoms most used by each class, each stretched to its own range. Median over the "
        f"atoms of the largest |cosine| to an atom of another class: {words}. Trained on the first "
        f"split of {setting.describe()}.",
        rows=rows,
        text=f"largest cosine to another class's atom, median: {words}",
        draw=partial(_draw, classes, dictionaries, recipe.patch_px),
    )


def _rows(classes: list[str], dictionaries: dict[str, NDArray[Any]]) -> list[Row]:
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


def _draw(classes: list[str], dictionaries: dict[str, NDArray[Any]], patch_px: int) -> Figure:
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
