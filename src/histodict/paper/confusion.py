"""Confusion matrices of all methods in percent, beside the published ones."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix

from ..compare.evaluation import Evaluation
from ..execution.tables import Row
from ..pipeline import NO_TISSUE_LABEL
from ..reports.charts import INK
from . import published
from .look import by, panels, rank
from .outcome import Outcome, failures_of
from .setting import Setting

NAME = "confusion"


def run(setting: Setting) -> Outcome:
    evaluation = setting.run(setting.compared(), setting.splits)
    ours = [row for method in evaluation.methods for row in _counted(setting, evaluation, method)]
    theirs = published.confusion()
    n_odd = sum(not row["sums_to_100"] for row in theirs) // 2  # an entry for each of two classes
    right = (row for row in ours if row["truth"] == row["answer"])
    return Outcome(
        name=NAME,
        title="Confusion matrices",
        note="True classes in rows, answers in columns, in percent of the row. "
        f"{setting.describe()}. {n_odd} published rows, marked *, do not sum to 100: they are "
        "shown as printed.",
        rows=ours + theirs,
        text="; ".join(f"{row['method']} {row['truth']} {row['percent']:.1f} %" for row in right),
        draw=partial(_draw, ours + theirs),
        failures=failures_of(evaluation),
    )


def _counted(setting: Setting, evaluation: Evaluation, method: str) -> list[Row]:
    """Answers of all repeats together; an image of glass alone has an answer of its own."""
    repeats = evaluation.repeats(method, evaluation.sizes()[0], "labels")
    truth = np.concatenate([repeat.labels for repeat in repeats])
    said = np.concatenate([repeat.predictions for repeat in repeats])
    classes = setting.dataset.classes
    answers = [*classes, NO_TISSUE_LABEL] if NO_TISSUE_LABEL in said else classes
    counts = confusion_matrix(truth, said, labels=answers)[: len(classes)]
    return [
        setting.row(method)
        | {
            "truth": name,
            "answer": answer,
            "percent": 100 * int(count) / max(int(line.sum()), 1),
            "images": int(count),
            "sums_to_100": True,
        }
        for name, line in zip(classes, counts, strict=True)
        for answer, count in zip(answers, line, strict=True)
    ]


def _draw(every: list[Row]) -> Figure:
    """Per data set, the matrices of all methods under each other."""
    parts = by(every, "data")
    n_lines = max(len({(r["method"], r["truth"]) for r in rows}) for rows in parts.values())
    figure, axes = panels(len(parts), width=3.6, height=0.8 + 0.22 * n_lines)
    for place, (data, rows) in zip(axes, parts.items(), strict=True):
        _draw_matrices(place, sorted(rows, key=rank))
        place.set_title(f"{data} ({rows[0]['source']}), %")
    return figure


def _draw_matrices(place: Axes, rows: list[Row]) -> None:
    lines = list(dict.fromkeys((row["method"], row["truth"]) for row in rows))
    answers = list(dict.fromkeys(row["answer"] for row in rows))
    # An answer that a method never gave, such as that there is no tissue, has no row.
    cells: dict[tuple[str, ...], Row] = defaultdict(lambda: {"percent": 0.0, "sums_to_100": True})
    cells |= {(row["method"], row["truth"], row["answer"]): row for row in rows}
    share = np.array([[cells[(*line, answer)]["percent"] for answer in answers] for line in lines])
    place.imshow(share, cmap="Blues", vmin=0, vmax=130, aspect="auto")
    for (y, x), value in np.ndenumerate(share):
        mark = "" if cells[(*lines[y], answers[x])]["sums_to_100"] else " *"
        colour = "white" if value > 70 else INK  # the cells grow dark
        words = f"{value:.2f}{mark}"
        place.text(x, y, words, ha="center", va="center", fontsize=8, color=colour)
    place.set_xticks(range(len(answers)), answers)
    place.set_yticks(range(len(lines)), [f"{method}: {truth}" for method, truth in lines])
    place.tick_params(labelsize=7, length=0)
    n_classes = len({truth for _, truth in lines})
    for y in range(n_classes, len(lines), n_classes):
        place.axhline(y - 0.5, color=INK, linewidth=0.8)
