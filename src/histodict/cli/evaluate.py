"""Commands `evaluate` (compare methods) and `reproduce` (experiments of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.files import check_disk_space, check_writable_folder
from .console import (
    print_failures_and_exit,
    print_json,
    print_table,
    progress_bars,
    report_errors,
    set_resume_hint,
    warn,
)
from .image_options import (
    RegionTrainingOptions,
    choose_preset,
    parse_integers,
    parse_pairs,
    parse_single_region,
    set_positive_class,
    warn_ignored_masks,
    warn_of_confounders,
)
from .options import (
    ADVANCED,
    INPUT,
    MODEL,
    CacheOption,
    ExecutionCliOptions,
    JobsOption,
    JsonOption,
    PositiveOption,
    ResultsOutput,
    SetOption,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..datasets.manifest import Manifest
    from ..evaluation import Evaluation
    from ..model_selection.splits import Splits
    from ..models import Plan
    from ..models.recipe import Recipe
    from ..paper import ExperimentOptions, Outcome
    from ..utils.text_io import Row


_REPORT_BYTES = 20 * 2**20  # approximate size of tables, maps and pages


@dataclass(frozen=True)
class MethodsOptions:
    """Options that select the methods to compare."""

    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, presets or PRESET:METHOD, separated by commas. The report compares the "
            "first with each of the others. METHOD+unlabelled also adapts the threshold to the "
            "test images, without their labels. Default: the default preset of `histodict train`, "
            "or dfdl if you give --preset; and a simple method to compare with: lbp-colour, or "
            "mean-logistic with --features. With --regions: dfdl, with and without an encoder (if "
            "one is installed).",
            rich_help_panel=MODEL,
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help="Preset of the methods that are listed without PRESET. Default: fast. With "
            "--features: precomputed. With --regions: as in `histodict train`.",
            rich_help_panel=MODEL,
        ),
    ] = None
    setting_overrides: SetOption = None

    def plans(self, region: str | None, features: Path | None = None) -> dict[str, Plan]:
        """Return the training plan of each compared method, by name.

        Parameters
        ----------
        region : region class to detect; None to classify images
        features : folder of feature files that replace the images; None for images
        """
        from ..evaluation import choose_plans

        settings = parse_pairs("--set", self.setting_overrides)
        # If every method names its preset, none is chosen and none is reported.
        methods = [name.strip() for name in (self.methods or "").split(",")]
        named = self.preset or ("regions" if all(":" in name for name in methods) else None)
        named = named if region else self.preset
        preset = choose_preset(
            named, settings, methods, finds_regions=bool(region), features=features
        )
        names = (
            self.methods.split(",")
            if self.methods
            else self._default_methods(region, preset, features)
        )
        if region is None:
            preset = self.preset or ("precomputed" if features else "fast")
        return choose_plans(names, preset, settings, region)

    def _default_methods(self, region: str | None, preset: str, features: Path | None) -> list[str]:
        """Return the names of the methods that are compared by default."""
        if region is None:
            simple = "mean-logistic" if features else "lbp-colour"
            return [preset if self.preset is None else "dfdl", simple]
        # Compare with and without the encoder, unless the user chose a preset.
        both = preset == "embeddings" and self.preset is None
        return ["embeddings:dfdl", "regions:dfdl"] if both else ["dfdl"]


@dataclass(frozen=True)
class ProtocolOptions:
    """Options that define the splits into training and test images, and the seeds."""

    protocol: Annotated[
        str,
        typer.Option(
            help="k-fold, hold-out, site (test on each site in turn, train on the others), "
            "predefined (column split), or the splits.json of an earlier run.",
            rich_help_panel=INPUT,
        ),
    ] = "k-fold"
    folds: Annotated[
        int, typer.Option(min=2, help="k-fold: number of folds.", rich_help_panel=INPUT)
    ] = 5
    repeats: Annotated[
        int, typer.Option(help="k-fold and hold-out: number of repeats.", rich_help_panel=INPUT)
    ] = 1
    per_class: Annotated[
        str,
        typer.Option(
            help="hold-out: numbers of training images per class, separated by commas; each number "
            "is tested separately.",
            rich_help_panel=INPUT,
        ),
    ] = "3,5,10"
    seeds: Annotated[
        str, typer.Option(help="Random seeds, separated by commas.", rich_help_panel=ADVANCED)
    ] = "0"
    by_image: Annotated[
        bool,
        typer.Option(
            "--by-image",
            help="Split by image, so that training and test set share patients. Accuracy is then "
            "too high; the report states this.",
            rich_help_panel=ADVANCED,
        ),
    ] = False

    def splits(self, manifest: Manifest) -> Splits:
        """Return the splits; warn about shared patients and an unused split column."""
        from ..evaluation import choose_splits
        from ..model_selection.splits import shared_patients

        sizes = parse_integers("--per-class", self.per_class)
        by = "image" if self.by_image else "patient"
        splits = choose_splits(manifest, self.protocol, self.folds, self.repeats, sizes, by)
        shared = {patient for split in splits for patient in shared_patients(manifest, split)}
        if shared:
            n_patients = len(set(manifest.patients))
            warn(
                f"{len(shared)} of {n_patients} patients are in both the training and the test set "
                "of a split: accuracy is too high"
            )
        if self.protocol != "predefined" and any(record.split for record in manifest.records):
            warn("column split ignored; --protocol predefined uses it", "Note")
        return splits


@dataclass(frozen=True)
class LabelledDataOptions(RegionTrainingOptions):
    """Options that name labelled images, and their positive class or region classes."""

    positive: PositiveOption = None

    def select(self, manifest: Manifest) -> Manifest:
        """Return the images, with the positive class of --positive.

        If --regions names several classes, annotated images are split into one record per class.
        """
        manifest = self.split_by_annotation(manifest)
        if parse_single_region(self.regions) is None:
            return set_positive_class(manifest, self.positive)
        if self.positive is not None:
            raise ValueError("--positive cannot be combined with --regions, which names the class")
        return manifest

    def read(self, recipes: Sequence[Recipe] = (), *, absolute_paths: bool = False) -> Manifest:
        """Read the images; to detect regions, label each by whether it contains a region."""
        from ..models.region_detector import relabel_by_region

        manifest = super().read(recipes, absolute_paths=absolute_paths)
        region = parse_single_region(self.regions)
        if region is None:
            if len(manifest.classes) < 2:
                found = ", ".join(manifest.classes)
                raise ValueError(
                    f"evaluation needs images of at least two classes; found: {found or 'none'}"
                )
            warn_ignored_masks(manifest)
            return manifest
        return relabel_by_region(manifest, region)


def evaluate(
    *,
    output: ResultsOutput,
    method_options: MethodsOptions,
    protocol: ProtocolOptions,
    data: LabelledDataOptions,
    cache: CacheOption = None,
    execution: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on unseen patients, and write a report.

        histodict evaluate tissue.csv --methods dfdl,lbp-colour -o comparison/

    All methods are trained and tested on the same splits. By default, no patient is in both the
    training and the test set. Writes report.html, the splits, and one table each of results,
    paired comparisons, predictions, misclassified images (errors.csv) and times. If a run was
    interrupted, run the same command again: finished trainings are reused.

    Compare region detectors (accuracy is measured per patch):

        histodict evaluate tiles.csv --regions tumour -o comparison/

    Compare methods on feature files (images are not needed):

        histodict evaluate slides.csv --features uni_v1/ -o comparison/
    """
    from ..encoders import check_installed
    from ..evaluation import evaluate as run_evaluation
    from ..evaluation import train_example
    from ..reports.evaluation_page import write_evaluation_page
    from ..reports.evaluation_tables import selection_warnings

    with report_errors():
        check_writable_folder(output)
        check_disk_space(output, _REPORT_BYTES)
        plans = method_options.plans(data.regions, data.features)
        region = parse_single_region(data.regions)
        recipes = [recipe for plan in plans.values() for recipe in plan.recipes]
        for recipe in recipes:
            check_installed(recipe.features)
        manifest = data.read(recipes, absolute_paths=execution.cluster is not None)
        splits = protocol.splits(manifest)
        warn_of_confounders(manifest)
        seeds = parse_integers("--seeds", protocol.seeds)
        set_resume_hint("finished trainings")
        with execution.start(cache) as resources:
            evaluation = run_evaluation(
                manifest, plans, splits, output, seeds=seeds, execution=resources, region=region
            )
            example = train_example(evaluation, output / "models", resources)
            write_evaluation_page(output / "report.html", evaluation, example)
    if as_json:
        notes = selection_warnings(evaluation)
        print_json(
            {
                "results": evaluation.metric_rows,
                "comparisons": evaluation.comparisons,
                "notes": notes,
            }
        )
    else:
        _print_evaluation(evaluation, selection_warnings(evaluation))
        typer.echo(f"See {output / 'report.html'}")
    print_failures_and_exit(
        f"{f.task.method}, {f.task.split.name}: {f.error}" for f in evaluation.failures
    )


