"""Options that name images, and what is read by them: to learn from, or to be answered.

Options as they were written, read; and what is to be said of the images that they name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..utils.text_io import first_of, pluralize
from .console import progress_bars, warn
from .options import (
    AllowMissingOption,
    AnnotationsOption,
    ColumnOption,
    CoordinatesOption,
    FeaturesOption,
    MppOption,
    OverrideMppOption,
    RegionsOption,
    SkipBadOption,
    SplitOption,
)

if TYPE_CHECKING:
    from ..datasets.manifest import ImageRecord, Manifest
    from ..images.pixel_size import PixelSize, PixelSizeOption
    from ..models import Model
if TYPE_CHECKING:
    from ..datasets.manifest import ImageRecord, Manifest
    from ..images.pixel_size import PixelSizeOption


def set_positive_class(manifest: Manifest, positive: str | None) -> Manifest:
    """The class to be found, as asked for; or by its name, and that is said."""
    from ..datasets.record import guess_positive_class

    if positive is not None:
        return manifest.with_positive(positive)
    classes = manifest.classes
    if len(classes) == 2 and guess_positive_class(classes):
        warn(f"the class to be found is {classes[1]!r}, by its name; see --positive", "Note")
    elif len(classes) == 2:
        warn(
            f"the names do not tell which of {classes[0]!r} and {classes[1]!r} is the class to be "
            f"found; it is {classes[1]!r} unless you give --positive"
        )
    return manifest


def region_names(regions: str | None) -> list[str]:
    """The classes that --regions names, separated by commas."""
    names = [name.strip() for name in (regions or "").split(",") if name.strip()]
    if regions is not None and not names:
        raise ValueError("--regions: name what is to be found")
    if len(set(names)) < len(names):
        raise ValueError(f"--regions {regions}: a class is named twice")
    return names


def one_region(regions: str | None) -> str | None:
    """What is to be found in images; None where there is nothing, or several to be told apart."""
    names = region_names(regions)
    return names[0] if len(names) == 1 else None


def chosen_preset(
    preset: str | None,
    settings: dict[str, str],
    methods: list[str],
    *,
    regions: bool,
    features: Path | None,
) -> str:
    """The preset that was named; else the best one, and what it is is said.

    `methods`: those that are to be used with it. Who names a method, and no preset, gets one model
    by that method and nothing else. `features`: feature files leave no choice.
    """
    from ..encoders import PRECOMPUTED
    from ..models.recipe import default_region_preset, default_uses_encoder

    if preset is not None:
        return preset
    if features is not None and settings.get("features", PRECOMPUTED) == PRECOMPUTED:
        return "precomputed" if regions or any(methods) else "features"
    if regions:
        chosen, why = default_region_preset(settings, methods)
        warn(f"the preset is {chosen}, {why}; see --preset", "Note")
        return chosen
    if any(methods):
        return "fast"
    by_network, why = default_uses_encoder(settings)
    if by_network:
        return "default"
    warn(f"the preset is pixels, a panel {why}; see --preset", "Note")
    return "pixels"


def images_or_features(images: Sequence[Path], features: Path | None) -> Sequence[ImageRecord]:
    """Images that were named, or the feature files of the same names."""
    from ..datasets.feature_folder import FeatureFolder
    from ..datasets.manifest import ImageRecord

    found = [ImageRecord(path, "", "") for path in images]
    return FeatureFolder(features).feature_file_for(found) if features else found


def suggest_feature_folder(folders: Sequence[Path]) -> str:
    """Where folders without images have feature files: how to ask for these."""
    from ..precomputed.feature_file import is_feature_file

    for folder in folders:
        if folder.is_dir() and any(is_feature_file(path) for path in folder.iterdir()):
            return (
                f"; there are feature files: name these one by one, as {folder}/*.h5 does, or a "
                f"table of slides and --features {folder}"
            )
    return ""


def in_split(manifest: Manifest, source: Path, split: str | None) -> Manifest:
    """The rows of one split, or all."""
    if split is None:
        return manifest
    rows = [i for i, record in enumerate(manifest.records) if record.split == split]
    if not rows:
        raise ValueError(f"{source}: no row has {split!r} in its split column")
    return manifest.select(rows)


def check_coordinates(coordinates: str, *outlines: Path | None) -> None:
    """Outlines that a table names count as their format does: nobody asks for these otherwise."""
    from ..annotations.annotation_file import PIXELS

    if coordinates != PIXELS and not any(outlines):
        raise ValueError(
            "--coordinates is of the outlines of --annotations or --within: give these, too"
        )


def check_sizes(mpp: float | None, override_mpp: float | None) -> None:
    from ..utils.validation import check_number

    for option, value in (("--mpp", mpp), ("--override-mpp", override_mpp)):
        if value is not None:
            check_number(option, value, above=True)
    if mpp is not None and override_mpp is not None:
        raise ValueError("--mpp: leave it out, as --override-mpp holds for all images")


def warn_of_masks(manifest: Manifest) -> None:
    """Where masks or outlines are given to what does not look at them."""
    n_mapped = sum(record.is_mapped for record in manifest.records)
    if n_mapped and len(manifest.classes) > 1:
        images = pluralize(n_mapped, "image")
        warn(f"masks or outlines of {images} not used: `--regions NAME` finds what they show")


def warn_of_confounders(manifest: Manifest) -> None:
    """Warn about properties of the images that are associated with the class, such as the site."""
    from ..metrics.confounding import find_confounders

    for found in find_confounders(manifest):
        warn(str(found), "Note" if found.may_reflect_tissue else "Warning")


def warn_ignored_tables(folders: Sequence[Path]) -> None:
    """Where `train` would read the table of a folder, `predict` takes the folder's images."""
    from ..datasets.manifest import MANIFEST_NAME

    for table in (folder / MANIFEST_NAME for folder in folders):
        if table.is_file():
            warn(f"give {table} to use the pixel sizes and labels that it names", "Note")


