"""Overall accuracy of all methods, with intervals by patient, beside the published ones."""

from __future__ import annotations

from dataclasses import dataclass

from ..compare.evaluation import evaluate
from ..execution.tables import Row
from ..methods.registry import METHODS
from ..pipeline import Plan
from . import published
from .outcome import OURS, Outcome, accuracy_of, failures_of
from .published import paper_name
from .setting import COMPARED, Setting

NAME = "accuracy"


@dataclass(frozen=True, kw_only=True)
class AccuracyOutcome(Outcome):
    """Drawn from the rows alone: one panel for each `data`."""


def compared(setting: Setting) -> dict[str, Plan]:
    """The plans of accuracy and confusion, by method."""
    methods = setting.choose(COMPARED, tuple(METHODS), "every method can be compared")
    return {method: setting.plan(method) for method in methods}


def run(setting: Setting) -> AccuracyOutcome:
    """All methods on all splits; the tables of `histodict evaluate` are written, too."""
    evaluation = evaluate(
        setting.images,
        compared(setting),
        setting.splits,
        setting.folder,
        work=setting.work,
    )
    ours: list[Row] = [
        {"data": setting.dataset.name, "source": OURS, "method": paper_name(method)}
        | accuracy_of(evaluation, method, evaluation.sizes()[0])
        for method in evaluation.methods
    ]
    rows = ours + [row for data in published.CLASSES for row in _published(data)]
    words = ", ".join(f"{row['method']} {row['accuracy']:.1f} %" for row in ours)
    return AccuracyOutcome(
        name=NAME,
        title="Overall accuracy",
        note=f"Share of test images that are right, with 95 % intervals by patient: "
        f"{setting.describe()}. Published values are as the text prints them (see the table) or, "
        "where it names none, worked out from the published confusion matrix.",
        rows=rows,
        words=words,
        failures=failures_of(evaluation),
    )


def _published(data: str) -> list[Row]:
    return [
        {
            "data": data,
            "source": "published",
            "method": value.method,
            "accuracy": value.percent,
            "printed": value.printed or "from the confusion matrix",
        }
        for value in published.accuracies(data).values()
    ]
