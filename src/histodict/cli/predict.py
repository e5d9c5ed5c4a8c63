"""Command `predict`: classify images, or detect regions in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_disk_space, check_writable_folder
from ..utils.text_io import limit_lines, pluralize
from .console import (
    failure_rows,
    print_json,
    print_table,
    report_errors,
    set_resume_hint,
    warn,
    write_failures_and_exit,
)
from .image_options import PredictionInputOptions, warn_of_unknown_pixel_sizes
from .options import (
    ADVANCED,
    OUTPUT,
    AnnDataOption,
    AtomStatisticsOption,
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
class ExportOptions:
    """Options for QuPath and AnnData output."""

    qupath_project: Annotated[
        bool,
        typer.Option(
            "--qupath-project",
            help="Write a QuPath project: OUTPUT/qupath/project.qpproj.",
            rich_help_panel=OUTPUT,
        ),
    ] = False
    anndata: AnnDataOption = False
    atom_statistics: AtomStatisticsOption = None
    outline_patches: Annotated[
        bool,
        typer.Option(
            "--outline-patches",
            help="Outline every patch in the GeoJSON files. By default, neighbouring patches of "
            "the same class share one outline (region detectors: one outline per region).",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    gzip: Annotated[
        bool, typer.Option("--gzip", help="Compress the GeoJSON files.", rich_help_panel=ADVANCED)
    ] = False

    @property
    def geojson_options(self) -> GeoJSONOptions:
        """Options of the GeoJSON files."""
        from ..export.qupath import GeoJSONOptions

        return GeoJSONOptions(self.outline_patches, self.gzip, self.qupath_project)


def predict(
    *,
    model_options: ModelOptions,
    output: ResultsOutput,
    images: PredictionInputOptions,
    exports: ExportOptions,
    execution: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Classify images and slides, or detect regions; the model determines which.

        histodict predict tissue.histodict new/ --output results/

    Writes predictions.csv (region detectors: detections.csv and regions.csv), and for each image
    an overlay, a patch map and GeoJSON for QuPath. A model with probabilities labels an image
    `uncertain` if, at an error rate of 10 %, no class or more than one class is plausible; the
    column top_label has the most probable class. If a CSV file gives labels or masks, the command
    also prints and stores the accuracy, with 95 % intervals that take into account that images of
    one patient are not independent.

    If a run was interrupted, run the same command again: finished images are skipped. For
    another model or other options, use another folder. Images that cannot be read are listed in
    failures.csv; the exit status is then 1.
    """
    with report_errors():
        digest = _hash_model_file(model_options.model)
        model = model_options.load(execution.jobs)
        result = _predict_images(model, digest, images, output, exports, execution)
    summary = _format_label_counts(result)
    files = [output / f"{model.table_name}.csv"]
    if model.finds_regions:
        summary = f"{summary}; {pluralize(len(result.regions), 'region')}"
        files.append(output / "regions.csv")
    if exports.qupath_project:
        files.append(output / "qupath" / "project.qpproj")
    _print_predictions(result, summary, output, files, as_json)


def _hash_model_file(file: Path) -> str:
    """Return the digest of a model file; compute it before loading, as the file may be replaced."""
    import hashlib

    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _predict_images(
    model: Model,
    digest: str,
    images: PredictionInputOptions,
    output: Path,
    exports: ExportOptions,
    execution: ExecutionCliOptions,
) -> RunResult:
    """Predict the images and print warnings."""
    from ..batch import predict_images
    from ..images.pixel_size import recorded_pixel_size

    if exports.atom_statistics and not exports.anndata:
        raise ValueError("--atom-statistics needs --anndata")
    check_writable_folder(output)
    records = images.list_images()
    check_disk_space(output, sum(_estimate_result_bytes(record.path, output) for record in records))
    set_resume_hint("finished images")
    with execution.start() as resources:
        result = predict_images(
            model,
            digest,
            records,
            output,
            mpp=images.pixel_size,
            qupath=exports.geojson_options,
            callback=resources.callback,
            executor=resources.executor,
            anndata=exports.anndata,
            atom_statistics=exports.atom_statistics,
        )
    warn_of_unknown_pixel_sizes(model, [recorded_pixel_size(row) for row in result.rows])
    _warn_of_image_problems(result.rows)
    return result


