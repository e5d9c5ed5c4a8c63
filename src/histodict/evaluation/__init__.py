"""Methods on the same splits: trained, tested, measured; nothing is drawn here.

What would go wrong after a night of training, found before it.

What to compare and how, from the words of the command line.

Methods against each other on the same splits: values with intervals, and paired comparisons.

FOLDER/splits.json              which image was trained on and tested on, to be used again
FOLDER/runs/                    one file per training, which is not done again while it is there;
                                beside it the patch maps of what was answered wrongly, or of all
                                where regions were looked for
FOLDER/answers.csv, .parquet    one row per method, seed, split and test image
FOLDER/results.csv, .parquet    per method: metrics with 95 % intervals by patient; of regions, of
                                their patches
FOLDER/comparisons.csv, …       every method against the first one, paired by patient
FOLDER/timing.csv, .parquet     seconds and memory per training
FOLDER/provenance.json          data, splits, seeds, recipes, versions

One model of an evaluation, to look at: what has it learnt?
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.manifest import Manifest
from ..datasets.survey import common_size
from ..encoders import get_patch_features
from ..methods.registry import get_method
from ..metrics.confounding import Association, find_confounders
from ..metrics.intervals import PatientBootstrap
from ..model_selection.protocols import (
    Repeat,
    collect_repeats,
    k_folds,
    learning_curve_splits,
    leave_one_site_out,
    predefined_split,
)
from ..model_selection.splits import (
    Split,
    SplitError,
    Splits,
    check_splits,
    load_splits,
    save_splits,
    splits_digest,
)
from ..models import Model, load_model, save_model
from ..models.cross_validation import PACKAGES
from ..models.model_file import SUFFIX, ModelFileError
from ..models.plan import ENSEMBLE_PRESETS, Plan
from ..models.recipe import PRESETS, Recipe
from ..models.region_detector import has_background_and_region, region_classes
from ..utils.files import atomic_write
from ..utils.parallel import ExecutionOptions
from ..utils.text_io import Row, write_table
from .measures import (
    KINDS,
    N_DRAWS,
    Measures,
    Repeats,
    comparison_table,
    metric_table,
    metrics_for,
    prediction_rows,
    timing_rows,
)
from .runs import UNLABELLED, EvaluationResult, EvaluationTask, run_tasks


def check_measurable(manifest: Manifest, splits: Splits, region: str | None = None) -> None:
    """The splits are of these images and leak nothing, and every figure will be defined."""
    if splits.manifest != manifest.digest():
        raise SplitError(
            "the splits were made for other images than the manifest lists: make them again"
        )
    check_splits(manifest, splits)
    if region is not None:
        _check_regions(manifest, splits, region)
        return
    _check_classes(manifest, splits)
    for size in {split.n_per_class for split in splits}:
        own = [split for split in splits if split.n_per_class == size]
        PatientBootstrap(
            collect_repeats(manifest, own, [manifest.select(s.test).labels for s in own])
        )


def _check_regions(manifest: Manifest, splits: Splits, region: str) -> None:
    """Every split trains on both kinds of tissue; two patients or more are tested on each."""
    known = [has_background_and_region(record, region) for record in manifest.records]
    for split in splits:
        for kind, name in enumerate(KINDS):
            if not any(known[place][kind] for place in split.train):
                raise SplitError(
                    f"split {split.name!r} trains on no tissue {name} ({region}): give more "
                    "images, or other splits"
                )
    for size, repeat in {(split.n_per_class, split.repeat) for split in splits}:
        own = [s for s in splits if (s.n_per_class, s.repeat) == (size, repeat)]
        rows = [(i, kind) for s in own for i in s.test for kind in (0, 1) if known[i][kind]]
        labels = np.array([KINDS[kind] for _, kind in rows])
        patients = np.array([manifest.records[i].patient for i, _ in rows])
        if len(set(labels)) < len(KINDS):
            raise SplitError(f"all tested tissue is {labels[0]} ({region}): test both kinds")
        PatientBootstrap([Repeat(labels, patients, labels)])


def check_sizes(manifest: Manifest, plans: Iterable[Plan]) -> None:
    """The images' pixel sizes are what every plan can learn from."""
    recipes = [recipe for plan in plans for recipe in plan.recipes]
    of_pixels = [r for r in recipes if not get_patch_features(r.features).is_precomputed]
    for works_at in {recipe.mpp for recipe in of_pixels}:
        common_size(manifest.records, works_at)


def tested_classes(manifest: Manifest, splits: Splits) -> list[str]:
    """The classes of the tested images; of two, the one to be found is the second."""
    return manifest.select([place for split in splits for place in split.test]).classes


def _check_classes(manifest: Manifest, splits: Splits) -> None:
    """Scores of different trainings can be put together only if all know the same classes."""
    tested = tested_classes(manifest, splits)
    for split in splits:
        trained = manifest.select(split.train).classes
        if trained != tested or "" in manifest.select(split.train).labels:
            raise SplitError(
                f"split {split.name!r} trains on images of {trained}, but {tested} are tested: "
                "every split must train on the classes that are tested, and on no others; leave "
                "out images without a label"
            )


