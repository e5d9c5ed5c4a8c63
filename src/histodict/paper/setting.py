"""What the experiments on one data set share: images, methods, sizes, and where results go.

What an experiment gives: words, tables, and a figure.

The sizes that decide what training costs.

The paper's own figures, as printed, in rows like ours.

Vu, Mousavi, Monga, Rao, Rao, "Histopathological image classification using discriminative
feature-oriented dictionary learning", IEEE Transactions on Medical Imaging, 2016: the confusion
matrices, the accuracies named in the text of section III-C, the operation counts and run times.
The curves of its figures are not printed as numbers and are not here.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..datasets.manifest import Manifest
from ..encoders import get_patch_features
from ..evaluation import Evaluation, check_measurable, run_evaluation, trained_model
from ..evaluation.runs import EvaluationTask
from ..methods.registry import METHODS
from ..metrics import scores as metrics
from ..metrics.intervals import bootstrap_interval
from ..model_selection.protocols import k_folds, learning_curve_splits
from ..model_selection.splits import Splits
from ..models import Plan
from ..utils.parallel import ExecutionOptions
from ..utils.progress import Progress
from ..utils.text_io import Row
from .image_sets import Dataset

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


@dataclass(frozen=True)
class Problem:
    """n_samples and n_atoms are per class; the defaults are the paper's."""

    n_classes: int = 2
    n_atoms: int = 500
    n_samples: int = 10_000
    n_features: int = 1200
    n_nonzero: int = 30
    n_iter: int = 50

    def __str__(self) -> str:
        return (
            f"c = {self.n_classes}, k = {self.n_atoms}, N = {self.n_samples}, "
            f"d = {self.n_features}, L = {self.n_nonzero}"
        )


PAPER_PROBLEM = Problem()
SMALL_PROBLEM = Problem(n_atoms=50, n_samples=1000, n_features=300, n_nonzero=10, n_iter=5)


# Our names of the methods, and the paper's.
PAPER_NAMES = {
    "wndcharm": "WND-CHARM",
    "src-image": "SRC",
    "shirc": "SHIRC",
    "fddl": "FDDL",
    "lcksvd": "LC-KSVD",
    "nayak": "Nayak's",
    "dfdl": "DFDL",
}
# Data sets, with the names of the healthy and the diseased class.
CLASSES = {
    "IBL": ("UDH", "DCIS"),
    "ADL kidney": ("healthy", "inflammatory"),
    "ADL lung": ("healthy", "inflammatory"),
    "ADL spleen": ("healthy", "inflammatory"),
    "TCGA": ("not MVP", "MVP"),
}
# What is left of the 133 and 57 images after 20 of each class for training.
_TESTED = {"TCGA": (113, 37)}
_ROUNDING = 0.005  # of a sum of two percentages with two decimals


def paper_name(method: str) -> str:
    """The name in tables and figures."""
    return PAPER_NAMES.get(method, method)


def confusion() -> list[Row]:
    """The matrices in percent of the true class, in the order of CLASSES and of the paper's table.

    Some printed rows do not sum to 100; they are kept as they are, and marked.
    """
    rows: list[Row] = []
    for data, classes in CLASSES.items():
        truths = dict(zip(("healthy", "diseased"), classes, strict=True))
        for line in (line for line in read_table("confusion") if line["dataset"] == data):
            percents = float(line["called_healthy"]), float(line["called_diseased"])
            whole = abs(round(percents[0] + percents[1], 2) - 100) < _ROUNDING
            rows += [
                _row(data, line["method"])
                | {"truth": truths[line["truth"]], "answer": answer, "percent": percent}
                | {"sums_to_100": whole}
                for answer, percent in zip(classes, percents, strict=True)
            ]
    return rows


def accuracies() -> list[Row]:
    """Overall, in percent: as the text prints it, else the mean of test images by the matrix."""
    printed = {(line["dataset"], line["method"]): line for line in read_table("accuracy")}
    right = [row for row in confusion() if row["truth"] == row["answer"]]
    rows: list[Row] = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in right):
        said = printed.get((data, method))
        weights = dict(zip(CLASSES[data], _TESTED.get(data, (1, 1)), strict=True))
        own = [row for row in right if (row["data"], row["method"]) == (data, method)]
        mean = sum(weights[row["truth"]] * row["percent"] for row in own) / sum(weights.values())
        accuracy = round(float(said["percent"]) if said else mean, 2)
        text = said["printed"] if said else "from the confusion matrix"
        rows.append(_row(data, method) | {"accuracy": accuracy, "printed": text})
    return rows


