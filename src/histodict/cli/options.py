"""Options and option groups shared by several commands, the layout of `--help`, and execution.

A command takes an option group as one parameter whose type is a dataclass; `flatten_options`
turns its fields into separate options, as typer requires. Help is plain text: importing rich for
boxes and colours takes longer than the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from ..utils.missing_chunks import allow_missing_chunks
from ..utils.validation import hints_for
from .console import end_unprinted, handle_signals, progress_bars

if TYPE_CHECKING:
    from ..models import Model
    from ..utils.parallel import ExecutionOptions, Executor


WIDTH = 100  # maximum line length of help


class Commands(TyperGroup):
    """Command group that lists commands under the titles of their groups."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; print a one-line error if its output cannot be written."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # it may be closed
                    sys.stdout.flush()
        except OSError as error:
            end_unprinted(error)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the application; print a one-line error if the output cannot be written."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            end_unprinted(error)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, one section per group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            row = (name, command.get_short_help_str(limit=WIDTH))
            groups.setdefault(command.rich_help_panel, []).append(row)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with default False.

        With the default None, typer imports pydantic to convert the value.
        """
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option


Command = Callable[..., None]


def flatten_options(command: Command) -> Command:
    """Return the command with the fields of its dataclass parameters as parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: h for name, h in hints.items() if is_dataclass(h)}
    parameters = _parameters(command)

    @wraps(command)
    def run(**arguments: Any) -> None:
        options = {
            name: group(**{field: arguments.pop(field) for field in signature(group).parameters})
            for name, group in groups.items()
        }
        allow = any(getattr(group, "allow_missing_chunks", False) for group in options.values())
        with handle_signals(), allow_missing_chunks(allow), hints_for("cli"):
            command(**arguments, **options)

    run.__dict__["__signature__"] = Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(call: Any) -> list[Parameter]:
    """Return the parameters of a command or dataclass, with nested dataclasses flattened."""
    hints = get_type_hints(call, include_extras=True)
    parameters = []
    for parameter in signature(call).parameters.values():
        hint = hints[parameter.name]
        single = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)
        parameters += _parameters(hint) if is_dataclass(hint) else [single]
    return parameters


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
    """Options that name a model."""

    model: ModelArgument
    trust_weights: TrustOption = False

    def load(self, jobs: int | None) -> Model:
        """Load the model."""
        from ..models import load_model

        return load_model(self.model, n_jobs=jobs, trust_weights=self.trust_weights)


@dataclass(frozen=True)
class DetectorOptions(ModelOptions):
    """Options that name a region detector."""

    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model file, from `histodict train --regions`.")
    ]


def select_member(model: Model, number: int) -> Model:
    """Return the N-th base model of an ensemble; a single model is returned as it is."""
    n_members = model.n_estimators_
    if not 1 <= number <= n_members:
        raise ValueError(
            f"--member: there {'is' if n_members == 1 else 'are'} {n_members}, not {number}"
        )
    return model.estimators_[number - 1] if n_members > 1 else model  # type: ignore[union-attr]


JobsOption = Annotated[int | None, typer.Option("--jobs", help="Threads; all cores if not given.")]


@dataclass(frozen=True)
class ExecutionCliOptions:
    """Options that select threads or a cluster."""

    jobs: JobsOption = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Work on a Dask cluster: tcp://HOST:PORT of its scheduler, local:N for N "
            "processes here, or a .yaml file for a batch system. All must see the same files.",
        ),
    ] = None

    @contextmanager
    def begin(
        self, cache: Path | None = None, weights: Mapping[str, float] | None = None
    ) -> Iterator[ExecutionOptions]:
        """Open the cluster and show progress bars until the context is left.

        Parameters
        ----------
        cache : folder for expensive intermediate results
        weights : relative durations of consecutive stages
        """
        from ..utils.parallel import ExecutionOptions

        with self._executor() as executor, progress_bars(weights) as callback:
            yield ExecutionOptions(self.jobs, cache, callback, executor)

    def _executor(self) -> AbstractContextManager[Executor | None]:
        """Return the cluster; None stands for threads on this machine."""
        if self.cluster is None:
            return nullcontext()
        from ..utils.dask_executor import open_cluster

        return open_cluster(self.cluster)
