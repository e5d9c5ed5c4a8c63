"""Confusion matrices of all methods in percent, beside the published ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import confusion_matrix

from ..compare.evaluation import Evaluation
from ..execution.tables import Row
from ..pipeline import NO_TISSUE
from . import published
from .accuracy import compared
from .outcome import OURS, Outcome, failures_of
from .published import paper_name
from .setting import Setting

NAME = "confusion"


@dataclass(frozen=True, kw_only=True)
class ConfusionOutcome(Outcome):
    """classes : by data, the names in rows and columns, healthy first."""

    classes: dict[str, list[str]]


def run(setting: Setting) -> ConfusionOutcome:
    evaluation = setting.run(compared(setting), setting.splits)
    ours = [row for method in evaluation.methods for row in _counted(setting, evaluation, method)]
    rows = ours + [row for data in published.CLASSES for row in _published(data)]
    theirs = {data: list(names) for data, names in published.CLASSES.items()}
    odd = [row for row in rows if row["source"] != OURS and not row["sums_to_100"]]
    n_odd = len({(row["data"], row["method"], row["truth"]) for row in odd})
    return ConfusionOutcome(
        name=NAME,
        title="Confusion matrices",
        note="True classes in rows, answers in columns, in percent of the row. "
        f"{setting.describe()}. {n_odd} published rows, marked *, do not sum to 100: they are "
        "shown as printed.",
        rows=rows,
        words="; ".join(_rate(row) for row in ours if row["truth"] == row["answer"]),
        failures=failures_of(evaluation),
        classes={setting.dataset.name: setting.dataset.classes} | theirs,
    )


def _counted(setting: Setting, evaluation: Evaluation, method: str) -> list[Row]:
    """Answers of all repeats together; an image of glass alone has an answer of its own."""
    repeats = evaluation.repeats(method, evaluation.sizes()[0], "labels")
    truth = np.concatenate([repeat.labels for repeat in repeats])
    said = np.concatenate([repeat.answers for repeat in repeats])
    classes = setting.dataset.classes
    answers = [*classes, NO_TISSUE] if NO_TISSUE in said else classes
    counts = confusion_matrix(truth, said, labels=answers)[: len(classes)]
    return [
        {
            "data": setting.dataset.name,
            "source": OURS,
            "method": paper_name(method),
            "truth": name,
            "answer": answer,
            "percent": 100 * int(count) / max(int(line.sum()), 1),
            "images": int(count),
            "sums_to_100": True,
        }
        for name, line in zip(classes, counts, strict=True)
        for answer, count in zip(answers, line, strict=True)
    ]


def _published(data: str) -> list[Row]:
    return [
        {
            "data": data,
            "source": "published",
            "method": row.method,
            "truth": row.truth,
            "answer": answer,
            "percent": percent,
            "sums_to_100": row.sums_to_100,
        }
        for row in published.confusion_rows(data)
        for answer, percent in zip(
            published.CLASSES[data], (row.healthy, row.diseased), strict=True
        )
    ]


def _rate(row: Row) -> str:
    return f"{row['method']} {row['truth']} {row['percent']:.1f} %"
