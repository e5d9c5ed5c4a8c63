"""Concepts of many images, without labels: `concepts`."""

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

_DOUBTFUL = 0.7  # |cos| of halves of the patients below which concepts are not those of others


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
        source = ConceptTrainingSet.of(_laid_open(images).find(), network, images.size)
        learnt, usage, is_new = _learn(source, n_concepts, seed, output, work)
        facts = _write(output, source, learnt, usage)
    if source.size_doubts():
        warn(source.size_doubts())
    if as_json:
        print_json({"folder": str(output), "concepts": len(learnt.atoms), "new": is_new} | facts)
        return
    how = "learnt from" if is_new else "as learnt before from"
    typer.echo(f"{len(learnt.atoms)} concepts, {how} {pluralize(len(usage.patches), 'image')}")
    for line in _describe(facts):
        typer.echo(line)
    typer.echo(f"Name them in {output / 'concepts.csv'}")


def _laid_open(images: ImageOptions) -> ImageOptions:
    """With the feature files of a folder in its place, where it holds such."""
    from ..precomputed.feature_file import is_feature_file

    paths: list[Path] = []
    for path in images.paths:
        inside = sorted(path.iterdir()) if path.is_dir() and not images.features else []
        paths += [file for file in inside if is_feature_file(file)] or [path]
    return replace(images, paths=paths)


def _learn(
    source: ConceptTrainingSet, number: int, seed: int, output: Path, work: ExecutionCliOptions
) -> tuple[ConceptDictionary, ConceptUsage, bool]:
    """The concepts and their usage: those in the folder, or new ones, which are then in it."""
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
    settings = settings_of(source, number, seed, keys)
    found = read_concepts(output)
    if found:
        check_settings_match(output, found[2], settings)
        return found[0], found[1], False
    with work.begin() as begun:
        options: dict[str, Any] = {
            "n_jobs": work.jobs,
            "callback": begun.callback,
            "executor": begun.executor,
        }
        learnt = learn_concepts(source, number, random_state=seed, **options)
        usage = usage_of(source, learnt, **options)
    write_concepts(output, learnt, usage, settings)
    return learnt, usage, True


def _write(
    output: Path, source: ConceptTrainingSet, learnt: ConceptDictionary, usage: ConceptUsage
) -> dict[str, Any]:
    """The tables; and what is to be said of them."""
    import numpy as np

    from ..explain import concept_discovery as concept_answers
    from ..explain import concept_discovery as concept_folder
    from ..explain.concept_discovery import image_names
    from ..utils.text_io import write_csv

    names = concept_folder.names_in(output, len(learnt.atoms))
    images, patients = image_names(source.records), source.patients
    rows = concept_folder.concept_rows(learnt, usage, names, patients, images)
    write_csv(output / concept_folder.TABLE, rows)
    used = concept_folder.usage_rows(usage, names, patients, images)
    write_csv(output / concept_folder.USAGE, source.as_listed(used))
    recurs = float(np.mean(learnt.recurrence))
    facts: dict[str, Any] = {"recurrence": None if np.isnan(recurs) else round(recurs, 3)}
    if recurs < _DOUBTFUL:
        warn(
            f"halves of the patients agree on these concepts by {recurs:.2f} only (|cos|): do not "
            "rely on what they are called; more patients, or fewer atoms, may help"
        )
    if all(not record.patient for record in source.records):
        warn("no patients are named: every image counts as one, see --column patient=COLUMN")
    labels = [record.label for record in source.records]
    if any(labels):
        _, answers = concept_answers.concept_prediction_rows(usage, labels, images, names)
        write_csv(output / concept_folder.PREDICTIONS, source.as_listed(answers))
        right, asked = concept_answers.leave_one_patient_out_accuracy(usage, labels, patients)
        facts |= {
            "labelled": sum(map(bool, labels)),
            "unseen": asked,
            "leave_one_patient_out_accuracy": right,
        }
    elif (output / concept_folder.PREDICTIONS).exists():
        warn(
            f"{output / concept_folder.PREDICTIONS}: is left as it was, as no image has a label now"
        )
    return facts


def _describe(facts: dict[str, Any]) -> list[str]:
    """In words."""
    lines = []
    if facts["recurrence"] is None:
        lines.append("Whether other patients give the same is not known: that takes four or more")
    else:
        lines.append(f"Halves of the patients give the same by {facts['recurrence']:.2f} (|cos|)")
    if "labelled" in facts:
        words = f"Answers rest on {pluralize(facts['labelled'], 'label')}"
        tried = (
            f"; patients left out: {facts['leave_one_patient_out_accuracy']} of "
            f"{facts['unseen']} images right"
        )
        lines.append(words + (tried if facts["unseen"] else "; no patient could be left out"))
    return lines
