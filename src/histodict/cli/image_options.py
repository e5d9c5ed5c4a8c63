"""Options that select images, their parsing, and warnings about the images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..utils.text_io import limit_lines, pluralize, truncated_list
from .console import progress_bars, warn
from .options import (
    ADVANCED,
    INPUT,
    AllowClassOption,
    AllowMissingOption,
    AnnotationsOption,
    ColumnOption,
    CoordinatesOption,
    FeaturesOption,
    MppOption,
    OverrideMppOption,
    RegionsOption,
    SkipUnreadableOption,
    SplitOption,
    TrueAnnotationsOption,
)

if TYPE_CHECKING:
    from ..datasets.manifest import ImageRecord, Manifest
    from ..images.pixel_size import PixelSize, PixelSizeOption
    from ..models import Model
    from ..models.recipe import Recipe


def set_positive_class(manifest: Manifest, positive: str | None) -> Manifest:
    """Return the images with this positive class; None keeps the current one and prints it."""
    from ..datasets.record import guess_positive_class

    if positive is not None:
        return manifest.with_positive(positive)
    classes = manifest.classes
    if len(classes) == 2 and guess_positive_class(classes):
        warn(
            f"positive class: {classes[1]!r} (guessed from the name; change it with --positive)",
            "Note",
        )
    elif len(classes) == 2:
        warn(
            f"positive class: {classes[1]!r}. It cannot be guessed from the names {classes[0]!r} "
            f"and {classes[1]!r}; set it with --positive"
        )
    return manifest


def parse_region_names(regions: str | None) -> list[str]:
    """Parse --regions into class names, [] for None; raise ValueError if a name is repeated."""
    names = [name.strip() for name in (regions or "").split(",") if name.strip()]
    if regions is not None and not names:
        raise ValueError("--regions: name a class")
    if len(set(names)) < len(names):
        raise ValueError(f"--regions {regions}: a class is listed twice")
    return names


def parse_single_region(regions: str | None) -> str | None:
    """Return the class that --regions names; None if it names none or several."""
    names = parse_region_names(regions)
    return names[0] if len(names) == 1 else None


def choose_preset(
    preset: str | None,
    settings: dict[str, str],
    methods: list[str],
    *,
    finds_regions: bool,
    features: Path | None,
) -> str:
    """Return the preset given by the user, or choose one and print the choice.

    Parameters
    ----------
    preset : preset given by the user; None to choose one
    settings : settings given by the user
    methods : names of the methods; an empty string is the method of the preset
    finds_regions : whether the model is a region detector
    features : folder of feature files that replace the images; None for images
    """
    from ..encoders import PRECOMPUTED
    from ..models.recipe import default_region_preset, default_uses_encoder

    if preset is not None:
        return preset
    if features is not None and settings.get("features", PRECOMPUTED) == PRECOMPUTED:
        return "precomputed" if finds_regions or any(methods) else "features"
    if finds_regions:
        chosen, reason = default_region_preset(settings, methods)
        _note_preset(chosen, reason)
        return chosen
    if any(methods):
        return "fast"
    uses_encoder, reason = default_uses_encoder(settings)
    if uses_encoder:
        return "default"
    _note_preset("pixels", reason)
    return "pixels"


def _note_preset(name: str, reason: str) -> None:
    warn(f"preset {name!r} is used (choose another with --preset), because {reason}", "Note")


def resolve_feature_files(images: Sequence[Path], features: Path | None) -> Sequence[ImageRecord]:
    """Return the records of images, or of the files named like them in the folder `features`."""
    from ..datasets.folder_layout import FeatureFolder
    from ..datasets.manifest import ImageRecord

    records = [ImageRecord(path, "", "") for path in images]
    return FeatureFolder(features).replace_by_feature_files(records) if features else records


def suggest_feature_folder(folders: Sequence[Path]) -> str:
    """Return a hint on options for feature files; empty if the folders contain none."""
    from ..precomputed.feature_file import is_feature_file

    for folder in folders:
        if folder.is_dir() and any(is_feature_file(path) for path in folder.iterdir()):
            return (
                f". It contains feature files: list them, as in {folder}/*.h5, or give a table "
                f"of slides and --features {folder}"
            )
    return ""


def select_split(manifest: Manifest, source: Path, split: str | None) -> Manifest:
    """Return the rows of one split of the table `source`; all rows if `split` is None.

    Warn if patients of the split also have rows in other splits.
    """
    if split is None:
        return manifest
    rows = [i for i, record in enumerate(manifest.records) if record.split == split]
    if not rows:
        values = sorted({record.split for record in manifest.records if record.split})
        hint = f"; its values are {truncated_list(values)}" if values else " (missing or empty)"
        raise ValueError(f"{source}: no row has the value {split!r} in the column split{hint}")
    known = [record for record in manifest.records if record.has_patient]
    patients = {record.patient for record in known if record.split == split}
    others = {record.patient for record in known if record.split not in ("", None, split)}
    if patients & others:
        warn(
            f"{source}: {len(patients & others)} of {pluralize(len(patients), 'patient')} of split "
            f"{split!r} also have images in other splits. If one split is used for training and "
            "another one for testing, the measured accuracy is too high: give all images of a "
            "patient the same value in the column split"
        )
    return manifest.select(rows)


def check_coordinates(coordinates: str, **annotation_options: Path | None) -> None:
    """Raise ValueError if --coordinates is set without an option that names annotation files.

    Parameters
    ----------
    coordinates : value of --coordinates
    annotation_options : values of the options that name annotation files, by option name
    """
    from ..annotations.annotation_file import PIXELS

    if coordinates != PIXELS and not any(annotation_options.values()):
        names = " or ".join(f"--{name}" for name in annotation_options)
        raise ValueError(f"--coordinates needs {names}")


def check_pixel_sizes(mpp: float | None, override_mpp: float | None) -> None:
    """Raise ValueError unless the pixel sizes (µm) are positive and at most one is given."""
    from ..utils.validation import check_number

    for option, value in (("--mpp", mpp), ("--override-mpp", override_mpp)):
        if value is not None:
            check_number(option, value, exclusive=True)
    if mpp is not None and override_mpp is not None:
        raise ValueError("--mpp cannot be combined with --override-mpp, which sets all images")


def warn_ignored_masks(manifest: Manifest) -> None:
    """Warn that a classifier ignores the masks or annotations of the images, if there are any."""
    n_mapped = sum(record.has_regions for record in manifest.records)
    if n_mapped and len(manifest.classes) > 1:
        images = pluralize(n_mapped, "image")
        warn(f"masks or annotations of {images} ignored. To use them, give --regions NAME")


def warn_of_confounders(manifest: Manifest) -> None:
    """Warn about properties of the images that are associated with the class, such as the site."""
    from ..metrics.confounding import find_confounders

    for confounder in find_confounders(manifest):
        warn(str(confounder), "Note" if confounder.may_reflect_tissue else "Warning")


def warn_ignored_tables(folders: Sequence[Path]) -> None:
    """Warn that tables in image folders are ignored.

    `train` reads the table of a folder; `predict` takes the images of the folder.
    """
    from ..datasets.manifest import MANIFEST_NAME

    for table in (folder / MANIFEST_NAME for folder in folders):
        if table.is_file():
            warn(
                f"{table} ignored; to use its labels and pixel sizes, give the file itself", "Note"
            )


def warn_of_skipped_images(reasons: list[str], n_images: int) -> None:
    """Warn with the number of skipped images, out of `n_images`, and the reasons."""
    if reasons:
        lines = "".join(f"\n  {line}" for line in limit_lines(reasons))
        warn(f"{len(reasons)} of {pluralize(n_images, 'image')} skipped:{lines}")


def warn_of_unknown_pixel_sizes(model: Model, sizes: Sequence[PixelSize]) -> None:
    """Warn if one of these pixel sizes, or that of the training images, is unknown."""
    from ..encoders import get_patch_features
    from ..images.pixel_size import size_warnings

    if get_patch_features(model.recipe.features).is_precomputed:
        return  # pixel sizes do not affect feature files
    for warning in size_warnings(sizes, model.model_.mpp_, model.recipe.mpp):
        warn(warning)


def warn_of_unknown_input_pixel_sizes(
    model: Model, records: Sequence[ImageRecord], size_option: PixelSizeOption
) -> None:
    """Warn before prediction if the pixel size of images, or of the training images, is unknown."""
    sizes = [size_option.with_table_mpp(record.mpp).resolve(record.path) for record in records]
    warn_of_unknown_pixel_sizes(model, [size.with_assumed_mpp(model.model_.mpp_) for size in sizes])


def parse_pairs(option: str, assignments: list[str] | None) -> dict[str, str]:
    """Parse the assignments "NAME=VALUE" of an option into a dictionary."""
    pairs = {}
    for text in assignments or []:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"{option} {text}: write it as NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def parse_integers(option: str, text: str) -> list[int]:
    """Parse the value of an option as integers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: write whole numbers separated by commas") from None