def _print_evaluation(evaluation: Evaluation, notes: Iterable[str]) -> None:
    """Print the scores of the methods, warnings about their intervals, and notes."""
    if evaluation.region:
        _print_metric_tables(evaluation.metric_rows, list(evaluation.metrics), " of patches")
    else:
        _print_metric_tables(evaluation.metric_rows, [evaluation.main_metric])
    for warning in evaluation.interval_warnings:
        warn(warning)
    for note in notes:
        warn(note, "Note")


def _print_metric_tables(rows: list[Row], metric_names: list[str], suffix: str = "") -> None:
    for metric in metric_names:
        print_table(
            ("method", "training images per class", f"{metric}{suffix}", "95 % interval"),
            [
                (
                    row["method"],
                    str(row["n_per_class"] or "all"),
                    f"{row['value']:.3f}",
                    f"{row['low']:.3f} to {row['high']:.3f}",
                )
                for row in rows
                if row["metric"] == metric
            ],
        )


@dataclass(frozen=True)
class ReproduceOptions:
    """Options that select a part of the data and override settings of the paper."""

    part: Annotated[
        str | None,
        typer.Option(
            help="Use only one part of the data if it has several, such as lung. Default: all.",
            rich_help_panel=INPUT,
        ),
    ] = None
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, separated by commas. Default: those of each experiment.",
            rich_help_panel=MODEL,
        ),
    ] = ""
    preset: Annotated[str, typer.Option(help="Preset of all methods.", rich_help_panel=MODEL)] = (
        "paper"
    )
    setting_overrides: SetOption = None
    per_class: Annotated[
        int | None,
        typer.Option(
            help="Training images per class. Default: as in the paper.", rich_help_panel=INPUT
        ),
    ] = None
    repeats: Annotated[
        int, typer.Option(help="Number of repeats with other splits.", rich_help_panel=INPUT)
    ] = 1

    def experiment_options(self) -> ExperimentOptions:
        """Return the options in the form that `paper.reproduce` takes."""
        from ..paper import ExperimentOptions

        names = tuple(name.strip() for name in self.methods.split(",") if name.strip())
        settings = parse_pairs("--set", self.setting_overrides)
        return ExperimentOptions(names, self.preset, settings, self.per_class, self.repeats)


