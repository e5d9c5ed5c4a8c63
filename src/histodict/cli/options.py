"""Options and option groups shared by several commands, the layout of `--help`, and execution.

A command takes an option group as one parameter whose type is a dataclass; `flatten_options`
turns its fields into separate options, as typer requires. Help is plain text: importing rich for
boxes and colours takes longer than the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..utils.missing_chunks import allow_missing_chunks
from ..utils.text_io import pluralize
from ..utils.validation import hints_for, import_optional
from .console import handle_signals, progress_bars, report_errors
from .usage_errors import report_usage_errors

if TYPE_CHECKING:
    from ..models import Model
    from ..utils.parallel import ExecutionOptions, Executor


# Sections of the options in the help of a command, in this order.
INPUT, MODEL, OUTPUT, ADVANCED = "Input", "Model", "Output", "Advanced"


class Command(TyperCommand):
    """Command whose help lists its options in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the elements of the usage line: arguments, required options, [OPTIONS]."""
        options, *arguments = super().collect_usage_pieces(ctx)
        required = [
            f"{parameter.opts[0]} {parameter.name.upper()}"
            for parameter in self.get_params(ctx)
            if parameter.required and parameter.param_type_name == "option"
        ]
        return [*(re.sub(r"[{}]", "", name) for name in arguments), *required, options]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; after an error, print one line and exit."""
        with report_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and one section per group of options."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", INPUT, MODEL, OUTPUT, ADVANCED)
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                title = getattr(parameter, "rich_help_panel", None) or OUTPUT
                name, text = record
                row = (name.replace("<list[Path]>", "<path>"), text)
                sections["Arguments" if is_argument else title].append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def flatten_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each dataclass parameter replaced by the fields of its class."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: h for name, h in hints.items() if is_dataclass(h)}
    parameters = _flat_parameters(command)

    @wraps(command)
    def run(**arguments: Any) -> None:
        options = {
            name: group(**{field: arguments.pop(field) for field in signature(group).parameters})
            for name, group in groups.items()
        }
        allow = any(getattr(group, "allow_missing_chunks", False) for group in options.values())
        with handle_signals(), allow_missing_chunks(allow), hints_for("cli"):
            with report_errors():
                for group in options.values():
                    if isinstance(group, ExecutionCliOptions):
                        group.check_installed()
            command(**arguments, **options)

    run.__dict__["__signature__"] = Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _flat_parameters(command_or_group: Any) -> list[Parameter]:
    """Return the parameters of a command or dataclass, including those of nested dataclasses."""
    hints = get_type_hints(command_or_group, include_extras=True)
    parameters = []
    for parameter in signature(command_or_group).parameters.values():
        hint = hints[parameter.name]
        single = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint)
        parameters += _flat_parameters(hint) if is_dataclass(hint) else [single]
    return parameters


# --- single options -----------------------------------------------------------------------------

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model file written by `histodict train`.")
]
ModelOutput = Annotated[
    Path, typer.Option("--output", "-o", help="Model file to write.", rich_help_panel=OUTPUT)
]
ResultsOutput = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for the results.", rich_help_panel=OUTPUT)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]
AnnDataOption = Annotated[
    bool,
    typer.Option(
        "--anndata",
        help="Also write, for each image, anndata/KEY.h5ad (KEY: column key of the results) for "
        "scanpy and squidpy: its patches, their sparse codes, and the atoms of the model.",
        rich_help_panel=OUTPUT,
    ),
]
AtomStatisticsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CSV",
        help="With --anndata: add the atom statistics written by `histodict atoms --csv`.",
        rich_help_panel=ADVANCED,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-weights",
        help="Allow the program to download or open the encoder weights that are listed in the "
        "model file. Use this only if you trust the author of the model.",
        rich_help_panel=ADVANCED,
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder for intermediate results, which later runs reuse. Its size is limited to "
        "20 GiB; the environment variable HISTODICT_CACHE_GIB changes the limit.",
        rich_help_panel=ADVANCED,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting of the preset or a parameter of the method, such as "
        "stain=macenko, downsample=2 or n_atoms=300. Can be repeated.",
        rich_help_panel=MODEL,
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, help="Random seed.", rich_help_panel=ADVANCED)
]

MemberOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Number of the base model of an ensemble, as listed by `histodict info`.",
        rich_help_panel=MODEL,
    ),
]

PositiveOption = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="With two classes: the class to call positive, usually the disease. Images with "
        "scores above 0 are assigned to it, and sensitivity is measured for it. Default: guessed "
        "from the names (not healthy, normal, benign or control).",
        rich_help_panel=INPUT,
    ),
]

RegionsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Train a region detector for this class, from masks, annotations, or images that "
        "show only one class. With --annotations, you can give several classes (tumour,stroma): "
        "a classifier is then trained that assigns each annotated area to one of them.",
        rich_help_panel=INPUT,
    ),
]
AnnotationsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of files that outline the classes, named like the images: GeoJSON of QuPath, "
        "XML of ASAP or ImageScope.",
        rich_help_panel=INPUT,
    ),
]
TrueAnnotationsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of annotation files with the true classes, named like the images; the "
        "accuracy is measured with them. To use only patches inside annotations, give --within.",
        rich_help_panel=INPUT,
    ),
]
CoordinatesOption = Annotated[
    str,
    typer.Option(
        help="Coordinates of the annotations: pixels (from the corner that the annotation program "
        "uses: QuPath leaves out the empty margins of a scan, ASAP and ImageScope do not), slide "
        "(pixels from the corner of the whole scan) or um (µm, from the same corner as in QuPath).",
        rich_help_panel=ADVANCED,
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=COLUMN",
        help="Column of the CSV file for a field: path, label, patient, slide, site, scanner, "
        "batch, mpp, split or mask. Example: patient=case_no. Can be repeated.",
        rich_help_panel=INPUT,
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(help="Use only rows with this value in the column split.", rich_help_panel=INPUT),
]

FeaturesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of feature files (.h5, .h5ad, .zarr, .npz), named like the slides; read "
        "instead of the images.",
        rich_help_panel=INPUT,
    ),
]
MppOption = Annotated[
    float | None,
    typer.Option(
        help="Pixel size (µm) for images whose file and table give none.", rich_help_panel=INPUT
    ),
]
OverrideMppOption = Annotated[
    float | None,
    typer.Option(
        help="Pixel size (µm) for all images, also if their file or table gives another.",
        rich_help_panel=ADVANCED,
    ),
]
SkipUnreadableOption = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Continue without images that cannot be read or are too small, and list them.",
        rich_help_panel=INPUT,
    ),
]
AllowClassOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS",
        help="Accept this class. A class with few images whose name differs by one letter from "
        "that of a frequent class is otherwise refused as a probable typing error. Can be "
        "repeated.",
        rich_help_panel=ADVANCED,
    ),
]
AllowMissingOption = Annotated[
    bool,
    typer.Option(
        "--allow-missing-chunks",
        help="Read Zarr and HDF5 files in which blocks of data (chunks) are missing, as after an "
        "incomplete copy. Missing blocks are filled with the default value of the file; a warning "
        "says how many there are.",
        rich_help_panel=ADVANCED,
    ),
]


# --- groups -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """Options that name a model."""

    model: ModelArgument
    trust_weights: TrustOption = False

    def load(self, jobs: int | None) -> Model:
        """Load the model; raise an error if a required package is not installed."""
        from ..encoders import check_installed
        from ..models import load_model

        model = load_model(self.model, n_jobs=jobs, trust_weights=self.trust_weights)
        for recipe in model.recipes:
            check_installed(recipe.features)
        return model


def select_member(model: Model, number: int) -> Model:
    """Return a base model of an ensemble by its number, from 1; return a single model unchanged."""
    n_members = model.n_estimators_
    if not 1 <= number <= n_members:
        raise ValueError(
            f"--member {number}: the model has {pluralize(n_members, 'base model')}. Give a number "
            f"from 1 to {n_members}"
        )
    return model.estimators_[number - 1] if n_members > 1 else model  # type: ignore[union-attr]


JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", help="Number of threads. Default: all cores.", rich_help_panel=ADVANCED),
]


@dataclass(frozen=True)
class ExecutionCliOptions:
    """Options that select threads or a cluster."""

    jobs: JobsOption = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Run on a Dask cluster: tcp://HOST:PORT of a scheduler, local:N for N processes, "
            "or a .yaml file for a batch system. All workers must see the same files.",
            rich_help_panel=ADVANCED,
        ),
    ] = None

    def check_installed(self) -> None:
        """Raise an error if a cluster is requested and its packages are not installed."""
        if self.cluster is not None:
            import_optional("distributed", "cluster", "--cluster")

    @contextmanager
    def start(
        self, cache: Path | None = None, weights: Mapping[str, float] | None = None
    ) -> Iterator[ExecutionOptions]:
        """Yield execution options with an open cluster, if requested, and progress bars.

        Parameters
        ----------
        cache : folder for expensive intermediate results; None to store none
        weights : relative duration of each stage by its name; None if unknown
        """
        from ..utils.parallel import ExecutionOptions

        with self._open_executor() as executor, progress_bars(weights) as callback:
            yield ExecutionOptions(self.jobs, cache, callback, executor)

    def _open_executor(self) -> AbstractContextManager[Executor | None]:
        """Return a context manager that yields the cluster's executor; None without --cluster."""
        if self.cluster is None:
            return nullcontext()
        from ..utils.dask_executor import open_cluster

        return open_cluster(self.cluster)
