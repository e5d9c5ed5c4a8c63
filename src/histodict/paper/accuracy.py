"""Overall accuracy of all methods, with intervals by patient, beside the published ones.

Confusion matrices of all methods in percent, beside the published ones.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix

from ..evaluation import Evaluation, evaluate
from ..models import NO_TISSUE_LABEL
from ..reports.html import INK
from ..utils.text_io import Row
from . import setting as published
from .plots import bar, by, panels, rank
from .setting import OURS, Outcome, Setting, accuracy_of, failures_of

ACCURACY = "accuracy"


def run_accuracy(setting: Setting) -> Outcome:
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
        name=ACCURACY,
        title="Overall accuracy",
        note=f"Share of test images that are right, with 95 % intervals by patient: "
        f"{setting.describe()}. Published values are as the text prints them (see the table) or, "
        "where it names none, worked out from the published confusion matrix.",
        rows=rows,
        text=", ".join(f"{row['method']} {row['accuracy']:.1f} %" for row in ours),
        draw=partial(_draw_accuracy, rows),
        failures=failures_of(evaluation),
    )


def _draw_accuracy(every: list[Row]) -> Figure:
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


CONFUSION = "confusion"


def run_confusion(setting: Setting) -> Outcome:
    evaluation = setting.run(setting.compared(), setting.splits)
    ours = [row for method in evaluation.methods for row in _counted(setting, evaluation, method)]
    theirs = published.confusion()
    n_odd = sum(not row["sums_to_100"] for row in theirs) // 2  # an entry for each of two classes
    right = (row for row in ours if row["truth"] == row["answer"])
    return Outcome(
        name=CONFUSION,
        title="Confusion matrices",
        note="True classes in rows, answers in columns, in percent of the row. "
        f"{setting.describe()}. {n_odd} published rows, marked *, do not sum to 100: they are "
        "shown as printed.",
        rows=ours + theirs,
        text="; ".join(f"{row['method']} {row['truth']} {row['percent']:.1f} %" for row in right),
        draw=partial(_draw_confusion, ours + theirs),
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


def _draw_confusion(every: list[Row]) -> Figure:
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
