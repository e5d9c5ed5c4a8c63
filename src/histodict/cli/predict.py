"""Commands `predict` (classify images) and `detect` (find regions)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_disk_space, check_writable_folder
from ..utils.text_io import pluralize
from .console import (
    end_with_files,
    failure_rows,
    print_json,
    print_table,
    report_errors,
    set_resume_hint,
    warn,
)
from .image_options import PredictionInputOptions, warn_of_quality, warn_of_sizes
from .options import (
    AnnDataOption,
    AtomFactsOption,
    DetectorOptions,
    ExecutionCliOptions,
    JsonOption,
    ModelOptions,
    ResultsOutput,
)

if TYPE_CHECKING:
    from ..batch import RunResult
    from ..export.qupath import GeoJSONOptions
    from ..models import Model


@dataclass(frozen=True)
class QuPathOptions:
    """Options of the output for QuPath."""

    outline_patches: Annotated[
        bool,
        typer.Option(
            "--outline-patches",
            help="Outline every patch on its own in the GeoJSON for QuPath. Left out: areas of "
            "neighbouring patches of one class, or the regions.",
        ),
    ] = False
    gzip: Annotated[
        bool, typer.Option("--gzip", help="Write the GeoJSON compressed, as KEY.geojson.gz.")
    ] = False
    qupath_project: Annotated[
        bool,
        typer.Option(
            "--qupath-project",
            help="Make a QuPath project of the images, with classes, colours and a script that "
            "imports the outlines: open OUTPUT/qupath/project.qpproj.",
        ),
    ] = False

    @property
    def describe(self) -> str:
        """Path of the QuPath project, appended to the names of the tables."""
        return " and qupath/project.qpproj" if self.qupath_project else ""

    @property
    def form(self) -> GeoJSONOptions:
        """Options of the GeoJSON files."""
        from ..export.qupath import GeoJSONOptions

        return GeoJSONOptions(self.outline_patches, self.gzip, self.qupath_project)


@dataclass(frozen=True)
class TableOptions:
    """Options of the AnnData output."""

    anndata: AnnDataOption = False
    atom_facts: AtomFactsOption = None

    @property
    def asked(self) -> dict[str, Any]:
        """Options as keyword arguments of `predict_images`."""
        return {"anndata": self.anndata, "facts": self.atom_facts}


def predict(
    *,
    used: ModelOptions,
    output: ResultsOutput,
    images: PredictionInputOptions,
    qupath: QuPathOptions,
    work: ExecutionCliOptions,
    tables: TableOptions,
    as_json: JsonOption = False,
) -> None:
    """Classify images and slides.

    Writes predictions.csv (and .parquet), an overlay, a patch map and QuPath outlines per image.
    A CSV with labels is scored, too: balanced accuracy, AUC and confusions, with intervals by
    patient, also in scores.json. Images already done are skipped, and rows of earlier runs stay in
    the table; another model or other settings need another folder. Bad files are listed at the end
    and in failures.csv, and make the exit status 1.
    """
    with report_errors():
        digest = _digest(used.model)
        trained = _load(used, work.jobs, finds_regions=False)
        result = _run(trained, digest, images, output, qupath, work, tables.asked)
    _print_predictions(
        result, _counts(result), output, f"{output / 'predictions.csv'}{qupath.describe}", as_json
    )


def detect(
    *,
    used: DetectorOptions,
    output: ResultsOutput,
    images: PredictionInputOptions,
    qupath: QuPathOptions,
    work: ExecutionCliOptions,
    tables: TableOptions,
    as_json: JsonOption = False,
) -> None:
    """Find regions in images and slides.

    Writes detections.csv (one row per image) and regions.csv (one per region, with area and
    score; both also as .parquet), an overlay with the outlines, a patch map and QuPath annotations
    per image. A CSV with masks is scored, too: patch by patch (AUC, Dice, sensitivity, specificity)
    and image by image, with intervals by patient, also in scores.json. Images already done are
    skipped, and rows of earlier runs stay in the tables; another model or other settings need
    another folder. Bad files are listed at the end and in failures.csv, and make the exit status 1.
    """
    with report_errors():
        digest = _digest(used.model)
        trained = _load(used, work.jobs, finds_regions=True)
        result = _run(trained, digest, images, output, qupath, work, tables.asked)
    text = f"{pluralize(len(result.regions), 'region')}; {_counts(result)}"
    _print_predictions(
        result,
        text,
        output,
        f"{output / 'detections.csv'} and regions.csv{qupath.describe}",
        as_json,
    )


def _digest(model: Path) -> str:
    """Return the digest of the model file.

    It is computed before the model is loaded: a file that is replaced during loading does not
    label the predictions of the loaded model.
    """
    import hashlib

    return hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""


def _load(used: ModelOptions, jobs: int | None, *, finds_regions: bool) -> Model:
    model = used.load(jobs)
    if model.finds_regions != finds_regions:
        command = "detect" if model.finds_regions else "predict"
        raise ValueError(f"{used.model}: this model is a {model.kind}: use `histodict {command}`")
    return model


def _run(
    model: Model,
    digest: str,
    images: PredictionInputOptions,
    output: Path,
    qupath: QuPathOptions,
    work: ExecutionCliOptions,
    tables: dict[str, Any],
) -> RunResult:
    """Predict the images and print warnings; `tables` holds the AnnData options."""
    from ..batch import predict_images
    from ..images.pixel_size import recorded_size

    if tables["facts"] and not tables["anndata"]:
        raise ValueError("--atom-statistics go into AnnData: give --anndata, too")
    check_writable_folder(output)
    records = images.find()
    check_disk_space(output, sum(_result_bytes(record.path, output) for record in records))
    set_resume_hint()
    with work.begin() as execution:
        result = predict_images(
            model,
            digest,
            records,
            output,
            mpp=images.size,
            qupath=qupath.form,
            callback=execution.callback,
            executor=execution.executor,
            **tables,
        )
    warn_of_sizes(model, [recorded_size(row) for row in result.rows])
    warn_of_quality(result.rows)
    return result


def _result_bytes(image: Path, output: Path) -> int:
    """Estimate the minimum size of the overlay, map and outlines of an image; 0 if they exist."""
    from ..batch import output_key
    from ..images.memory_image import estimated_bytes

    is_done = (output / "done" / f"{output_key(image)}.json").is_file()
    return 0 if is_done else min(2**20, 2 * estimated_bytes(image))


def _print_predictions(
    result: RunResult, summary: str, output: Path, tables: str, as_json: bool
) -> None:
    """Print the summary or JSON, then the failures, which set the exit status to 1."""
    if as_json:
        content: dict[str, Any] = {"rows": result.rows, "regions": result.regions}
        content["failures"] = failure_rows(result.failures)
        print_json(content | ({"scores": result.scores} if result.scores else {}))
    else:
        skipped = f" ({result.n_skipped} were done before)" if result.n_skipped else ""
        see = f". See {tables}" if result.rows or result.n_earlier else ""
        typer.echo(f"{pluralize(len(result.rows), 'image')}{skipped}: {summary}{see}")
        if result.n_earlier:
            typer.echo(f"In the table, too, from earlier runs: {result.n_earlier}")
        _print_scores(result.scores, any("uncertain" in row for row in result.rows))
    end_with_files(result.failures, output)


def _print_scores(scores: dict[str, Any] | None, has_uncertain: bool) -> None:
    """Print the scores of the predictions and warn about labels unknown to the model."""
    if scores is None:
        return
    if scores["other_labels"]:
        names = ", ".join(f"{n} {name!r}" for name, n in scores["other_labels"].items())
        warn(f"left out of the scores, as labels that are no class of the model: {names}")
    patches = scores.get("patches", {})
    if not scores["n_images"] and not patches:
        return
    known = [pluralize(scores[f"n_{what}s"], what) for what in ("image", "patient")]
    if "trained" in scores:
        trained = scores["trained"]
        warn(f"of the labelled images, {trained['n_images']} were {trained['note']}")
    if scores["n_images"]:
        remark = " (uncertain ones by their label)" * has_uncertain
        typer.echo(f"How good, against what is known of {' of '.join(known)}{remark}:")
    else:
        typer.echo("How good, against the outlines:")
    groups = {"": scores["metrics"], " of patches": patches}
    metrics = {f"{name}{kind}": m for kind, group in groups.items() for name, m in group.items()}
    _print_metrics(metrics, scores.get("tuned"), scores["n_images"])
    for note in dict.fromkeys(m["note"] for m in metrics.values() if "note" in m):
        affected = [name for name, m in metrics.items() if m.get("note") == note]
        prefix = "no interval of " * all(metrics[name]["value"] is not None for name in affected)
        warn(f"{prefix}{', '.join(affected)}: {note}", "Note")
    if not scores["confusion"]:
        return
    header, *_ = confusion = scores["confusion"]
    rows = [[str(value) for value in line.values()] for line in confusion]
    print_table(("truth", *(f"said {name}" for name in list(header)[1:])), rows)


def _print_metrics(metrics: dict[str, Any], tuned: dict[str, Any] | None, n_images: int) -> None:
    """Print a table of scores; for a tuned model also the scores of the untuned one."""
    header, rows = (["", "value", "95 % interval"], [_metric_row(n, m) for n, m in metrics.items()])
    if tuned is None:
        print_table(tuple(header), rows)
        return
    warn(
        f"{tuned['n_images']} of {pluralize(n_images, 'image')}: {tuned['note']}. "
        f"{tuned['changes']}"
    )
    untuned = tuned["untuned"]
    if untuned is None:
        print_table(("", "tuned", "95 % interval"), rows)
        note = "for untuned scores, run the model file that this one was made from"
        warn(note, "Note")
        return
    missing = dict.fromkeys(("value", "low", "high"))
    rows = [[*row, *_metric_row(row[0], untuned.get(row[0], missing))[1:]] for row in rows]
    print_table(("", "tuned", "95 % interval", "untuned", "95 % interval"), rows)


def _metric_row(name: str, metric: dict[str, Any]) -> list[str]:
    value, low, high = (
        "" if metric[key] is None else f"{metric[key]:.3f}" for key in ("value", "low", "high")
    )
    return [name, value, f"{low} to {high}" if low else ""]


def _counts(result: RunResult) -> str:
    """Count images by predicted class; uncertain predictions are counted as such."""
    counts = Counter("uncertain" if row.get("uncertain") else row["label"] for row in result.rows)
    labels = sorted(counts, key=lambda label: (label == "uncertain", label))
    return ", ".join(f"{counts[label]} {label}" for label in labels) or "none"
