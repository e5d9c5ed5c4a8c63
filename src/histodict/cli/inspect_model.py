"""What is in a model: `info` in words, `atoms` in pictures; and the `methods` that make one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.files import check_disk_space, check_writable_file
from ..utils.text_io import pluralize
from .console import print_json, progress_bars, report_errors, set_resume_hint, warn
from .image_options import SplitDataOptions, warn_of_records
from .options import (
    CacheOption,
    JobsOption,
    JsonOption,
    ModelArgument,
    ModelOptions,
    ViewOption,
    select_member,
)

if TYPE_CHECKING:
    from ..explain.atom_statistics import AtomStatistics

_PAGE_BYTES = 20 * 2**20


def info(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Say what a model is and how it was made."""
    from ..models.model_file import read_header
    from ..reports.model_card import describe_members, describe_model

    with report_errors():
        header = read_header(model)
        # A model of a network that a program brought is known to that program alone.
        try:
            card = [] if as_json else describe_model(header)
        except ValueError as error:
            raise ValueError(f"{model}: {error}") from error
    if as_json:
        print_json(header)
        return
    for heading, words in card:
        typer.echo(f"{heading:17s} {words}")
    members = describe_members(header)
    if members:
        title = "These decide together" if len(header["estimators"]) > 1 else "Calibrated"
        typer.echo(f"{title}; how good on training patients not seen, their say, what differs:")
    for value, words in members:
        typer.echo(f"  {value}  {words}")


@dataclass(frozen=True)
class AtomReportOptions:
    """What `atoms` shows of them, and of which member of a panel."""

    number: Annotated[int, typer.Option("--atoms", help="Atoms of each class to show.")] = 24
    stability: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Train N times with other seeds and N times on half of the patients, and say how "
            "much of each atom is found again. Takes 2N times as long as the training did.",
        ),
    ] = 0
    table: Annotated[
        Path | None, typer.Option("--csv", help="Also write the facts of all atoms to a table.")
    ] = None
    maps: Annotated[
        bool, typer.Option(help="Show where in an image of each class its atoms are used.")
    ] = True
    member: ViewOption = 1


def atoms(
    *,
    used: ModelOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page (.html) to write.")],
    wanted: AtomReportOptions,
    data: SplitDataOptions,
    cache: CacheOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a model has learnt: its atoms, and the real patches that use them most.

    Of every atom: who uses it, in how many patients, how well it alone tells the classes apart.
    DATA is what the model learnt from, or other images; with --annotations, as it was there.
    Atoms whose use tells sites apart beyond the class are flagged, where DATA names sites; of a
    panel, those of all views.
    Writes one page that needs nothing else:

        histodict atoms tissue.histodict tissue/ --output atoms.html
    """
    from ..datasets.annotated import split_by_annotation
    from ..images.pixel_size import PixelSizeOption
    from ..reports.atoms_page import (
        collect_atom_report,
        confounded_atoms_of_members,
        ensemble_note,
        to_json_dict,
        write_atoms_page,
    )
    from ..utils.text_io import write_csv

    with report_errors():
        for file in (output, *([wanted.table] if wanted.table else [])):
            check_writable_file(file)
        check_disk_space(output, _PAGE_BYTES)
        whole = used.load(jobs)
        trained = select_member(whole, wanted.member)
        if cache is not None:
            set_resume_hint(f"what {cache} holds")
        manifest = data.read()
        if data.annotations is not None and not trained.finds_regions:
            manifest = split_by_annotation(manifest, trained.classes_)
        warn_of_records(trained, manifest.records, PixelSizeOption())
        with progress_bars() as callback:
            found = collect_atom_report(
                trained,
                manifest,
                n_atoms=wanted.number,
                cache=cache,
                n_trainings=wanted.stability,
                callback=callback,
            )
            write_atoms_page(
                output, trained, manifest, found, with_maps=wanted.maps, callback=callback
            )
            others = confounded_atoms_of_members(whole, manifest, wanted.member, cache, callback)
        if wanted.table:
            write_csv(wanted.table, [fact.row() for fact in found.statistics])
    if ensemble_note(whole) and wanted.member == 1:
        warn(ensemble_note(whole), "Note")
    _warn_confounded_atoms(found.confounding, "", f"see {output}")
    for number, leaks in others.items():
        _warn_confounded_atoms(leaks, f"of view {number}, ", f"look with --member {number}")
    if as_json:
        names = [manifest.name(record) for record in manifest.records]
        told = {str(n): [fact.label for fact in leaks] for n, leaks in others.items()}
        of_others = {"leaks_of_other_views": told} if others else {}
        print_json({"page": str(output)} | to_json_dict(found, names) | of_others)
        return
    shown = sum(len(use.atoms) for use in found.classes)
    typer.echo(f"{shown} atoms, as {len(found.labels)} patches use them. Open {output}")


def _warn_confounded_atoms(leaks: list[AtomStatistics], whose: str, look: str) -> None:
    from ..utils.text_io import truncated_list

    if leaks:
        some = truncated_list([fact.name or fact.label for fact in leaks])
        warn(
            f"{whose}{pluralize(len(leaks), 'atom')} that look like a leak of sites: {some}; {look}"
        )


def methods(as_json: JsonOption = False) -> None:
    """List the methods that `train --method` takes."""
    from ..methods.registry import METHODS

    if as_json:
        print_json({name: entry.summary for name, entry in METHODS.items()})
        return
    width = max(map(len, METHODS))
    for name, entry in METHODS.items():
        level = "patches" if entry.is_patch_level else "whole image"
        typer.echo(f"{name:{width}s} {level:11s} {entry.summary}")
