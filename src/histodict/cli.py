"""The command line: each command is a few lines over the pipeline."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from .execution.progress import Callback, Progress

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Tell healthy from diseased tissue with a handful of labelled images, and see why.",
)
_errors = Console(stderr=True)
_STAGES = {
    "patches": "Cutting patches",
    "initialise": "First dictionaries",
    "train": "Training",
    "rule": "Fitting the rule",
    "draw": "Drawing tissue",
    "answer": "Answering",
}

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", help="Threads; all cores if not given.")]
MppOption = Annotated[
    float | None, typer.Option(help="Pixel size of the images in µm, if they do not say it.")
]


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Folder with one sub-folder per class, or a CSV.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    preset: Annotated[
        str, typer.Option(help="Settings to start from: default or paper.")
    ] = "default",
    rule: Annotated[str | None, typer.Option(help="proportion, margin or codes.")] = None,
    stain: Annotated[str | None, typer.Option(help="none, reinhard or macenko.")] = None,
    vectors: Annotated[str | None, typer.Option(help="rgb, centred or channel-centred.")] = None,
    downsample: Annotated[float | None, typer.Option(help="Reduce images by this factor.")] = None,
    patch: Annotated[int | None, typer.Option(help="Side of a patch, in reduced pixels.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Use only rows with this value in the CSV's split column.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a model from labelled images.

    DATA is a folder with one sub-folder per class, or a CSV with the columns path and label, and
    best also patient, slide, site, mpp, split:

        histodict train tissue/ --output tissue.histodict
    """
    from .images.manifest import read_manifest
    from .model_file import save_model
    from .pipeline import TissueClassifier
    from .recipes import preset as named_preset

    with _plain_errors():
        started = time.perf_counter()
        manifest = read_manifest(data)
        if split is not None:
            rows = [i for i, record in enumerate(manifest.records) if record.split == split]
            if not rows:
                raise ValueError(f"{data}: no row has {split!r} in its split column")
            manifest = manifest.select(rows)
        for warning in manifest.warnings:
            _errors.print(f"[yellow]Warning:[/] {warning}")
        recipe = named_preset(preset).with_changes(
            rule=rule, stain=stain, vectors=vectors, downsample=downsample, patch_px=patch
        )
        model = TissueClassifier(recipe, random_state=seed, n_jobs=jobs)
        with _bars() as bars:
            model.fit(manifest, callback=_show(bars))
        save_model(model, output)
    seconds = time.perf_counter() - started
    facts = {
        "model": str(output),
        "classes": model.classes_,
        "n_images": model.training_["n_images"],
        "n_patches": model.training_["n_patches"],
        "threshold": model.rule_.threshold,
        "seconds": round(seconds, 1),
    }
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        typer.echo(
            f"Learnt {' / '.join(model.classes_)} from {facts['n_images']} images "
            f"({facts['n_patches']} patches) in {seconds:.0f} s: {output}"
        )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Model file, from `histodict train`.")],
    paths: Annotated[list[Path], typer.Argument(help="Images, slides, folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")],
    mpp: MppOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify images and slides.

    Writes predictions.csv (and .parquet), an overlay, a patch map and QuPath outlines per image.
    Images already done are skipped; bad files are listed at the end and make the exit status 1.
    """
    from .model_file import load_model
    from .runs import find_images, predict_images

    with _plain_errors():
        classifier = load_model(model, n_jobs=jobs)
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        images = find_images(paths)
        if not images:
            raise ValueError(f"no images found in {', '.join(map(str, paths))}")
        with _bars() as bars:
            task = bars.add_task("Classifying", total=len(images))
            result = predict_images(
                classifier,
                digest,
                images,
                output,
                mpp=mpp,
                tell=lambda path: bars.update(task, advance=1),
            )
    if as_json:
        failures = [{"path": str(path), "reason": reason} for path, reason in result.failures]
        typer.echo(json.dumps({"rows": result.rows, "failures": failures}, ensure_ascii=False))
    else:
        _summarise(result.rows, result.n_skipped, output)
    for path, reason in result.failures:
        _errors.print(f"[red]Not done:[/] {path}: {reason}", soft_wrap=True)
    if result.failures:
        raise typer.Exit(1)


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="Model file.")], as_json: JsonOption = False
) -> None:
    """Say what a model is and how it was made."""
    from .model_file import read_header

    with _plain_errors():
        header = read_header(model)
    if as_json:
        typer.echo(json.dumps(header, ensure_ascii=False))
        return
    recipe = header["recipe"]
    facts: dict[str, Any] = {
        "classes": ", ".join(header["classes"]),
        "method": f"{recipe['method']} {recipe['method_parameters']}",
        "patches": f"{recipe['patch_px']} px at 1/{recipe['downsample']:g}, {recipe['vectors']}",
        "stain": recipe["stain"],
        "rule": recipe["rule"],
        "pixel size": f"{header['mpp']:g} µm" if header["mpp"] else "not known",
        "training": ", ".join(f"{k} {v}" for k, v in header["training"].items()),
        "made with": ", ".join(f"{k} {v}" for k, v in header["versions"].items()),
    }
    for name, value in facts.items():
        typer.echo(f"{name:11s} {value}")


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
    from .experiments.demo import run_demo
    from .model_file import save_model
    from .reports.demo_page import write_demo_page

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


def _summarise(rows: list[dict[str, Any]], n_skipped: int, output: Path) -> None:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["label"]] = counts.get(row["label"], 0) + 1
    words = ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    again = f" ({n_skipped} were done before)" if n_skipped else ""
    typer.echo(f"{len(rows)} images{again}: {words or 'none'}. See {output / 'predictions.csv'}")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What the user can mend is one line and exit status 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        _errors.print(f"[red]Error:[/] {error}", soft_wrap=True)
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


if __name__ == "__main__":
    app()