def warn_of_skipped(reasons: list[str], n_images: int) -> None:
    if reasons:
        lines = "".join(f"\n  {line}" for line in first_of(reasons))
        warn(f"{len(reasons)} of {pluralize(n_images, 'image')} left out:{lines}")


def warn_of_sizes(model: Model, sizes: Sequence[PixelSize]) -> None:
    """One line for all the images of a run."""
    from ..encoders import get_patch_features
    from ..images.pixel_size import size_warnings

    if get_patch_features(model.recipe.features).is_precomputed:
        return  # they decided nothing
    for words in size_warnings(sizes, model.model_.mpp_, model.recipe.mpp):
        warn(words)


def warn_of_records(model: Model, records: Sequence[ImageRecord], given: PixelSizeOption) -> None:
    """The same before any is looked at; `given`: what is said of all of them."""
    sizes = [given.with_table(record.mpp).at(record.path) for record in records]
    warn_of_sizes(model, [size.assuming(model.model_.mpp_) for size in sizes])


def parse_pairs(option: str, texts: list[str] | None) -> dict[str, str]:
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


def warn_of_quality(rows: Sequence[Mapping[str, Any]]) -> None:
    """Warn about images without tissue, and about images used without tissue detection."""
    from ..utils.text_io import truncated_list

    empty = [row for row in rows if row.get("left_out") and not row["n_patches"]]
    if empty:
        reasons = [f"{row['path']}: {row['left_out']}" for row in empty]
        lines = "".join(f"\n  {line}" for line in first_of(reasons))
        warn(f"nothing was left to judge of {pluralize(len(empty), 'image')}:{lines}")
    whole = [str(row["path"]) for row in rows if row.get("whole_image")]
    if whole:
        warn(
            f"hardly any tissue was found in {pluralize(len(whole), 'image')}, used whole instead: "
            f"{truncated_list(whole)}"
        )


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
    allow_missing_chunks: AllowMissingOption = False

    def read(self, *, whole_paths: bool = False) -> Manifest:
        """Images that can all be read, what is to be said of them said.

        Another machine may need whole paths.
        """
        from ..datasets.survey import check_duplicates_by_content, with_pixel_size

        check_sizes(self.mpp, self.override_mpp)
        manifest = self.choose(self.listed(self.data.absolute() if whole_paths else self.data))
        for warning in manifest.warnings:
            warn(warning)
        manifest = self._readable(with_pixel_size(manifest, self.mpp, self.override_mpp))
        for warning in check_duplicates_by_content(manifest):
            warn(warning)
        return manifest

    def listed(self, source: Path) -> Manifest:
        from ..datasets.manifest import read_manifest

        columns = parse_pairs("--column", self.column)
        return read_manifest(source, columns, features=self._standing_in(source))

    def _standing_in(self, source: Path) -> Path | None:
        """Folder of feature files; whole where the images' paths are."""
        return self.features.absolute() if self.features and source.is_absolute() else self.features

    def _readable(self, manifest: Manifest) -> Manifest:
        from ..datasets.survey import check_readable, drop_unreadable

        with progress_bars() as callback:
            if not self.skip_bad:
                check_readable(manifest.records, callback=callback).check()
                return manifest
            chosen, reasons = drop_unreadable(manifest, callback=callback)
        warn_of_skipped(reasons, len(manifest.records))
        return chosen

    def choose(self, manifest: Manifest) -> Manifest:
        return manifest


