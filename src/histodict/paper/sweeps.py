"""Accuracy as one size grows: training patches, training images, or bases (k) of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from ..compare.evaluation import Evaluation
from ..evaluation.protocols import learning_curve_splits
from ..execution.tables import Row
from ..images.manifest import Manifest
from . import published
from .look import by, style
from .outcome import OURS, Outcome, accuracy_of, failures_of
from .setting import CLASS_LEARNERS, LEARNERS, ON_PATCHES, NotPossibleError, Setting

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
        draw=partial(_draw, sweep, ours, theirs),
        failures=failures_of(evaluation),
    )


def _draw(sweep: Sweep, ours: Sequence[Row], theirs: Sequence[Row]) -> Figure:
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
