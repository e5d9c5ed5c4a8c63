"""Shared settings, sizes and results of the experiments, and the published figures.

Vu, Mousavi, Monga, Rao, Rao, "Histopathological image classification using discriminative
feature-oriented dictionary learning", IEEE Transactions on Medical Imaging, 2016: the confusion
matrices, the accuracies given in the text of section III-C, the operation counts and run times.
The curves of its figures are not printed as numbers and are not included.
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

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..datasets.manifest import Manifest
from ..encoders import get_patch_features
from ..evaluation import Evaluation, check_metrics_defined, load_or_train_model, run_evaluation
from ..evaluation.runs import EvaluationTask
from ..methods.registry import METHODS
from ..metrics import scores as metrics
from ..metrics.intervals import bootstrap_interval
from ..model_selection.protocols import k_folds, learning_curve_splits
from ..model_selection.splits import Splits
from ..models import Plan
from ..reports import html as charts
from ..utils.files import atomic_write
from ..utils.parallel import ExecutionOptions
from ..utils.progress import Progress
from ..utils.text_io import Row
from .image_sets import Dataset

OURS = "histodict"  # in the column "source" of tables: results of this package


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one experiment.

    Attributes
    ----------
    name : name of the files and of the experiment
    title : heading
    note : caption
    rows : rows of the main table
    text : summary for the terminal
    draw : function that creates the figure; see `save_figure`
    extra_tables : rows of further tables by name
    failures : failed trainings, one line each
    warnings : problems of the data, such as unknown patients
    """

    name: str
    title: str
    note: str
    rows: list[Row]
    text: str
    draw: Callable[[], Figure]
    extra_tables: Mapping[str, list[Row]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    warnings: tuple[str, ...] = ()


def describe_failures(evaluation: Evaluation) -> list[str]:
    """Return one error message per failed training."""
    return [
        f"{result.task.method}, {result.task.split.name}: {result.error}"
        for result in evaluation.failures
    ]


def accuracy_row(evaluation: Evaluation, method: str, size: int | None) -> Row:
    """Return a table row: accuracy in percent, interval by patient, and number of predictions.

    `size` is the number of training images per class; None if the protocol sets none.
    """
    repeats = evaluation.repeats(method, size, "labels")
    interval = bootstrap_interval(metrics.accuracy, repeats)
    return {
        "accuracy": 100 * interval.value,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "n_predictions": sum(len(repeat.labels) for repeat in repeats),
    }


@dataclass(frozen=True)
class Problem:
    """Size of a training problem, by default as published; n_atoms and n_samples are per class."""

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


# Names of the methods in the paper.
PAPER_NAMES = {
    "wndcharm": "WND-CHARM",
    "src-image": "SRC",
    "shirc": "SHIRC",
    "fddl": "FDDL",
    "lcksvd": "LC-KSVD",
    "nayak": "Nayak's",
    "dfdl": "DFDL",
}
# Names of the healthy and the diseased class by data set.
CLASSES = {
    "IBL": ("UDH", "DCIS"),
    "ADL kidney": ("healthy", "inflammatory"),
    "ADL lung": ("healthy", "inflammatory"),
    "ADL spleen": ("healthy", "inflammatory"),
    "TCGA": ("not MVP", "MVP"),
}
# Numbers of test images: of 133 and 57 images, 20 of each class are for training.
_N_TEST_IMAGES = {"TCGA": (113, 37)}
_ROUNDING_ERROR = 0.005  # for sums of two percentages with two decimals


def paper_name(method: str) -> str:
    """Return the display name of a method in tables and figures."""
    return PAPER_NAMES.get(method, method)


def published_confusion() -> list[Row]:
    """Return the published confusion matrices in percent of the true class, in the paper's order.

    Some printed rows do not sum to 100; they are unchanged, and `sums_to_100` is False.
    """
    rows: list[Row] = []
    for data, classes in CLASSES.items():
        truths = dict(zip(("healthy", "diseased"), classes, strict=True))
        for row in (row for row in read_table("confusion") if row["dataset"] == data):
            percents = float(row["called_healthy"]), float(row["called_diseased"])
            is_complete = abs(round(percents[0] + percents[1], 2) - 100) < _ROUNDING_ERROR
            rows += [
                _published_row(data, row["method"])
                | {"truth": truths[row["truth"]], "predicted": predicted, "percent": percent}
                | {"sums_to_100": is_complete}
                for predicted, percent in zip(classes, percents, strict=True)
            ]
    return rows


def published_accuracies() -> list[Row]:
    """Return the published accuracies in percent.

    Accuracies that the text does not give are computed from the confusion matrices.
    """
    printed = {(row["dataset"], row["method"]): row for row in read_table("accuracy")}
    correct = [row for row in published_confusion() if row["truth"] == row["predicted"]]
    rows: list[Row] = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in correct):
        entry = printed.get((data, method))
        weights = dict(zip(CLASSES[data], _N_TEST_IMAGES.get(data, (1, 1)), strict=True))
        correct_rows = [row for row in correct if (row["data"], row["method"]) == (data, method)]
        mean = sum(weights[row["truth"]] * row["percent"] for row in correct_rows) / sum(
            weights.values()
        )
        accuracy = round(float(entry["percent"]) if entry else mean, 2)
        text = entry["printed"] if entry else "from the confusion matrix"
        rows.append(_published_row(data, method) | {"accuracy": accuracy, "printed": text})
    return rows


