"""Experiments on accuracy, confusion, ROC curves and training sizes, with published results.

Confidence intervals are by patient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from ..datasets.manifest import Manifest
from ..decision.threshold import MAX_MIN_PATCHES, LargestRegionSizes, RegionSizeCurve
from ..evaluation import Evaluation, evaluate
from ..evaluation.runs import EvaluationTask
from ..images.pixel_size import PixelSizeOption
from ..model_selection.protocols import learning_curve_splits
from ..models import NO_TISSUE_LABEL, TissueClassifier
from ..reports.html import TEXT_COLOUR
from ..utils.text_io import Row
from .setting import (
    CLASS_DICTIONARY_METHODS,
    DICTIONARY_METHODS,
    OURS,
    PATCH_METHODS,
    NotPossibleError,
    Outcome,
    Setting,
    accuracy_row,
    describe_failures,
    draw_bar,
    group_by,
    make_figure,
    method_order,
    method_style,
    paper_name,
    published_accuracies,
    published_confusion,
    published_operating_points,
)

ACCURACY = "accuracy"


def run_accuracy(setting: Setting) -> Outcome:
    """Evaluate all methods on all splits; also write the tables of `histodict evaluate`."""
    plans = setting.compared_plans()
    evaluation = evaluate(
        setting.images, plans, setting.splits, setting.folder, execution=setting.execution
    )
    measured = [
        setting.identifying_columns(method)
        | accuracy_row(evaluation, method, evaluation.sizes()[0])
        for method in evaluation.methods
    ]
    rows = measured + published_accuracies()
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
        failures=describe_failures(evaluation),
    )


def _draw_accuracy(all_rows: list[Row]) -> Figure:
    """Draw one panel of bars per data set."""
    by_data = group_by(all_rows, "data")
    n_lines = max(len(rows) for rows in by_data.values())
    figure, axes = make_figure(len(by_data), width=3.4, height=2.4)
    for ax, (data, data_rows) in zip(axes, by_data.items(), strict=True):
        rows = sorted(data_rows, key=method_order)
        for y, row in enumerate(rows):
            is_measured = row["source"] == OURS
            draw_bar(ax, y, row["accuracy"], row["method"], filled=is_measured)
            if is_measured:
                interval = [row["low"], row["high"]]
                ax.plot(interval, [y, y], color=TEXT_COLOUR, linewidth=1.2, marker="|")
            colour = "white" if is_measured else TEXT_COLOUR
            ax.text(1, y, f"{row['accuracy']:.1f}", va="center", color=colour)
        ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
        ax.set_ylim(n_lines - 0.4, -0.6)  # equal bar widths in all panels
        title = f"{data} ({rows[0]['source']})"
        ax.set(xlim=(0, 100), xlabel="overall accuracy, %", title=title)
    return figure


CONFUSION = "confusion"


def run_confusion(setting: Setting) -> Outcome:
    """Compute the confusion matrices of all methods on all splits."""
    evaluation = setting.run(setting.compared_plans(), setting.splits)
    measured = [
        row for method in evaluation.methods for row in _confusion_rows(setting, evaluation, method)
    ]
    published_rows = published_confusion()
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
        failures=describe_failures(evaluation),
    )


def _confusion_rows(setting: Setting, evaluation: Evaluation, method: str) -> list[Row]:
    """Return a table row per entry of a method's confusion matrix, summed over repeats.

    Test images without tissue are counted in an additional column.
    """
    repeats = evaluation.repeats(method, evaluation.sizes()[0], "labels")
    truth = np.concatenate([repeat.labels for repeat in repeats])
    predicted = np.concatenate([repeat.predictions for repeat in repeats])
    classes = setting.dataset.classes
    columns = [*classes, NO_TISSUE_LABEL] if NO_TISSUE_LABEL in predicted else classes
    counts = confusion_matrix(truth, predicted, labels=columns)[: len(classes)]
    return [
        setting.identifying_columns(method)
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


def _draw_confusion(all_rows: list[Row]) -> Figure:
    """Draw one panel per data set, with the matrices of its methods below each other."""
    by_data = group_by(all_rows, "data")
    n_lines = max(len({(r["method"], r["truth"]) for r in rows}) for rows in by_data.values())
    figure, axes = make_figure(len(by_data), width=3.6, height=0.8 + 0.22 * n_lines)
    for ax, (data, rows) in zip(axes, by_data.items(), strict=True):
        _draw_matrices(ax, sorted(rows, key=method_order))
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
        colour = "white" if value > 70 else TEXT_COLOUR  # contrast to the background
        text = f"{value:.2f}{suffix}"
        ax.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(lines)), [f"{method}: {truth}" for method, truth in lines])
    ax.tick_params(labelsize=7, length=0)
    n_classes = len({truth for _, truth in lines})
    for y in range(n_classes, len(lines), n_classes):
        ax.axhline(y - 0.5, color=TEXT_COLOUR, linewidth=0.8)


ROC = "roc"
THETAS = np.arange(101) / 100
REGION_SIZES = np.arange(1, MAX_MIN_PATCHES + 1)  # values of m
Rates = tuple[NDArray[np.float64], NDArray[np.float64]]  # false alarm and miss rates


@dataclass(frozen=True)
class _Curve:
    """ROC curve of a method over one threshold: fraction θ (images) or region size m (regions).

    Attributes
    ----------
    row : table columns that identify the curve: "data", "source" and "method"
    parameter : name of the threshold, "θ" or "m"
    values : (n_thresholds,), thresholds
    rates : false alarm rates and miss rates, (n_thresholds,) each
    operating_point : (false alarm rate, miss rate) at the thresholds chosen on training images
    chosen_values : threshold chosen on the training images of each split
    """

    row: Row
    parameter: str
    values: NDArray[np.generic]
    rates: Rates
    operating_point: tuple[float, float]
    chosen_values: Sequence[float]

    def rows(self) -> list[Row]:
        """Return a table row per threshold."""
        name = {"data": self.row["data"], "method": self.row["method"], "parameter": self.parameter}
        points = zip(self.values.tolist(), *self.rates, strict=True)
        return [
            name | {"value": float(value), "false_alarm": float(alarm), "miss": float(miss)}
            for value, alarm, miss in points
        ]

    def operating_point_row(self) -> Row:
        """Return the table row of the operating point."""
        value = {"parameter": self.parameter, "mean_value": float(np.mean(self.chosen_values))}
        return (
            self.row
            | value
            | {"false_alarm": self.operating_point[0], "miss": self.operating_point[1]}
        )


def run_roc(setting: Setting) -> Outcome:
    """Compute ROC curves of images over θ, and of regions over m.

    θ is the minimum fraction of healthy patches of a healthy image, m the minimum number of
    patches of a region.
    """
    reason = "curves need methods that classify patches"
    methods = setting.choose_methods(DICTIONARY_METHODS, PATCH_METHODS, reason)
    curves: list[_Curve] = []
    if setting.dataset.diseased_class and setting.dataset.images:
        curves += _image_curves(setting, methods)
    if setting.regions is not None:
        curves += _region_curves(setting, setting.regions, methods)
    if not curves:
        raise NotPossibleError(f"{setting.dataset.name}: curves need two classes or masks")
    rows = [row for curve in curves for row in curve.rows()]
    measured = [curve.operating_point_row() for curve in curves]
    published_points = _published_points()
    summaries = (
        f"{point['method']} {point['false_alarm']:.2f}/{point['miss']:.2f} ({point['parameter']})"
        for point in measured
    )
    return Outcome(
        name=ROC,
        title="Miss rate and false alarm rate",
        note=(
            "Lower curves are better. Filled points are the operating points, with θ or m chosen "
            "on training images; open points are the published confusion matrices. "
            f"{setting.describe(None if setting.dataset.images else setting.regions)}."
        ),
        rows=rows,
        extra_tables={"points": measured + published_points},
        text="false alarm/miss: " + ", ".join(summaries),
        draw=partial(_draw_roc, rows, measured, published_points),
    )


def _published_points() -> list[Row]:
    learners = [paper_name(method) for method in DICTIONARY_METHODS]
    return [
        point | {"parameter": "m" if point["data"] == "TCGA" else "θ"}
        for point in published_operating_points()
        if point["method"] in learners
    ]


# --- images: θ ----------------------------------------------------------------------------------


def _image_curves(setting: Setting, methods: Sequence[str]) -> Iterator[_Curve]:
    for method in methods:
        tasks = setting.tasks({method: setting.plan(method)}, setting.splits)
        models = setting.train_models(tasks)
        healthy_fractions, diseased, predicted = _predict_test_images(setting, tasks, models)
        rates = theta_rates(healthy_fractions, diseased, THETAS)
        at = float(np.mean(predicted[~diseased])), float(np.mean(~predicted[diseased]))
        chosen = [_healthy_fraction_threshold(model) for model in models]
        yield _Curve(setting.identifying_columns(method), "θ", THETAS, rates, at, chosen)


def _predict_test_images(
    setting: Setting, tasks: Sequence[EvaluationTask], models: Sequence[TissueClassifier]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Predict all test images.

    Returns
    -------
    healthy_fractions : (n_images,), fraction of healthy patches
    diseased : (n_images,), whether the true class is the diseased class
    predicted : (n_images,), whether the predicted class is the diseased class
    """
    positive_class = setting.dataset.diseased_class
    healthy_fractions, diseased, predicted = [], [], []
    for task, model in zip(tasks, models, strict=True):
        for record in setting.images.select(task.split.test).records:
            prediction = model.predict_one(record.path, mpp=PixelSizeOption(table=record.mpp))
            # Images without tissue count as healthy.
            healthy_fractions.append(
                1 - prediction.proportions[positive_class]
                if positive_class in prediction.proportions
                else 1.0
            )
            diseased.append(record.label == positive_class)
            predicted.append(prediction.top_label == positive_class)
    return np.array(healthy_fractions), np.array(diseased), np.array(predicted)


