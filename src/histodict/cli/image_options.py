"""Options that name images, and what is read by them: to learn from, or to be answered."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from .reading import (
    check_coordinates,
    check_sizes,
    images_or_features,
    in_split,
    parse_pairs,
    region_names,
    suggest_feature_folder,
    warn_ignored_tables,
    warn_of_skipped,
)

if TYPE_CHECKING:
    from ..images.manifest import ImageRecord, Manifest
    from ..images.pixel_size import PixelSizeOption


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
        from ..images.survey import check_duplicates_by_content, with_pixel_size

        check_sizes(self.mpp, self.override_mpp)
        manifest = self.choose(self.listed(self.data.absolute() if whole_paths else self.data))
        for warning in manifest.warnings:
            warn(warning)
        manifest = self._readable(with_pixel_size(manifest, self.mpp, self.override_mpp))
        for warning in check_duplicates_by_content(manifest):
            warn(warning)
        return manifest

    def listed(self, source: Path) -> Manifest:
        from ..images.manifest import read_manifest

        columns = parse_pairs("--column", self.column)
        return read_manifest(source, columns, features=self._standing_in(source))

    def _standing_in(self, source: Path) -> Path | None:
        """Folder of feature files; whole where the images' paths are."""
        return self.features.absolute() if self.features and source.is_absolute() else self.features

    def _readable(self, manifest: Manifest) -> Manifest:
        from ..images.survey import check_readable, drop_unreadable

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
        from ..images.annotations.matching import read_images, with_annotations

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
        from ..images.annotations.matching import check_classes, split_by_annotation

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
        from ..execution.texts import truncated_list
        from ..images.folder_images import in_brackets, is_closed, odd_kind
        from ..images.manifest import TABLE_SUFFIXES
        from ..images.slide_sets import one_per_slide

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
        from ..images.manifest import read_manifest

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
        from ..images.annotations.matching import with_annotations
        from ..images.manifest import Manifest

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
        from ..images.annotations.drawing import AnnotationFile
        from ..images.annotations.matching import match_annotations

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