def reproduce(
    *,
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="Experiment: bases (the paper's word for atoms), codes, accuracy, confusion, roc, "
            "training-patches, training-images, bases-count, complexity or all.",
        ),
    ] = "all",
    data: Annotated[
        str,
        typer.Option(
            help="Folder, name of a folder in $HISTODICT_DATA, or synthetic.", rich_help_panel=INPUT
        ),
    ] = "synthetic",
    output: ResultsOutput = Path("histodict-paper"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small sizes, for a test in minutes.", rich_help_panel=MODEL),
    ] = False,
    options: ReproduceOptions,
    jobs: JobsOption = None,
) -> None:
    """Repeat the experiments of Vu 2016, and compare the results with the paper.

        histodict reproduce all --quick

    The paper introduced the method dfdl. Writes figures (SVG, PNG), tables and index.html.
    Without --data, images are synthetic. If a run was interrupted, run the same command again:
    finished trainings are reused.
    """
    from ..paper import FULL, QUICK
    from ..paper import reproduce as run_experiments
    from ..utils.parallel import ExecutionOptions

    with report_errors(), progress_bars() as callback:
        check_writable_folder(output)
        check_disk_space(output, _REPORT_BYTES)
        set_resume_hint("finished trainings")
        outcomes = run_experiments(
            experiment,
            data,
            output,
            sizes=QUICK if quick else FULL,
            part=options.part,
            options=options.experiment_options(),
            execution=ExecutionOptions(jobs, callback=callback),
        )
    _print_outcomes(outcomes, output)


def _print_outcomes(outcomes: list[Outcome], output: Path) -> None:
    for warning in dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings):
        warn(warning)
    for outcome in outcomes:
        typer.echo(f"{outcome.title}\n{outcome.text}")
    typer.echo(f"See {output / 'index.html'}")
    print_failures_and_exit(line for outcome in outcomes for line in outcome.failures)