def _healthy_fraction_threshold(model: TissueClassifier) -> float:
    """Return the threshold of a model as a fraction of healthy patches; NaN if it has none."""
    assert model.aggregator_ is not None
    threshold = model.aggregator_.threshold
    # None if the fractions of all training images are equal.
    return np.nan if threshold is None else 1 - threshold


def theta_rates(
    healthy_fractions: NDArray[np.float64], diseased: NDArray[np.bool_], thetas: NDArray[np.float64]
) -> Rates:
    """Return (false alarm, miss) rates at each θ in `thetas`.

    An image is called healthy if its fraction of healthy patches is at least θ.
    """
    called_healthy = healthy_fractions >= thetas[:, None]
    return 1 - called_healthy[:, ~diseased].mean(axis=1), called_healthy[:, diseased].mean(axis=1)


# --- regions: m ---------------------------------------------------------------------------------


def _region_curves(
    setting: Setting, manifest: Manifest, methods: Sequence[str]
) -> Iterator[_Curve]:
    splits = setting.split(manifest)
    for method in methods:
        tasks = setting.tasks({method: setting.plan(method)}, splits)
        models = setting.train_models(tasks, manifest)
        largest_regions = [
            model.region_sizes(manifest.select(task.split.test))
            for task, model in zip(tasks, models, strict=True)
        ]
        curve = RegionSizeCurve.from_regions(
            [finding for part in largest_regions for finding in part]
        )
        sizes = [model.min_patches_ for model in models]
        row = setting.identifying_columns(method) | {"data": f"{setting.dataset.name} regions"}
        yield _Curve(
            row,
            "m",
            REGION_SIZES,
            (curve.false_positive_rate, curve.false_negative_rate),
            _rates_at_sizes(largest_regions, sizes),
            sizes,
        )


