"""Comparison of methods on the same splits: metrics with confidence intervals and paired tests.

Files in the output folder:

splits.json               training and test images of every split, for reuse
runs/                     one file per finished run, which is not repeated; patch maps of
                          misclassified images, or of all images for regions
predictions.csv, .parquet one row per method, seed, split and test image
results.csv, .parquet     metrics of each method with 95 % intervals by patient; for regions, of
                          patches
comparisons.csv, .parquet every method against the first one, paired by patient
timing.csv, .parquet      time and memory of each run
provenance.json           data, splits, seeds, recipes and versions
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
from ..datasets.record import count_patients, describe_patients
from ..datasets.survey import common_pixel_size
from ..encoders import get_patch_features
from ..methods.registry import METHODS, get_method
from ..metrics.confounding import Association, find_confounders
from ..metrics.intervals import PatientBootstrap, few_patients_warning
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
from ..models.inputs import has_background_and_region
from ..models.model_file import MODEL_SUFFIX, ModelFileError
from ..models.plan import ENSEMBLE_PRESETS, Plan
from ..models.recipe import PRESETS, Recipe
from ..models.region_detector import region_classes
from ..utils.files import atomic_write
from ..utils.parallel import ExecutionOptions
from ..utils.text_io import Row, write_table
from ..utils.validation import check_choice
from .measures import (
    N_REPLICATES,
    TISSUE_KINDS,
    Metrics,
    Repeats,
    comparison_table,
    metric_table,
    prediction_rows,
    select_metrics,
    timing_rows,
)
from .runs import UNLABELLED_SUFFIX, EvaluationResult, EvaluationTask, run_tasks


def check_metrics_defined(manifest: Manifest, splits: Splits, region: str | None = None) -> None:
    """Raise ValueError unless all metrics are defined on these splits.

    The splits must belong to these images, keep patients apart, train on every class and test at
    least two patients of each class.

    Parameters
    ----------
    manifest : labelled images
    splits : training and test images
    region : class of the regions to detect; None to classify images

    Raises
    ------
    ValueError
        If a metric is undefined.
    """
    if splits.manifest != manifest.digest():
        raise SplitError(
            "the splits are of other images than the manifest. Create the splits again"
        )
    check_splits(manifest, splits)
    if region is not None:
        _check_regions(manifest, splits, region)
        return
    _check_classes(manifest, splits)
    for n_per_class in {split.n_per_class for split in splits}:
        chosen = [split for split in splits if split.n_per_class == n_per_class]
        PatientBootstrap(
            collect_repeats(manifest, chosen, [manifest.select(s.test).labels for s in chosen])
        )


def _check_regions(manifest: Manifest, splits: Splits, region: str) -> None:
    """Raise an error unless all splits have tissue inside and outside of regions.

    Every training set needs an image with tissue inside, and one with tissue outside of regions.
    The test sets of a repeat need two patients with each of the two kinds of tissue.
    """
    kinds = [has_background_and_region(record, region) for record in manifest.records]
    for split in splits:
        for kind, name in enumerate(TISSUE_KINDS):
            if not any(kinds[index][kind] for index in split.train):
                raise SplitError(
                    f"split {split.name!r} has no training tissue {name} ({region}). Add images, "
                    "or use other splits"
                )
    for size, repeat in {(split.n_per_class, split.repeat) for split in splits}:
        chosen = [s for s in splits if (s.n_per_class, s.repeat) == (size, repeat)]
        rows = [(i, kind) for s in chosen for i in s.test for kind in (0, 1) if kinds[i][kind]]
        labels = np.array([TISSUE_KINDS[kind] for _, kind in rows])
        patients = np.array([manifest.records[i].patient for i, _ in rows])
        if len(set(labels)) < len(TISSUE_KINDS):
            raise SplitError(
                f"all tissue of the test images is {labels[0]} ({region}). Add test images of "
                "the other class"
            )
        PatientBootstrap([Repeat(labels, patients, labels)])


def check_pixel_sizes(manifest: Manifest, plans: Iterable[Plan]) -> None:
    """Raise an error unless every plan can be trained at the pixel sizes of the images."""
    recipes = [recipe for plan in plans for recipe in plan.recipes]
    pixel_recipes = [r for r in recipes if not get_patch_features(r.features).is_precomputed]
    for mpp in {recipe.mpp for recipe in pixel_recipes}:
        common_pixel_size(manifest.records, mpp)


def tested_classes(manifest: Manifest, splits: Splits) -> list[str]:
    """Return the classes of the test images; if there are two, the second is positive."""
    return manifest.select([index for split in splits for index in split.test]).classes


def _check_classes(manifest: Manifest, splits: Splits) -> None:
    """Raise SplitError unless every split trains on exactly the tested classes."""
    tested = tested_classes(manifest, splits)
    for split in splits:
        trained = manifest.select(split.train).classes
        if trained != tested or "" in manifest.select(split.train).labels:
            raise SplitError(
                f"split {split.name!r} has training images of {trained}, but test images of "
                f"{tested}. Training and test images must have the same classes. Remove images "
                "without a label"
            )


_PRESETS = {*PRESETS, *ENSEMBLE_PRESETS}


def choose_plans(
    names: Sequence[str], default_preset: str, settings: dict[str, str], region: str | None = None
) -> dict[str, Plan]:
    """Return the training plans by name.

    Parameters
    ----------
    names : METHOD, PRESET or PRESET:METHOD, optionally followed by +unlabelled
    default_preset : preset of names without one
    settings : value of each setting as text, applied to all plans that have the setting; a setting
        that no plan has raises ValueError
    region : class of the regions to detect; the plans must support it
    """
    plans = {}
    known_settings: set[str] = set()
    for name in names:
        if region is not None and name.strip().endswith(UNLABELLED_SUFFIX):
            raise ValueError(
                f"{name.strip()}: thresholds can be adapted for classes only, not for regions"
            )
        first, colon, second = name.strip().removesuffix(UNLABELLED_SUFFIX).partition(":")
        if first and not colon:
            check_choice("method or preset", first, {*METHODS, *_PRESETS})
        preset_and_method = (
            (first, second or None) if colon or first in _PRESETS else (default_preset, first)
        )
        plan = Plan.named(*preset_and_method, regions=region is not None)
        applicable = {key: text for key, text in settings.items() if plan.has_setting(key)}
        known_settings |= set(applicable)
        plans[name.strip()] = plan.parse_settings(applicable)
        plans[name.strip()].build_model(region=region)  # raises if it cannot detect regions
    unknown = sorted(set(settings) - known_settings)
    if unknown:
        raise ValueError(f"no method has a setting {unknown[0]!r}. Correct the name")
    return plans


def choose_splits(
    manifest: Manifest,
    protocol: str,
    n_folds: int,
    n_repeats: int,
    per_class: Sequence[int],
    by: str,
) -> Splits:
    """Return the splits of a protocol, or those of a JSON file.

    Parameters
    ----------
    manifest : labelled images
    protocol : "k-fold", "hold-out", "site", "predefined", or the path of a JSON file
    n_folds : number of folds, for "k-fold"
    n_repeats : number of repetitions with different random splits
    per_class : numbers of training images per class, for "hold-out"
    by : "patient" or "image", the unit that is not divided between training and test
    """
    if protocol.endswith(".json"):
        return load_splits(Path(protocol), manifest)
    check_choice("protocol", protocol, ("k-fold", "hold-out", "site", "predefined", "FILE.json"))
    if protocol == "k-fold":
        return k_folds(manifest, n_folds, n_repeats=n_repeats, unit=by)
    if protocol == "hold-out":
        return learning_curve_splits(manifest, per_class, n_repeats=n_repeats, unit=by)
    if protocol == "site":
        return leave_one_site_out(manifest)
    return predefined_split(manifest, unit=by)


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes
    ----------
    manifest : labelled images
    splits : training and test images
    plans : training plans by name
    seeds : random seeds
    results : predictions of every run
    metric_rows : rows of the table results.csv
    comparisons : rows of the table comparisons.csv
    timing : rows of the table timing.csv
    region : class of the regions to detect; None if images are classified
    confounders : properties of the images that are associated with the class
    """

    manifest: Manifest
    splits: Splits
    plans: dict[str, Plan]
    seeds: list[int]
    results: list[EvaluationResult]
    metric_rows: list[Row]
    comparisons: list[Row]
    timing: list[Row]
    region: str | None = None
    confounders: list[Association] = field(default_factory=list)

    @property
    def failures(self) -> list[EvaluationResult]:
        """Results of the runs that failed."""
        return [result for result in self.results if result.error]

    @property
    def classes(self) -> list[str]:
        """Tested classes; if there are two, the second is positive.

        If regions are detected, the second class is the region.
        """
        if self.region is not None:
            return region_classes(self.manifest, self.region)
        return tested_classes(self.manifest, self.splits)

    @property
    def metrics(self) -> Metrics:
        """Metrics by name; the first is used for the comparisons."""
        return select_metrics(self.classes, regions=self.region is not None)

    @property
    def main_metric(self) -> str:
        """Name of the metric used for the comparisons."""
        return next(iter(self.metrics))

    @property
    def methods(self) -> list[str]:
        """Methods without failed runs, in the order of `plans`.

        Methods with failures are excluded, as means over different splits are not comparable.
        """
        failed = {result.task.method for result in self.results if result.error}
        return [name for name in self.plans if name not in failed]

    def sizes(self) -> list[int | None]:
        """Return the numbers of training images per class; [None] if the protocol sets none."""
        return list(dict.fromkeys(split.n_per_class for split in self.splits))

    @property
    def interval_warnings(self) -> list[str]:
        """Warnings about confidence intervals that are based on few or unknown patients."""
        tested = sorted({index for split in self.splits for index in split.test})
        records = [self.manifest.records[index] for index in tested]
        n_patients, n_without = count_patients((r.patient, r.path) for r in records)
        warnings = []
        if n_without:
            patients = describe_patients(n_patients, n_without)
            warnings.append(
                f"{patients}: each image without a patient counts as its own patient. Images of "
                "one patient may be in both training and test set"
            )
        few = few_patients_warning((r.label for r in records), (r.patient for r in records))
        return [*warnings, few] if few else warnings

    @property
    def shown_size(self) -> int | None:
        """Largest number of training images per class, which reports show.

        None if the protocol sets no number.
        """
        return max(self.sizes(), key=lambda size: size or 0)

    def metric_row(self, method: str, metric: str, size: int | None) -> Row:
        """Return the row of `metric_rows` for a method, metric and training set size per class."""
        key = (method, metric, size)
        rows = self.metric_rows
        return next(r for r in rows if (r["method"], r["metric"], r["n_per_class"]) == key)

    def repeats(self, method: str, size: int | None, prediction_kind: str) -> list[Repeat]:
        """Return the predictions of a method by repeat and seed.

        Parameters
        ----------
        method : name of the plan
        size : number of training images per class; None if the protocol sets none
        prediction_kind : kind of predictions, see `Repeats`
        """
        return self.all_repeats.select(method, size, prediction_kind)

    @cached_property
    def all_repeats(self) -> Repeats:
        """Predictions of all methods, collected by repeat and seed."""
        return Repeats(self.manifest, self.results)


