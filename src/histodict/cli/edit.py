"""What people make of atoms: `edit` names them and switches them off, `why` tells by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..execution.outputs import check_new_file, check_room
from .console import plain_errors, print_json, print_table, progress_bars, warn
from .image_options import AskedOptions, ImageOptions
from .options import (
    AllowMissingOption,
    FeaturesOption,
    JsonOption,
    ModelOptions,
    MppOption,
    ViewOption,
    view_of,
)
from .reading import warn_of_records
from .work import JobsOption

if TYPE_CHECKING:
    from ..decisions.atom_notes import AtomNotes
    from ..images.manifest import Record
    from ..images.pixel_size import GivenSize
    from ..pipeline import Model

_PAGE_BYTES, _NAMED, _ATOMS = 5 * 2**20, "ATOMS=TEXT", "ATOMS"


@dataclass(frozen=True)
class Changes:
    """What `edit` takes of the atoms."""

    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_NAMED,
            help='Name atoms, as in "inflamed:3=crowded dark nuclei". Atoms of one name are one '
            'concept: "inflamed:3,inflamed:9=…" merges two. An empty name takes it away.',
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option(metavar=_NAMED, help="Put atoms under a heading, such as nuclei."),
    ] = None
    artefact: Annotated[
        list[str] | None,
        typer.Option(metavar=_ATOMS, help="Mark atoms as no tissue; they still take part."),
    ] = None
    tissue: Annotated[
        list[str] | None, typer.Option(metavar=_ATOMS, help="Take that mark away.")
    ] = None
    off: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_ATOMS,
            help="Switch atoms off: the model answers as if it had never had them. Nothing is "
            "learnt again.",
        ),
    ] = None
    on: Annotated[list[str] | None, typer.Option(metavar=_ATOMS, help="Switch atoms on again.")] = (
        None
    )
    line: Annotated[
        Path | None,
        typer.Option(
            metavar="IMAGES",
            help="Fit the line between the classes again, on these labelled images, as those of "
            "training: atoms that are off leave a class weaker. Dictionaries stay as they are.",
        ),
    ] = None

    def wanted(self, labels: list[str]) -> list[tuple[str, dict[str, Any]]]:
        """Atoms and what is changed of them, names first: what follows may go by them."""
        from ..decisions.atom_notes import check_name

        found: list[tuple[str, dict[str, Any]]] = []
        for option, texts in (("name", self.name), ("group", self.group)):
            for text in texts or ():
                atoms, sign, words = text.partition("=")
                if not sign:
                    example = f'"{labels[0]}=fat"'
                    raise ValueError(f'--{option} "{text}": write ATOMS=TEXT, as in {example}')
                if words.strip() in labels:
                    raise ValueError(f"--{option}: {words.strip()!r} is what another atom goes by")
                check_name(words.strip())
                found.append((atoms, {option: words.strip()}))
        switches = (("artefact", self.artefact, True), ("artefact", self.tissue, False))
        for word, texts, value in (*switches, ("off", self.off, True), ("off", self.on, False)):
            found += [(text, {word: value}) for text in texts or ()]
        return found


@dataclass(frozen=True)
class Shown:
    """Images on which the changes are shown; what is said of them holds for --line, too."""

    show: Annotated[
        Path | None,
        typer.Option(
            metavar="IMAGES",
            help="An image, a folder or a CSV: say what the changes change in the answers.",
        ),
    ] = None
    features: FeaturesOption = None
    mpp: MppOption = None
    allow_missing_chunks: AllowMissingOption = False

    @property
    def says_of_images(self) -> bool:
        return self.features is not None or self.mpp is not None

    @property
    def images(self) -> ImageOptions:
        paths = [self.show] if self.show else []
        return ImageOptions(paths, mpp=self.mpp, features=self.features)


def edit(
    *,
    used: ModelOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Model file to write: a new one.")
    ] = None,
    changes: Changes,
    shown: Shown,
    view: ViewOption = 1,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name, group and switch off the atoms of a model, in a new model file.

    ATOMS go by CLASS:NUMBER, as `histodict atoms` shows them, or by a name they have; several
    with commas between them. Every option may be repeated. What is said is kept in the model with
    the date, and appears wherever its atoms do:

        histodict edit m.histodict --name "inflamed:3=dark nuclei" --off inflamed:7 -o n.histodict

    Without a change it lists what has been said so far.
    """
    from ..decisions.atom_notes import find_atoms
    from ..pipeline import save_model

    with plain_errors():
        if output is not None:
            check_new_file(output)
            if output.exists() and output.samefile(used.model):
                raise ValueError(f"{output}: is the model itself: write to another file")
        model = used.load(jobs)
        own = view_of(model, view).model_
        labels = labels_of(own, model.classes_)
        notes = own.notes
        for atoms, values in changes.wanted(labels):
            notes = notes.changed(find_atoms(atoms, labels, notes), **values)
        changed = model.with_notes(notes, view - 1)
        is_changed = notes != own.notes or changes.line is not None
        if is_changed and output is None and shown.show is None:
            raise ValueError("say where the changed model goes, with --output")
        if shown.says_of_images and shown.show is None and changes.line is None:
            words = "--features and --mpp are of the images of --show or --line"
            raise ValueError(f"{words}: give these, too")
        records = shown.images.find() if shown.show else []
        if records and notes.off != own.notes.off:
            changed = changed.tuned_on([record.path for record in records])
        if changes.line is not None:
            changed = _with_line(changed, changes.line, shown, view - 1)
        if output is not None:
            save_model(changed, output)
        rows = _compared(model, changed, records, shown.images.size) if records else []
    if as_json:
        told = {"model": str(output or used.model), "atoms": _told(notes, labels)}
        print_json(told | ({"images": rows} if rows else {}))
        return
    _say(notes, labels, rows)
    if output is not None:
        typer.echo(f"Wrote {output}")