def _rates_at_sizes(
    largest_regions: Sequence[Sequence[LargestRegionSizes]], sizes: Sequence[int]
) -> tuple[float, float]:
    """Return the rates (false alarm, miss) of all test images.

    Parameters
    ----------
    largest_regions : for each split, the largest regions of its test images
    sizes : for each split, the minimum region size m
    """
    pairs = [(f, m) for part, m in zip(largest_regions, sizes, strict=True) for f in part]
    alarms = [f.false_positive_size >= m for f, m in pairs if f.false_positive_size is not None]
    misses = [f.true_positive_size < m for f, m in pairs if f.true_positive_size is not None]
    return float(np.mean(alarms)), float(np.mean(misses))


# --- figure -------------------------------------------------------------------------------------


def _draw_roc(curves: list[Row], measured: list[Row], published_points: list[Row]) -> Figure:
    """Draw one panel of measured curves per data set, and panels of published points."""
    by_data, published_parts = group_by(curves, "data"), group_by(published_points, "parameter")
    figure, axes = make_figure(len(by_data) + len(published_parts), width=3.4, height=3.2)
    for ax, (data, rows) in zip(axes, by_data.items(), strict=False):
        for method, curve in group_by(rows, "method").items():
            colour, _ = method_style(method)
            # Steps, as between two points only the worse one is guaranteed.
            ordered = sorted(curve, key=lambda row: (row["false_alarm"], -row["miss"]))
            ax.plot(*_rate_columns(ordered), color=colour, drawstyle="steps-post", linewidth=1.6)
        _scatter_points(ax, [point for point in measured if point["data"] == data])
        values = [row["value"] for row in rows]
        value_range = f"{rows[0]['parameter']} from {min(values):g} to {max(values):g}"
        ax.set_title(f"{data} ({OURS}), {value_range}")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    for ax, (parameter, points) in zip(axes[len(by_data) :], published_parts.items(), strict=True):
        _scatter_points(ax, points, hollow=True)
        for point in points:
            position = (point["false_alarm"], point["miss"])
            name = point["data"].split()[-1]
            ax.annotate(name, position, (4, 3), textcoords="offset points", fontsize=6)
        ax.set_title(f"published points ({parameter})")
        ax.set(xlim=(-0.01, 0.42), ylim=(-0.01, 0.42))
    for ax in axes:
        ax.set(xlabel="false alarm rate", ylabel="miss rate")
        ax.legend(fontsize=7)
    return figure