def _estimate_result_bytes(image: Path, output: Path) -> int:
    """Estimate the minimum size of an image's result files in bytes; 0 if they exist."""
    from ..batch import output_key
    from ..images.memory_image import estimated_bytes

    is_done = (output / "done" / f"{output_key(image)}.json").is_file()
    return 0 if is_done else min(2**20, 2 * estimated_bytes(image))


def _print_predictions(
    result: RunResult, summary: str, output: Path, files: Sequence[Path], as_json: bool
) -> None:
    """Print the summary or JSON, and the failures; exit with status 1 after failures."""
    if as_json:
        content: dict[str, Any] = {"rows": result.rows, "regions": result.regions}
        content["failures"] = failure_rows(result.failures)
        print_json(content | ({"scores": result.scores} if result.scores else {}))
    else:
        skipped = f" ({result.n_skipped} already finished)" if result.n_skipped else ""
        see = f". See {' and '.join(map(str, files))}" if result.rows else ""
        n_images = len(result.rows) + _count_failed(result)
        typer.echo(f"{pluralize(n_images, 'image')}{skipped}: {summary}{see}")
        if result.n_from_earlier_runs:
            earlier = pluralize(result.n_from_earlier_runs, "image")
            typer.echo(f"The table also contains {earlier} of earlier runs")
        if result.n_stale:
            stale = pluralize(result.n_stale, "failed image")
            typer.echo(f"{files[0]} still contains earlier predictions of {stale}")
        _print_scores(result)
    write_failures_and_exit(result.failures, output)


def _print_scores(result: RunResult) -> None:
    """Print the scores, and warn about labels that are not classes of the model."""
    from ..datasets.record import describe_patients

    scores = result.scores
    if scores is None:
        return
    if scores["other_labels"]:
        names = ", ".join(f"{n} {name!r}" for name, n in scores["other_labels"].items())
        warn(f"not scored, as the model has no such class: {names}")
    patches = scores.get("patches", {})
    if not scores["n_images"] and not patches:
        return
    if "trained" in scores:
        trained = scores["trained"]
        warn(f"{_count_used_images(trained)} {trained['note']}")
    typer.echo()
    if scores["n_images"]:
        patients = describe_patients(scores["n_patients"], scores["n_images_without_patient"])
        by_image = "; intervals by image" if not scores["n_patients"] else ""
        top_label = "; uncertain predictions count as top_label"
        is_uncertain = any(row["label"] != row["top_label"] for row in result.rows)
        images = pluralize(scores["n_images"], "labelled image")
        typer.echo(f"Accuracy on {images} ({patients}{by_image}{top_label * is_uncertain}):")
    else:
        typer.echo("Agreement with the annotations:")
    groups = {"": scores["metrics"], " of patches": patches}
    metrics = {f"{name}{kind}": m for kind, group in groups.items() for name, m in group.items()}
    _print_metrics(metrics, scores.get("tuned"))
    for note in dict.fromkeys(m["note"] for m in metrics.values() if "note" in m):
        affected = [name for name, m in metrics.items() if m.get("note") == note]
        is_known = all(metrics[name]["value"] is not None for name in affected)
        prefix = "no interval for" if is_known else "no value for"
        warn(f"{prefix} {', '.join(affected)}: {note}", "Note")
    if scores.get("few_patients"):
        warn(scores["few_patients"])
    if not scores["confusion"]:
        return
    header, *_ = confusion = scores["confusion"]
    rows = [[str(value) for value in line.values()] for line in confusion]
    print_table(("true class", *(f"predicted {name}" for name in list(header)[1:])), rows)