@dataclass(frozen=True)
class AnnotatedDataOptions(DataOptions):
    """Labelled images, or images with outlines of what is where."""

    annotations: AnnotationsOption = None
    coordinates: CoordinatesOption = "pixels"

    def listed(self, source: Path) -> Manifest:
        from ..datasets.annotated import read_images, with_annotations

        check_coordinates(self.coordinates, self.annotations)
        if self.annotations is None:
            return super().listed(source)
        drawn = self.annotations.absolute() if source.is_absolute() else self.annotations
        columns = parse_pairs("--column", self.column)
        images = read_images(source, columns, features=self._standing_in(source))
        return with_annotations(images, drawn, coordinates=self.coordinates)


@dataclass(frozen=True)
class SplitDataOptions(AnnotatedDataOptions):
    """Images as a model learnt from them, or a part of them."""

    split: SplitOption = None

    def choose(self, manifest: Manifest) -> Manifest:
        return in_split(manifest, self.data, self.split)


@dataclass(frozen=True)
class RegionTrainingOptions(AnnotatedDataOptions):
    """Images to learn from, and which regions of them."""

    regions: RegionsOption = None

    def listed(self, source: Path) -> Manifest:
        names = region_names(self.regions)
        if self.annotations is None and len(names) > 1:
            raise ValueError(
                f"--regions {self.regions}: several classes are told apart by outlines: give these "
                "with --annotations DIR"
            )
        if self.annotations is not None and not names:
            raise ValueError("--annotations: name the classes that are learnt, with --regions")
        return super().listed(source)

    def split_by_annotation(self, manifest: Manifest) -> Manifest:
        """Where several classes are outlined, the parts of images that are; else the images."""
        from ..datasets.annotated import check_classes, split_by_annotation

        names = region_names(self.regions)
        if len(names) > 1:
            return split_by_annotation(manifest, names)
        if self.annotations is not None:
            check_classes(manifest, names)
        return manifest


