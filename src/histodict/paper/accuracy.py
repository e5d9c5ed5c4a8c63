"""Overall accuracy with intervals by patient, and confusion matrices, beside published ones."""

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
from .setting import OURS, Outcome, Setting, accuracy_of, bar, by, failures_of, figure_grid, rank

ACCURACY = "accuracy"


def run_accuracy(setting: Setting) -> Outcome:
    """Evaluate all methods on all splits; also write the tables of `histodict evaluate`."""
    evaluation = evaluate(
        setting.images, setting.compared(), setting.splits, setting.folder, work=setting.work
    )
    measured = [
        setting.row(method) | accuracy_of(evaluation, method, evaluation.sizes()[0])
        for method in evaluation.methods
    ]
    rows = measured + published.accuracies()
    return Outcome(
        name=ACCURACY,
        title="Overall accuracy",
        note=(
            "Fraction of correctly classified test images, with 95 % intervals by patient: "
            f"{setting.describe()}. Published values are quoted from the text (see the table) or, "
            "where the text has none, computed from the published confusion matrix."
        ),
        rows=rows,
        text=", ".join(f"{row['method']} {row['accuracy']:.1f} %" for row in measured),
        draw=partial(_draw_accuracy, rows),
        failures=failures_of(evaluation),
    )


def _draw_accuracy(all_rows: list[Row]) -> Figure:
    """Draw one panel of bars per data set."""
    by_data = by(all_rows, "data")
    n_lines = max(len(rows) for rows in by_data.values())
    figure, axes = figure_grid(len(by_data), width=3.4, height=2.4)
    for ax, (data, data_rows) in zip(axes, by_data.items(), strict=True):
        rows = sorted(data_rows, key=rank)
        for y, row in enumerate(rows):
            is_measured = row["source"] == OURS
            bar(ax, y, row["accuracy"], row["method"], filled=is_measured)
            if is_measured:
                interval = [row["low"], row["high"]]
                ax.plot(interval, [y, y], color=INK, linewidth=1.2, marker="|")
            ax.text(
                1, y, f"{row['accuracy']:.1f}", va="center", color="white" if is_measured else INK
            )
        ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
        ax.set_ylim(n_lines - 0.4, -0.6)  # equal bar widths in all panels
        title = f"{data} ({rows[0]['source']})"
        ax.set(xlim=(0, 100), xlabel="overall accuracy, %", title=title)
    return figure


CONFUSION = "confusion"


def run_confusion(setting: Setting) -> Outcome:
    """Compute the confusion matrices of all methods on all splits."""
    evaluation = setting.run(setting.compared(), setting.splits)
    measured = [
        row for method in evaluation.methods for row in _confusion_rows(setting, evaluation, method)
    ]
    published_rows = published.confusion()
    n_inconsistent = (
        sum(not row["sums_to_100"] for row in published_rows) // 2
    )  # one entry per class
    correct = (row for row in measured if row["truth"] == row["predicted"])
    return Outcome(
        name=CONFUSION,
        title="Confusion matrices",
        note=(
            "True classes in rows, predicted classes in columns, in percent of the row. "
            f"{setting.describe()}. {n_inconsistent} published rows (*) do not sum to 100 "
            "and are shown as printed."
        ),
        rows=measured + published_rows,
        text="; ".join(f"{row['method']} {row['truth']} {row['percent']:.1f} %" for row in correct),
        draw=partial(_draw_confusion, measured + published_rows),
        failures=failures_of(evaluation),
    )


def _confusion_rows(setting: Setting, evaluation: Evaluation, method: str) -> list[Row]:
    """Return the confusion matrix of all repeats, with a column for images without tissue."""
    repeats = evaluation.repeats(method, evaluation.sizes()[0], "labels")
    truth = np.concatenate([repeat.labels for repeat in repeats])
    predicted = np.concatenate([repeat.predictions for repeat in repeats])
    classes = setting.dataset.classes
    columns = [*classes, NO_TISSUE_LABEL] if NO_TISSUE_LABEL in predicted else classes
    counts = confusion_matrix(truth, predicted, labels=columns)[: len(classes)]
    return [
        setting.row(method)
        | {
            "truth": name,
            "predicted": column,
            "percent": 100 * int(count) / max(int(counts_of_class.sum()), 1),
            "images": int(count),
            "sums_to_100": True,
        }
        for name, counts_of_class in zip(classes, counts, strict=True)
        for column, count in zip(columns, counts_of_class, strict=True)
    ]


def _draw_confusion(every: list[Row]) -> Figure:
    """Draw the matrices of all methods below each other, one panel per data set."""
    by_data = by(every, "data")
    n_lines = max(len({(r["method"], r["truth"]) for r in rows}) for rows in by_data.values())
    figure, axes = figure_grid(len(by_data), width=3.6, height=0.8 + 0.22 * n_lines)
    for ax, (data, rows) in zip(axes, by_data.items(), strict=True):
        _draw_matrices(ax, sorted(rows, key=rank))
        ax.set_title(f"{data} ({rows[0]['source']}), %")
    return figure


def _draw_matrices(ax: Axes, rows: list[Row]) -> None:
    lines = list(dict.fromkeys((row["method"], row["truth"]) for row in rows))
    columns = list(dict.fromkeys(row["predicted"] for row in rows))
    # Predictions that a method never made, such as no tissue, have no row.
    cells: dict[tuple[str, ...], Row] = defaultdict(lambda: {"percent": 0.0, "sums_to_100": True})
    cells |= {(row["method"], row["truth"], row["predicted"]): row for row in rows}
    percentages = np.array(
        [[cells[(*line, column)]["percent"] for column in columns] for line in lines]
    )
    ax.imshow(percentages, cmap="Blues", vmin=0, vmax=130, aspect="auto")
    for (y, x), value in np.ndenumerate(percentages):
        suffix = "" if cells[(*lines[y], columns[x])]["sums_to_100"] else " *"
        colour = "white" if value > 70 else INK  # contrast to the background
        text = f"{value:.2f}{suffix}"
        ax.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(lines)), [f"{method}: {truth}" for method, truth in lines])
    ax.tick_params(labelsize=7, length=0)
    n_classes = len({truth for _, truth in lines})
    for y in range(n_classes, len(lines), n_classes):
        ax.axhline(y - 0.5, color=INK, linewidth=0.8)
