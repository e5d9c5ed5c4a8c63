"""Overall accuracy of all methods, with intervals by patient, beside the published ones."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure

from ..compare.evaluation import evaluate
from ..execution.tables import Row
from ..reports.charts import INK
from . import published
from .look import bar, by, panels, rank
from .outcome import OURS, Outcome, accuracy_of, failures_of
from .setting import Setting

NAME = "accuracy"


def run(setting: Setting) -> Outcome:
    """All methods on all splits; the tables of `histodict evaluate` are written, too."""
    evaluation = evaluate(
        setting.images, setting.compared(), setting.splits, setting.folder, work=setting.work
    )
    ours = [
        setting.row(method) | accuracy_of(evaluation, method, evaluation.sizes()[0])
        for method in evaluation.methods
    ]
    rows = ours + published.accuracies()
    return Outcome(
        name=NAME,
        title="Overall accuracy",
        note=f"Share of test images that are right, with 95 % intervals by patient: "
        f"{setting.describe()}. Published values are as the text prints them (see the table) or, "
        "where it names none, worked out from the published confusion matrix.",
        rows=rows,
        text=", ".join(f"{row['method']} {row['accuracy']:.1f} %" for row in ours),
        draw=partial(_draw, rows),
        failures=failures_of(evaluation),
    )


def _draw(every: list[Row]) -> Figure:
    """A panel of bars per data set."""
    parts = by(every, "data")
    n_lines = max(len(rows) for rows in parts.values())
    figure, axes = panels(len(parts), width=3.4, height=2.4)
    for place, (data, unordered) in zip(axes, parts.items(), strict=True):
        rows = sorted(unordered, key=rank)
        for y, row in enumerate(rows):
            ours = row["source"] == OURS
            bar(place, y, row["accuracy"], row["method"], filled=ours)
            if ours:
                ends = [row["low"], row["high"]]
                place.plot(ends, [y, y], color=INK, linewidth=1.2, marker="|")
            place.text(1, y, f"{row['accuracy']:.1f}", va="center", color="white" if ours else INK)
        place.set_yticks(range(len(rows)), [row["method"] for row in rows])
        place.set_ylim(n_lines - 0.4, -0.6)  # bars as thick in all panels
        title = f"{data} ({rows[0]['source']})"
        place.set(xlim=(0, 100), xlabel="overall accuracy, %", title=title)
    return figure