@dataclass(frozen=True)
class PixelInputOptions:
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
    allow_missing_chunks: AllowMissingOption = False

    @property
    def feature_folder(self) -> Path | None:
        """Folder of feature files in their place."""
        return None

    @property
    def size(self) -> PixelSizeOption:
        """What is said of all of them."""
        from ..images.pixel_size import PixelSizeOption

        check_sizes(self.mpp, self.override_mpp)
        return PixelSizeOption(default=self.mpp, override=self.override_mpp)

    def find(self) -> list[ImageRecord]:
        """The images, each once, with what a table says of them."""
        from ..batch import list_input_images
        from ..datasets.manifest import TABLE_SUFFIXES
        from ..images.file_types import in_brackets, is_closed, odd_kind, one_per_slide
        from ..utils.text_io import truncated_list

        if not any(map(os.path.lexists, self.paths)):
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"{names}: there is no such file or folder")
        tables = [
            path for path in self.paths if path.suffix.lower() in TABLE_SUFFIXES and path.is_file()
        ]
        if not tables and (self.column or self.split):
            raise ValueError("--column and --split are of a CSV: name one among the images")
        warn_ignored_tables(self.paths)
        listed = [record for table in tables for record in self._listed(table)]
        images, left_out = list_input_images([path for path in self.paths if path not in tables])
        if not images and not listed:
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"no images found in {names}{suggest_feature_folder(self.paths)}")
        images, parts = one_per_slide(images)
        if parts:
            names = truncated_list([str(path) for path in parts])
            warn(f"left out, because another file of the same slide is listed: {names}")
        if left_out:
            names = truncated_list([f"{path}{in_brackets(odd_kind(path))}" for path in left_out])
            warn(f"left out, as no format that is read, or as masks: {names}")
        images += [path for path in left_out if is_closed(path)]  # reported as failures
        found = [*images_or_features(images, self.feature_folder), *listed]
        return list({_resolved_path(record.path): record for record in found}.values())

    def _listed(self, table: Path) -> Sequence[ImageRecord]:
        """The images of a CSV; what is said of it is what matters to answers."""
        from ..datasets.manifest import read_manifest

        columns = parse_pairs("--column", self.column)
        manifest = read_manifest(table, columns, labelled=False, features=self.feature_folder)
        records = in_split(manifest, table, self.split).records
        if any(record.label or record.is_mapped for record in records):
            for warning in manifest.warnings:
                warn(warning)
        return records


def _resolved_path(path: Path) -> str:
    """Return the resolved path; the path itself for a dangling link or a link to a device."""
    is_good = os.path.isfile(path) or os.path.isdir(path)
    return os.path.realpath(path) if is_good else str(path.absolute())


@dataclass(frozen=True)
class ImageOptions(PixelInputOptions):
    """Images to be answered, or feature files; such may also be named among them."""

    features: FeaturesOption = None

    @property
    def feature_folder(self) -> Path | None:
        return self.features


@dataclass(frozen=True)
class PredictionInputOptions(ImageOptions):
    """Images to be answered, where to look in them, and what the answers are held against."""

    within: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Look only at patches inside of the outlines in this file, or in a folder of "
            "files called like the images.",
        ),
    ] = None
    within_class: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Of --within, only outlines of this class."),
    ] = None
    annotations: AnnotationsOption = None
    coordinates: CoordinatesOption = "pixels"

    def find(self) -> list[ImageRecord]:
        check_coordinates(self.coordinates, self.annotations, self.within)
        return self._restricted(self._annotation_input(super().find()))

    def _annotation_input(self, records: list[ImageRecord]) -> list[ImageRecord]:
        """With the outlines that answers are held against."""
        from ..datasets.annotated import with_annotations
        from ..datasets.manifest import Manifest

        if self.annotations is None:
            return records
        # Without a patient, an image counts as one.
        known = [replace(r, patient=r.patient or r.path.name) for r in records]
        manifest = with_annotations(
            Manifest(tuple(known)), self.annotations, coordinates=self.coordinates, keep_all=True
        )
        for warning in manifest.warnings:
            warn(warning)
        return list(manifest.records)

    def _restricted(self, records: list[ImageRecord]) -> list[ImageRecord]:
        """With the outlines outside of which nothing is looked at."""
        from ..annotations.annotation_file import AnnotationFile
        from ..datasets.annotated import match_annotations

        if self.within is None:
            if self.within_class is not None:
                raise ValueError("--within-class is of --within: give that, too")
            return records
        names = (self.within_class,) if self.within_class else ()
        given = AnnotationFile(self.within, names, self.coordinates)
        drawings = match_annotations([record.path for record in records], given)
        for note in [note for each in set(drawings) for note in each.notes()]:
            warn(note)
        pairs_of = zip(records, drawings, strict=True)
        return [replace(r, region_of_interest=replace(d, image=r.image)) for r, d in pairs_of]
