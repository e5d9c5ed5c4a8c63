"""Options that several commands take, each stated once, and groups of them.

A command takes a group as one parameter whose type is a dataclass; `flat` lays its fields out as
options of their own, which is what typer asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from .console import progress_bars, warn
from .leaving import leaving
from .reading import beside, check_sizes, in_split, named, note_tables, pairs, warn_of_skipped

if TYPE_CHECKING:
    from ..images.manifest import Manifest, Record
    from ..images.pixel_size import GivenSize
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

RegionsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Find regions of this name instead of telling images apart: the class of the crops "
        "that show it, or what the masks (column mask) outline.",
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=COLUMN",
        help="Which column of the CSV is the path, label, patient, slide, site, mpp, split or "
        "mask, such as patient=case_no. May be repeated.",
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
        ".h5ad, .zarr, .npz), which stand for the slides of the same name: no image is read. A CSV "
        "may then have a column slide in place of path.",
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

    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Model file, from `histodict train --regions`."),
    ]


@dataclass(frozen=True)
class DataOptions:
    """Labelled images."""

    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Folder with one sub-folder per class, or a CSV."),
    ]
    column: ColumnOption = None
    features: FeaturesOption = None
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
        features = self.features.absolute() if whole_paths and self.features else self.features
        columns = pairs("--column", self.column)
        manifest = self.choose(read_manifest(source, columns, features=features))
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

    split: SplitOption = None

    def choose(self, manifest: Manifest) -> Manifest:
        return in_split(manifest, self.data, self.split)


@dataclass(frozen=True)
class PictureOptions:
    """Images whose pixels are looked at."""

    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES",
            help="Images, slides, folders of them, or a CSV with a column path and, if known, mpp, "
            "patient, label and mask.",
        ),
    ]
    mpp: MppOption = None
    override_mpp: OverrideMppOption = None
    column: ColumnOption = None
    split: SplitOption = None

    @property
    def standing_in(self) -> Path | None:
        """Folder of feature files in their place."""
        return None

    @property
    def size(self) -> GivenSize:
        """What is said of all of them."""
        from ..images.pixel_size import GivenSize

        check_sizes(self.mpp, self.override_mpp)
        return GivenSize(fill=self.mpp, override=self.override_mpp)

    def find(self) -> list[Record]:
        """The images, each once, with what a table says of them."""
        from ..batch import find_images
        from ..images.manifest import TABLES
        from ..images.records import some_of

        if not any(path.exists() for path in self.paths):
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"{names}: there is no such file or folder")
        tables = [path for path in self.paths if path.suffix.lower() in TABLES and path.is_file()]
        if not tables and (self.column or self.split):
            raise ValueError("--column and --split are of a CSV: name one among the images")
        note_tables(self.paths)
        listed = [record for table in tables for record in self._listed(table)]
        images, left_out = find_images([path for path in self.paths if path not in tables])
        if not images and not listed:
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"no images found in {names}{beside(self.paths)}")
        if left_out:
            names = some_of([str(path) for path in left_out])
            warn(f"left out, as no format that is read, or as masks: {names}")
        found = [*named(images, self.standing_in), *listed]
        return list({record.path.resolve(): record for record in found}.values())

    def _listed(self, table: Path) -> Sequence[Record]:
        """The images of a CSV; what is said of it is what matters to answers."""
        from ..images.manifest import read_manifest

        columns = pairs("--column", self.column)
        manifest = read_manifest(table, columns, labelled=False, features=self.standing_in)
        records = in_split(manifest, table, self.split).records
        if any(record.label or record.mask for record in records):
            for warning in manifest.warnings:
                warn(warning)
        return records


@dataclass(frozen=True)
class ImageOptions(PictureOptions):
    """Images to be answered, or feature files; such may also be named among them."""

    features: FeaturesOption = None

    @property
    def standing_in(self) -> Path | None:
        return self.features