def evaluate(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    execution: ExecutionOptions = ExecutionOptions(),  # noqa: B008 (frozen)
    region: str | None = None,
) -> Evaluation:
    """Run all missing combinations of plan, split and seed, and write the tables.

    Parameters
    ----------
    manifest : labelled images
    plans : training plans by name; the first is compared with the others
    splits : training and test images
    folder : output folder
    seeds : random seeds
    execution : number of threads, cache folder, progress callback and executor
    region : class of the regions to detect, with images labelled as by `relabel_by_region`; None to
        classify images
    """
    check_metrics_defined(manifest, splits, region)
    check_pixel_sizes(manifest, plans.values())
    folder.mkdir(parents=True, exist_ok=True)
    save_splits(splits, folder / "splits.json")
    execution = replace(execution, cache=execution.cache or folder / "cache")
    tasks = create_tasks(plans, splits, seeds, region)
    results = run_tasks(manifest, tasks, folder / "runs", execution)
    done = Evaluation(
        manifest, splits, dict(plans), list(seeds), results, [], [], timing_rows(results), region
    )
    done.confounders.extend(find_confounders(manifest))
    # Written first, so that predictions are kept if a metric is undefined.
    write_table(
        folder / "predictions", prediction_rows(manifest, results), ("method", "seed", "split")
    )
    write_table(folder / "timing", done.timing, ("method", "seed", "split"))
    measured = done.all_repeats, done.sizes(), done.methods, done.metrics
    done.metric_rows.extend(metric_table(*measured))
    done.comparisons.extend(comparison_table(*measured))
    write_table(folder / "results", done.metric_rows, ("method", "n_per_class", "metric", "value"))
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
    execution: ExecutionOptions,
) -> list[EvaluationResult]:
    """Run all combinations of plan, split and seed, without writing tables.

    Results that are stored in `folder` are loaded.
    """
    return run_tasks(manifest, create_tasks(plans, splits, seeds), folder, execution)


