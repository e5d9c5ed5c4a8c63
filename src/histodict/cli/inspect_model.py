"""Commands `info` (model card, list of methods) and `atoms` (page of atoms)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_disk_space, check_writable_file
from ..utils.text_io import pluralize
from .console import (
    check_html_file,
    note_overwrite,
    print_json,
    progress_bars,
    report_errors,
    set_resume_hint,
    warn,
)
from .image_options import SplitDataOptions, warn_of_unknown_input_pixel_sizes
from .options import (
    ADVANCED,
    INPUT,
    OUTPUT,
    CacheOption,
    JobsOption,
    JsonOption,
    MemberOption,
    ModelOptions,
    select_member,
)

if TYPE_CHECKING:
    from ..explain.atom_statistics import AtomStatistics

_PAGE_BYTES = 20 * 2**20  # approximate size of the HTML page


def info(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="Model file; not with --methods.")
    ] = None,
    methods: Annotated[
        bool, typer.Option("--methods", help="List the values of --method.", rich_help_panel=INPUT)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Describe a model: settings, training images, ensemble weights. Or list methods.

    histodict info tissue.histodict

    histodict info --methods
    """
    from ..models.model_file import read_header
    from ..reports.model_card import describe_members, describe_model

    with report_errors():
        if (model is None) != methods:
            raise ValueError("give either a model file or --methods")
    if model is None:
        _print_methods(as_json)
        return
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
    width = max((len(heading) for heading, _ in card), default=0) + 2
    for heading, text in card:
        typer.echo(f"{heading:{width}s}{text}")
    members = describe_members(header)
    if members:
        title = "Base models" if len(header["estimators"]) > 1 else "Calibrated model"
        typer.echo(
            f"{title}: number, score on unseen patients (mean of balanced accuracy and AUC in "
            "cross-validation), weight in the score of the image, and settings if they differ from "
            "those above:"
        )
    for number, value, text in members:
        typer.echo(f"  {number}  {value}  {text}")


@dataclass(frozen=True)
class AtomReportOptions:
    """Options of the command `atoms`: content of the page, and the base model that it shows."""

    n_atoms: Annotated[
        int,
        typer.Option("--atoms", help="Number of atoms to show per class.", rich_help_panel=OUTPUT),
    ] = 24
    stability: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Train N times with other seeds and N times on half of the patients, and show how "
            "similar the atoms are.",
            rich_help_panel=ADVANCED,
        ),
    ] = 0
    table: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            help="Also write the statistics of all atoms to a table.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    maps: Annotated[
        bool,
        typer.Option(
            help="Show a map of each atom over an image of its class.", rich_help_panel=ADVANCED
        ),
    ] = True
    member: MemberOption = 1


def atoms(
    *,
    model_options: ModelOptions,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="HTML page to write (.html).", rich_help_panel=OUTPUT),
    ],
    report_options: AtomReportOptions,
    data: SplitDataOptions,
    cache: CacheOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an HTML page of the atoms of a model, with the patches that use them most.

        histodict atoms tissue.histodict tissue/ --output atoms.html

    DATA is the training set or other labelled images. For each atom, the page shows the usage by
    class, the number of patients and the AUC of the atom alone. If DATA has sites, the command
    also finds the atoms that are used differently at different sites; for an ensemble, it checks
    the atoms of all base models.
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
        check_html_file(output)
        files = [output, *([report_options.table] if report_options.table else [])]
        for file in files:
            check_writable_file(file)
        check_disk_space(output, _PAGE_BYTES)
        model = model_options.load(jobs)
        member = select_member(model, report_options.member)
        if cache is not None:
            set_resume_hint(f"the intermediate results in {cache}")
        manifest = data.read(model.recipes)
        if data.annotations is not None and not member.finds_regions:
            manifest = split_by_annotation(manifest, member.class_names_)
        warn_of_unknown_input_pixel_sizes(member, manifest.records, PixelSizeOption())
        for file in files:
            note_overwrite(file)
        with progress_bars() as callback:
            report = collect_atom_report(
                member,
                manifest,
                n_atoms=report_options.n_atoms,
                cache=cache,
                n_trainings=report_options.stability,
                callback=callback,
            )
            write_atoms_page(
                output, member, manifest, report, with_maps=report_options.maps, callback=callback
            )
            confounded_of_members = confounded_atoms_of_members(
                model, manifest, report_options.member, cache, callback
            )
        if report_options.table:
            write_csv(report_options.table, [atom.row() for atom in report.statistics])
    if ensemble_note(model) and report_options.member == 1:
        warn(ensemble_note(model), "Note")
    _warn_confounded_atoms(report.confounded_atoms, "", f"see {output}")
    for number, confounded in confounded_of_members.items():
        _warn_confounded_atoms(
            confounded, f"base model {number}: ", f"show them with --member {number}"
        )
    if as_json:
        names = [manifest.name(record) for record in manifest.records]
        content = {"page": str(output)} | to_json_dict(report, names)
        print_json(content | _confounded_atoms_to_json(confounded_of_members))
        return
    shown, total = sum(len(use.atoms) for use in report.classes), len(report.statistics)
    is_partial = shown < total
    displayed = f"the {shown} most used of " if is_partial else ""
    hint = " --atoms N shows N per class." * is_partial
    typer.echo(
        f"The page shows {displayed}{pluralize(total, 'atom')}; {len(report.labels)} patches were "
        f"analysed.{hint} Open {output}"
    )


def _confounded_atoms_to_json(atoms_by_member: dict[int, list[AtomStatistics]]) -> dict[str, Any]:
    """Return the JSON field with the labels of confounded atoms of each base model, by its number.

    Without such atoms, the result is empty.
    """
    if not atoms_by_member:
        return {}
    labels = {
        str(n): [atom.label for atom in confounded] for n, confounded in atoms_by_member.items()
    }
    return {"confounded_atoms_of_other_base_models": labels}


def _warn_confounded_atoms(confounded: list[AtomStatistics], prefix: str, hint: str) -> None:
    from ..utils.text_io import truncated_list

    if confounded:
        names = truncated_list([atom.name or atom.label for atom in confounded])
        warn(
            f"{prefix}the usage of {pluralize(len(confounded), 'atom')} differs between sites, "
            f"which suggests a batch effect: {names}; {hint}"
        )


def _print_methods(as_json: bool) -> None:
    from ..methods.registry import METHODS

    if as_json:
        print_json({name: entry.summary for name, entry in METHODS.items()})
        return
    width = max(map(len, METHODS))
    typer.echo(f"{'method':{width}s}  {'works on':11s}  description")
    for name, entry in METHODS.items():
        level = "patches" if entry.is_patch_level else "whole image"
        typer.echo(f"{name:{width}s}  {level:11s}  {entry.summary}")