def published_operating_points() -> list[Row]:
    """Return the false alarm and miss rates of the methods, from published confusion matrices."""
    rows = published_confusion()
    rates = {(r["data"], r["method"], r["truth"], r["predicted"]): r["percent"] / 100 for r in rows}
    points = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        healthy, diseased = CLASSES[data]
        alarm, miss = rates[data, method, healthy, diseased], rates[data, method, diseased, healthy]
        points.append(_published_row(data, method) | {"false_alarm": alarm, "miss": miss})
    return points


def _published_row(data: str, method: str) -> Row:
    return {"data": data, "source": "published", "method": method}


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of the table tables/<name>.csv of this package."""
    text = files(__package__).joinpath(f"tables/{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


# Methods compared in the paper, the proposed one first, and those that learn dictionaries.
COMPARED_METHODS = ("dfdl", "lcksvd", "fddl", "nayak", "src-image", "shirc", "wndcharm")
DICTIONARY_METHODS = ("dfdl", "lcksvd", "fddl", "nayak")
# Methods with separate atoms per class.
CLASS_DICTIONARY_METHODS = ("dfdl", "lcksvd", "fddl", "odl")
PATCH_METHODS = tuple(name for name, entry in METHODS.items() if entry.is_patch_level)
_SEED = 0


class NotPossibleError(ValueError):
    """Error for an experiment that is impossible with the given data or methods."""


@dataclass(frozen=True)
class ExperimentSizes:
    """Sizes of the experiments.

    Attributes
    ----------
    max_images : maximum number of images per class; None for all
    recipe : recipe settings that replace those of the preset
    parameters : method parameters that replace those of the preset
    n_atoms : bases per class (k); None for the number of the preset
    patches : numbers of training patches per class to compare
    bases : numbers of bases per class to compare
    n_image_sizes : number of training set sizes to compare
    synthetic : number of patients, images per patient, and image size (width, height)
    timed_problem : problem for measuring run times
    """

    max_images: int | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    n_atoms: int | None = None
    patches: tuple[int, ...] = (1_000, 2_500, 5_000, 7_500, 10_000)
    bases: tuple[int, ...] = (200, 300, 400, 500, 600)
    n_image_sizes: int = 5
    synthetic: tuple[int, int, tuple[int, int]] = (20, 6, (480, 360))
    timed_problem: Problem = SMALL_PROBLEM


FULL = ExperimentSizes()
QUICK = ExperimentSizes(
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
class ExperimentOptions:
    """Options of all experiments.

    Attributes
    ----------
    methods : names of the methods; empty for the default of each experiment
    preset : preset of the methods' settings
    settings : recipe settings as text, as for `train --set`
    per_class : number of training images of each class; None for two-fold cross-validation
    n_repeats : number of repeated splits
    """

    methods: tuple[str, ...] = ()
    preset: str = "paper"
    settings: Mapping[str, str] = field(default_factory=dict)
    per_class: int | None = None
    n_repeats: int = 1

    def __post_init__(self) -> None:
        plans = [Plan.named(self.preset, method) for method in self.methods or COMPARED_METHODS]
        for name in self.settings:
            if not any(plan.has_setting(name) for plan in plans):
                raise ValueError(f"no method has a setting {name!r}")


@dataclass(frozen=True)
class Setting:
    """Data set and options of an experiment.

    Attributes
    ----------
    dataset : images
    folder : folder in which runs and models are stored for reuse
    sizes : sizes of the experiment
    options : methods, preset, settings and repeats
    execution : number of threads, cache folder, progress callback and executor
    """

    dataset: Dataset
    folder: Path
    sizes: ExperimentSizes = FULL
    options: ExperimentOptions = field(default_factory=ExperimentOptions)
    execution: ExecutionOptions = ExecutionOptions()  # noqa: RUF009 (it is frozen)

    @cached_property
    def images(self) -> Manifest:
        """Labelled images of the experiments."""
        if self.dataset.images is None:
            raise NotPossibleError(f"{self.dataset.name}: the images have masks but no classes")
        return limit_images(self.dataset.images, self.sizes.max_images)

    @cached_property
    def regions(self) -> Manifest | None:
        """Images with masks; None if there are none."""
        if self.dataset.regions is None:
            return None
        return limit_images(self.dataset.regions, self.sizes.max_images)

    def choose_methods(
        self, defaults: Sequence[str], supported: Sequence[str], reason: str
    ) -> list[str]:
        """Return the methods of the option --methods that the experiment supports.

        Parameters
        ----------
        defaults : methods if the option is not given
        supported : methods that the experiment supports
        reason : why the experiment supports no other methods, for the error message

        Raises
        ------
        NotPossibleError
            If the experiment supports none of the methods.
        """
        if not self.options.methods:
            return list(defaults)
        chosen = [method for method in self.options.methods if method in supported]
        if not chosen:
            raise NotPossibleError(f"{reason}; choose from {', '.join(supported)}")
        return chosen

    def plans(
        self, defaults: Sequence[str], supported: Sequence[str], reason: str
    ) -> dict[str, Plan]:
        """Return the plan of each selected method; see `choose_methods` for the parameters."""
        return {
            method: self.plan(method) for method in self.choose_methods(defaults, supported, reason)
        }

    def compared_plans(self) -> dict[str, Plan]:
        """Return the plan of each method, for experiments that compare all methods."""
        return self.plans(COMPARED_METHODS, tuple(METHODS), "this experiment compares all methods")

    def plan(self, method: str, *, n_atoms: int | None = None, **changes: Any) -> Plan:
        """Return the training plan of a method, with the aggregator "proportion" as in the paper.

        `n_atoms` is the number of atoms per class; None for the number in `sizes`. For "nayak",
        which learns one dictionary for all classes, it is multiplied by the number of classes;
        methods without dictionary ignore it. `changes` are settings of the recipe.
        """
        plan = Plan.named(self.options.preset, method)
        recipe = plan.recipe
        parameters = {k: v for k, v in self.sizes.parameters.items() if recipe.has_setting(k)}
        n_atoms = n_atoms or self.sizes.n_atoms
        if n_atoms and method in (*CLASS_DICTIONARY_METHODS, "nayak"):
            n_sharing = len(self.dataset.classes) if method == "nayak" else 1
            parameters["n_atoms"] = n_atoms * max(n_sharing, 1)
        changed_fields = dict(self.sizes.recipe)
        if not get_patch_features(recipe.features).atoms_are_images:
            changed_fields.pop("patch_px", None)  # encoders determine the patch size
        recipe = recipe.with_changes(
            method_parameters=recipe.method_parameters | parameters,
            aggregation="proportion",
            **changed_fields,
        )
        settings = {k: text for k, text in self.options.settings.items() if plan.has_setting(k)}
        plan = replace(plan, recipe=recipe).parse_settings(settings)
        return replace(plan, recipe=plan.recipe.with_changes(**changes))

    @cached_property
    def splits(self) -> Splits:
        """Splits by patient: with `per_class` training images, or two-fold cross-validation."""
        return self.split(self.images)

    def split(self, manifest: Manifest) -> Splits:
        """Return splits of a manifest by the protocol of the property `splits`."""
        n_repeats = self.options.n_repeats
        if self.options.per_class is not None:
            return learning_curve_splits(manifest, [self.options.per_class], n_repeats=n_repeats)
        return k_folds(manifest, 2, n_repeats=n_repeats)

    def tasks(self, plans: Mapping[str, Plan], splits: Splits) -> list[EvaluationTask]:
        """Return an evaluation task for each pair of split and plan."""
        return [
            EvaluationTask(name, plan, split, _SEED)
            for split in splits
            for name, plan in plans.items()
        ]

    def run(self, plans: Mapping[str, Plan], splits: Splits) -> Evaluation:
        """Evaluate every plan on every split, reusing runs in `folder`."""
        check_metrics_defined(self.images, splits)
        folder = self.folder / "runs"
        results = run_evaluation(self.images, plans, splits, folder, [_SEED], self.execution)
        return Evaluation(self.images, splits, dict(plans), [_SEED], results, [], [], [])

    def train_models(
        self, tasks: Sequence[EvaluationTask], regions: Manifest | None = None
    ) -> list[Any]:
        """Return one model per task: classifiers of the images, or detectors of `regions`.

        Models are stored as files and trained if they are missing.
        """
        region = None if regions is None else self.dataset.region
        images = self.images if regions is None else regions
        tasks = [replace(task, region=region) for task in tasks]
        models: list[Any] = []
        for task in tasks:
            self.execution.callback(Progress("models", len(models), len(tasks)))
            models.append(load_or_train_model(task, images, self.folder / "models", self.execution))
        self.execution.callback(Progress("models", len(models), len(tasks)))
        return models

    def identifying_columns(self, method: str) -> Row:
        """Return the columns that identify a method in every table: data set, source and method."""
        return {"data": self.dataset.name, "source": OURS, "method": paper_name(method)}

    def describe(self, manifest: Manifest | None = None) -> str:
        """Return a caption that describes images and their splits.

        `manifest` are the images; None stands for the labelled images of the experiments.
        """
        manifest = manifest or self.images
        protocol = self.split(manifest).protocol
        times = f", {protocol['n_repeats']} times" if protocol["n_repeats"] > 1 else ""
        if protocol["kind"] == "hold-out":
            protocol_text = f"{protocol['n_per_class'][0]} training images per class{times}"
        else:
            protocol_text = f"{protocol['n_folds']} folds{times}"
        n_patients = len(set(manifest.patients))
        return (
            f"{self.dataset.name}: {len(manifest.records)} images of {n_patients} patients, "
            f"{protocol_text}, split by patient; preset {self.options.preset}{self._size_note()}"
        )

    def _size_note(self) -> str:
        """Return a note on sizes smaller than in the paper; empty for the sizes of the paper."""
        if self.sizes == FULL:
            return ""
        sizes = f"{self.sizes.n_atoms} atoms, {self.sizes.recipe['patches_per_class']} patches"
        return (
            f". QUICK: {sizes} per class, few iterations; a preview that is not comparable with "
            "the paper"
        )


def limit_images(manifest: Manifest, max_images: int | None) -> Manifest:
    """Return at most `max_images` images of each class, from as many patients as possible."""
    if max_images is None:
        return manifest
    seen: Counter[tuple[str, str]] = Counter()  # number of images by class and patient
    order = []
    for index, record in enumerate(manifest.records):
        seen[record.label, record.patient] += 1
        order.append((seen[record.label, record.patient], record.patient, index))
    by_class: dict[str, list[int]] = {}
    for _, _, index in sorted(order):
        by_class.setdefault(manifest.records[index].label, []).append(index)
    return manifest.select(
        sorted(index for indices in by_class.values() for index in indices[:max_images])
    )


# --- figures ---------------------------------------------------------------------------------

_STYLE: Any = charts.STYLE | {"font.size": 9, "axes.titlesize": 9, "svg.hashsalt": "histodict"}
# Style of each method in all figures: markers, and colours for colour-blind readers.
_METHOD_STYLES = {
    "DFDL": ("#0072b2", "o"),
    "LC-KSVD": ("#d55e00", "s"),
    "FDDL": ("#009e73", "D"),
    "Nayak's": ("#cc79a7", "^"),
    "SRC": ("#7f7f7f", "v"),
    "SHIRC": ("#56b4e9", "P"),
    "WND-CHARM": ("#222222", "X"),
}
_OTHER_STYLE = ("#8c564b", "*")
_PNG_DPI = 130


def save_figure(outcome: Outcome, path: Path) -> list[Path]:
    """Write the figure of an outcome to path.svg and path.png, and return both paths.

    Text in the SVG file is not converted to outlines.
    """
    with mpl.rc_context(_STYLE):
        figure = outcome.draw()
        svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
        with atomic_write(svg) as partial:
            figure.savefig(partial, format="svg", metadata=charts.NO_METADATA)
        # The layout is computed already; a layout engine would compute it again, which is slow.
        figure.set_layout_engine(None)
        with atomic_write(png) as partial:
            figure.savefig(partial, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return [svg, png]


def make_axes_grid(n_rows: int, n_columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure and its axes (n_rows, n_columns), each of `width` x `height` inches."""
    layout = ConstrainedLayoutEngine(h_pad=0.1)
    figure = Figure(figsize=(width * n_columns, height * n_rows), layout=layout)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False)


def make_figure(n_axes: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure and `n_axes` axes of `width` x `height` inches, in rows of at most three."""
    n_columns = 2 if n_axes == 4 else min(n_axes, 3)
    figure, axes = make_axes_grid(-(-n_axes // n_columns), n_columns, width, height)
    flat: list[Axes] = list(axes.flat)
    for empty in flat[n_axes:]:
        empty.remove()
    return figure, flat[:n_axes]


def draw_bar(
    ax: Axes, y: float, value: float, method: str, filled: bool, height: float = 0.7
) -> None:
    """Draw a horizontal bar in the colour of a method, filled or outlined."""
    colour, _ = method_style(method)
    inside = colour if filled else "none"
    ax.barh(y, value, height, facecolor=inside, edgecolor=colour, linewidth=1.4)


def method_order(row: Row) -> int:
    """Return the position of the method of a row in figures."""
    return [*_METHOD_STYLES, row["method"]].index(row["method"])


def method_style(method: str) -> tuple[str, str]:
    """Return (colour, marker) of a method in figures."""
    return _METHOD_STYLES.get(method, _OTHER_STYLE)


def group_by(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    """Group rows by the value of a column."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups
