"""Sparse codes of two images, one of each class: which class's atoms do their patches use?"""

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

from ..execution.tables import Row
from ..images.manifest import ImageRecord
from ..images.readers import open_image
from ..pipeline import TissueClassifier
from ..pipeline.opening import open_prepared_image
from .look import grid, style
from .outcome import Outcome
from .published import paper_name
from .setting import CLASS_LEARNERS, Setting

NAME = "codes"
_DEFAULTS = ("dfdl", "lcksvd")
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


def run(setting: Setting) -> Outcome:
    """Codes of two test images, by models of the first split."""
    plans = setting.plans(_DEFAULTS, CLASS_LEARNERS, "codes are shown of methods with class atoms")
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
        name=NAME,
        title="Sparse codes of two images",
        note=f"Non-zero codes of the patches of {names}, which were not trained on; the red line "
        f"parts the atoms of the classes. Share of |codes| on the image's own side: {words}. "
        f"First split of {setting.describe()}.",
        rows=[row for part in codes for row in _rows(part, classes)],
        more={"shares": shares},
        text=f"share of |codes| on the own class: {words}",
        draw=partial(_draw, codes, pictures, classes),
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


def _rows(part: ImageCodes, classes: list[str]) -> list[Row]:
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


def _draw(codes: list[ImageCodes], pictures: dict[str, NDArray[Any]], classes: list[str]) -> Figure:
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
