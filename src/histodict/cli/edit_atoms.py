"""Commands `edit` (annotate and disable atoms) and `explain` (score contributions of atoms)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.files import check_disk_space, check_writable_file
from .console import (
    check_html_file,
    note_overwrite,
    print_json,
    print_table,
    progress_bars,
    report_errors,
    warn,
)
from .image_options import ImageOptions, RegionOfInterestOptions, warn_of_unknown_input_pixel_sizes
from .options import (
    INPUT,
    MODEL,
    OUTPUT,
    AllowMissingOption,
    FeaturesOption,
    JobsOption,
    JsonOption,
    MemberOption,
    ModelOptions,
    MppOption,
    select_member,
)

if TYPE_CHECKING:
    from ..datasets.manifest import ImageRecord
    from ..decision.atom_annotations import AtomAnnotations
    from ..explain.explanation import Explanation
    from ..images.pixel_size import PixelSizeOption
    from ..models import Model

# Approximate size of an HTML page; placeholders for the values of options in the help.
_PAGE_BYTES, _ASSIGNMENT, _SELECTION = 5 * 2**20, "ATOMS=TEXT", "ATOMS"


@dataclass(frozen=True)
class EditOptions:
    """Options of `edit`: changes to the annotations of atoms."""

    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_ASSIGNMENT,
            help='Name atoms: "inflamed:3=crowded dark nuclei". Atoms with the same name are '
            "reported as one (a concept). An empty name removes the name.",
            rich_help_panel=MODEL,
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_ASSIGNMENT,
            help='Write a group beside atoms in reports and tables: "inflamed:3=nuclei". Unlike '
            "atoms of one name, atoms of a group stay separate.",
            rich_help_panel=MODEL,
        ),
    ] = None
    artefact: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_SELECTION,
            help="Label atoms as artefacts. Predictions do not change.",
            rich_help_panel=MODEL,
        ),
    ] = None
    tissue: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_SELECTION,
            help="Undo --artefact: the atoms count as tissue again.",
            rich_help_panel=MODEL,
        ),
    ] = None
    disable: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_SELECTION,
            help="Disable atoms: the model predicts without them. Weights and threshold "
            "do not change.",
            rich_help_panel=MODEL,
        ),
    ] = None
    enable: Annotated[
        list[str] | None,
        typer.Option(metavar=_SELECTION, help="Enable disabled atoms.", rich_help_panel=MODEL),
    ] = None
    refit_rule: Annotated[
        Path | None,
        typer.Option(
            metavar="IMAGES",
            help="Fit the decision rule again on these labelled images: the weights and the "
            "threshold that turn patches into a class of the image. Atoms do not change. "
            "Recommended after --disable.",
            rich_help_panel=MODEL,
        ),
    ] = None

    def atom_changes(self, labels: list[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return (atom selector, changed annotation fields) pairs, in the order to apply them.

        Names come first, as later selectors may contain them. `labels` are the labels of all atoms.
        """
        from ..decision.atom_annotations import check_name

        changes: list[tuple[str, dict[str, Any]]] = []
        for option, values in (("name", self.name), ("group", self.group)):
            for text in values or ():
                atoms, sign, value_text = text.partition("=")
                if not sign:
                    example = f'"{labels[0]}=fat"'
                    raise ValueError(f'--{option} "{text}": write ATOMS=TEXT, as in {example}')
                if value_text.strip() in labels:
                    raise ValueError(
                        f"--{option}: {value_text.strip()!r} is the label of another atom; choose "
                        "another name"
                    )
                check_name(value_text.strip())
                changes.append((atoms, {option: value_text.strip()}))
        switches = (("artefact", self.artefact, True), ("artefact", self.tissue, False))
        for field, values, value in (
            *switches,
            ("disabled", self.disable, True),
            ("disabled", self.enable, False),
        ):
            changes += [(text, {field: value}) for text in values or ()]
        return changes


@dataclass(frozen=True)
class PreviewOptions:
    """Images given with --show, and options for reading them and the images of --refit-rule."""

    show: Annotated[
        Path | None,
        typer.Option(
            metavar="IMAGES",
            help="Image, folder or CSV file whose predictions are compared before and after.",
            rich_help_panel=INPUT,
        ),
    ] = None
    features: FeaturesOption = None
    mpp: MppOption = None
    allow_missing_chunks: AllowMissingOption = False

    @property
    def has_image_options(self) -> bool:
        """Whether --features or --mpp is set, which apply only to images."""
        return self.features is not None or self.mpp is not None

    @property
    def images(self) -> ImageOptions:
        """Options of the images given with --show."""
        paths = [self.show] if self.show else []
        return ImageOptions(paths, mpp=self.mpp, features=self.features)


