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
from .options import ExecutionCliOptions, FolderOutput, JsonOption

if TYPE_CHECKING:
    from ..explain.concept_discovery import ConceptDictionary, ConceptTrainingSet, ConceptUsage

_MIN_RECURRENCE = 0.7  # minimum |cos| between concepts of two halves of the patients


def concepts(
    *,
    output: FolderOutput,
    n_concepts: Annotated[int, typer.Option("--atoms", help="Concepts to learn.")] = 128,
    network: Annotated[
        str,
        typer.Option(
            "--vectors",
            metavar="NAME",
            help="The network whose cells stand for patches; feature files bring their own.",
        ),
    ] = "efficientnet-lite0",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn at random.")] = 0,
    images: ImageOptions,
    work: ExecutionCliOptions,
    as_json: JsonOption = False,
) -> None:
    """Learn concepts from many images without labels, then answer from a handful of labels.

    One dictionary over all images, of atoms that other patients would give as well. Writes
    concepts.csv (what is known of each; its column name is yours to fill in) and usage.csv (the
    share of each image's patches that use them):

        histodict concepts slides.csv --atoms 128 --output concepts/

    Once some images have a label in the table, the same command also writes answers.csv: an answer
    for every image, and the concepts it rests on. The concepts are not learnt again, and your names
    are kept. Best give the patients, too: what all of them share becomes a concept.
    """
    from ..explain.concept_discovery import ConceptTrainingSet

    with report_errors():
        check_writable_folder(output)
        source = ConceptTrainingSet.of(_expand_feature_folders(images).find(), network, images.size)
        dictionary, usage, is_new = _learn(source, n_concepts, seed, output, work)
        summary = _write_tables(output, source, dictionary, usage)
    if source.describe_size_differences():
        warn(source.describe_size_differences())
    if as_json:
        print_json(
            {"folder": str(output), "concepts": len(dictionary.atoms), "new": is_new} | summary
        )
        return
    origin = "learnt from" if is_new else "as learnt before from"
    typer.echo(
        f"{len(dictionary.atoms)} concepts, {origin} {pluralize(len(usage.patches), 'image')}"
    )
    for line in _describe(summary):
        typer.echo(line)
    typer.echo(f"Name them in {output / 'concepts.csv'}")


def _expand_feature_folders(images: ImageOptions) -> ImageOptions:
    """Replace each folder that contains feature files by these files."""
    from ..precomputed.feature_file import is_feature_file

    paths: list[Path] = []
    for path in images.paths:
        files = sorted(path.iterdir()) if path.is_dir() and not images.features else []
        paths += [file for file in files if is_feature_file(file)] or [path]
    return replace(images, paths=paths)


def _learn(
    source: ConceptTrainingSet, n_concepts: int, seed: int, output: Path, work: ExecutionCliOptions
) -> tuple[ConceptDictionary, ConceptUsage, bool]:
    """Return concepts, usage and whether they are new; load them if the folder has them."""
    from ..datasets.survey import check_files
    from ..explain.concept_discovery import (
        check_settings_match,
        learn_concepts,
        read_concepts,
        settings_of,
        usage_of,
        write_concepts,
    )
    from ..utils.files import file_key

    check_files(source.records)
    keys = [file_key(record.path) for record in source.records]
    settings = settings_of(source, n_concepts, seed, keys)
    stored = read_concepts(output)
    if stored:
        check_settings_match(output, stored[2], settings)
        return stored[0], stored[1], False
    with work.begin() as execution:
        options: dict[str, Any] = {
            "n_jobs": work.jobs,
            "callback": execution.callback,
            "executor": execution.executor,
        }
        dictionary = learn_concepts(source, n_concepts, random_state=seed, **options)
        usage = usage_of(source, dictionary, **options)
    write_concepts(output, dictionary, usage, settings)
    return dictionary, usage, True


def _write_tables(
    output: Path, source: ConceptTrainingSet, dictionary: ConceptDictionary, usage: ConceptUsage
) -> dict[str, Any]:
    """Write the tables of concepts, usage and predictions; return summary statistics."""
    import numpy as np

    from ..explain import concept_discovery as concept_answers
    from ..explain import concept_discovery as concept_folder
    from ..explain.concept_discovery import image_names
    from ..utils.text_io import write_csv

    names = concept_folder.names_in(output, len(dictionary.atoms))
    images, patients = image_names(source.records), source.patients
    rows = concept_folder.concept_rows(dictionary, usage, names, patients, images)
    write_csv(output / concept_folder.TABLE, rows)
    usage_table = concept_folder.usage_rows(usage, names, patients, images)
    write_csv(output / concept_folder.USAGE, source.as_listed(usage_table))
    recurrence = float(np.mean(dictionary.recurrence))
    summary: dict[str, Any] = {"recurrence": None if np.isnan(recurrence) else round(recurrence, 3)}
    if recurrence < _MIN_RECURRENCE:
        warn(
            f"halves of the patients agree on these concepts by {recurrence:.2f} only (|cos|): do "
            "not rely on what they are called; more patients, or fewer atoms, may help"
        )
    if all(not record.patient for record in source.records):
        warn("no patients are named: every image counts as one, see --column patient=COLUMN")
    labels = [record.label for record in source.records]
    if any(labels):
        _, predictions = concept_answers.concept_prediction_rows(usage, labels, images, names)
        write_csv(output / concept_folder.PREDICTIONS, source.as_listed(predictions))
        n_correct, n_tested = concept_answers.leave_one_patient_out_accuracy(
            usage, labels, patients
        )
        summary |= {
            "labelled": sum(map(bool, labels)),
            "unseen": n_tested,
            "leave_one_patient_out_accuracy": n_correct,
        }
    elif (output / concept_folder.PREDICTIONS).exists():
        warn(
            f"{output / concept_folder.PREDICTIONS}: is left as it was, as no image has a label now"
        )
    return summary


def _describe(summary: dict[str, Any]) -> list[str]:
    """Describe the summary statistics in sentences."""
    lines = []
    if summary["recurrence"] is None:
        lines.append("Whether other patients give the same is not known: that takes four or more")
    else:
        lines.append(f"Halves of the patients give the same by {summary['recurrence']:.2f} (|cos|)")
    if "labelled" in summary:
        text = f"Answers rest on {pluralize(summary['labelled'], 'label')}"
        accuracy_text = (
            f"; patients left out: {summary['leave_one_patient_out_accuracy']} of "
            f"{summary['unseen']} images right"
        )
        lines.append(
            text + (accuracy_text if summary["unseen"] else "; no patient could be left out")
        )
    return lines