@dataclass(frozen=True)
class DataOptions:
    """Options that name labelled images."""

    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Folder with one sub-folder per class, or a CSV file."),
    ]
    column: ColumnOption = None
    features: FeaturesOption = None
    mpp: MppOption = None
    override_mpp: OverrideMppOption = None
    skip_unreadable: SkipUnreadableOption = False
    allow_class: AllowClassOption = None
    allow_missing_chunks: AllowMissingOption = False

    def read(self, recipes: Sequence[Recipe] = (), *, absolute_paths: bool = False) -> Manifest:
        """Return the images after checking their files, and print warnings.

        With --skip-unreadable, unusable images are skipped; otherwise they raise an error.

        Parameters
        ----------
        recipes : settings of the models; each image must be large enough for all of them
        absolute_paths : whether paths are made absolute, for use on another machine
        """
        from ..datasets.survey import check_duplicates_by_content, with_pixel_size
        from ..precomputed.formats import check_libraries

        check_pixel_sizes(self.mpp, self.override_mpp)
        listed = self.list_labelled_images(self.data.absolute() if absolute_paths else self.data)
        for note in listed.notes:
            warn(note, "Note")
        manifest = self.select(listed)
        check_libraries(record.path for record in manifest.records)
        for warning in manifest.warnings:
            warn(warning)
        manifest = with_pixel_size(manifest, self.mpp, self.override_mpp)
        manifest = self._check_usability(manifest, recipes)
        for warning in check_duplicates_by_content(manifest):
            warn(warning)
        return manifest

    def list_labelled_images(self, source: Path) -> Manifest:
        """Return the images of a folder or table."""
        from ..datasets.manifest import read_manifest

        columns = parse_pairs("--column", self.column)
        return read_manifest(
            source,
            columns,
            features=self._feature_folder(source),
            allow_classes=self.allow_class or (),
        )

    def _feature_folder(self, source: Path) -> Path | None:
        """Return the folder of feature files (absolute if `source` is); None without --features."""
        return self.features.absolute() if self.features and source.is_absolute() else self.features

    def _check_usability(self, manifest: Manifest, recipes: Sequence[Recipe]) -> Manifest:
        """Raise an error for unusable images; with --skip-unreadable, return the others instead."""
        from ..datasets.survey import check_readable, drop_unreadable
        from ..models.inputs import make_usability_check

        check = make_usability_check(recipes)
        with progress_bars() as callback:
            if not self.skip_unreadable:
                check_readable(manifest.records, callback=callback, check=check).raise_if_unusable()
                return manifest
            usable, reasons = drop_unreadable(manifest, callback=callback, check=check)
        warn_of_skipped_images(reasons, len(manifest.records))
        return usable

    def select(self, manifest: Manifest) -> Manifest:
        """Select the images to use from those of the folder or table; by default, all."""
        return manifest


