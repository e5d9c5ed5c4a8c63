"""Options that several commands take, each stated once, and groups of them.

A command takes a group as one parameter whose type is a dataclass; `flat` lays its fields out as
options of their own, which is what typer asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..execution.missing_chunks import allow_missing_chunks
from ..parameters import hints_for
from .leaving import handle_signals

if TYPE_CHECKING:
    from ..pipeline import Model

Command = Callable[..., None]


def flatten_options(command: Command) -> Command:
    """The command with the fields of its dataclasses as parameters, in their place."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: h for name, h in hints.items() if is_dataclass(h)}
    laid_out = _parameters(command)

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field: given.pop(field) for field in signature(group).parameters})
            for name, group in groups.items()
        }
        allow = any(getattr(group, "allow_missing_chunks", False) for group in made.values())
        with handle_signals(), allow_missing_chunks(allow), hints_for("cli"):
            command(**given, **made)

    run.__dict__["__signature__"] = Signature(laid_out)
    run.__annotations__ = {part.name: part.annotation for part in laid_out}
    return run


def _parameters(call: Any) -> list[Parameter]:
    """Of a command or of a dataclass."""
    hints = get_type_hints(call, include_extras=True)
    found = []
    for own in signature(call).parameters.values():
        hint = hints[own.name]
        alone = own.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)
        found += _parameters(hint) if is_dataclass(hint) else [alone]
    return found


# --- single options -----------------------------------------------------------------------------

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model file, from `histodict train`.")
]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")]
ResultsOutput = Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")]
FolderOutput = Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
AnnDataOption = Annotated[
    bool,
    typer.Option(
        "--anndata",
        help="Also write anndata/KEY.h5ad per image, for scanpy and squidpy: the patches, their "
        "sparse codes and the atoms (needs h5py).",
    ),
]
AtomFactsOption = Annotated[
    Path | None,
    typer.Option(
        "--atom-statistics",
        metavar="CSV",
        help="With --anndata: what is known of the atoms, from `histodict atoms --csv`, as columns "
        "of var.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-weights",
        help="Let the model fetch or open the weights of the network that it names: only for a "
        "model whose maker you trust.",
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder for what is costly to compute: a run that is given it again, or another "
        "command, does not do it twice. It holds 20 GiB at most; HISTODICT_CACHE_GIB says how many "
        "else."
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change one setting of the preset or of the method, such as stain=macenko, "
        "downsample=2, aggregation=proportion or n_atoms=300. May be repeated.",
    ),
]

ViewOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Of a panel, the atoms of its N-th member, in the order of `info`."
    ),
]

PositiveOption = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="Of two classes, the one to be found: it scores above 0, is drawn warm, and is what "
        "sensitivity is about. Left out: the one that is not called healthy, normal or the like.",
    ),
]

RegionsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Find regions of this name instead of telling images apart: the class of the crops "
        "that show it, what the masks (column mask) show, or outlines of this class "
        "(--annotations). Several, as tumour,stroma, are told apart inside of their outlines.",
    ),
]
AnnotationsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Outlines that say what is where: files called like the images, GeoJSON of QuPath or "
        "XML of ASAP or ImageScope.",
    ),
]
CoordinatesOption = Annotated[
    str,
    typer.Option(
        help="How the numbers of outlines are meant: pixels, as the program that writes the format "
        "counts; slide, pixels from the slide's corner; um."
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=COLUMN",
        help="Which column of the CSV is the path, label, patient, slide, site, scanner, batch, "
        "mpp, split or mask, such as patient=case_no. May be repeated.",
    ),
]
SplitOption = Annotated[
    str | None, typer.Option(help="Use only rows with this value in the CSV's split column.")
]

FeaturesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of feature files (.h5 as TRIDENT, CLAM or `histodict features` write it, "
        ".h5ad, .zarr, .npz), which stand for the slides of the same name: no image is read. A "
        "CSV may then have a column slide in place of path.",
    ),
]
MppOption = Annotated[
    float | None,
    typer.Option(
        help="Pixel size in µm of those images of which neither the file nor a table says it."
    ),
]
OverrideMppOption = Annotated[
    float | None,
    typer.Option(help="Pixel size in µm of all images, whatever their files or a table say."),
]
SkipBadOption = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Go on without images that cannot be read; they are named, here and in the model.",
    ),
]
AllowMissingOption = Annotated[
    bool,
    typer.Option(
        "--allow-missing-chunks",
        help="Read images and feature files with missing chunks (Zarr, HDF5); missing chunks "
        "count as the fill value, with a warning. By default such files are refused.",
    ),
]


# --- groups -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """A model that is used."""

    model: ModelArgument
    trust_weights: TrustOption = False

    def load(self, jobs: int | None) -> Model:
        from ..pipeline import load_model

        return load_model(self.model, n_jobs=jobs, trust_weights=self.trust_weights)


@dataclass(frozen=True)
class DetectorOptions(ModelOptions):
    """A model that finds regions."""

    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Model file, from `histodict train --regions`."),
    ]


def select_member(model: Model, number: int) -> Model:
    """A panel's member by its number, as a model of its own; another model as it is."""
    n_views = model.n_estimators_
    if not 1 <= number <= n_views:
        raise ValueError(
            f"--member: there {'is' if n_views == 1 else 'are'} {n_views}, not {number}"
        )
    return model.estimators_[number - 1] if n_views > 1 else model  # type: ignore[union-attr]