_PRESETS = {*PRESETS, *ENSEMBLE_PRESETS}


def choose_plans(
    names: Sequence[str],
    default_preset: str,
    settings: dict[str, str],
    region: str | None = None,
) -> dict[str, Plan]:
    """Plans by the name they were asked for: METHOD, PRESET, PRESET:METHOD, or any +unlabelled.

    With a `region`, they must be able to find it. A setting that only some of the methods know
    changes those; one that none knows is an error.
    """
    plans = {}
    known: set[str] = set()
    for name in names:
        if region is not None and name.strip().endswith(UNLABELLED):
            raise ValueError(f"{name.strip()}: thresholds are adapted for classes, not for regions")
        first, sign, second = name.strip().removesuffix(UNLABELLED).partition(":")
        words = (first, second or None) if sign or first in _PRESETS else (default_preset, first)
        plan = Plan.named(*words, regions=region is not None)
        own = {key: text for key, text in settings.items() if plan.has_setting(key)}
        known |= set(own)
        plans[name.strip()] = plan.parse_settings(own)
        plans[name.strip()].build_model(region=region)  # refuses what cannot find regions
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(f"none of the methods has a setting {unknown[0]!r}")
    return plans


def choose_splits(
    manifest: Manifest,
    protocol: str,
    n_folds: int,
    n_repeats: int,
    per_class: Sequence[int],
    by: str,
) -> Splits:
    """The splits of a protocol by name, or those of a file."""
    if protocol == "k-fold":
        return k_folds(manifest, n_folds, n_repeats=n_repeats, by=by)
    if protocol == "hold-out":
        return learning_curve_splits(manifest, per_class, n_repeats=n_repeats, by=by)
    if protocol == "site":
        return leave_one_site_out(manifest)
    if protocol == "predefined":
        return predefined_split(manifest, by=by)
    if protocol.endswith(".json"):
        return load_splits(Path(protocol), manifest)
    raise ValueError(
        f"protocol must be k-fold, hold-out, site, given or a .json file, not {protocol!r}"
    )


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured; `rows` of the tables, and the answers behind them.

    region : what was looked for in the images, whose classes are then those with and without it
    confounders : properties of the images that are associated with the class
    """

    manifest: Manifest
    splits: Splits
    plans: dict[str, Plan]
    seeds: list[int]
    results: list[EvaluationResult]
    values: list[Row]
    comparisons: list[Row]
    timing: list[Row]
    region: str | None = None
    confounders: list[Association] = field(default_factory=list)

    @property
    def failures(self) -> list[EvaluationResult]:
        return [result for result in self.results if result.error]

    @property
    def classes(self) -> list[str]:
        """The classes that were tested; of two, the second is the one to be found."""
        if self.region is not None:
            return region_classes(self.manifest, self.region)
        return tested_classes(self.manifest, self.splits)

    @property
    def measures(self) -> Measures:
        """What is measured, by name; the first is what methods are compared by."""
        return metrics_for(self.classes, regions=self.region is not None)

    @property
    def main_measure(self) -> str:
        return next(iter(self.measures))

    @property
    def methods(self) -> list[str]:
        """Those that worked on every split, in the order asked for: the ones in the tables.

        A mean over the splits on which another one worked would flatter it.
        """
        failed = {result.task.method for result in self.results if result.error}
        return [name for name in self.plans if name not in failed]

    def sizes(self) -> list[int | None]:
        """The training images per class that were asked for, in order; [None] if none were."""
        return list(dict.fromkeys(split.n_per_class for split in self.splits))

    @property
    def shown_size(self) -> int | None:
        """The largest of the sizes, where a report shows one of them."""
        return max(self.sizes(), key=lambda size: size or 0)

    def value(self, method: str, metric: str, size: int | None) -> Row:
        """The row of `values` with a method's figure."""
        wanted = (method, metric, size)
        rows = self.values
        return next(r for r in rows if (r["method"], r["metric"], r["n_per_class"]) == wanted)

    def repeats(self, method: str, size: int | None, kind: str) -> list[Repeat]:
        """A method's answers, repeat by repeat over all seeds; `kind` as `Repeats` has it."""
        return self.gathered.of(method, size, kind)

    @cached_property
    def gathered(self) -> Repeats:
        return Repeats(self.manifest, self.results)


