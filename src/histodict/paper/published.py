"""The paper's own figures, as printed, to be shown beside ours.

Vu, Mousavi, Monga, Rao, Rao, "Histopathological image classification using discriminative
feature-oriented dictionary learning", IEEE Transactions on Medical Imaging, 2016: the confusion
matrices, the accuracies named in the text of section III-C, the operation counts and run times.
The curves of its figures are not printed as numbers and are not here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# Our names of the methods, and the paper's.
PAPER_NAMES = {
    "wndcharm": "WND-CHARM",
    "src-image": "SRC",
    "shirc": "SHIRC",
    "fddl": "FDDL",
    "lcksvd": "LC-KSVD",
    "nayak": "Nayak's",
    "dfdl": "DFDL",
}
# Data sets, with the names of the healthy and the diseased class.
CLASSES = {
    "IBL": ("UDH", "DCIS"),
    "ADL kidney": ("healthy", "inflammatory"),
    "ADL lung": ("healthy", "inflammatory"),
    "ADL spleen": ("healthy", "inflammatory"),
    "TCGA": ("not MVP", "MVP"),
}
# What is left of the 133 and 57 images after 20 of each class for training.
_TESTED = {"TCGA": (113, 37)}
_ROUNDING = 0.005  # of a sum of two percentages with two decimals


def paper_name(method: str) -> str:
    """The name in tables and figures."""
    return PAPER_NAMES.get(method, method)


@dataclass(frozen=True)
class ConfusionRow:
    """Of the images of one class, the percentages called healthy and diseased.

    whole_image : the method looked at the image as a whole, not at patches
    """

    dataset: str
    method: str
    truth: str
    healthy: float
    diseased: float
    whole_image: bool

    @property
    def total(self) -> float:
        return round(self.healthy + self.diseased, 2)

    @property
    def sums_to_100(self) -> bool:
        """Some printed rows do not; they are kept as they are, and marked."""
        return abs(self.total - 100) < _ROUNDING

    @property
    def right(self) -> float:
        return self.healthy if self.truth == CLASSES[self.dataset][0] else self.diseased


@dataclass(frozen=True)
class Accuracy:
    """Overall accuracy in percent: `printed` as the text has it, or worked out from the matrix."""

    dataset: str
    method: str
    percent: float
    printed: str | None


def confusion_rows(dataset: str) -> list[ConfusionRow]:
    """The confusion matrices of a data set, in the order of the paper's table."""
    names = dict(zip(("healthy", "diseased"), CLASSES[dataset], strict=True))
    return [
        ConfusionRow(
            dataset,
            row["method"],
            names[row["truth"]],
            float(row["called_healthy"]),
            float(row["called_diseased"]),
            row["level"] == "image",
        )
        for row in read_table("confusion")
        if row["dataset"] == dataset
    ]


def accuracies(dataset: str) -> dict[str, Accuracy]:
    """By method; where the text names none, the mean over the test images by the matrix."""
    printed = {r["method"]: r for r in read_table("accuracy") if r["dataset"] == dataset}
    weights = dict(zip(CLASSES[dataset], _TESTED.get(dataset, (1, 1)), strict=True))
    rows = confusion_rows(dataset)
    made = {}
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        percent = sum(weights[row.truth] * row.right for row in own) / sum(weights.values())
        said = printed.get(method)
        if said:
            percent = float(said["percent"])
        text = said["printed"] if said else None
        made[method] = Accuracy(dataset, method, round(percent, 2), text)
    return made


def operating_points(dataset: str) -> dict[str, tuple[float, float]]:
    """(false alarm rate, miss rate) of every method, from the confusion matrices."""
    healthy, diseased = CLASSES[dataset]
    rows = {(row.method, row.truth): row for row in confusion_rows(dataset)}
    methods = dict.fromkeys(method for method, _ in rows)
    return {
        method: (rows[method, healthy].diseased / 100, rows[method, diseased].healthy / 100)
        for method in methods
    }


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of tables/<name>.csv."""
    text = files(__package__).joinpath(f"tables/{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
