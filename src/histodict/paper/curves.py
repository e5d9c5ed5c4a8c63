"""Miss against false alarm: over the threshold θ for images, over m for regions.

θ : an image is healthy if its share of healthy patches is at least θ, from 0 to 1
m : a region counts from m connected patches on, from 1 to 20; tissue outside the masks is negative

The models are trained once per split; only θ or m is moved. The lowest curve wins.

Accuracy as one size grows: training patches, training images, or bases (k) of each class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..datasets.manifest import Manifest
from ..decision.threshold import MAX_MIN_PATCHES, LargestRegion, SizeCurve
from ..evaluation import Evaluation
from ..evaluation.runs import EvaluationTask
from ..images.pixel_size import PixelSizeOption
from ..model_selection.protocols import learning_curve_splits
from ..models import TissueClassifier
from ..utils.text_io import Row
from . import setting as published
from .plots import by, panels, style
from .setting import (
    CLASS_LEARNERS,
    LEARNERS,
    ON_PATCHES,
    OURS,
    NotPossibleError,
    Outcome,
    Setting,
    accuracy_of,
    failures_of,
    paper_name,
)

ROC = "roc"
THETAS = np.arange(101) / 100
SIZES = np.arange(1, MAX_MIN_PATCHES + 1)
Rates = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class _Curve:
    """(false alarm, miss) of a method for every value of what is moved, "θ" or "m".

    at : the rates where the method works, with the values chosen on training images
    """

    row: Row  # data, source, method
    moved: str
    values: NDArray[np.generic]
    rates: Rates
    at: tuple[float, float]
    chosen: Sequence[float]

    def rows(self) -> list[Row]:
        name = {"data": self.row["data"], "method": self.row["method"], "moved": self.moved}
        points = zip(self.values.tolist(), *self.rates, strict=True)
        return [
            name | {"value": float(value), "false_alarm": float(alarm), "miss": float(miss)}
            for value, alarm, miss in points
        ]

    def point(self) -> Row:
        value = {"moved": self.moved, "mean_value": float(np.mean(self.chosen))}
        return self.row | value | {"false_alarm": self.at[0], "miss": self.at[1]}


def run_roc(setting: Setting) -> Outcome:
    """θ where there are two classes of images, m where there are masks, or both."""
    why = "curves are drawn of methods that judge patches"
    methods = setting.choose(LEARNERS, ON_PATCHES, why)
    curves: list[_Curve] = []
    if setting.dataset.diseased and setting.dataset.images:
        curves += _image_curves(setting, methods)
    if setting.regions is not None:
        curves += _region_curves(setting, setting.regions, methods)
    if not curves:
        raise NotPossibleError(f"{setting.dataset.name}: curves need two classes, or masks")
    rows = [row for curve in curves for row in curve.rows()]
    ours = [curve.point() for curve in curves]
    theirs = _published()
    said = (f"{p['method']} {p['false_alarm']:.2f}/{p['miss']:.2f} ({p['moved']})" for p in ours)
    return Outcome(
        name=ROC,
        title="Misses against false alarms",
        note="The lower the curve, the better. Filled points are where the methods work, with θ or "
        "m chosen on training images; open ones are the published confusion matrices. "
        f"{setting.describe(None if setting.dataset.images else setting.regions)}.",
        rows=rows,
        more={"points": ours + theirs},
        text="false alarm/miss: " + ", ".join(said),
        draw=partial(_draw_roc, rows, ours, theirs),
    )


def _published() -> list[Row]:
    learners = [paper_name(method) for method in LEARNERS]
    return [
        point | {"moved": "m" if point["data"] == "TCGA" else "θ"}
        for point in published.operating_points()
        if point["method"] in learners
    ]


# --- images: θ ----------------------------------------------------------------------------------


def _image_curves(setting: Setting, methods: Sequence[str]) -> Iterator[_Curve]:
    for method in methods:
        tasks = setting.tasks({method: setting.plan(method)}, setting.splits)
        models = setting.trained(tasks)
        shares, diseased, called = _tested(setting, tasks, models)
        rates = theta_rates(shares, diseased, THETAS)
        at = float(np.mean(called[~diseased])), float(np.mean(~called[diseased]))
        chosen = [_theta(model) for model in models]
        yield _Curve(setting.row(method), "θ", THETAS, rates, at, chosen)


def _tested(
    setting: Setting, tasks: Sequence[EvaluationTask], models: Sequence[TissueClassifier]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Of every tested image: its share of healthy patches, what it is, what it was called."""
    ill = setting.dataset.diseased
    shares, diseased, called = [], [], []
    for task, model in zip(tasks, models, strict=True):
        for record in setting.images.select(task.split.test).records:
            answer = model.predict_one(record.path, mpp=PixelSizeOption(table=record.mpp))
            # Nothing but glass shows nothing diseased.
            shares.append(1 - answer.proportions[ill] if ill in answer.proportions else 1.0)
            diseased.append(record.label == ill)
            called.append(answer.label == ill)
    return np.array(shares), np.array(diseased), np.array(called)


