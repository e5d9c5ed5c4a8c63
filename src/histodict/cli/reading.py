"""Options as they were written, read; and what is to be said of the images that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..execution.texts import first_of, pluralize
from .console import warn

if TYPE_CHECKING:
    from ..images.manifest import ImageRecord, Manifest
    from ..images.pixel_size import PixelSize, PixelSizeOption
    from ..pipeline import Model


def set_positive_class(manifest: Manifest, positive: str | None) -> Manifest:
    """The class to be found, as asked for; or by its name, and that is said."""
    from ..images.classes import guess_positive_class

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
    from ..networks import PRECOMPUTED
    from ..presets import default_region_preset, default_uses_encoder

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
    from ..images.feature_folder import FeatureFolder
    from ..images.manifest import ImageRecord

    found = [ImageRecord(path, "", "") for path in images]
    return FeatureFolder(features).feature_file_for(found) if features else found


def suggest_feature_folder(folders: Sequence[Path]) -> str:
    """Where folders without images have feature files: how to ask for these."""
    from ..images.feature_file import is_feature_file

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
    from ..images.annotations.drawing import PIXELS

    if coordinates != PIXELS and not any(outlines):
        raise ValueError(
            "--coordinates is of the outlines of --annotations or --within: give these, too"
        )


def check_sizes(mpp: float | None, override_mpp: float | None) -> None:
    from ..parameters import check_number

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
    from ..evaluation.confounding import find_confounders

    for found in find_confounders(manifest):
        warn(str(found), "Note" if found.may_reflect_tissue else "Warning")


def warn_ignored_tables(folders: Sequence[Path]) -> None:
    """Where `train` would read the table of a folder, `predict` takes the folder's images."""
    from ..images.manifest import MANIFEST_NAME

    for table in (folder / MANIFEST_NAME for folder in folders):
        if table.is_file():
            warn(f"give {table} to use the pixel sizes and labels that it names", "Note")


def warn_of_skipped(reasons: list[str], n_images: int) -> None:
    if reasons:
        lines = "".join(f"\n  {line}" for line in first_of(reasons))
        warn(f"{len(reasons)} of {pluralize(n_images, 'image')} left out:{lines}")


def warn_of_sizes(model: Model, sizes: Sequence[PixelSize]) -> None:
    """One line for all the images of a run."""
    from ..images.pixel_size import size_warnings
    from ..networks import get_patch_features

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
    from ..execution.texts import truncated_list

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