@dataclass(frozen=True)
class AnnotatedDataOptions(DataOptions):
    """Options that name labelled images, or images with annotations of the classes."""

    annotations: AnnotationsOption = None
    coordinates: CoordinatesOption = "pixels"

    def list_labelled_images(self, source: Path) -> Manifest:
        """Return the images of `source`, with their annotations if --annotations is set."""
        from ..datasets.annotated import read_images, with_annotations

        check_coordinates(self.coordinates, annotations=self.annotations)
        if self.annotations is None:
            return super().list_labelled_images(source)
        annotations = self.annotations.absolute() if source.is_absolute() else self.annotations
        columns = parse_pairs("--column", self.column)
        images = read_images(source, columns, features=self._feature_folder(source))
        return with_annotations(images, annotations, coordinates=self.coordinates)


@dataclass(frozen=True)
class SplitDataOptions(AnnotatedDataOptions):
    """Options that name labelled images, optionally of one split of a table."""

    split: SplitOption = None

    def select(self, manifest: Manifest) -> Manifest:
        """Return the images of --split; all images if it is not set."""
        return select_split(manifest, self.data, self.split)


@dataclass(frozen=True)
class RegionTrainingOptions(AnnotatedDataOptions):
    """Options that name training images, and the region classes to learn."""

    regions: RegionsOption = None

    def list_labelled_images(self, source: Path) -> Manifest:
        """Return the images of `source`, after checking the region classes."""
        names = parse_region_names(self.regions)
        if self.annotations is None and len(names) > 1:
            raise ValueError(
                f"--regions {self.regions}: several classes need annotations. Give --annotations "
                "DIR, or a single class"
            )
        if self.annotations is not None and not names:
            raise ValueError("--annotations needs --regions with the classes to train on")
        return super().list_labelled_images(source)

    def split_by_annotation(self, manifest: Manifest) -> Manifest:
        """Return the images; with several classes in --regions, split into a record per class."""
        from ..datasets.annotated import check_classes, split_by_annotation

        names = parse_region_names(self.regions)
        if len(names) > 1:
            return split_by_annotation(manifest, names)
        if self.annotations is not None:
            check_classes(manifest, names)
        return manifest