def create_tasks(
    plans: Mapping[str, Plan], splits: Splits, seeds: Sequence[int], region: str | None = None
) -> list[EvaluationTask]:
    """Return the tasks of all combinations of seed, split and plan."""
    return [
        EvaluationTask(name, plan, split, seed, region)
        for seed in seeds
        for split in splits
        for name, plan in plans.items()
    ]


def provenance(evaluation: Evaluation) -> dict[str, Any]:
    """Return all settings needed to reproduce an evaluation: data, splits, seeds and versions."""
    return {
        "manifest_digest": evaluation.manifest.digest(),
        "n_images": len(evaluation.manifest.records),
        "left_out": list(evaluation.manifest.skipped),
        "n_patients": len(set(evaluation.manifest.patients)),
        "splits_digest": splits_digest(evaluation.splits),
        "protocol": dict(evaluation.splits.protocol),
        **({"region": evaluation.region} if evaluation.region else {}),
        "confounders": [asdict(found) for found in evaluation.confounders],
        "kept_apart": sorted({split.unit for split in evaluation.splits}),
        "seeds": evaluation.seeds,
        "draws_of_patients": N_REPLICATES,
        "recipes": {name: plan.to_dict() for name, plan in evaluation.plans.items()},
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "failures": [
            {"method": task.method, "seed": task.seed, "split": task.split.name, "error": error}
            for task, error in ((result.task, result.error) for result in evaluation.failures)
        ],
    }