def _print_metrics(metrics: dict[str, Any], tuned: dict[str, Any] | None) -> None:
    """Print a table of scores.

    Parameters
    ----------
    metrics : value, interval and note of each score, by name
    tuned : scores before the tuning, for a model tuned on some of the images; otherwise None
    """
    header, rows = (["", "value", "95 % interval"], [_metric_row(n, m) for n, m in metrics.items()])
    if tuned is None:
        print_table(tuple(header), rows)
        _note_zero_width(metrics)
        return
    warn(
        f"{_count_used_images(tuned)} used to tune this model; scores on them are not an estimate "
        f"for unseen patients. {tuned['changes'][:1].upper()}{tuned['changes'][1:]}"
    )
    untuned = tuned["untuned"]
    if untuned is None:
        print_table(("", "tuned", "95 % interval"), rows)
        _note_zero_width(metrics)
        warn("for scores without tuning, use the model file that this one was made from", "Note")
        return
    missing = dict.fromkeys(("value", "low", "high"))
    rows = [[*row, *_metric_row(row[0], untuned.get(row[0], missing))[1:]] for row in rows]
    print_table(("", "tuned", "95 % interval", "untuned", "95 % interval"), rows)
    _note_zero_width(metrics, untuned)


def _count_used_images(used: Mapping[str, Any]) -> str:
    """Return the subject of a sentence about the labelled images that the model has used."""
    n = used["n_images"]
    return f"{n} of the labelled images {'was' if n == 1 else 'were'}"


def _note_zero_width(*tables: Mapping[str, Any]) -> None:
    """Print a note if an interval in the tables of metrics has the same limits as printed."""
    limits = [_metric_row(name, m)[2] for table in tables for name, m in table.items()]
    if any(text and len(set(text.split(" to "))) == 1 for text in limits):
        typer.echo("An interval of zero width does not mean certainty.")


def _metric_row(name: str, metric: dict[str, Any]) -> list[str]:
    value, low, high = (
        "" if metric[key] is None else f"{metric[key]:.3f}" for key in ("value", "low", "high")
    )
    return [name, value or "undefined", f"{low} to {high}" if low else ""]


def _count_failed(result: RunResult) -> int:
    """Count the images without a prediction; other failures concern only the mask of an image."""
    from ..batch import printable_path

    predicted = {row["path"] for row in result.rows}
    return sum(printable_path(path) not in predicted for path, _ in result.failures)


def _format_label_counts(result: RunResult) -> str:
    """Format the numbers of images by label and of failed images, such as "3 normal, 1 failed"."""
    from ..models.predictions import UNCERTAIN_LABEL

    counts = Counter(row["label"] for row in result.rows)
    labels = sorted(counts, key=lambda label: (label == UNCERTAIN_LABEL, label))
    notes = {UNCERTAIN_LABEL: " (no clear class)"}
    names = [f"{counts[label]} {label}{notes.get(label, '')}" for label in labels]
    n_failed = _count_failed(result)
    failed = [f"{n_failed} failed"] if n_failed else []
    return ", ".join([*(names or ["no prediction"]), *failed])


def _warn_of_image_problems(rows: Sequence[Mapping[str, Any]]) -> None:
    """Warn about images without tissue or without tissue detection, and print image notes."""
    from ..utils.text_io import truncated_list

    empty = [row for row in rows if row.get("left_out") and not row["n_patches"]]
    if empty:
        reasons = [f"{row['path']}: {row['left_out']}" for row in empty]
        lines = "".join(f"\n  {line}" for line in limit_lines(reasons))
        warn(f"no usable tissue in {pluralize(len(empty), 'image')}:{lines}")
    without_detection = [str(row["path"]) for row in rows if row.get("whole_image")]
    if without_detection:
        warn(
            f"almost no tissue detected in {pluralize(len(without_detection), 'image')}; all "
            f"patches are used: {truncated_list(without_detection)}"
        )
    noted: dict[str, list[str]] = {}
    for row in rows:
        if row.get("notes"):
            noted.setdefault(str(row["notes"]), []).append(str(row["path"]))
    for note, paths in noted.items():
        warn(f"{note} ({pluralize(len(paths), 'image')}: {truncated_list(paths)})")