@dataclass(frozen=True)
class PixelInputOptions:
    """Options that name images; feature files are not accepted."""

    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES",
            help="Images, slides, folders of these, or a CSV file with a column path and "
            "optionally mpp, patient, label and mask.",
        ),
    ]
    mpp: MppOption = None
    override_mpp: OverrideMppOption = None
    column: ColumnOption = None
    split: SplitOption = None
    allow_missing_chunks: AllowMissingOption = False

    @property
    def feature_folder(self) -> Path | None:
        """Folder of feature files that replace the images; None, as they are not accepted here."""
        return None

    @property
    def pixel_size(self) -> PixelSizeOption:
        """Values of --mpp and --override-mpp."""
        from ..images.pixel_size import PixelSizeOption

        check_pixel_sizes(self.mpp, self.override_mpp)
        return PixelSizeOption(default=self.mpp, override=self.override_mpp)

    def list_images(self) -> list[ImageRecord]:
        """Return the images, each once, with the metadata of their table.

        Raises
        ------
        ValueError
            If no image is found or options do not apply.
        """
        from ..batch import list_input_images
        from ..datasets.manifest import TABLE_SUFFIXES
        from ..images import file_types
        from ..precomputed.formats import check_libraries
        from ..utils.text_io import truncated_list

        if not any(map(os.path.lexists, self.paths)):
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"{names}: file or folder not found")
        tables = [
            path for path in self.paths if path.suffix.lower() in TABLE_SUFFIXES and path.is_file()
        ]
        if not tables and (self.column or self.split):
            raise ValueError("--column and --split need a CSV file among the images")
        warn_ignored_tables(self.paths)
        listed_records = [record for table in tables for record in self._list_table(table)]
        images, left_out = list_input_images([path for path in self.paths if path not in tables])
        if not images and not listed_records:
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"no images found in {names}{suggest_feature_folder(self.paths)}")
        images, redundant = file_types.split_redundant_files(images)
        if redundant:
            names = truncated_list([str(path) for path in redundant])
            warn(f"skipped, as another file of the same slide is listed: {names}")
        closed = [path for path in left_out if file_types.is_unreadable_folder(path)]
        skipped = [path for path in left_out if path not in closed]
        if skipped:
            names = truncated_list([f"{path} ({_skip_reason(path)})" for path in skipped])
            warn(f"skipped: {names}")
        images += closed  # reported as failures
        records = [*resolve_feature_files(images, self.feature_folder), *listed_records]
        check_libraries(record.path for record in records)
        return list({_resolve_path(record.path): record for record in records}.values())

    def _list_table(self, table: Path) -> Sequence[ImageRecord]:
        """Read the images of a CSV file; print its notes, and its warnings if labels are given."""
        from ..datasets.manifest import read_manifest

        columns = parse_pairs("--column", self.column)
        manifest = read_manifest(table, columns, labelled=False, features=self.feature_folder)
        for note in manifest.notes:
            warn(note, "Note")
        records = select_split(manifest, table, self.split).records
        if any(record.label or record.has_regions for record in records):
            for warning in manifest.warnings:
                warn(warning)
        return records


