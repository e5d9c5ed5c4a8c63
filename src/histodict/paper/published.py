"""The paper's own figures, as printed, in rows like ours.

Vu, Mousavi, Monga, Rao, Rao, "Histopathological image classification using discriminative
feature-oriented dictionary learning", IEEE Transactions on Medical Imaging, 2016: the confusion
matrices, the accuracies named in the text of section III-C, the operation counts and run times.
The curves of its figures are not printed as numbers and are not here.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from ..execution.tables import Row

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


def confusion() -> list[Row]:
    """The matrices in percent of the true class, in the order of CLASSES and of the paper's table.

    Some printed rows do not sum to 100; they are kept as they are, and marked.
    """
    rows: list[Row] = []
    for data, classes in CLASSES.items():
        truths = dict(zip(("healthy", "diseased"), classes, strict=True))
        for line in (line for line in read_table("confusion") if line["dataset"] == data):
            percents = float(line["called_healthy"]), float(line["called_diseased"])
            whole = abs(round(percents[0] + percents[1], 2) - 100) < _ROUNDING
            rows += [
                _row(data, line["method"])
                | {"truth": truths[line["truth"]], "answer": answer, "percent": percent}
                | {"sums_to_100": whole}
                for answer, percent in zip(classes, percents, strict=True)
            ]
    return rows


def accuracies() -> list[Row]:
    """Overall, in percent: as the text prints it, else the mean of test images by the matrix."""
    printed = {(line["dataset"], line["method"]): line for line in read_table("accuracy")}
    right = [row for row in confusion() if row["truth"] == row["answer"]]
    rows: list[Row] = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in right):
        said = printed.get((data, method))
        weights = dict(zip(CLASSES[data], _TESTED.get(data, (1, 1)), strict=True))
        own = [row for row in right if (row["data"], row["method"]) == (data, method)]
        mean = sum(weights[row["truth"]] * row["percent"] for row in own) / sum(weights.values())
        accuracy = round(float(said["percent"]) if said else mean, 2)
        text = said["printed"] if said else "from the confusion matrix"
        rows.append(_row(data, method) | {"accuracy": accuracy, "printed": text})
    return rows


def operating_points() -> list[Row]:
    """False alarm and miss rate of every method, from the confusion matrices."""
    rows = confusion()
    rates = {(r["data"], r["method"], r["truth"], r["answer"]): r["percent"] / 100 for r in rows}
    points = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        healthy, ill = CLASSES[data]
        alarm, miss = rates[data, method, healthy, ill], rates[data, method, ill, healthy]
        points.append(_row(data, method) | {"false_alarm": alarm, "miss": miss})
    return points


def _row(data: str, method: str) -> Row:
    return {"data": data, "source": "published", "method": method}


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of tables/<name>.csv."""
    text = files(__package__).joinpath(f"tables/{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