def operating_points() -> list[Row]:
    """False alarm and miss rate of every method, from the confusion matrices."""
    rows = confusion()
    rates = {(r["data"], r["method"], r["truth"], r["answer"]): r["percent"] / 100 for r in rows}
    points = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        healthy, ill = CLASSES[data]
        alarm, miss = rates[data, method, healthy, ill], rates[data, method, ill, healthy]
        points.append(_row(data, method) | {"false_alarm": alarm, "miss": miss})
    return points


def _row(data: str, method: str) -> Row:
    return {"data": data, "source": "published", "method": method}


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of tables/<name>.csv."""
    text = files(__package__).joinpath(f"tables/{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


# What the paper compares, the proposed method first; and those that learn dictionaries.
COMPARED = ("dfdl", "lcksvd", "fddl", "nayak", "src-image", "shirc", "wndcharm")
LEARNERS = ("dfdl", "lcksvd", "fddl", "nayak")
# Methods that give every class atoms of its own.
CLASS_LEARNERS = ("dfdl", "lcksvd", "fddl", "odl")
ON_PATCHES = tuple(name for name, entry in METHODS.items() if entry.is_patch_level)
_SEED = 0


class NotPossibleError(ValueError):
    """The experiment cannot be made with this data or these methods."""


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    max_images : of each class; None for all
    recipe, parameters : changes of recipes, and of those methods that have such parameters
    n_atoms : bases per class (k); None for the preset's
    patches, bases : what the sweeps try
    n_image_sizes : how many numbers of training images are tried
    synthetic : patients, images of each, and their (width, height)
    timed : what run times are measured on
    """

    max_images: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    n_atoms: int | None = None
    patches: tuple[int, ...] = (1_000, 2_500, 5_000, 7_500, 10_000)
    bases: tuple[int, ...] = (200, 300, 400, 500, 600)
    n_image_sizes: int = 5
    synthetic: tuple[int, int, tuple[int, int]] = (20, 6, (480, 360))
    timed: Problem = SMALL_PROBLEM


FULL = Sizes()
QUICK = Sizes(
    max_images=12,
    recipe={"patch_px": 16, "patches_per_class": 600},
    parameters={"n_iter": 4, "n_epochs": 2, "n_coding_steps": 10, "n_nonzero": 5},
    n_atoms=24,
    patches=(100, 300, 600),
    bases=(8, 16, 24),
    n_image_sizes=3,
    synthetic=(12, 2, (208, 160)),
)


@dataclass(frozen=True)
class Choice:
    """What the user asked for; () and None leave it to the experiment or the data set.

    settings : recipe settings as text, as `train --set` takes them
    per_class : training images of each class; else those of half of the patients
    """

    methods: tuple[str, ...] = ()
    preset: str = "paper"
    settings: Mapping[str, str] = field(default_factory=dict)
    per_class: int | None = None
    n_repeats: int = 1

    def __post_init__(self) -> None:
        asked = [Plan.named(self.preset, method) for method in self.methods or COMPARED]
        for name in self.settings:
            if not any(plan.has_setting(name) for plan in asked):
                raise ValueError(f"none of the methods has a setting {name!r}")