def _skip_reason(path: Path) -> str:
    """Return the reason why a file or sub-folder of an image folder is skipped."""
    from ..datasets.folder_layout import MASK_FOLDER_NAMES
    from ..images.file_types import special_file_kind

    if os.path.isdir(path):
        return (
            "mask folder"
            if path.name.casefold() in MASK_FOLDER_NAMES
            else "circular or deeply nested"
        )
    return special_file_kind(path) or "unsupported format"


def _resolve_path(path: Path) -> str:
    """Return the absolute path; symbolic links to files and folders are resolved."""
    is_good = os.path.isfile(path) or os.path.isdir(path)
    return os.path.realpath(path) if is_good else str(path.absolute())


@dataclass(frozen=True)
class ImageOptions(PixelInputOptions):
    """Options that name images or feature files; --features replaces images by feature files."""

    features: FeaturesOption = None

    @property
    def feature_folder(self) -> Path | None:
        """Folder of feature files that replace the images, or None."""
        return self.features


@dataclass(frozen=True)
class RegionOfInterestOptions(ImageOptions):
    """Options that name images, and annotation files with their regions of interest."""

    within: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use only patches inside the annotations of this file, or of a folder of files "
            "named like the images.",
            rich_help_panel=INPUT,
        ),
    ] = None
    within_class: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="With --within: use only annotations of this class.",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    coordinates: CoordinatesOption = "pixels"

    def list_images(self) -> list[ImageRecord]:
        """Return the images with their regions of interest."""
        self._check_coordinates()
        return self._with_region_of_interest(super().list_images())

    def _check_coordinates(self) -> None:
        check_coordinates(self.coordinates, within=self.within)

    def _with_region_of_interest(self, records: list[ImageRecord]) -> list[ImageRecord]:
        """Return the records with the regions of interest of --within."""
        from ..annotations.annotation_file import AnnotationFile
        from ..datasets.annotated import match_annotations

        if self.within is None:
            if self.within_class is not None:
                raise ValueError("--within-class needs --within")
            return records
        names = (self.within_class,) if self.within_class else ()
        source = AnnotationFile(self.within, names, self.coordinates)
        annotations = match_annotations([record.path for record in records], source)
        for note in [note for annotation in set(annotations) for note in annotation.notes()]:
            warn(note)
        pairs = zip(records, annotations, strict=True)
        return [replace(r, region_of_interest=replace(a, image=r.image)) for r, a in pairs]


@dataclass(frozen=True)
class PredictionInputOptions(RegionOfInterestOptions):
    """Options that name images, their regions of interest, and annotations for scoring."""

    annotations: TrueAnnotationsOption = None

    def list_images(self) -> list[ImageRecord]:
        """Return the images with their regions of interest and annotations."""
        return self._with_annotations(super().list_images())

    def _check_coordinates(self) -> None:
        check_coordinates(self.coordinates, annotations=self.annotations, within=self.within)

    def _with_annotations(self, records: list[ImageRecord]) -> list[ImageRecord]:
        """Return the records with the annotations of --annotations, for scoring."""
        from ..datasets.annotated import with_annotations
        from ..datasets.manifest import Manifest

        if self.annotations is None:
            return records
        # An image without a patient counts as a patient of its own.
        with_patients = [replace(r, patient=r.patient or r.path.name) for r in records]
        data, coordinates = Manifest(tuple(with_patients)), self.coordinates
        manifest = with_annotations(data, self.annotations, coordinates=coordinates, keep_all=True)
        for warning in manifest.warnings:
            warn(warning)
        return list(manifest.records)