@dataclass(frozen=True)
class ExampleModel:
    """Model of `method`, trained on one split of the evaluation."""

    method: str
    split: Split
    model: Model

    def atoms_by_class(self) -> dict[str, NDArray[Any]]:
        """Return the signed atoms (n_atoms, n_features) by class name; see `AtomTable`."""
        atoms = self.model.model_.atoms()
        assert atoms is not None
        names = enumerate(self.model.class_names_)
        return {
            name: atoms.signed_atoms[atoms.classes == class_index] for class_index, name in names
        }


def train_example(
    evaluation: Evaluation, folder: Path, execution: ExecutionOptions
) -> ExampleModel | None:
    """Return a model whose atoms are image patches, trained on one split.

    The method is the first with such atoms; return None if no method has them. The model is loaded
    if it is stored in `folder`.
    """
    method = next(
        (name for name in evaluation.methods if has_pixel_atoms(evaluation.plans[name].recipe)),
        None,
    )
    if method is None:
        return None
    split = next(split for split in evaluation.splits if split.n_per_class == evaluation.shown_size)
    # The example of an ensemble is its first member.
    plan = Plan(evaluation.plans[method].recipe)
    task = EvaluationTask(method, plan, split, evaluation.seeds[0], evaluation.region)
    return ExampleModel(
        method, split, load_or_train_model(task, evaluation.manifest, folder, execution)
    )


def has_pixel_atoms(recipe: Recipe) -> bool:
    """Return whether the atoms of a recipe are patches of pixels that belong to a class."""
    on_pixels = get_patch_features(recipe.features).atoms_are_images and not recipe.n_components
    method: Any = get_method(recipe.method).load_class()
    return on_pixels and recipe.is_patch_level and bool(method.has_class_atoms)


def load_or_train_model(
    task: EvaluationTask, manifest: Manifest, folder: Path, execution: ExecutionOptions
) -> Model:
    """Load the model of a task from `folder`, or train and save it."""
    run = task.create_run(manifest, execution)
    file = folder / f"{run.key}{MODEL_SUFFIX}"
    if file.is_file():
        try:
            return load_model(file, n_jobs=execution.n_jobs)
        except ModelFileError as error:
            warnings.warn(f"{error}. The model is trained again", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(run.model.fit(run.train, callback=execution.callback), file)
    # A new model is read back as well, so that a second run gives the same result.
    return load_model(file, n_jobs=execution.n_jobs)