def edit(
    *,
    model_options: ModelOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New model file.", rich_help_panel=OUTPUT)
    ] = None,
    changes: EditOptions,
    preview: PreviewOptions,
    member: MemberOption = 1,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name, group and disable atoms, and write a new model file.

        histodict edit a.histodict --name "inflamed:3=dark nuclei" -o b.histodict

    In the options, write ATOMS as CLASS:NUMBER (shown by `histodict atoms`) or as a name that you
    gave; separate several by commas. Options can be repeated. The model file stores the changes
    with their date. Without options that change atoms, the command lists the changes stored in
    the model.
    """
    from ..decision.atom_annotations import parse_atom_selector
    from ..models import save_model

    with report_errors():
        if output is not None:
            check_writable_file(output)
            if output.exists() and output.samefile(model_options.model):
                raise ValueError(f"{output}: is the input model; choose another output file")
        model = model_options.load(jobs)
        base_model = select_member(model, member).model_
        labels = list_atom_labels(base_model, model.class_names_)
        notes = base_model.atom_annotations
        for atoms, values in changes.atom_changes(labels):
            notes = notes.with_changes(parse_atom_selector(atoms, labels, notes), **values)
        changed = model.with_atom_annotations(notes, member - 1)
        is_changed = notes != base_model.atom_annotations or changes.refit_rule is not None
        if is_changed and output is None and preview.show is None:
            raise ValueError("give a file for the changed model with --output")
        if preview.has_image_options and preview.show is None and changes.refit_rule is None:
            raise ValueError("--features and --mpp need --show or --refit-rule")
        records = preview.images.list_images() if preview.show else []
        if records and notes.disabled != base_model.atom_annotations.disabled:
            changed = changed.with_tuning_images([record.path for record in records])
        if changes.refit_rule is not None:
            changed = _refit_decision_rule(changed, changes.refit_rule, preview, member - 1)
        if output is not None:
            note_overwrite(output)
            save_model(changed, output)
        rows = (
            _compare_predictions(model, changed, records, preview.images.pixel_size)
            if records
            else []
        )
    if as_json:
        content = {
            "model": str(output or model_options.model),
            "atoms": _annotation_rows(notes, labels),
        }
        print_json(content | ({"images": rows} if rows else {}))
        return
    _print_edits(notes, labels, rows)
    if output is not None:
        typer.echo(f"Wrote {output}")


def list_atom_labels(pipeline: Any, classes: list[str]) -> list[str]:
    """Return the label "CLASS:NUMBER" of every atom; raise ValueError if there are no atoms."""
    from ..decision.atom_annotations import atom_labels

    atoms = pipeline.atoms()
    if atoms is None:
        raise ValueError(pipeline.no_atoms_reason())
    return atom_labels(atoms.classes, classes)


def _refit_decision_rule(model: Model, source: Path, preview: PreviewOptions, member: int) -> Model:
    from ..datasets.manifest import read_manifest
    from ..datasets.survey import with_pixel_size

    manifest = with_pixel_size(read_manifest(source, features=preview.features), preview.mpp, None)
    for note in manifest.notes:
        warn(note, "Note")
    for warning in manifest.warnings:
        warn(warning)
    with progress_bars() as callback:
        return model.refit_decision_rule(manifest, member, callback=callback)


def _compare_predictions(
    model: Model, edited_model: Model, records: list[ImageRecord], size_option: PixelSizeOption
) -> list[dict[str, Any]]:
    """Return a row per image with the predictions of both models and the true class, if known."""
    rows: list[dict[str, Any]] = []
    warn_of_unknown_input_pixel_sizes(model, records, size_option)
    with progress_bars() as callback:
        for record in records:
            size = size_option.with_table_mpp(record.mpp)
            arguments: dict[str, Any] = {
                "mpp": size,
                "callback": callback,
                "region_of_interest": record.region_of_interest,
            }
            old, new = (m.predict_one(record.path, **arguments) for m in (model, edited_model))
            row = {"path": str(record.path), "before": old.row()["top_label"]}
            row |= {"score_before": old.row()["score"], "after": new.row()["top_label"]}
            row |= {"score_after": new.row()["score"], "truth": record.label or None}
            rows.append(row)
    return rows


def _annotation_rows(annotations: AtomAnnotations, labels: list[str]) -> list[dict[str, Any]]:
    return [{"label": labels[note["atom"]]} | note for note in annotations.to_list()]


def _print_edits(
    annotations: AtomAnnotations, labels: list[str], rows: list[dict[str, Any]]
) -> None:
    """Print a table of the annotated atoms and, if there are rows, a table of the predictions."""
    if annotations:
        lines = [
            [
                labels[note.atom],
                note.name,
                note.group,
                ", ".join(flag for flag in ("artefact", "disabled") if getattr(note, flag)),
                note.date,
            ]
            for note in annotations.entries
        ]
        print_table(("atom", "name", "group", "status", "date"), lines)
    else:
        typer.echo("No atom has a name, group or status.")
    if rows:
        table = [
            [
                Path(row["path"]).name,
                *_format_prediction(row["before"], row["score_before"]),
                "->",
                *_format_prediction(row["after"], row["score_after"]),
                "changed" if row["before"] != row["after"] else "",
            ]
            for row in rows
        ]
        print_table(("image", "before", "score", "", "after", "score", ""), table)
        changed = [row for row in rows if row["before"] != row["after"]]
        typer.echo(f"{len(changed)} of {len(rows)} predictions change{_accuracy_text(rows)}.")


def _format_prediction(label: str, score: float | None) -> tuple[str, str]:
    return label, "" if score is None else f"{score:.3g}"


def _accuracy_text(rows: list[dict[str, Any]]) -> str:
    known = [row for row in rows if row["truth"]]
    if not known:
        return ""
    before, after = (sum(row[key] == row["truth"] for row in known) for key in ("before", "after"))
    return (
        f"; correct before: {before}, after: {after} of {len(known)} (too optimistic if you chose "
        "the change on these images)"
    )


def explain(
    *,
    model_options: ModelOptions,
    images: RegionOfInterestOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="HTML page to write (.html). Without it, the explanations are only printed.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    n_shown: Annotated[
        int,
        typer.Option(
            "--atoms",
            help="Number of concepts to show per image. A concept is an atom, or all atoms of one "
            "name.",
            rich_help_panel=OUTPUT,
        ),
    ] = 8,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain predictions: the contribution of each atom to the score of an image.

        histodict explain tissue.histodict image.png --output explanation.html

    The score is a constant plus the contributions of all atoms. Values above 0 support the
    predicted class, whichever it is. (In predictions.csv, scores above 0 support the positive
    class.) Each contribution is compared with its mean in training patches of the other class
    (with more than two classes: the runner-up); the atoms that differ most are listed first.
    Atoms have the names given with `histodict edit`, else CLASS:NUMBER.
    """
    from ..reports.explanation_page import write_explanation_page

    with report_errors():
        if output is not None:
            check_html_file(output)
            check_writable_file(output)
            check_disk_space(output, _PAGE_BYTES)
        model, size_option = model_options.load(jobs), images.pixel_size
        records = images.list_images()
        warn_of_unknown_input_pixel_sizes(model, records, size_option)
        explanations = []
        with progress_bars() as callback:
            for record in records:
                size: PixelSizeOption = size_option.with_table_mpp(record.mpp)
                explanation = model.explain(
                    record.path,
                    mpp=size,
                    region_of_interest=record.region_of_interest,
                    callback=callback,
                )
                explanations.append(explanation)
        if output is not None:
            note_overwrite(output)
            write_explanation_page(output, model, explanations, records, n_concepts=n_shown)
    if as_json:
        print_json({"images": [each.to_dict() for each in explanations]})
        return
    for each in explanations:
        _print_explanation(each, n_shown)
    if output is not None:
        typer.echo(f"Open {output}")


