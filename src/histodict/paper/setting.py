"""What the experiments on one data set share: images, methods, sizes, and where results go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..compare.checks import check_measurable
from ..compare.evaluation import Evaluation, run_evaluation
from ..compare.example import trained_model
from ..compare.tasks import EvaluationTask
from ..evaluation.protocols import k_folds, learning_curve_splits
from ..evaluation.splits import Splits
from ..execution.progress import Progress
from ..execution.tables import Row
from ..execution.work import ExecutionOptions
from ..images.manifest import Manifest
from ..methods.registry import METHODS
from ..networks import get_patch_features
from ..pipeline import Plan
from .datasets import Dataset
from .outcome import OURS
from .problem import SMALL_PROBLEM, Problem
from .published import paper_name

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
