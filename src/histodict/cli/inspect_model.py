"""Commands `info` (model card), `atoms` (page of atoms) and `methods` (list of methods)."""

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
        # A custom encoder is registered only in the program that defines it.
        try:
            card = [] if as_json else describe_model(header)
        except ValueError as error:
            raise ValueError(f"{model}: {error}") from error
    if as_json:
        print_json(header)
        return
    for heading, text in card:
        typer.echo(f"{heading:17s} {text}")
    members = describe_members(header)
    if members:
        title = "These decide together" if len(header["estimators"]) > 1 else "Calibrated"
        typer.echo(f"{title}; how good on training patients not seen, their say, what differs:")
    for value, text in members:
        typer.echo(f"  {value}  {text}")


@dataclass(frozen=True)
class AtomReportOptions:
    """Options of `atoms`: its contents and the ensemble member."""

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
        model = used.load(jobs)
        member = select_member(model, wanted.member)
        if cache is not None:
            set_resume_hint(f"what {cache} holds")
        manifest = data.read()
        if data.annotations is not None and not member.finds_regions:
            manifest = split_by_annotation(manifest, member.class_names_)
        warn_of_records(member, manifest.records, PixelSizeOption())
        with progress_bars() as callback:
            report = collect_atom_report(
                member,
                manifest,
                n_atoms=wanted.number,
                cache=cache,
                n_trainings=wanted.stability,
                callback=callback,
            )
            write_atoms_page(
                output, member, manifest, report, with_maps=wanted.maps, callback=callback
            )
            confounded_of_members = confounded_atoms_of_members(
                model, manifest, wanted.member, cache, callback
            )
        if wanted.table:
            write_csv(wanted.table, [atom.row() for atom in report.statistics])
    if ensemble_note(model) and wanted.member == 1:
        warn(ensemble_note(model), "Note")
    _warn_confounded_atoms(report.confounding, "", f"see {output}")
    for number, confounded in confounded_of_members.items():
        _warn_confounded_atoms(confounded, f"of view {number}, ", f"look with --member {number}")
    if as_json:
        names = [manifest.name(record) for record in manifest.records]
        labels = {
            str(n): [atom.label for atom in confounded]
            for n, confounded in confounded_of_members.items()
        }
        member_content = {"leaks_of_other_views": labels} if confounded_of_members else {}
        print_json({"page": str(output)} | to_json_dict(report, names) | member_content)
        return
    shown = sum(len(use.atoms) for use in report.classes)
    typer.echo(f"{shown} atoms, as {len(report.labels)} patches use them. Open {output}")


def _warn_confounded_atoms(confounded: list[AtomStatistics], prefix: str, hint: str) -> None:
    from ..utils.text_io import truncated_list

    if confounded:
        names = truncated_list([atom.name or atom.label for atom in confounded])
        warn(
            f"{prefix}{pluralize(len(confounded), 'atom')} that look like a leak of sites: "
            f"{names}; {hint}"
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
