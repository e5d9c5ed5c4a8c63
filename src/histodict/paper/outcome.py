"""What an experiment gives: words, tables, and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from ..compare.evaluation import Evaluation
from ..evaluation import metrics
from ..evaluation.intervals import bootstrap_interval
from ..execution.tables import Row

OURS = "histodict"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one experiment.

    title, note : heading and caption
    rows : the table of the figure
    words : a summary for the terminal
    draw : makes the figure; `look.save_figure` calls it
    more : further tables by name
    failures : trainings that did not work, each in a line
    warnings : what is wrong with the data, such as unknown patients
    """

    name: str
    title: str
    note: str
    rows: list[Row]
    text: str
    draw: Callable[[], Figure]
    more: Mapping[str, list[Row]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    warnings: tuple[str, ...] = ()


def failures_of(evaluation: Evaluation) -> list[str]:
    return [
        f"{result.task.method}, {result.task.split.name}: {result.error}"
        for result in evaluation.failures
    ]


def accuracy_of(evaluation: Evaluation, method: str, size: int | None) -> Row:
    """Overall accuracy in percent, its interval by patients, and on how many answers it rests."""
    repeats = evaluation.repeats(method, size, "labels")
    interval = bootstrap_interval(metrics.accuracy, repeats)
    return {
        "accuracy": 100 * interval.value,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "n_answers": sum(len(repeat.labels) for repeat in repeats),
    }
