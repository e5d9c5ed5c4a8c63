"""Sparse codes of two images, one of each class: which class's atoms do their patches use?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..execution.tables import Row
from ..images.manifest import Record
from ..images.readers import open_image
from ..pipeline import TissueClassifier
from ..pipeline.view import open_view
from .models import trained_classifiers
from .outcome import Outcome
from .published import paper_name
from .setting import CLASS_LEARNERS, Setting

NAME = "codes"
_USUAL = ("dfdl", "lcksvd")
# Patches whose codes are shown: more would only blacken the picture.
_MOST_PATCHES = 400
_PICTURE_SIDE = 600


@dataclass(frozen=True)
class ImageCodes:
    """Codes (n_patches, n_classes · n_atoms) of an image, atoms class by class.

    own_share : share of the summed |codes| that falls on the image's own class
    """

    method: str
    truth: str
    codes: csr_array
    own_share: float


@dataclass(frozen=True, kw_only=True)
class CodesOutcome(Outcome):
    """pictures : by class, the image; codes : one entry per method and image."""

    classes: list[str]
    pictures: dict[str, NDArray[np.uint8]]
    codes: list[ImageCodes]


def run(setting: Setting) -> CodesOutcome:
    """Codes of two test images, by models of the first split."""
    methods = setting.choose(_USUAL, CLASS_LEARNERS, "codes are shown of methods with class atoms")
    plans = {method: setting.plan(method) for method in methods}
    tasks = setting.tasks(plans, setting.splits)[: len(methods)]
    models = trained_classifiers(setting, tasks)
    shown = _one_of_each(setting, tasks[0].split.test)
    codes = [
        _codes(model, record, setting.dataset.classes, paper_name(method))
        for method, model in zip(methods, models, strict=True)
        for record in shown
    ]
    rows = [row for part in codes for row in _rows(part, setting.dataset.classes)]
    shares: list[Row] = [
        {"method": part.method, "truth": part.truth, "own_share": part.own_share} for part in codes
    ]
    words = "; ".join(f"{s['method']} on {s['truth']} {s['own_share']:.0%}" for s in shares)
    names = " and ".join(setting.images.name(record) for record in shown)
    return CodesOutcome(
        name=NAME,
        title="Sparse codes of two images",
        note=f"Non-zero codes of the patches of {names}, which were not trained on; the red line "
        f"parts the atoms of the classes. Share of |codes| on the image's own side: {words}. "
        f"First split of {setting.describe()}.",
        rows=rows,
        more={"shares": shares},
        words=f"share of |codes| on the own class: {words}",
        classes=setting.dataset.classes,
        pictures={record.label: _picture(record.path) for record in shown},
        codes=codes,
    )


def _one_of_each(setting: Setting, tested: list[int]) -> list[Record]:
    """The first tested image of each of the first and last class."""
    records = setting.images.select(tested).records
    ends = (setting.dataset.classes[0], setting.dataset.classes[-1])
    return [next(record for record in records if record.label == name) for name in ends]


def _codes(model: TissueClassifier, record: Record, classes: list[str], method: str) -> ImageCodes:
    vectors = _vectors(model, record)
    step = -(-len(vectors) // _MOST_PATCHES)
    S, _ = model.model_.method_.encode(model.model_.project(vectors[:: max(step, 1)]))
    parts = np.split(np.arange(S.shape[1]), len(classes))
    order = np.concatenate([parts[model.classes_.index(name)] for name in classes])
    S = csr_array(S[:, order])
    weight = np.asarray(abs(S).sum(axis=0)).ravel().reshape(len(classes), -1).sum(axis=1)
    share = weight[classes.index(record.label)] / max(weight.sum(), 1e-12)
    return ImageCodes(method, record.label, S, float(share))


def _vectors(model: TissueClassifier, record: Record) -> NDArray[np.float32]:
    """All patches on tissue, as the recipe makes vectors of them."""
    with open_view(record.path, record.mpp, model.recipe, model.model_.mpp_) as view:
        grid = view.grid()
        parts = [view.chunk_vectors(grid, *chunk)[1] for chunk in grid.chunks()]
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


def _picture(path: Path) -> NDArray[np.uint8]:
    with open_image(path) as source:
        return source.thumbnail(min(_PICTURE_SIDE, max(source.size)))
