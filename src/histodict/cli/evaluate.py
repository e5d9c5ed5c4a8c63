"""Commands `evaluate` (compare methods) and `reproduce` (experiments of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.files import check_disk_space, check_writable_folder
from .console import (
    exit_with_failures,
    print_json,
    print_table,
    progress_bars,
    report_errors,
    set_resume_hint,
    warn,
)
from .image_options import (
    RegionTrainingOptions,
    chosen_preset,
    one_region,
    parse_pairs,
    set_positive_class,
    warn_of_confounders,
    warn_of_masks,
    whole_numbers,
)
from .options import (
    CacheOption,
    ExecutionCliOptions,
    FolderOutput,
    JobsOption,
    JsonOption,
    PositiveOption,
    SettingOption,
)

if TYPE_CHECKING:
    from ..datasets.manifest import Manifest
    from ..model_selection.splits import Splits
    from ..models import Plan
    from ..paper import Choice, Outcome
    from ..utils.text_io import Row


_REPORT_BYTES = 20 * 2**20  # approximate size of tables, maps and pages


@dataclass(frozen=True)
class MethodsOptions:
    """Options that select the methods to compare."""

    methods: Annotated[
        str | None,
        typer.Option(
            help="What to compare, separated by commas: methods; presets; or PRESET:METHOD, such "
            "as paper:dfdl. With +unlabelled the threshold is adapted to the test images, whose "
            "labels it does not see. The first is compared with all others. Left out: what `train` "
            "makes, and lbp-colour, with --features mean-logistic; with --regions dfdl, by pixels "
            "and by what a network sees."
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help="The preset of methods that name none; left out: fast, one model each; with "
            "--features precomputed; or with --regions the one that `train --regions` takes."
        ),
    ] = None
    setting: SettingOption = None

    def plans(self, region: str | None, features: Path | None = None) -> dict[str, Plan]:
        """Return the training plans by name."""
        from ..evaluation import choose_plans

        settings = parse_pairs("--set", self.setting)
        # If every method names its preset, none is chosen and none is reported.
        methods = [name.strip() for name in (self.methods or "").split(",")]
        named = self.preset or ("regions" if all(":" in name for name in methods) else None)
        named = named if region else self.preset
        preset = chosen_preset(named, settings, methods, regions=bool(region), features=features)
        names = (
            self.methods.split(",") if self.methods else self._defaults(region, preset, features)
        )
        if region is None:
            preset = self.preset or ("precomputed" if features else "fast")
        return choose_plans(names, preset, settings, region)

    def _defaults(self, region: str | None, preset: str, features: Path | None) -> list[str]:
        """Return the methods that are compared by default."""
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
        str, typer.Option(help="k-fold, hold-out, site, predefined, or a splits.json to use again.")
    ] = "k-fold"
    folds: Annotated[int, typer.Option(help="Folds of k-fold.")] = 5
    repeats: Annotated[int, typer.Option(help="Repeats of k-fold or hold-out.")] = 1
    per_class: Annotated[
        str, typer.Option(help="Training images per class of hold-out, separated by commas.")
    ] = "3,5,10"
    seeds: Annotated[str, typer.Option(help="Seeds of the training, separated by commas.")] = "0"
    by_image: Annotated[
        bool,
        typer.Option(
            "--by-image",
            help="Split by image although images of one patient then stand on both sides: the "
            "figures are too good, and the report says so.",
        ),
    ] = False

    def splits(self, manifest: Manifest) -> Splits:
        """Return the splits; warn about shared patients and an unused split column."""
        from ..evaluation import choose_splits
        from ..model_selection.splits import shared_patients

        sizes = whole_numbers("--per-class", self.per_class)
        by = "image" if self.by_image else "patient"
        splits = choose_splits(manifest, self.protocol, self.folds, self.repeats, sizes, by)
        shared = {patient for split in splits for patient in shared_patients(manifest, split)}
        if shared:
            n_patients = len(set(manifest.patients))
            warn(
                f"{len(shared)} of {n_patients} patients are on both sides of a split: the figures "
                "are too good."
            )
        if self.protocol != "predefined" and any(record.split for record in manifest.records):
            warn("the column split is not used; --protocol predefined uses it.")
        return splits


@dataclass(frozen=True)
class LabelledDataOptions(RegionTrainingOptions):
    """Labelled images, with an optional positive class or region class."""

    positive: PositiveOption = None

    def choose(self, manifest: Manifest) -> Manifest:
        """Select images for the task: with a positive class, or parts of annotated images."""
        manifest = self.split_by_annotation(manifest)
        if one_region(self.regions) is None:
            return set_positive_class(manifest, self.positive)
        if self.positive is not None:
            raise ValueError("--positive: leave it out, as --regions names what is to be found")
        return manifest

    def read(self, *, whole_paths: bool = False) -> Manifest:
        """Read the images; for regions, label each by whether it shows any."""
        from ..models.region_detector import labelled_by_region

        manifest = super().read(whole_paths=whole_paths)
        region = one_region(self.regions)
        if region is None:
            warn_of_masks(manifest)
            return manifest
        return labelled_by_region(manifest, region)


def evaluate(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and report.")],
    compared: MethodsOptions,
    protocol: ProtocolOptions,
    data: LabelledDataOptions,
    cache: CacheOption = None,
    work: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on unseen patients.

    Every method is trained and tested on the same splits, with patients kept apart. Writes tables
    (results, paired comparisons, answers, errors, timing; CSV and Parquet), the splits, figures,
    and report.html.
    A run that was stopped goes on where it was:

        histodict evaluate tissue.csv --methods dfdl,odl,lbp-colour --folds 2 --repeats 5 -o out/

    Where regions are to be found (masks in the column mask, or crops), patches are measured: AUC,
    Dice, sensitivity and specificity:

        histodict evaluate tiles.csv --regions tumour -o out/

    From vectors that an encoder computed before, no image is needed:

        histodict evaluate slides.csv --features features_uni_v1/ -o out/

    Outlines (--annotations) may stand for masks. With several classes, the parts of images that
    are outlined as one of them are told apart:

        histodict evaluate slides.csv --annotations geojson/ --regions tumour,stroma -o out/
    """
    from ..evaluation import evaluate as run_evaluation
    from ..evaluation import train_example
    from ..reports.evaluation_page import write_evaluation_page
    from ..reports.evaluation_tables import selection_text

    with report_errors():
        check_writable_folder(output)
        check_disk_space(output, _REPORT_BYTES)
        plans = compared.plans(data.regions, data.features)
        region = one_region(data.regions)
        manifest = data.read(whole_paths=work.cluster is not None)
        splits = protocol.splits(manifest)
        warn_of_confounders(manifest)
        seeds = whole_numbers("--seeds", protocol.seeds)
        set_resume_hint()
        with work.begin(cache) as execution:
            evaluation = run_evaluation(
                manifest, plans, splits, output, seeds=seeds, work=execution, region=region
            )
            example = train_example(evaluation, output / "models", execution)
            write_evaluation_page(output / "report.html", evaluation, example)
    if as_json:
        notes = selection_text(evaluation)
        print_json(
            {"results": evaluation.values, "comparisons": evaluation.comparisons, "notes": notes}
        )
    else:
        if region:
            _print_values(evaluation.values, list(evaluation.measures), " of patches")
        else:
            _print_values(evaluation.values, [evaluation.main_measure])
        for note in selection_text(evaluation):
            warn(note, "Note")
        typer.echo(f"See {output / 'report.html'}")
    exit_with_failures(
        f"{f.task.method}, {f.task.split.name}: {f.error}" for f in evaluation.failures
    )