def _scatter_points(ax: Axes, points: Sequence[Row], *, hollow: bool = False) -> None:
    for method, points_of_method in group_by(points, "method").items():
        colour, marker = method_style(method)
        fill = "none" if hollow else colour
        x, y = _rate_columns(points_of_method)
        ax.scatter(x, y, 40, marker=marker, edgecolors=colour, facecolors=fill, label=method)


def _rate_columns(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["false_alarm"] for row in rows], [row["miss"] for row in rows]


# Data sets of the paper's sweeps.
_SWEEP_DATASETS = ("IBL", "ADL kidney", "ADL lung", "ADL spleen")


@dataclass(frozen=True)
class Sweep:
    """Experiment that varies a size, such as the number of training images.

    Attributes
    ----------
    name : name of the experiment and its files
    title : heading
    axis : name of the size, for axes and tables
    published_at : text that states the size for which the paper prints accuracies
    """

    name: str
    title: str
    axis: str
    published_at: str


PATCH_SWEEP = Sweep(
    "training-patches",
    "Accuracy by number of training patches",
    "patches per class",
    "10,000 patches per class",
)
IMAGE_SWEEP = Sweep(
    "training-images",
    "Accuracy by number of training images",
    "training images per class",
    "10 (IBL) or 40 (ADL) images",
)
BASES_SWEEP = Sweep(
    "bases-count", "Accuracy by number of bases", "bases per class", "500 bases per class"
)


def run_training_patches(setting: Setting) -> Outcome:
    """Compute the accuracy by number of training patches."""
    methods = setting.choose_methods(
        DICTIONARY_METHODS,
        PATCH_METHODS,
        "this experiment needs methods that are trained on patches",
    )
    return _run_sweep(setting, PATCH_SWEEP, methods, "patches_per_class", setting.sizes.patches)


def run_bases_count(setting: Setting) -> Outcome:
    """Compute the accuracy by number k of bases per class.

    A method with one dictionary for all classes gets k atoms for each class.
    """
    possible = (*CLASS_DICTIONARY_METHODS, "nayak")
    methods = setting.choose_methods(
        DICTIONARY_METHODS, possible, "this experiment needs methods that learn bases"
    )
    return _run_sweep(setting, BASES_SWEEP, methods, "n_atoms", setting.sizes.bases)


def run_training_images(setting: Setting) -> Outcome:
    """Compute the accuracy by number of training images per class.

    Half of the patients are tested; nested training sets are drawn from the others.
    """
    plans = setting.compared_plans()
    n_repeats = setting.options.n_repeats
    sizes = training_sizes(setting.images, n_repeats, setting.sizes.n_image_sizes)
    evaluation = setting.run(
        plans, learning_curve_splits(setting.images, sizes, n_repeats=n_repeats)
    )
    rows = [
        setting.identifying_columns(method)
        | {IMAGE_SWEEP.axis: size}
        | accuracy_row(evaluation, method, size)
        for method in evaluation.methods
        for size in sizes
    ]
    return _sweep_outcome(setting, IMAGE_SWEEP, rows, evaluation)