def _theta(model: TissueClassifier) -> float:
    """The threshold on the healthy share; the rule's own is on the diseased class's."""
    assert model.aggregator_ is not None
    threshold = model.aggregator_.threshold
    # None: the training images' shares were all the same.
    return np.nan if threshold is None else 1 - threshold


def theta_rates(
    healthy_shares: NDArray[np.float64], diseased: NDArray[np.bool_], thetas: NDArray[np.float64]
) -> Rates:
    """(false alarm, miss) for every θ: an image is called healthy if its share is at least θ."""
    called_healthy = healthy_shares >= thetas[:, None]
    return 1 - called_healthy[:, ~diseased].mean(axis=1), called_healthy[:, diseased].mean(axis=1)


# --- regions: m ---------------------------------------------------------------------------------


def _region_curves(
    setting: Setting, manifest: Manifest, methods: Sequence[str]
) -> Iterator[_Curve]:
    splits = setting.split(manifest)
    for method in methods:
        tasks = setting.tasks({method: setting.plan(method)}, splits)
        models = setting.trained(tasks, manifest)
        findings = [
            model.region_sizes(manifest.select(task.split.test))
            for task, model in zip(tasks, models, strict=True)
        ]
        curve = SizeCurve.of([finding for part in findings for finding in part])
        sizes = [model.min_patches_ for model in models]
        row = setting.row(method) | {"data": f"{setting.dataset.name} regions"}
        yield _Curve(
            row,
            "m",
            SIZES,
            (curve.false_positive_rate, curve.false_negative_rate),
            _at(findings, sizes),
            sizes,
        )


def _at(findings: Sequence[Sequence[LargestRegion]], sizes: Sequence[int]) -> tuple[float, float]:
    """(false alarm, miss) with every split's own m."""
    pairs = [(f, m) for part, m in zip(findings, sizes, strict=True) for f in part]
    alarms = [f.alarm >= m for f, m in pairs if f.alarm is not None]
    misses = [f.found < m for f, m in pairs if f.found is not None]
    return float(np.mean(alarms)), float(np.mean(misses))


# --- the figure ---------------------------------------------------------------------------------


def _draw_roc(curves: list[Row], ours: list[Row], theirs: list[Row]) -> Figure:
    """A panel of curves per data set of ours, then one of published points for θ and for m."""
    parts, published_parts = by(curves, "data"), by(theirs, "moved")
    figure, axes = panels(len(parts) + len(published_parts), width=3.4, height=3.2)
    for place, (data, rows) in zip(axes, parts.items(), strict=False):
        for method, curve in by(rows, "method").items():
            colour, _ = style(method)
            # Between two points only the worse of them is certain.
            ordered = sorted(curve, key=lambda row: (row["false_alarm"], -row["miss"]))
            place.plot(*_rates(ordered), color=colour, drawstyle="steps-post", linewidth=1.6)
        _scatter_points(place, [point for point in ours if point["data"] == data])
        values = [row["value"] for row in rows]
        reach = f"{rows[0]['moved']} from {min(values):g} to {max(values):g}"
        place.set_title(f"{data} ({OURS}), {reach}")
        place.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    for place, (moved, points) in zip(axes[len(parts) :], published_parts.items(), strict=True):
        _scatter_points(place, points, hollow=True)
        for point in points:
            at = (point["false_alarm"], point["miss"])
            name = point["data"].split()[-1]
            place.annotate(name, at, (4, 3), textcoords="offset points", fontsize=6)
        place.set_title(f"published points ({moved})")
        place.set(xlim=(-0.01, 0.42), ylim=(-0.01, 0.42))
    for place in axes:
        place.set(xlabel="false alarm rate", ylabel="miss rate")
        place.legend(fontsize=7)
    return figure


def _scatter_points(place: Axes, points: Sequence[Row], *, hollow: bool = False) -> None:
    for method, own in by(points, "method").items():
        colour, marker = style(method)
        inside = "none" if hollow else colour
        x, y = _rates(own)
        place.scatter(x, y, 40, marker=marker, edgecolors=colour, facecolors=inside, label=method)


def _rates(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["false_alarm"] for row in rows], [row["miss"] for row in rows]


# Data sets of the paper's sweeps.
_SWEPT = ("IBL", "ADL kidney", "ADL lung", "ADL spleen")


@dataclass(frozen=True)
class Sweep:
    """`axis` is what grows; the paper prints its accuracy at the size `published_at` alone."""

    name: str
    title: str
    axis: str
    published_at: str


PATCHES = Sweep(
    "training-patches",
    "Accuracy by number of training patches",
    "patches per class",
    "10,000 patches per class",
)
IMAGES = Sweep(
    "training-images",
    "Accuracy by number of training images",
    "training images per class",
    "10 (IBL) or 40 (ADL) images",
)
BASES = Sweep(
    "bases-count", "Accuracy by number of bases", "bases per class", "500 bases per class"
)


def training_patches(setting: Setting) -> Outcome:
    methods = setting.choose(LEARNERS, ON_PATCHES, "patches are what some methods learn from")
    return _of_plans(setting, PATCHES, methods, "patches_per_class", setting.sizes.patches)


