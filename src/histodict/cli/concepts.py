"""Command `concepts`: discover concepts in unlabelled images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_writable_folder
from ..utils.text_io import pluralize
from .console import print_json, report_errors, warn
from .image_options import ImageOptions
from .options import MODEL, ExecutionCliOptions, JsonOption, ResultsOutput, SeedOption

if TYPE_CHECKING:
    from ..explain.concept_discovery import ConceptDictionary, ConceptTrainingSet, ConceptUsage

_MIN_RECURRENCE = 0.7  # minimum |cos| between concepts of two halves of the patients


def concepts(
    *,
    output: ResultsOutput,
    n_concepts: Annotated[
        int, typer.Option("--atoms", help="Number of concepts to learn.", rich_help_panel=MODEL)
    ] = 128,
    encoder: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Encoder of the patches. Feature files need none.",
            rich_help_panel=MODEL,
        ),
    ] = "efficientnet-lite0",
    seed: SeedOption = 0,
    images: ImageOptions,
    execution: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Learn concepts from unlabelled images; classify images from a few labels.

        histodict concepts slides.csv --atoms 128 --output concepts/

    Learns one dictionary for all images and prefers patterns that occur in several patients.
    Give a column patient for this. Writes concepts.csv (for each concept: the share of patches
    that use it, the number of patients, `recurrence` (similarity of the concepts learned from two
    halves of the patients, 1 is identical) and the images that use it most; you can fill in its
    empty column `name`) and usage.csv (for each image and concept, the share of patches that use
    the concept).

    If the table has labels for some images, the command also writes predictions.csv: a prediction
    for every image, and in the column `because` the concepts on which it is based. The numbers
    with a sign are contributions to the difference between the scores of the predicted and the
    second best class; they depend on the weights, not only on how many patches use a concept.
    Concepts and names that are already in the output folder are reused, not learned again.
    """
    from ..encoders import check_installed
    from ..explain.concept_discovery import ConceptTrainingSet

    with report_errors():
        check_writable_folder(output)
        if images.features is None:
            check_installed(encoder)
        source = ConceptTrainingSet.from_records(
            _expand_feature_folders(images).list_images(), encoder, images.pixel_size
        )
        dictionary, usage, is_new = _learn_or_load(source, n_concepts, seed, output, execution)
        summary = _write_tables(output, source, dictionary, usage)
    if source.describe_size_differences():
        warn(source.describe_size_differences())
    if as_json:
        print_json(
            {"folder": str(output), "concepts": len(dictionary.atoms), "new": is_new} | summary
        )
        return
    origin = "computed from" if is_new else "reused; computed from"
    typer.echo(
        f"{len(dictionary.atoms)} concepts, {origin} {pluralize(len(usage.patches), 'image')}"
    )
    for line in _describe_summary(summary):
        typer.echo(line)
    names = ["usage.csv", *(["predictions.csv"] if "labelled" in summary else [])]
    typer.echo(
        f"See {' and '.join(str(output / name) for name in names)}. "
        f"Names: fill in the column name of {output / 'concepts.csv'}"
    )


def _expand_feature_folders(images: ImageOptions) -> ImageOptions:
    """Replace each folder that contains feature files by these files."""
    from ..precomputed.feature_file import is_feature_file

    paths: list[Path] = []
    for path in images.paths:
        files = sorted(path.iterdir()) if path.is_dir() and not images.features else []
        paths += [file for file in files if is_feature_file(file)] or [path]
    return replace(images, paths=paths)