def evaluate(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    work: ExecutionOptions = ExecutionOptions(),  # noqa: B008 (it is frozen)
    region: str | None = None,
) -> Evaluation:
    """Run what is not there yet, and write the files above.

    `region`: what is looked for in the images, in place of telling their classes apart; they are
    labelled as `labelled_by_region` does.
    """
    check_measurable(manifest, splits, region)
    check_sizes(manifest, plans.values())
    folder.mkdir(parents=True, exist_ok=True)
    save_splits(splits, folder / "splits.json")
    work = replace(work, cache=work.cache or folder / "cache")
    tasks = tasks_of(plans, splits, seeds, region)
    results = run_tasks(manifest, tasks, folder / "runs", work)
    done = Evaluation(
        manifest, splits, dict(plans), list(seeds), results, [], [], timing_rows(results), region
    )
    done.confounders.extend(find_confounders(manifest))
    # First: whatever cannot be measured of them, the answers are there.
    write_table(folder / "answers", prediction_rows(manifest, results), ("method", "seed", "split"))
    write_table(folder / "timing", done.timing, ("method", "seed", "split"))
    measured = done.gathered, done.sizes(), done.methods, done.measures
    done.values.extend(metric_table(*measured))
    done.comparisons.extend(comparison_table(*measured))
    write_table(folder / "results", done.values, ("method", "n_per_class", "metric", "value"))
    write_table(folder / "comparisons", done.comparisons, ("method", "against"))
    with atomic_write(folder / "provenance.json") as partial_file:
        partial_file.write_text(json.dumps(provenance(done), indent=1), encoding="utf-8")
    return done


def run_evaluation(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    seeds: Sequence[int],
    work: ExecutionOptions,
) -> list[EvaluationResult]:
    """Every plan on every split with every seed; what `folder` has of it is not done again."""
    return run_tasks(manifest, tasks_of(plans, splits, seeds), folder, work)


def tasks_of(
    plans: Mapping[str, Plan], splits: Splits, seeds: Sequence[int], region: str | None = None
) -> list[EvaluationTask]:
    return [
        EvaluationTask(name, plan, split, seed, region)
        for seed in seeds
        for split in splits
        for name, plan in plans.items()
    ]


def provenance(done: Evaluation) -> dict[str, Any]:
    """What it takes to do it again."""
    return {
        "manifest_digest": done.manifest.digest(),
        "n_images": len(done.manifest.records),
        "left_out": list(done.manifest.skipped),
        "n_patients": len(set(done.manifest.patients)),
        "splits_digest": splits_digest(done.splits),
        "protocol": dict(done.splits.protocol),
        **({"region": done.region} if done.region else {}),
        "confounders": [asdict(found) for found in done.confounders],
        "kept_apart": sorted({split.by for split in done.splits}),
        "seeds": done.seeds,
        "draws_of_patients": N_DRAWS,
        "recipes": {name: plan.to_dict() for name, plan in done.plans.items()},
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "failures": [
            {"method": task.method, "seed": task.seed, "split": task.split.name, "error": error}
            for task, error in ((result.task, result.error) for result in done.failures)
        ],
    }


@dataclass(frozen=True)
class ExampleModel:
    """A model of `method`, trained on one split of the evaluation."""

    method: str
    split: Split
    model: Model

    def bases(self) -> dict[str, NDArray[Any]]:
        """By class, its atoms (n_atoms, n_features): patches, in the sign of their use."""
        atoms = self.model.model_.atoms()
        assert atoms is not None
        names = enumerate(self.model.classes_)
        return {name: atoms.with_usage_sign[atoms.classes == place] for place, name in names}


def train_example(done: Evaluation, folder: Path, work: ExecutionOptions) -> ExampleModel | None:
    """The first method with atoms that are pictures, on the first split of the shown size.

    None if no method has such atoms. What `folder` holds is used if it is that model.
    """
    method = next((name for name in done.methods if has_images(done.plans[name].recipe)), None)
    if method is None:
        return None
    split = next(split for split in done.splits if split.n_per_class == done.shown_size)
    # Of a panel the first member is looked at.
    plan = Plan(done.plans[method].recipe)
    task = EvaluationTask(method, plan, split, done.seeds[0], done.region)
    return ExampleModel(method, split, trained_model(task, done.manifest, folder, work))


def has_images(recipe: Recipe) -> bool:
    """Atoms that are patches of pixels, labelled with a class."""
    on_pixels = get_patch_features(recipe.features).are_images and not recipe.n_components
    method: Any = get_method(recipe.method).load()
    return on_pixels and recipe.is_patch_level and bool(method.has_class_atoms)


def trained_model(
    task: EvaluationTask, manifest: Manifest, folder: Path, work: ExecutionOptions
) -> Model:
    """The model of a task, read from `folder` if it is there, else trained and kept."""
    trial = task.run(manifest, work)
    file = folder / f"{trial.key}{SUFFIX}"
    if file.is_file():
        try:
            return load_model(file, n_jobs=work.n_jobs)
        except ModelFileError as error:
            warnings.warn(f"{error}; it is trained anew", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(trial.model.fit(trial.train, callback=work.callback), file)
    # Also what was just trained is read back, so that a second run shows the same.
    return load_model(file, n_jobs=work.n_jobs)
