"""Options that several commands take, each stated once, and groups of them.

A command takes a group as one parameter whose type is a dataclass; `flat` lays its fields out as
options of their own, which is what typer asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..execution.texts import counted
from .console import progress_bars, warn
from .leaving import leaving

if TYPE_CHECKING:
    from ..execution.executor import Executor
    from ..execution.work import Work
    from ..images.manifest import Manifest
    from ..images.pixel_size import GivenSize, PixelSize
    from ..pipeline import Model

Command = Callable[..., None]


def flat(command: Command) -> Command:
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
        with leaving():
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

ModelArgument = Annotated[Path, typer.Argument(help="Model file, from `histodict train`.")]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")]
ResultsOutput = Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")]
FolderOutput = Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-weights",
        help="Let the model fetch or open the weights of the network that it names: only for a "
        "model whose maker you trust.",
    ),
]
JobsOption = Annotated[int | None, typer.Option("--jobs", help="Threads; all cores if not given.")]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder for what is costly to compute: a run that is given it again, or another "
        "command, does not do it twice."
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change one setting of the preset or of the method, such as stain=macenko, "
        "downsample=2, rule=proportion or n_atoms=300. May be repeated.",
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
        "--skip-bad",
        help="Go on without images that cannot be read; they are named, here and in the model.",
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
class FinderOptions(ModelOptions):
    """A model that finds regions."""

    model: Annotated[Path, typer.Argument(help="Model file, from `histodict train --regions`.")]


@dataclass(frozen=True)
class DataOptions:
    """Labelled images."""

    data: Annotated[Path, typer.Argument(help="Folder with one sub-folder per class, or a CSV.")]
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="Which column of the CSV is the path, label, patient, slide, site, mpp, split or "
            "mask, such as patient=case_no. May be repeated.",
        ),
    ] = None
    mpp: MppOption = None
    override_mpp: OverrideMppOption = None
    skip_bad: SkipBadOption = False

    def read(self, *, whole_paths: bool = False) -> Manifest:
        """Images that can all be read, what is to be said of them said.

        Another machine may need whole paths.
        """
        from ..images.manifest import read_manifest
        from ..images.survey import check_contents, with_pixel_size

        check_sizes(self.mpp, self.override_mpp)
        source = self.data.absolute() if whole_paths else self.data
        manifest = self.choose(read_manifest(source, pairs("--column", self.column)))
        for warning in manifest.warnings:
            warn(warning)
        manifest = self._readable(manifest)
        for warning in check_contents(manifest):
            warn(warning)
        return with_pixel_size(manifest, self.mpp, self.override_mpp)

    def _readable(self, manifest: Manifest) -> Manifest:
        from ..images.survey import readable, survey

        with progress_bars() as callback:
            if not self.skip_bad:
                survey(manifest.records, callback=callback).check()
                return manifest
            chosen, reasons = readable(manifest, callback=callback)
        warn_of_skipped(reasons, len(manifest.records))
        return chosen

    def choose(self, manifest: Manifest) -> Manifest:
        return manifest


@dataclass(frozen=True)
class PartOptions(DataOptions):
    """Labelled images, or a part of them."""

    split: Annotated[
        str | None, typer.Option(help="Use only rows with this value in the CSV's split column.")
    ] = None

    def choose(self, manifest: Manifest) -> Manifest:
        if self.split is None:
            return manifest
        rows = [i for i, record in enumerate(manifest.records) if record.split == self.split]
        if not rows:
            raise ValueError(f"{self.data}: no row has {self.split!r} in its split column")
        return manifest.select(rows)


@dataclass(frozen=True)
class ImageOptions:
    """Images to be answered."""

    paths: Annotated[list[Path], typer.Argument(help="Images, slides, folders of them.")]
    mpp: MppOption = None
    override_mpp: OverrideMppOption = None

    @property
    def size(self) -> GivenSize:
        """What is said of all of them."""
        from ..images.pixel_size import GivenSize

        check_sizes(self.mpp, self.override_mpp)
        return GivenSize(fill=self.mpp, override=self.override_mpp)

    def find(self) -> list[Path]:
        from ..batch import find_images

        if not any(path.exists() for path in self.paths):
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"{names}: there is no such file or folder")
        images, left_out = find_images(self.paths)
        if not images:
            raise ValueError(f"no images found in {', '.join(map(str, self.paths))}")
        if left_out:
            names = ", ".join(map(str, left_out[:5])) + (", …" if len(left_out) > 5 else "")
            warn(f"left out, as no format that is read, or as masks: {names}")
        return images


@dataclass(frozen=True)
class WorkOptions:
    """Where the work is done."""

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
    def begin(self, cache: Path | None = None) -> Iterator[Work]:
        """While it is open, the cluster is, and bars say how far the work has come."""
        from ..execution.work import Work

        with self._executor() as executor, progress_bars() as callback:
            yield Work(self.jobs, cache, callback, executor)

    def _executor(self) -> AbstractContextManager[Executor | None]:
        """The cluster that was asked for; None stands for this machine's threads."""
        if self.cluster is None:
            return nullcontext()
        from ..execution.cluster import open_cluster

        return open_cluster(self.cluster)


# --- reading what was written -------------------------------------------------------------------


def with_positive(manifest: Manifest, positive: str | None) -> Manifest:
    """The class to be found, as asked for; or by its name, and that is said."""
    from ..images.classes import positive_by_name

    if positive is not None:
        return manifest.with_positive(positive)
    classes = manifest.classes
    if len(classes) == 2 and positive_by_name(classes):
        warn(f"the class to be found is {classes[1]!r}, by its name; see --positive", "Note")
    elif len(classes) == 2:
        warn(
            f"the names do not tell which of {classes[0]!r} and {classes[1]!r} is the class to be "
            f"found; it is {classes[1]!r} unless you give --positive"
        )
    return manifest


def check_sizes(mpp: float | None, override_mpp: float | None) -> None:
    from ..parameters import check_number

    for option, value in (("--mpp", mpp), ("--override-mpp", override_mpp)):
        if value is not None:
            check_number(option, value, above=True)
    if mpp is not None and override_mpp is not None:
        raise ValueError("--mpp: leave it out, as --override-mpp holds for all images")


def warn_of_masks(manifest: Manifest) -> None:
    """Where masks are given to what does not look at them."""
    n_masks = sum(record.mask is not None for record in manifest.records)
    if n_masks and len(manifest.classes) > 1:
        warn(f"{counted(n_masks, 'mask')} not used: `train --regions NAME` learns from masks")


def warn_of_skipped(reasons: list[str], n_images: int) -> None:
    if reasons:
        lines = "".join(f"\n  {reason}" for reason in reasons)
        warn(f"{len(reasons)} of {counted(n_images, 'image')} left out:{lines}")


def warn_of_sizes(model: Model, sizes: Sequence[PixelSize]) -> None:
    """One line for all the images of a run."""
    from ..images.pixel_size import size_warnings

    for words in size_warnings(sizes, model.model_.mpp_, model.recipe.mpp):
        warn(words)


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, each."""
    found = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"{option} {text}: write it as NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: write whole numbers separated by commas") from None