def _print_explanation(explanation: Explanation, n_shown: int) -> None:
    from ..utils.text_io import percent

    typer.echo(f"{explanation.prediction.path}: {explanation.summary()}")
    if explanation.prediction.top_label is None:
        return
    if change := explanation.describe_change():
        typer.echo(change)
    predicted = explanation.classes[explanation.predicted_class]
    rival = explanation.classes[explanation.runner_up]
    if explanation.member_contributions:
        votes = [
            [str(v.member + 1), v.name, f"{explanation.margin_to_runner_up(v.contribution):+.3g}"]
            for v in explanation.member_contributions
        ]
        votes.append(["", "constant", f"{explanation.member_constant:+.3g}"])
        print_table(("base model", "description", f"contribution to {predicted}"), votes)
    # Of two classes, the second is positive. Tables of region detectors contain no such score.
    has_signed_score = not explanation.is_of_regions and len(explanation.classes) == 2
    is_opposite = has_signed_score and explanation.predicted_class == 0
    opposite = f" (in predictions.csv, scores above 0 support {rival})" * is_opposite
    rows = []
    for part in explanation.concepts[:n_shown]:
        contribution = explanation.margin_to_runner_up(part.contribution)
        excess = explanation.excess_over_reference(part)
        usage = "" if part.usage is None else percent(part.usage)
        numbers = [f"{x + 0.0:+.3g}" for x in (contribution, contribution - excess, excess)]
        rows.append([part.full_name, usage, part.describe_reference(rival), *numbers])
    for name, *values in explanation.sum_rows(n_shown):
        rows.append([name, "", "", *(f"{value:+.3g}" for value in values)])
    header = (
        "concept",
        "used by",
        f"used by {rival}\ntraining patches",
        "contribution",
        f"mean in {rival}\ntraining patches",
        "difference",
    )
    print_table(header, rows)
    typer.echo(
        f"Values above 0 support {predicted}{opposite}. Concepts that are used neither by this "
        "image nor by the training patches are left out."
    )
