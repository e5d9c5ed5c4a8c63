"""The command line: each command is a few lines over the pipeline."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from ..execution.progress import Callback, Progress

if TYPE_CHECKING:
    from ..batch import RunResult
    from ..evaluation.splits import Splits
    from ..execution.executor import Executor
    from ..images.manifest import Manifest

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Tell healthy from diseased tissue with a handful of labelled images, and see why.",
)
_errors = Console(stderr=True)
_STAGES = {
    "patches": "Cutting patches",
    "features": "Measuring images",
    "initialise": "First dictionaries",
    "train": "Training",
    "rule": "Fitting the rule",
    "draw": "Drawing tissue",
    "answer": "Answering",
    "evaluate": "Training and testing",
    "tune": "Trying recipes",
    "unseen patients": "Checking on unseen patients",
    "gallery": "Looking at patches",
    "cut-outs": "Cutting them out",
}

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", help="Threads; all cores if not given.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Work on a Dask cluster: tcp://HOST:PORT of its scheduler, local:N for N processes "
        "here, or a .yaml file for a batch system. All must see the same files.",
    ),
]
MppOption = Annotated[
    float | None, typer.Option(help="Pixel size of the images in µm, if they do not say it.")
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change one setting of the preset or of the method, such as stain=macenko, "
        "downsample=2, rule=proportion or n_atoms=300. May be repeated.",
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=COLUMN",
        help="Which column of the CSV is the path, label, patient, slide, site, mpp, split or "
        "mask, such as patient=case_no. May be repeated.",
    ),
]


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"histodict {version('histodict')}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Tell healthy from diseased tissue with a handful of labelled images, and see why."""


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Folder with one sub-folder per class, or a CSV.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings to start from: default, paper, auto, embeddings, regions, or a recipe "
            "file of `histodict tune`."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How to learn: see `histodict methods`. A recipe file brings its own; else dfdl."
        ),
    ] = None,
    regions: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Learn to find regions of this name: the class of the crops that show it, or "
            "what the masks (column mask) outline.",
        ),
    ] = None,
    setting: SettingOption = None,
    column: ColumnOption = None,
    split: Annotated[
        str | None, typer.Option(help="Use only rows with this value in the CSV's split column.")
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Go on from the dictionaries of this model, made with the same settings: quicker "
            "after a few labels have changed.",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what is costly to compute; a training with inner folds (auto) that "
            "was stopped goes on from it."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a model from labelled images.

    DATA is a folder with one sub-folder per class, or a CSV with the columns path and label, and
    best also patient, slide, site, mpp, split:

        histodict train tissue/ --output tissue.histodict

    To learn where something is instead, outline it in masks (a column mask in the CSV) or cut it
    out (one sub-folder of crops), and give it a name:

        histodict train tiles.csv --regions tumour --output tumour.histodict
    """
    from ..model_file import save_model
    from ..pipeline import RegionDetector, TissueClassifier
    from ..recipes import preset as named_preset

    with _plain_errors():
        started = time.perf_counter()
        manifest = _read_data(data.absolute() if cluster else data, column or [], split)
        recipe = named_preset(preset or ("regions" if regions else "default"), method)
        recipe = recipe.with_settings(_pairs("--set", setting or []))
        model: TissueClassifier | RegionDetector
        if regions:
            model = RegionDetector(
                recipe, region=regions, random_state=seed, n_jobs=jobs, cache=cache
            )
        else:
            model = TissueClassifier(recipe, random_state=seed, n_jobs=jobs, cache=cache)
        _check_folder(output)
        start = _load_start(start_from, type(model))
        with _open_executor(cluster) as executor, _bars() as bars:
            model.fit(manifest, callback=_show(bars), executor=executor, start_from=start)
        save_model(model, output)
    left_out = [m["failure"] for m in model.training_.get("members", []) if "failure" in m]
    for failure in left_out:
        _errors.print(f"[yellow]Warning:[/] a view was left out: {escape(failure)}", soft_wrap=True)
    seconds = time.perf_counter() - started
    facts = {
        "model": str(output),
        "classes": model.classes_,
        "n_images": model.training_["n_images"],
        "seconds": round(seconds, 1),
    }
    if model.recipe.panel:
        facts["views_left_out"] = left_out
    if isinstance(model, RegionDetector):
        facts["least_patches"] = model.least_patches_
    elif model.rule_ is not None:
        facts["threshold"] = model.threshold
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        typer.echo(
            f"Learnt {' / '.join(model.classes_)} from {facts['n_images']} images "
            f"in {seconds:.0f} s: {output}"
        )


def _load_start(path: Path | None, kind: type) -> Any:
    """The model to go on from, which must answer the same question."""
    from ..model_file import load_model

    if path is None:
        return None
    start = load_model(path)
    if not isinstance(start, kind):
        raise ValueError(f"{path}: answers another question than the model to be made")
    return start


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Model file, from `histodict train`.")],
    paths: Annotated[list[Path], typer.Argument(help="Images, slides, folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    mpp: MppOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify images and slides.

    Writes predictions.csv (and .parquet), an overlay, a patch map and QuPath outlines per image.
    Images already done are skipped; bad files are listed at the end and make the exit status 1.
    """
    result = _run_model("tissue-classifier", model, paths, output, mpp, jobs, cluster)
    words = _counts([row["label"] for row in result.rows])
    _tell_result(result, f"{words}. See {output / 'predictions.csv'}", as_json)


@app.command()
def detect(
    model: Annotated[Path, typer.Argument(help="Model file, from `histodict train --regions`.")],
    paths: Annotated[list[Path], typer.Argument(help="Images, slides, folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    mpp: MppOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find regions in images and slides.

    Writes detections.csv (one row per image) and regions.csv (one per region, with area and
    score; both also as .parquet), an overlay with the outlines, a patch map and QuPath annotations
    per image. Images already done are skipped; bad files are listed at the end and make the exit
    status 1.
    """
    result = _run_model("region-detector", model, paths, output, mpp, jobs, cluster)
    words = f"{len(result.regions)} regions; {_counts([row['label'] for row in result.rows])}"
    _tell_result(result, f"{words}. See {output / 'detections.csv'} and regions.csv", as_json)


@app.command()
def evaluate(
    data: Annotated[Path, typer.Argument(help="Folder with one sub-folder per class, or a CSV.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and report.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to compare, separated by commas; PRESET:METHOD takes another preset, "
            "such as paper:dfdl; METHOD+unlabelled adapts the threshold to the test images, whose "
            "labels it does not see. The first is compared with all others."
        ),
    ] = "dfdl,lbp-colour",
    preset: Annotated[str, typer.Option(help="The preset of methods that name none.")] = "default",
    protocol: Annotated[
        str, typer.Option(help="k-fold, hold-out, site, given, or a splits.json to use again.")
    ] = "k-fold",
    folds: Annotated[int, typer.Option(help="Folds of k-fold.")] = 5,
    repeats: Annotated[int, typer.Option(help="Repeats of k-fold or hold-out.")] = 1,
    per_class: Annotated[
        str, typer.Option(help="Training images per class of hold-out, separated by commas.")
    ] = "3,5,10",
    seeds: Annotated[str, typer.Option(help="Seeds of the training, separated by commas.")] = "0",
    by_image: Annotated[
        bool,
        typer.Option(
            "--by-image",
            help="Split by image although images of one patient then stand on both sides: the "
            "figures are too good, and the report says so.",
        ),
    ] = False,
    setting: SettingOption = None,
    column: ColumnOption = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for features, to share between evaluations.")
    ] = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on unseen patients.

    Every method is trained and tested on the same splits, with patients kept apart. Writes tables
    (results, paired comparisons, answers, errors, timing; CSV and Parquet), the splits, figures,
    and report.html.
    A run that was stopped goes on where it was:

        histodict evaluate tissue.csv --methods dfdl,odl,lbp-colour --folds 2 --repeats 5 -o out/
    """
    from ..compare.choices import choose_recipes, choose_splits
    from ..compare.evaluation import evaluate as run_evaluation
    from ..reports.evaluation_page import write_evaluation_page

    with _plain_errors():
        manifest = _read_data(data.absolute() if cluster else data, column or [], None)
        recipes = choose_recipes(methods.split(","), preset, _pairs("--set", setting or []))
        sizes = _whole_numbers("--per-class", per_class)
        by = "image" if by_image else "patient"
        splits = choose_splits(manifest, protocol, folds, repeats, sizes, by)
        _warn_of_splits(manifest, splits, protocol)
        with _open_executor(cluster) as executor, _bars() as bars:
            result = run_evaluation(
                manifest,
                recipes,
                splits,
                output,
                seeds=_whole_numbers("--seeds", seeds),
                n_jobs=jobs,
                cache=cache,
                callback=_show(bars),
                executor=executor,
            )
            write_evaluation_page(output / "report.html", result, n_jobs=jobs, callback=_show(bars))
    if as_json:
        typer.echo(json.dumps({"results": result.values, "comparisons": result.comparisons}))
    else:
        _tell_values(result.values)
        typer.echo(f"See {output / 'report.html'}")
    for failure in result.failures:
        where = f"{failure.cell.method}, {failure.cell.split.name}"
        _errors.print(f"[red]Not done:[/] {where}: {failure.error}", soft_wrap=True)
    if result.failures:
        raise typer.Exit(1)


def _warn_of_splits(manifest: Manifest, splits: Splits, protocol: str) -> None:
    """What makes figures too good, or leaves a split of the user's out of account."""
    from ..evaluation.splits import shared_patients

    shared = {patient for split in splits for patient in shared_patients(manifest, split)}
    if shared:
        total = len(set(manifest.patients))
        _errors.print(
            f"[yellow]Warning:[/] {len(shared)} of {total} patients are on both sides of a split: "
            "the figures are too good.",
            soft_wrap=True,
        )
    if protocol != "given" and any(record.split for record in manifest.records):
        _errors.print(
            "[yellow]Warning:[/] the column split is not used; --protocol given uses it.",
            soft_wrap=True,
        )


@app.command()
def reproduce(
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
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path(
        "histodict-paper"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a look in minutes.")] = False,
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; else each experiment's own.")
    ] = "",
    part: Annotated[
        str | None, typer.Option(help="Of data with several tasks: those named so, such as lung.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Settings to start from.")] = "paper",
    setting: SettingOption = None,
    per_class: Annotated[
        int | None, typer.Option(help="Training images per class; else half of the patients.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Repeat with other splits.")] = 1,
    jobs: JobsOption = None,
) -> None:
    """Repeat the paper's experiments and show its published figures beside ours.

    Writes figures (SVG, PNG), tables and index.html; a run that was stopped goes on where it was.
    Without data, tissue is drawn:

        histodict reproduce all --quick
    """
    from ..paper import FULL, QUICK, Choice
    from ..paper.reproduce import reproduce as run_experiments

    with _plain_errors():
        names = tuple(name.strip() for name in methods.split(",") if name.strip())
        choice = Choice(names, preset, _pairs("--set", setting or []), per_class, repeats)
        with _bars() as bars:
            made = run_experiments(
                what,
                data,
                output,
                sizes=QUICK if quick else FULL,
                part=part,
                choice=choice,
                n_jobs=jobs,
                callback=_show(bars),
            )
    for warning in dict.fromkeys(warning for outcome in made for warning in outcome.warnings):
        _errors.print(f"[yellow]Warning:[/] {warning}", soft_wrap=True)
    for outcome in made:
        typer.echo(f"{outcome.title}\n{outcome.words}")
    typer.echo(f"See {output / 'index.html'}")
    failures = [line for outcome in made for line in outcome.failures]
    for line in failures:
        _errors.print(f"[red]Not done:[/] {line}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


@app.command()
def tune(
    data: Annotated[Path, typer.Argument(help="Folder with one sub-folder per class, or a CSV.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Recipe file (.json) to write.")],
    preset: Annotated[str, typer.Option(help="The settings to start from.")] = "default",
    method: Annotated[str, typer.Option(help="The method: see `histodict methods`.")] = "dfdl",
    candidates: Annotated[int, typer.Option(help="How many recipes to try.")] = 12,
    setting: SettingOption = None,
    column: ColumnOption = None,
    split: Annotated[
        str | None, typer.Option(help="Use only rows with this value in the CSV's split column.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for what was found; a second run goes on from it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed tries the same recipes.")] = 0,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the settings that suit your images.

    Recipes that differ in stain normalisation, scale, surroundings, vectors, penalty and rule are
    tried on inner folds: patients they are tested on were not trained on. The settings given are
    kept unless others are better by 0.02. Give it training patients only.
    Then train with what was found:

        histodict tune train.csv --output recipe.json

        histodict train train.csv --preset recipe.json --output tissue.histodict
    """
    from ..execution.files import written_whole
    from ..pipeline.tuning import candidates as choose_candidates
    from ..pipeline.tuning import choose_recipe
    from ..recipes import preset as named_preset

    with _plain_errors():
        if output.suffix != ".json":
            raise ValueError(f"{output}: the name of a recipe file ends in .json")
        _check_folder(output)
        manifest = _read_data(data, column or [], split)
        base = named_preset(preset, method).with_settings(_pairs("--set", setting or []))
        base = replace(base, candidates=0, panel=False, calibration_folds=0)
        with _bars() as bars:
            trials = choose_recipe(
                manifest,
                choose_candidates(base, candidates, seed),
                random_state=seed,
                n_jobs=jobs,
                cache=cache,
                callback=_show(bars),
            )
        with written_whole(output) as partial:
            best = json.dumps(trials[0].recipe.to_dict(), indent=1)
            partial.write_text(best, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([trial.to_dict() for trial in trials]))
        return
    table = Table("score", "spread", "folds", "settings", box=None)
    for trial in trials:
        given = _flat(base.to_dict())
        changed = [
            f"{k}={v}" for k, v in _flat(trial.recipe.to_dict()).items() if v != given.get(k)
        ]
        words = ", ".join(changed) or "as given"
        if trial.failure:
            words += f"; not possible: {escape(trial.failure)}"
        values = f"{trial.mean:.3f}", f"{trial.spread:.3f}", str(len(trial.values))
        table.add_row(*values, words)
    Console().print(table)
    typer.echo(
        f"Best: {output}. Score: mean of balanced accuracy and AUC on inner folds; the settings "
        "given stay first unless others are better by 0.02."
    )


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    """All settings by name, those of the method among them."""
    others = {name: value for name, value in recipe.items() if name != "method_parameters"}
    return others | dict(recipe["method_parameters"])


@app.command()
def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders whose images may be read; the current one if none."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Drawn tissue; needs no data.")] = False,
    workspace: Annotated[
        Path, typer.Option(help="Folder for models, results and corrections.")
    ] = Path("histodict-web"),
    host: Annotated[
        str, typer.Option(help="Another address than this machine's own asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8642,
    user: Annotated[
        list[str] | None,
        typer.Option(help="A user with a link and space of their own. May be repeated."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page at once.")] = True,
) -> None:
    """Open the local web app: look, train, correct, retrain."""
    from ..web.command import serve_app

    with _plain_errors():
        serve_app(
            folders or [],
            workspace=workspace,
            host=host,
            port=port,
            users=user or [],
            demo=demo,
            browser=browser,
        )


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the methods that `train --method` takes."""
    from ..methods.registry import METHODS

    if as_json:
        typer.echo(json.dumps({name: entry.summary for name, entry in METHODS.items()}))
        return
    for name, entry in METHODS.items():
        level = "whole image" if entry.features else "patches"
        typer.echo(f"{name:14s} {level:12s} {entry.summary}")


@app.command()
def adapt(
    model: Annotated[Path, typer.Argument(help="Model file, from `histodict train`.")],
    paths: Annotated[list[Path], typer.Argument(help="Images, folders of them; no labels needed.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    mpp: MppOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a model's threshold with the help of images without labels.

    For a model learnt from a handful of images, or used on another hospital's: the scores of other
    patients lie higher or lower together. Give it at least 10 images, of both classes and about as
    many of each, such as those to be answered. Only the threshold changes:

        histodict adapt tissue.histodict new/ --output adapted.histodict

        histodict predict adapted.histodict new/ --output results/
    """
    from ..batch import find_images
    from ..model_file import load_model, save_model
    from ..pipeline import TissueClassifier

    with _plain_errors():
        _check_folder(output)
        trained = load_model(model, n_jobs=jobs)
        if not isinstance(trained, TissueClassifier):
            raise ValueError(f"{model}: finds regions; only a model of two classes can be adapted")
        images = find_images(paths)
        scores: list[float] = []
        with _bars() as bars:
            show = _show(bars)
            for image in images:
                scores.append(trained.predict(image, mpp=mpp).score)
                show(Progress("answer", len(scores), len(images)))
        adapted = trained.adapted_to(scores)
        save_model(adapted, output)
    shift = adapted.training_["adapted"]["threshold"]
    above = sum(score > 2 * shift for score in scores)
    groups = [sum(score <= 2 * shift for score in scores), above]
    moved = sum((score > 0) != (score > shift) for score in scores)
    if min(groups) < sum(groups) / 5:
        _errors.print(
            "[yellow]Warning:[/] one group is small: if nearly all images are of one class, the "
            "model as it was is the better one"
        )
    if as_json:
        facts = {"model": str(output), "n_images": len(images), "groups": groups, "n_moved": moved}
        typer.echo(json.dumps(facts))
        return
    typer.echo(
        f"Groups of {groups[0]} and {groups[1]} images; {moved} of {len(images)} get another "
        f"answer than before: {output}"
    )


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="Model file.")], as_json: JsonOption = False
) -> None:
    """Say what a model is and how it was made."""
    from ..model_file import read_header

    with _plain_errors():
        header = read_header(model)
    if as_json:
        typer.echo(json.dumps(header, ensure_ascii=False))
        return
    recipe = header["recipe"]
    facts: dict[str, Any] = {
        "kind": header["kind"],
        "classes": ", ".join(header["classes"]),
        "method": _listed({"": recipe["method"]} | recipe["method_parameters"]),
        "patches": f"{recipe['patch_px']} px at 1/{recipe['downsample']:g}, {recipe['vectors']}"
        + (
            f", with {recipe['context']} times as wide surroundings"
            if recipe["context"] > 1
            else ""
        ),
        "stain": recipe["stain"],
        "rule": recipe["rule"],
        "regions": f"from {header['least_patches']} patches" if "least_patches" in header else "",
        "pixel size": f"{header['mpp']:g} µm" if header["mpp"] else "not known",
        "training": _listed(
            {k: v for k, v in header["training"].items() if k not in ("members", "tried")}
        ),
        "made with": _listed(header["versions"]),
    }
    for name, value in facts.items():
        if value:
            typer.echo(f"{name:11s} {value}")
    together = "These decide together" if recipe["panel"] else "Calibrated"
    for key, title in (("members", together), ("tried", "These were tried")):
        recipes = header["training"].get(key, [])
        if recipes:
            typer.echo(f"{title}; how good on training patients not seen, and what differs:")
        for line in _compared(recipe, recipes):
            typer.echo(f"  {line}")


def _compared(recipe: dict[str, Any], recipes: list[dict[str, Any]]) -> Iterator[str]:
    """Of recipes: how good on unseen patients, and in what they differ from the model's own."""
    own = _flat(recipe)
    left_out = ("panel", "calibration_folds", "candidates")
    for facts in recipes:
        values = facts["values"] if "values" in facts else [facts["unseen"] or 0.0]
        changed = _flat(facts["recipe"])
        words = [f"{k}={v}" for k, v in changed.items() if v != own.get(k) and k not in left_out]
        failure = f"; left out: {facts['failure']}" if "failure" in facts else ""
        value = f"{sum(values) / len(values):.3f}" if not failure else "-----"
        yield f"{value}  {', '.join(words) or 'as above'}{failure}"


@app.command()
def atoms(
    model: Annotated[Path, typer.Argument(help="Model file, from `histodict train`.")],
    data: Annotated[Path, typer.Argument(help="Folder with one sub-folder per class, or a CSV.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Page (.html) to write.")],
    number: Annotated[int, typer.Option("--atoms", help="Atoms of each class to show.")] = 24,
    column: ColumnOption = None,
    split: Annotated[
        str | None, typer.Option(help="Use only rows with this value in the CSV's split column.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of `train --cache`: what it knows is not done anew.")
    ] = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a model has learnt: its atoms, and the real patches that use them most.

    DATA is what the model learnt from, or other images. Writes one page that needs nothing else:

        histodict atoms tissue.histodict tissue/ --output atoms.html
    """
    from ..model_file import load_model
    from ..reports.atoms_page import find_atoms, panel_note, plain_facts, write_atoms_page

    with _plain_errors():
        _check_folder(output)
        trained = load_model(model, n_jobs=jobs)
        manifest = _read_data(data, column or [], split)
        with _bars() as bars:
            found = find_atoms(trained, manifest, n_atoms=number, cache=cache, callback=_show(bars))
            write_atoms_page(output, trained, manifest, found, callback=_show(bars))
    note = panel_note(trained)
    if note:
        _errors.print(f"[yellow]Note:[/] {note}", soft_wrap=True)
    if as_json:
        names = [manifest.name(record) for record in manifest.records]
        facts = {"page": str(output)} | plain_facts(found, names)
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    shown = sum(len(use.most_used) for use in found.classes)
    typer.echo(f"{shown} atoms, as {len(found.labels)} patches use them. Open {output}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path(
        "histodict-demo"
    ),
    seed: Annotated[int, typer.Option(help="Draw another set of patients.")] = 0,
) -> None:
    """Draw tissue, learn from some patients, answer for others, and make a page of it.

    Needs no data and no network.
    """
    from ..demo.page import write_demo_page
    from ..demo.run import run_demo
    from ..model_file import save_model

    with _plain_errors():
        output.mkdir(parents=True, exist_ok=True)
        with _bars() as bars:
            result = run_demo(output, seed=seed, callback=_show(bars))
        page = output / "index.html"
        write_demo_page(page, result)
        save_model(result.model, output / "demo.histodict")
    typer.echo(
        f"Balanced accuracy on unseen patients: {result.balanced_accuracy:.2f} "
        f"({int(result.confusion.sum())} images). Open {page}"
    )


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}".strip() for name, value in values.items())


def _read_data(data: Path, columns: list[str], split: str | None) -> Manifest:
    """The manifest, its warnings said, cut down to one value of its split column if asked for."""
    from ..images.manifest import read_manifest

    manifest = read_manifest(data, _pairs("--column", columns))
    if split is not None:
        rows = [i for i, record in enumerate(manifest.records) if record.split == split]
        if not rows:
            raise ValueError(f"{data}: no row has {split!r} in its split column")
        manifest = manifest.select(rows)
    for warning in manifest.warnings:
        _errors.print(f"[yellow]Warning:[/] {warning}", soft_wrap=True)
    return manifest


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"{option} {text}: write it as NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: write whole numbers separated by commas") from None


def _tell_values(values: list[dict[str, Any]]) -> None:
    """The balanced accuracies as a table."""
    table = Table("method", "images per class", "balanced accuracy", "95 % interval", box=None)
    for row in values:
        if row["metric"] == "balanced accuracy":
            interval = f"{row['low']:.3f} to {row['high']:.3f}"
            size = str(row["n_per_class"] or "all")
            table.add_row(row["method"], size, f"{row['value']:.3f}", interval)
    Console().print(table)


def _check_folder(output: Path) -> None:
    """Better now than after an hour of training."""
    if not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist: make it first")


def _open_executor(cluster: str | None) -> AbstractContextManager[Executor | None]:
    """The cluster that was asked for; None stands for this machine's threads."""
    if cluster is None:
        return nullcontext()
    from ..execution.cluster import open_cluster

    return open_cluster(cluster)


def _run_model(
    kind: str,
    model: Path,
    paths: list[Path],
    output: Path,
    mpp: float | None,
    jobs: int | None,
    cluster: str | None,
) -> RunResult:
    """A model of the kind over all images."""
    from ..batch import find_images, run_images
    from ..model_file import load_model, read_header

    with _plain_errors():
        found = read_header(model)["kind"]
        if found != kind:
            use = "detect" if found == "region-detector" else "predict"
            raise ValueError(f"{model}: this model is a {found}: use `histodict {use}`")
        loaded = load_model(model, n_jobs=jobs)
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        images = find_images(paths)
        if not images:
            raise ValueError(f"no images found in {', '.join(map(str, paths))}")
        with _open_executor(cluster) as executor, _bars() as bars:
            task = bars.add_task("Looking at images", total=len(images))
            return run_images(
                loaded,
                digest,
                images,
                output,
                mpp=mpp,
                tell=lambda path: bars.update(task, advance=1),
                executor=executor,
            )


def _tell_result(result: RunResult, words: str, as_json: bool) -> None:
    """The summary or JSON; then what was not done, which makes the exit status 1."""
    if as_json:
        failures = [
            {"path": _printable(str(path)), "reason": _printable(reason)}
            for path, reason in result.failures
        ]
        content = {"rows": result.rows, "regions": result.regions, "failures": failures}
        typer.echo(json.dumps(content, ensure_ascii=False))
    else:
        again = f" ({result.n_skipped} were done before)" if result.n_skipped else ""
        typer.echo(f"{len(result.rows)} images{again}: {words}")
    for path, reason in result.failures:
        words = reason if reason.startswith(str(path)) else f"{path}: {reason}"
        _errors.print(f"[red]Not done:[/] {escape(_printable(words))}", soft_wrap=True)
    if result.failures:
        raise typer.Exit(1)


def _printable(text: str) -> str:
    """File names of old systems may hold bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _counts(labels: list[str]) -> str:
    counts = Counter(labels)
    return ", ".join(f"{counts[label]} {label}" for label in sorted(counts)) or "none"


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What the user can mend is one line and exit status 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        _errors.print(f"[red]Error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


def _bars() -> Bars:
    return Bars(
        TextColumn("{task.description:20s}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=_errors,
        transient=True,
    )


def _show(bars: Bars) -> Callback:
    """A callback that gives every stage a bar of its own."""
    tasks: dict[str, Any] = {}

    def show(progress: Progress) -> None:
        if progress.stage not in tasks:
            name = _STAGES.get(progress.stage, progress.stage)
            tasks[progress.stage] = bars.add_task(name, total=progress.total)
        bars.update(tasks[progress.stage], completed=progress.done)

    return show