def training_sizes(manifest: Manifest, n_repeats: int, n_sizes: int) -> list[int]:
    """Return evenly spaced numbers of training images per class, from 2 to the largest possible."""
    maximum = len(manifest.records)
    for split in learning_curve_splits(manifest, [1], n_repeats=n_repeats):
        test = set(split.test)
        labels = [label for i, label in enumerate(manifest.labels) if i not in test]
        maximum = min(maximum, *(labels.count(name) for name in manifest.classes))
    if maximum < 2:
        raise NotPossibleError("the training half of the patients has only one image of a class")
    return np.unique(np.linspace(2, maximum, n_sizes).round().astype(int)).tolist()


def _run_sweep(
    setting: Setting, sweep: Sweep, methods: list[str], parameter: str, sizes: Sequence[int]
) -> Outcome:
    """Evaluate every method on the same splits, with each of `sizes` as `parameter`."""
    if parameter in setting.options.settings:
        raise ValueError(f"{sweep.name} varies {parameter}; omit --set {parameter}=…")
    steps = {f"{method} {size}": (method, size) for method in methods for size in sizes}
    plans = {
        name: setting.plan(method, **{parameter: size}) for name, (method, size) in steps.items()
    }
    evaluation = setting.run(plans, setting.splits)
    (per_class,) = evaluation.sizes()
    rows = [
        setting.identifying_columns(method)
        | {sweep.axis: size}
        | accuracy_row(evaluation, name, per_class)
        for name, (method, size) in ((name, steps[name]) for name in evaluation.methods)
    ]
    return _sweep_outcome(setting, sweep, rows, evaluation)


def _sweep_outcome(
    setting: Setting, sweep: Sweep, measured: list[Row], evaluation: Evaluation
) -> Outcome:
    methods = group_by(measured, "method")
    columns = ("data", "source", "method", "accuracy")
    published_rows = [
        {column: row[column] for column in columns}
        for row in published_accuracies()
        if row["data"] in _SWEEP_DATASETS and row["method"] in methods
    ]
    values = {
        method: " → ".join(f"{r['accuracy']:.1f}" for r in rows) for method, rows in methods.items()
    }
    return Outcome(
        name=sweep.name,
        title=sweep.title,
        note=(
            f"{setting.describe()}. Bars are 95 % intervals by patient. The paper prints no "
            f"numbers of its curves; its accuracies at {sweep.published_at} are shown on the "
            "right."
        ),
        rows=measured + published_rows,
        text=", ".join(f"{method} {percents} %" for method, percents in values.items()),
        draw=partial(_draw_sweep, sweep, measured, published_rows),
        failures=describe_failures(evaluation),
    )


def _draw_sweep(sweep: Sweep, measured: Sequence[Row], published_rows: Sequence[Row]) -> Figure:
    """Draw measured accuracies as curves, and published ones as points on the right."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1.3])
    steps = sorted({row[sweep.axis] for row in measured})
    for index, (method, rows) in enumerate(group_by(measured, "method").items()):
        colour, marker = method_style(method)
        # Shifted, so that all intervals are visible.
        x = [row[sweep.axis] + 0.01 * (index - 3) * (steps[-1] - steps[0]) for row in rows]
        columns = ("accuracy", "low", "high")
        y, low, high = (np.array([row[name] for row in rows]) for name in columns)
        errors = np.maximum([y - low, high - y], 0)
        left.errorbar(x, y, errors, color=colour, marker=marker, elinewidth=0.7)
        left.plot([], [], color=colour, marker=marker, label=method)
    left.set(xlabel=sweep.axis, ylabel="overall accuracy, %", ylim=(0, 104))
    left.set_xticks(steps)
    left.set_title(f"{measured[0]['data']} ({OURS})" if measured else OURS)
    left.legend(fontsize=7, ncols=2)
    names = list(group_by(published_rows, "data"))
    for row in published_rows:
        colour, marker = method_style(row["method"])
        position = names.index(row["data"])
        right.scatter(
            position, row["accuracy"], 34, marker=marker, edgecolors=colour, facecolors="none"
        )
    right.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7)
    right.set_title(f"published, at\n{sweep.published_at}", fontsize=7)
    return figure
