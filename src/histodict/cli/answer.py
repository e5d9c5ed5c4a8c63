"""A model over many images: `predict` says which class, `detect` where."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..execution.outputs import check_new_folder, check_room
from ..execution.texts import counted
from .console import end_with, keeps, plain_errors, print_json, printable
from .options import (
    FinderOptions,
    ImageOptions,
    JsonOption,
    ModelOptions,
    ResultsOutput,
    WorkOptions,
    warn_of_sizes,
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
        trained = _load(used, work.jobs, finds_regions=False)
        result = _run(trained, used.model, images, output, work)
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
        trained = _load(used, work.jobs, finds_regions=True)
        result = _run(trained, used.model, images, output, work)
    words = f"{counted(len(result.regions), 'region')}; {_counts(result)}"
    _tell(result, f"{words}. See {output / 'detections.csv'} and regions.csv", as_json)


def _load(used: ModelOptions, jobs: int | None, *, finds_regions: bool) -> Model:
    model = used.load(jobs)
    if model.finds_regions != finds_regions:
        use = "detect" if model.finds_regions else "predict"
        raise ValueError(f"{used.model}: this model is a {model.kind}: use `histodict {use}`")
    return model


def _run(
    model: Model, path: Path, images: ImageOptions, output: Path, work: WorkOptions
) -> RunResult:
    from ..batch import run_images
    from ..images.pixel_size import PixelSize

    check_new_folder(output)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = images.find()
    check_room(output, sum(map(_result_bytes, found)))
    keeps()
    with work.begin() as begun:
        result = run_images(
            model,
            digest,
            found,
            output,
            mpp=images.size,
            callback=begun.callback,
            executor=begun.executor,
        )
    warn_of_sizes(model, [PixelSize(row["mpp"], row["mpp_from"]) for row in result.rows])
    return result


def _result_bytes(image: Path) -> int:
    """What an overlay, a map and outlines take at least, about."""
    return min(2**20, 2 * image.stat().st_size) if image.is_file() else 0


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
        typer.echo(f"{counted(len(result.rows), 'image')}{again}: {words}")
    end_with(
        reason if reason.startswith(str(path)) else f"{path}: {reason}"
        for path, reason in result.failures
    )


def _counts(result: RunResult) -> str:
    counts = Counter(row["label"] for row in result.rows)
    return ", ".join(f"{counts[label]} {label}" for label in sorted(counts)) or "none"
