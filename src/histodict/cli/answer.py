"""A model over many images: `predict` says which class, `detect` where."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .console import end_with, plain_errors, print_json, printable
from .options import (
    FinderOptions,
    ImageOptions,
    JsonOption,
    ModelOptions,
    ResultsOutput,
    WorkOptions,
)

if TYPE_CHECKING:
    from ..batch import RunResult
    from ..pipeline import Model


def predict(
    *,
    used: ModelOptions,
    output: ResultsOutput,
    images: ImageOptions,
    work: WorkOptions,
    as_json: JsonOption = False,
) -> None:
    """Classify images and slides.

    Writes predictions.csv (and .parquet), an overlay, a patch map and QuPath outlines per image.
    Images already done are skipped; bad files are listed at the end and make the exit status 1.
    """
    with plain_errors():
        digest = _digest(used.model)
        trained = _load(used, work.jobs, finds_regions=False)
        result = _run(trained, digest, images, output, work)
    _tell(result, f"{_counts(result)}. See {output / 'predictions.csv'}", as_json)


def detect(
    *,
    used: FinderOptions,
    output: ResultsOutput,
    images: ImageOptions,
    work: WorkOptions,
    as_json: JsonOption = False,
) -> None:
    """Find regions in images and slides.

    Writes detections.csv (one row per image) and regions.csv (one per region, with area and
    score; both also as .parquet), an overlay with the outlines, a patch map and QuPath annotations
    per image. Images already done are skipped; bad files are listed at the end and make the exit
    status 1.
    """
    with plain_errors():
        digest = _digest(used.model)
        trained = _load(used, work.jobs, finds_regions=True)
        result = _run(trained, digest, images, output, work)
    words = f"{len(result.regions)} regions; {_counts(result)}"
    _tell(result, f"{words}. See {output / 'detections.csv'} and regions.csv", as_json)


def _digest(model: Path) -> str:
    """Of the file, before it is loaded: one that is replaced meanwhile lends no name to answers."""
    return hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""


def _load(used: ModelOptions, jobs: int | None, *, finds_regions: bool) -> Model:
    model = used.load(jobs)
    if model.finds_regions != finds_regions:
        use = "detect" if model.finds_regions else "predict"
        raise ValueError(f"{used.model}: this model is a {model.kind}: use `histodict {use}`")
    return model


def _run(
    model: Model, digest: str, images: ImageOptions, output: Path, work: WorkOptions
) -> RunResult:
    from ..batch import run_images

    found = images.find()
    with work.begin() as begun:
        return run_images(
            model,
            digest,
            found,
            output,
            mpp=images.mpp,
            callback=begun.callback,
            executor=begun.executor,
        )


def _tell(result: RunResult, words: str, as_json: bool) -> None:
    """The summary or JSON; then what was not done, which makes the exit status 1."""
    if as_json:
        failures = [
            {"path": printable(str(path)), "reason": printable(reason)}
            for path, reason in result.failures
        ]
        print_json({"rows": result.rows, "regions": result.regions, "failures": failures})
    else:
        again = f" ({result.n_skipped} were done before)" if result.n_skipped else ""
        typer.echo(f"{len(result.rows)} images{again}: {words}")
    end_with(
        reason if reason.startswith(str(path)) else f"{path}: {reason}"
        for path, reason in result.failures
    )


def _counts(result: RunResult) -> str:
    counts = Counter(row["label"] for row in result.rows)
    return ", ".join(f"{counts[label]} {label}" for label in sorted(counts)) or "none"