def bases_count(setting: Setting) -> Outcome:
    """A method with one dictionary for all classes gets k atoms for each of them."""
    possible = (*CLASS_LEARNERS, "nayak")
    methods = setting.choose(LEARNERS, possible, "bases are what some methods learn")
    return _of_plans(setting, BASES, methods, "n_atoms", setting.sizes.bases)


def training_images(setting: Setting) -> Outcome:
    """Half of the patients are tested; training sets of the others grow, each part of the next."""
    plans = setting.compared()
    n_repeats = setting.choice.n_repeats
    sizes = training_sizes(setting.images, n_repeats, setting.sizes.n_image_sizes)
    evaluation = setting.run(
        plans, learning_curve_splits(setting.images, sizes, n_repeats=n_repeats)
    )
    rows = [
        setting.row(method) | {IMAGES.axis: size} | accuracy_of(evaluation, method, size)
        for method in evaluation.methods
        for size in sizes
    ]
    return _outcome(setting, IMAGES, rows, evaluation)


def training_sizes(manifest: Manifest, n_repeats: int, n_sizes: int) -> list[int]:
    """Evenly up to as many as every training half has of every class, and from 2 on."""
    most = len(manifest.records)
    for split in learning_curve_splits(manifest, [1], n_repeats=n_repeats):
        tested = set(split.test)
        labels = [label for i, label in enumerate(manifest.labels) if i not in tested]
        most = min(most, *(labels.count(name) for name in manifest.classes))
    if most < 2:
        raise NotPossibleError("the training half of the patients has one image of some class only")
    return np.unique(np.linspace(2, most, n_sizes).round().astype(int)).tolist()


def _of_plans(
    setting: Setting, sweep: Sweep, methods: list[str], grows: str, sizes: Sequence[int]
) -> Outcome:
    """A plan for every method and size, all of them on the same splits."""
    if grows in setting.choice.settings:
        raise ValueError(f"{sweep.name} tries several {grows}: leave out --set {grows}=…")
    steps = {f"{method} {size}": (method, size) for method in methods for size in sizes}
    plans = {name: setting.plan(method, **{grows: size}) for name, (method, size) in steps.items()}
    evaluation = setting.run(plans, setting.splits)
    (per_class,) = evaluation.sizes()
    rows = [
        setting.row(method) | {sweep.axis: size} | accuracy_of(evaluation, name, per_class)
        for name, (method, size) in ((name, steps[name]) for name in evaluation.methods)
    ]
    return _outcome(setting, sweep, rows, evaluation)


def _outcome(setting: Setting, sweep: Sweep, ours: list[Row], evaluation: Evaluation) -> Outcome:
    methods = by(ours, "method")
    columns = ("data", "source", "method", "accuracy")
    theirs = [
        {column: row[column] for column in columns}
        for row in published.accuracies()
        if row["data"] in _SWEPT and row["method"] in methods
    ]
    values = {m: " → ".join(f"{r['accuracy']:.1f}" for r in rows) for m, rows in methods.items()}
    return Outcome(
        name=sweep.name,
        title=sweep.title,
        note=f"{setting.describe()}. Bars are 95 % intervals by patient. Of its curves the paper "
        f"prints no numbers; its accuracies at {sweep.published_at} are shown on the right.",
        rows=ours + theirs,
        text=", ".join(f"{method} {percents} %" for method, percents in values.items()),
        draw=partial(_draw_sweep, sweep, ours, theirs),
        failures=failures_of(evaluation),
    )


def _draw_sweep(sweep: Sweep, ours: Sequence[Row], theirs: Sequence[Row]) -> Figure:
    """Ours as curves, the published accuracies as points on the right."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1.3])
    steps = sorted({row[sweep.axis] for row in ours})
    for place, (method, rows) in enumerate(by(ours, "method").items()):
        colour, marker = style(method)
        # Side by side, so that all intervals can be seen.
        x = [row[sweep.axis] + 0.01 * (place - 3) * (steps[-1] - steps[0]) for row in rows]
        columns = ("accuracy", "low", "high")
        y, low, high = (np.array([row[name] for row in rows]) for name in columns)
        reach = np.maximum([y - low, high - y], 0)
        left.errorbar(x, y, reach, color=colour, marker=marker, elinewidth=0.7)
        left.plot([], [], color=colour, marker=marker, label=method)
    left.set(xlabel=sweep.axis, ylabel="overall accuracy, %", ylim=(0, 104))
    left.set_xticks(steps)
    left.set_title(f"{ours[0]['data']} ({OURS})" if ours else OURS)
    left.legend(fontsize=7, ncols=2)
    names = list(by(theirs, "data"))
    for row in theirs:
        colour, marker = style(row["method"])
        at = names.index(row["data"])
        right.scatter(at, row["accuracy"], 34, marker=marker, edgecolors=colour, facecolors="none")
    right.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7)
    right.set_title(f"published, at\n{sweep.published_at}", fontsize=7)
    return figure