def labels_of(own: Any, classes: list[str]) -> list[str]:
    """CLASS:NUMBER of every atom of a view."""
    from ..decisions.atom_notes import atom_labels

    atoms = own.atoms()
    if atoms is None:
        raise ValueError(own.why_no_atoms())
    return atom_labels(atoms.classes, classes)


def _with_line(model: Model, source: Path, shown: Shown, view: int) -> Model:
    from ..images.manifest import read_manifest
    from ..images.survey import with_pixel_size

    manifest = with_pixel_size(read_manifest(source, features=shown.features), shown.mpp, None)
    for warning in manifest.warnings:
        warn(warning)
    with progress_bars() as callback:
        return model.with_line(manifest, view, callback=callback)


def _compared(
    before: Model, after: Model, records: list[Record], given: GivenSize
) -> list[dict[str, Any]]:
    """Per image the answer of both models, and what it should be where that is known."""
    rows: list[dict[str, Any]] = []
    warn_of_records(before, records, given)
    with progress_bars() as callback:
        for record in records:
            size = given.with_table(record.mpp)
            asked: dict[str, Any] = {"mpp": size, "callback": callback, "within": record.within}
            one, two = (m.answer(record.path, **asked) for m in (before, after))
            row = {"path": str(record.path), "before": one.row()["label"]}
            row |= {"score_before": one.row()["score"], "after": two.row()["label"]}
            row |= {"score_after": two.row()["score"], "truth": record.label or None}
            rows.append(row)
    return rows


def _told(notes: AtomNotes, labels: list[str]) -> list[dict[str, Any]]:
    return [{"label": labels[note["atom"]]} | note for note in notes.to_list()]


def _say(notes: AtomNotes, labels: list[str], rows: list[dict[str, Any]]) -> None:
    if notes:
        lines = [
            [
                labels[note.atom],
                note.name,
                note.group,
                ", ".join(word for word in ("artefact", "off") if getattr(note, word)),
                note.date,
            ]
            for note in notes.notes
        ]
        print_table(("atom", "name", "group", "", "since"), lines)
    else:
        typer.echo("Nothing has been said of its atoms.")
    if rows:
        table = [
            [
                Path(row["path"]).name,
                *_answer(row["before"], row["score_before"]),
                "->",
                *_answer(row["after"], row["score_after"]),
                "changed" if row["before"] != row["after"] else "",
            ]
            for row in rows
        ]
        print_table(("image", "before", "score", "", "after", "score", ""), table)
        changed = [row for row in rows if row["before"] != row["after"]]
        typer.echo(f"{len(changed)} of {len(rows)} answers change{_right_words(rows)}.")


def _answer(label: str, score: float | None) -> tuple[str, str]:
    return label, "" if score is None else f"{score:.3g}"


def _right_words(rows: list[dict[str, Any]]) -> str:
    known = [row for row in rows if row["truth"]]
    if not known:
        return ""
    before, after = (sum(row[key] == row["truth"] for row in known) for key in ("before", "after"))
    warning = "too optimistic if the change was chosen by these scores"
    return f"; right before {before}, now {after} of {len(known)}; {warning}"


def why(
    *,
    used: ModelOptions,
    asked: AskedOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page (.html) to write.")
    ] = None,
    n_shown: Annotated[int, typer.Option("--atoms", help="Concepts to show of an image.")] = 8,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why: an image's answer in the atoms of the model, whose parts add up to its score.

        histodict why tissue.histodict image.png --output why.html

    Atoms go by the names that `histodict edit` gave them, else by CLASS:NUMBER. "healthy 4 %" is
    what is usual in the training patches of that class.
    """
    from ..reports.why_page import write_why_page

    with plain_errors():
        if output is not None:
            check_new_file(output)
            check_room(output, _PAGE_BYTES)
        model, given = used.load(jobs), asked.size
        records = asked.find()
        warn_of_records(model, records, given)
        found = []
        with progress_bars() as callback:
            for record in records:
                size: GivenSize = given.with_table(record.mpp)
                one = model.why(record.path, mpp=size, within=record.within, callback=callback)
                found.append(one)
        if output is not None:
            write_why_page(output, model, found, records, n_parts=n_shown)
    if as_json:
        print_json({"images": [each.to_dict() for each in found]})
        return
    for each in found:
        _say_why(each, n_shown)
    if output is not None:
        typer.echo(f"Open {output}")


def _say_why(found: Any, n_shown: int) -> None:
    from ..execution.texts import percent

    typer.echo(f"{found.answer.path}: {found.words()}")
    if found.answer.label is None:
        return
    if words := found.change_words():
        typer.echo(words)
    rival = found.classes[found.rival]
    if found.votes:
        votes = [[str(v.view + 1), v.name, f"{found.lead(v.adds):+.3g}"] for v in found.votes]
        print_table(("view", "how it looks", f"speaks for {found.classes[found.winner]}"), votes)
    rows = [
        [
            part.full_name,
            "" if part.use is None else percent(part.use),
            part.usual_words(rival),
            f"{found.lead(part.adds):+.3g}",
            f"{found.beyond(part):+.3g}",
        ]
        for part in found.concepts[:n_shown]
    ]
    if rows:
        print_table(("concept", "use", f"in {rival}", "adds", f"beyond {rival}"), rows)
    rest = found.others(n_shown)
    others = sum(found.lead(part.adds) for part in rest)
    typer.echo(
        f"{len(rest)} others add {others:+.3g}, the rule's constant "
        f"{found.lead(found.constant):+.3g}; together {found.lead(found.scores):+.3g}."
    )