@dataclass(frozen=True)
class Setting:
    """One data set under one choice; `folder` holds trainings and features, to be used again."""

    dataset: Dataset
    folder: Path
    sizes: Sizes = FULL
    choice: Choice = field(default_factory=Choice)
    work: ExecutionOptions = ExecutionOptions()  # noqa: RUF009 (it is frozen)

    @cached_property
    def images(self) -> Manifest:
        """The labelled images that take part."""
        if self.dataset.images is None:
            raise NotPossibleError(f"{self.dataset.name}: its images have no classes, only masks")
        return few_images(self.dataset.images, self.sizes.max_images)

    @cached_property
    def regions(self) -> Manifest | None:
        if self.dataset.regions is None:
            return None
        return few_images(self.dataset.regions, self.sizes.max_images)

    def choose(self, usual: Sequence[str], possible: Sequence[str], why: str) -> list[str]:
        """The methods asked for that the experiment can show; the usual ones if none were named."""
        if not self.choice.methods:
            return list(usual)
        chosen = [method for method in self.choice.methods if method in possible]
        if not chosen:
            raise NotPossibleError(f"{why}: choose among {', '.join(possible)}")
        return chosen

    def plans(self, usual: Sequence[str], possible: Sequence[str], why: str) -> dict[str, Plan]:
        """By method, of those chosen."""
        return {method: self.plan(method) for method in self.choose(usual, possible, why)}

    def compared(self) -> dict[str, Plan]:
        """The plans of experiments that compare all methods."""
        return self.plans(COMPARED, tuple(METHODS), "every method can be compared")

    def plan(self, method: str, *, n_atoms: int | None = None, **changes: Any) -> Plan:
        """The preset at this size, judged by the proportion of patches as in the paper.

        `n_atoms` is k, per class; a method with one dictionary for all gets as many for each.
        """
        plan = Plan.named(self.choice.preset, method)
        chosen = plan.recipe
        parameters = {k: v for k, v in self.sizes.parameters.items() if chosen.has_setting(k)}
        n_atoms = n_atoms or self.sizes.n_atoms
        if n_atoms and method in (*CLASS_LEARNERS, "nayak"):
            shared = len(self.dataset.classes) if method == "nayak" else 1
            parameters["n_atoms"] = n_atoms * max(shared, 1)
        changed = dict(self.sizes.recipe)
        if not get_patch_features(chosen.features).are_images:
            changed.pop("patch_px", None)  # a network's cells have their own size
        chosen = chosen.with_changes(
            method_parameters=chosen.method_parameters | parameters,
            aggregation="proportion",
            **changed,
        )
        own = {k: text for k, text in self.choice.settings.items() if plan.has_setting(k)}
        plan = replace(plan, recipe=chosen).parse_settings(own)
        return replace(plan, recipe=plan.recipe.with_changes(**changes))

    @cached_property
    def splits(self) -> Splits:
        """By patient: as many training images as asked for, or two halves, each tested once."""
        return self.split(self.images)

    def split(self, manifest: Manifest) -> Splits:
        n_repeats = self.choice.n_repeats
        if self.choice.per_class is not None:
            return learning_curve_splits(manifest, [self.choice.per_class], n_repeats=n_repeats)
        return k_folds(manifest, 2, n_repeats=n_repeats)

    def tasks(self, plans: Mapping[str, Plan], splits: Splits) -> list[EvaluationTask]:
        return [
            EvaluationTask(name, plan, split, _SEED)
            for split in splits
            for name, plan in plans.items()
        ]

    def run(self, plans: Mapping[str, Plan], splits: Splits) -> Evaluation:
        """Every plan on every split; what `folder` has of it is not done again."""
        check_measurable(self.images, splits)
        folder = self.folder / "runs"
        results = run_evaluation(self.images, plans, splits, folder, [_SEED], self.work)
        return Evaluation(self.images, splits, dict(plans), [_SEED], results, [], [], [])

    def trained(
        self, tasks: Sequence[EvaluationTask], regions: Manifest | None = None
    ) -> list[Any]:
        """One model per task: classifiers of the labelled images, or detectors of `regions`.

        They are kept as files, and trained where there is none yet.
        """
        region = None if regions is None else self.dataset.region
        images = self.images if regions is None else regions
        tasks = [replace(task, region=region) for task in tasks]
        made: list[Any] = []
        for task in tasks:
            self.work.callback(Progress("models", len(made), len(tasks)))
            made.append(trained_model(task, images, self.folder / "models", self.work))
        self.work.callback(Progress("models", len(made), len(tasks)))
        return made

    def row(self, method: str) -> Row:
        """The first columns of all tables."""
        return {"data": self.dataset.name, "source": OURS, "method": paper_name(method)}

    def describe(self, manifest: Manifest | None = None) -> str:
        """The images, if not the labelled ones, and how they are split, for a caption."""
        manifest = manifest or self.images
        protocol = self.split(manifest).protocol
        times = f", {protocol['n_repeats']} times" if protocol["n_repeats"] > 1 else ""
        if protocol["kind"] == "hold-out":
            how = f"{protocol['n_per_class'][0]} images per class to learn from{times}"
        else:
            how = f"{protocol['n_folds']} folds{times}"
        n_patients = len(set(manifest.patients))
        return (
            f"{self.dataset.name}: {len(manifest.records)} images of {n_patients} patients, "
            f"{how}, split by patient; preset {self.choice.preset}{self._smaller()}"
        )

    def _smaller(self) -> str:
        """That the sizes are not the paper's, where they are not."""
        if self.sizes == FULL:
            return ""
        words = f"{self.sizes.n_atoms} atoms, {self.sizes.recipe['patches_per_class']} patches"
        return f". QUICK: {words} per class, few iterations; a look, not figures to compare"


def few_images(manifest: Manifest, most: int | None) -> Manifest:
    """At most so many images of each class, from as many patients as possible."""
    if most is None:
        return manifest
    seen: Counter[tuple[str, str]] = Counter()  # images so far of a class and patient
    order = []
    for place, record in enumerate(manifest.records):
        seen[record.label, record.patient] += 1
        order.append((seen[record.label, record.patient], record.patient, place))
    kept: dict[str, list[int]] = {}
    for _, _, place in sorted(order):
        kept.setdefault(manifest.records[place].label, []).append(place)
    return manifest.select(sorted(place for places in kept.values() for place in places[:most]))
