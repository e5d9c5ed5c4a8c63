"""Accuracy as one size grows: what the three sweeps of the paper have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..compare.evaluation import Evaluation
from ..execution.tables import Row
from ..pipeline import Plan
from . import published
from .outcome import OURS, Outcome, accuracy_of, failures_of
from .published import paper_name
from .setting import Setting

# Data sets of the paper's sweeps.
_SWEPT = ("IBL", "ADL kidney", "ADL lung", "ADL spleen")


@dataclass(frozen=True, kw_only=True)
class SweepOutcome(Outcome):
    """axis : what grows; the paper prints its accuracy at the size `published_at` alone."""

    axis: str
    published_at: str


@dataclass(frozen=True)
class Sweep:
    """The names of a sweep."""

    name: str
    title: str
    axis: str
    published_at: str


def sweep_plans(setting: Setting, sweep: Sweep, plans: dict[tuple[str, int], Plan]) -> SweepOutcome:
    """Recipes by method and size, all of them on the same splits."""
    named = {f"{method} {size}": plan for (method, size), plan in plans.items()}
    evaluation = setting.run(named, setting.splits)
    complete = evaluation.methods
    rows: list[Row] = [
        _row(setting, evaluation, sweep, (method, size), f"{method} {size}", _only(evaluation))
        for method, size in plans
        if f"{method} {size}" in complete
    ]
    return outcome(setting, sweep, rows, evaluation)


def outcome(
    setting: Setting, sweep: Sweep, ours: Sequence[Row], evaluation: Evaluation
) -> SweepOutcome:
    rows = [*ours, *(row for data in _SWEPT for row in _published(data, ours))]
    return SweepOutcome(
        name=sweep.name,
        title=sweep.title,
        note=f"{setting.describe()}. Bars are 95 % intervals by patient. Of its curves the paper "
        f"prints no numbers; its accuracies at {sweep.published_at} are shown on the right.",
        rows=rows,
        words=_summary(ours),
        failures=failures_of(evaluation),
        axis=sweep.axis,
        published_at=sweep.published_at,
    )


def sweep_row(
    setting: Setting, evaluation: Evaluation, sweep: Sweep, method: str, size: int
) -> Row:
    """The row of a sweep whose sizes are those of the splits."""
    return _row(setting, evaluation, sweep, (method, size), method, size)


def _row(
    setting: Setting,
    evaluation: Evaluation,
    sweep: Sweep,
    of: tuple[str, int],
    recipe: str,
    per_class: int | None,
) -> Row:
    method, size = of
    return {
        "data": setting.dataset.name,
        "source": OURS,
        "method": paper_name(method),
        sweep.axis: size,
    } | accuracy_of(evaluation, recipe, per_class)


def _only(evaluation: Evaluation) -> int | None:
    return evaluation.sizes()[0]


def _published(data: str, ours: Sequence[Row]) -> list[Row]:
    shown = {row["method"] for row in ours}
    return [
        {"data": data, "source": "published", "method": method, "accuracy": value.percent}
        for method, value in published.accuracies(data).items()
        if method in shown
    ]


def _summary(ours: Sequence[Row]) -> str:
    parts = []
    for method in dict.fromkeys(row["method"] for row in ours):
        values = [f"{row['accuracy']:.1f}" for row in ours if row["method"] == method]
        parts.append(f"{method} {' → '.join(values)} %")
    return ", ".join(parts)