def _print_values(values: list[Row], shown: list[str], of_what: str = "") -> None:
    for measure in shown:
        print_table(
            ("method", "images per class", f"{measure}{of_what}", "95 % interval"),
            [
                (
                    row["method"],
                    str(row["n_per_class"] or "all"),
                    f"{row['value']:.3f}",
                    f"{row['low']:.3f} to {row['high']:.3f}",
                )
                for row in values
                if row["metric"] == measure
            ],
        )


@dataclass(frozen=True)
class ReproduceOptions:
    """Options that select a part of the data and override settings of the paper."""

    part: Annotated[
        str | None, typer.Option(help="Of data with several tasks: those named so, such as lung.")
    ] = None
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; else each experiment's own.")
    ] = ""
    preset: Annotated[str, typer.Option(help="Settings to start from.")] = "paper"
    setting: SettingOption = None
    per_class: Annotated[
        int | None, typer.Option(help="Training images per class; else as in the paper.")
    ] = None
    repeats: Annotated[int, typer.Option(help="Repeat with other splits.")] = 1

    def choice(self) -> Choice:
        """Return the options as a `Choice`."""
        from ..paper import Choice

        names = tuple(name.strip() for name in self.methods.split(",") if name.strip())
        settings = parse_pairs("--set", self.setting)
        return Choice(names, self.preset, settings, self.per_class, self.repeats)


def reproduce(
    *,
    what: Annotated[
        str,
        typer.Argument(
            help="bases, codes, accuracy, confusion, roc, training-patches, training-images, "
            "bases-count, complexity or all."
        ),
    ] = "all",
    data: Annotated[
        str, typer.Option(help="Folder, name of one in $HISTODICT_DATA, or synthetic.")
    ] = "synthetic",
    output: FolderOutput = Path("histodict-paper"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a look in minutes.")] = False,
    choice: ReproduceOptions,
    jobs: JobsOption = None,
) -> None:
    """Repeat the paper's experiments and show its published figures beside ours.

    Writes figures (SVG, PNG), tables and index.html; a run that was stopped goes on where it was.
    Without data, tissue is drawn:

        histodict reproduce all --quick
    """
    from ..paper import FULL, QUICK
    from ..paper.reproduce import reproduce as run_experiments
    from ..utils.parallel import ExecutionOptions

    with report_errors(), progress_bars() as callback:
        check_writable_folder(output)
        check_disk_space(output, _REPORT_BYTES)
        set_resume_hint()
        outcomes = run_experiments(
            what,
            data,
            output,
            sizes=QUICK if quick else FULL,
            part=choice.part,
            choice=choice.choice(),
            work=ExecutionOptions(jobs, callback=callback),
        )
    _print_outcomes(outcomes, output)


def _print_outcomes(outcomes: list[Outcome], output: Path) -> None:
    for warning in dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings):
        warn(warning)
    for outcome in outcomes:
        typer.echo(f"{outcome.title}\n{outcome.text}")
    typer.echo(f"See {output / 'index.html'}")
    exit_with_failures(line for outcome in outcomes for line in outcome.failures)