def _learn_or_load(
    source: ConceptTrainingSet,
    n_concepts: int,
    seed: int,
    output: Path,
    execution: ExecutionCliOptions,
) -> tuple[ConceptDictionary, ConceptUsage, bool]:
    """Return the concepts, their usage, and whether they are new.

    If the folder `output` contains concepts, they are loaded; otherwise they are learned and stored
    there.
    """
    from ..datasets.survey import check_files
    from ..explain.concept_discovery import (
        check_settings_match,
        compute_usage,
        concept_settings,
        learn_concepts,
        read_concepts,
        write_concepts,
    )
    from ..utils.files import file_key

    check_files(source.records)
    keys = [file_key(record.path) for record in source.records]
    settings = concept_settings(source, n_concepts, seed, keys)
    stored = read_concepts(output)
    if stored:
        check_settings_match(output, stored[2], settings)
        return stored[0], stored[1], False
    with execution.start() as resources:
        options: dict[str, Any] = {
            "n_jobs": execution.jobs,
            "callback": resources.callback,
            "executor": resources.executor,
        }
        dictionary = learn_concepts(source, n_concepts, random_state=seed, **options)
        usage = compute_usage(source, dictionary, **options)
    write_concepts(output, dictionary, usage, settings)
    return dictionary, usage, True


def _write_tables(
    output: Path, source: ConceptTrainingSet, dictionary: ConceptDictionary, usage: ConceptUsage
) -> dict[str, Any]:
    """Write the tables of concepts, usage and predictions, and return statistics by name.

    "recurrence" is the mean similarity of concepts from two halves of the patients. If images have
    labels, there are numbers of images: "labelled", "unseen" (predicted without training images of
    their patient) and "leave_one_patient_out_accuracy" (correct among the unseen).
    """
    import numpy as np

    from ..explain import concept_discovery as discovery
    from ..utils.text_io import write_csv

    names = discovery.read_concept_names(output, len(dictionary.atoms))
    images, patients = discovery.image_names(source.records), source.patients
    rows = discovery.concept_rows(dictionary, usage, names, patients, images)
    write_csv(output / discovery.CONCEPTS_TABLE, rows)
    usage_table = discovery.usage_rows(usage, names, patients, images)
    write_csv(output / discovery.USAGE_TABLE, source.restore_order(usage_table))
    recurrence = float(np.mean(dictionary.recurrence))
    summary: dict[str, Any] = {"recurrence": None if np.isnan(recurrence) else round(recurrence, 3)}
    if recurrence < _MIN_RECURRENCE:
        warn(
            "concepts learned from one half of the patients differ from those of the other half "
            f"(mean |cosine| {recurrence:.2f}; 1 is identical): other patients would give other "
            "concepts. Use more patients or fewer --atoms"
        )
    if all(not record.patient for record in source.records):
        warn("patients unknown: each image counts as one patient. Give --column patient=COLUMN")
    labels = [record.label for record in source.records]
    if any(labels):
        _, predictions = discovery.concept_prediction_rows(usage, labels, images, names)
        write_csv(output / discovery.PREDICTIONS_TABLE, source.restore_order(predictions))
        n_correct, n_tested = discovery.leave_one_patient_out_accuracy(usage, labels, patients)
        summary |= {
            "labelled": sum(map(bool, labels)),
            "unseen": n_tested,
            "leave_one_patient_out_accuracy": n_correct,
        }
    elif (output / discovery.PREDICTIONS_TABLE).exists():
        warn(f"{output / discovery.PREDICTIONS_TABLE} is unchanged, as no image has a label now")
    return summary


def _describe_summary(summary: dict[str, Any]) -> list[str]:
    """Return the statistics of `_write_tables` as sentences."""
    lines = []
    if summary["recurrence"] is None:
        lines.append(
            "Similarity of the concepts of two halves of the patients: needs four or more patients"
        )
    elif summary["recurrence"] >= _MIN_RECURRENCE:  # otherwise, the warning contains the value
        lines.append(
            "Similarity of the concepts of two halves of the patients: mean |cosine| "
            f"{summary['recurrence']:.2f} (1 is identical)"
        )
    if "labelled" in summary:
        text = f"Predictions use {pluralize(summary['labelled'], 'label')}. Leave-one-patient-out: "
        accuracy_text = (
            f"{summary['leave_one_patient_out_accuracy']} of {summary['unseen']} images correct"
        )
        lines.append(text + (accuracy_text if summary["unseen"] else "not possible"))
    return lines
