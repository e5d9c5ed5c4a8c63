"""Inputs of models: tables of labelled images, images for prediction, and checks of both.

Images in memory are processed like image files, with identical results.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..annotations.outlines import IGNORED
from ..datasets.annotated import RegionCoverage, load_region, match_annotations
from ..datasets.folder_layout import find_images
from ..datasets.manifest import TABLE_SUFFIXES, ImageRecord, Manifest, read_manifest
from ..datasets.record import DataFrameLike, is_dataframe
from ..datasets.survey import (
    ImageProperties,
    UsabilityCheck,
    check_duplicates_by_content,
    check_readable,
    sorted_by_content,
)
from ..decision.threshold import image_fingerprints
from ..encoders import get_patch_features
from ..images.file_types import ImageError, is_zarr
from ..images.memory_image import ImageLike, MemoryImage
from ..images.pixel_size import size_warnings
from ..images.source import open_image
from ..metrics.confounding import find_confounders
from ..patches.grid import PatchGrid
from ..patches.patch_map import PatchMap
from ..patches.sampling import MIN_OVERLAP
from ..preprocessing.quality import NONE
from ..utils.progress import Callback
from ..utils.text_io import pluralize, truncated_list
from ..utils.validation import hint
from .predictions import Prediction
from .prepared_image import image_downsample
from .recipe import Recipe

if TYPE_CHECKING:
    from PIL.Image import Image

LabelledImages = Manifest | Path | str | DataFrameLike
TrainingImages = LabelledImages | Iterable[Any]  # with separate labels
# Types of several images, and of a single one; a path or an array may be either.
ManyImages = Manifest | DataFrameLike | list[Any] | tuple[Any, ...]
SingleImage: TypeAlias = "MemoryImage | Image"
# Outlines in a file, or in a folder of files that are named like the images.
AnnotationInput = AnnotationFile | Path | str
RegionOfInterest = AnnotationInput | None


@dataclass(frozen=True)
class PredictionInputs:
    """Images for prediction.

    Attributes
    ----------
    images : (image, mpp, region_of_interest) of each image: path or pixels; pixel size (µm) from a
        table, or None; outlines to which the prediction is limited, or None
    is_single : whether the input is a single image, for which a single prediction is returned
    skipped : for each folder with unsupported files, a message that lists them
    image_files : for each feature file, its image; None if unknown. Empty without a table
    """

    images: list[tuple[ImageLike, float | None, AnnotationFile | None]]
    is_single: bool = False
    skipped: list[str] = field(default_factory=list)
    image_files: list[Path | None] = field(default_factory=list)


def resolve_labelled(images: TrainingImages, stacklevel: int = 3) -> Manifest:
    """Return labelled images as a manifest; raise ValueError if a list has no labels."""
    if isinstance(images, Manifest):
        return images
    if is_image_list(images):
        records = _manifest_from_records(images)
        if records is None or not all(r.label or r.has_regions for r in records.records):
            raise ValueError(
                "a list of images has no labels: give y, one label per image, or a table or folder"
            )
        return records
    manifest = read_manifest(cast(Path | str | DataFrameLike, images))
    for message in manifest.warnings:
        warnings.warn(message, stacklevel=stacklevel)  # attributed to the caller of fit or score
    return manifest


def is_image_list(images: object) -> bool:
    """Return whether `images` is a list or array of images, and not an image, table or folder."""
    if isinstance(images, Manifest | str | os.PathLike) or is_dataframe(images):
        return False
    return (
        isinstance(images, Iterable)
        and not isinstance(images, Mapping)
        and not _is_single_image(images)
    )


def _manifest_from_records(images: Any) -> Manifest | None:
    """Convert a list of `ImageRecord` to a manifest; return None for any other input."""
    if not isinstance(images, list | tuple | np.ndarray) or not len(images):
        return None
    if all(isinstance(image, ImageRecord) for image in images):
        return Manifest(tuple(images))
    return None


def resolve_inputs(
    images: Any, region_of_interest: AnnotationInput | None = None
) -> PredictionInputs:
    """Return the images for prediction, from any input that `predict` accepts.

    Parameters
    ----------
    images : file, folder, list, table, `Manifest`, array or Pillow image. An array of uint8 has the
        shape (height, width, 3) or, for several images, (n, height, width, 3)
    region_of_interest : outlines, as in `predict`; patches outside of these are ignored
    """
    inputs = _resolve_images(images)
    if region_of_interest is None:
        return inputs
    annotations = match_annotations([image for image, _, _ in inputs.images], region_of_interest)
    image_files = inputs.image_files or [None] * len(annotations)
    annotations = [
        replace(a, image=image_path) for a, image_path in zip(annotations, image_files, strict=True)
    ]
    pairs = zip(inputs.images, annotations, strict=True)
    return replace(
        inputs, images=[(image, mpp, annotation) for (image, mpp, _), annotation in pairs]
    )


def _resolve_images(images: Any) -> PredictionInputs:
    """Return the images for prediction, with the outlines that a table names."""
    images = _manifest_from_records(images) or images
    if isinstance(images, Manifest) or is_dataframe(images) or _is_table(images):
        manifest = images if isinstance(images, Manifest) else read_manifest(images, labelled=False)
        for record in manifest.records:
            if record.error:
                raise ImageError(record.error)
        return PredictionInputs(
            [(record.path, record.mpp, record.region_of_interest) for record in manifest.records],
            image_files=[record.image for record in manifest.records],
        )
    if _is_single_image(images):
        return PredictionInputs([(as_image_like(images, "image"), None, None)], is_single=True)
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, Iterable):
        skipped: list[str] = []
        return PredictionInputs(
            [(image, None, None) for image in _expand_folders(images, skipped)], skipped=skipped
        )
    raise TypeError(
        "images must be a path, a list of paths, an array or a Pillow image, not "
        f"{type(images).__name__}"
    )


def _is_table(images: Any) -> bool:
    return isinstance(images, str | os.PathLike) and Path(images).suffix.lower() in TABLE_SUFFIXES


def _is_single_image(images: Any) -> bool:
    if isinstance(images, str | os.PathLike):
        return not _contains_images(Path(images))
    if isinstance(images, np.ndarray):
        return images.ndim != 4 and not _is_object_array(images)
    return isinstance(images, MemoryImage) or _is_pillow_image(images)


def _is_object_array(array: NDArray[Any]) -> bool:
    """Return whether an array contains paths or images as objects."""
    return array.ndim == 1 and array.dtype.kind in "OU"


def _is_pillow_image(image: Any) -> bool:
    """Return whether an object is a Pillow image, without importing Pillow."""
    return hasattr(image, "getbands") and hasattr(image, "load")


def _expand_folders(images: Iterable[Any], skipped: list[str]) -> Iterator[ImageLike]:
    """Yield images, and the images of folders; append messages on other files to `skipped`."""
    for index, image in enumerate(images):
        if isinstance(image, str | os.PathLike) and _contains_images(Path(image)):
            yield from _list_folder_images(Path(image), skipped)
        else:
            yield as_image_like(image, f"image {index}")


def _contains_images(path: Path) -> bool:
    return path.is_dir() and not is_zarr(path)


def as_image_like(image: Any, name: str) -> ImageLike:
    """Convert a path to `Path`, and an array or Pillow image to a `MemoryImage` of this name."""
    if isinstance(image, str | os.PathLike):
        return Path(image)
    if isinstance(image, MemoryImage):
        return image
    if _is_pillow_image(image):
        return MemoryImage.from_pillow(image, name)
    return MemoryImage.from_array(np.asarray(image), name)


def _list_folder_images(folder: Path, skipped: list[str]) -> list[Path]:
    images, unsupported = find_images(folder)
    if not images:
        raise ValueError(f"{folder}: no image in this folder")
    if unsupported:
        names = truncated_list([str(path.relative_to(folder)) for path in unsupported])
        skipped.append(f"{folder}: unsupported files skipped: {names}")
    return images


def make_usability_check(recipes: Sequence[Recipe]) -> UsabilityCheck:
    """Return a function that checks whether the size and pixel size of an image suit the recipes.

    The function returns an error message, or an empty string. Images of unknown pixel size pass;
    `common_pixel_size` reports all of them together.
    """
    patch_recipes = [
        recipe
        for recipe in recipes
        if recipe.is_patch_level and not get_patch_features(recipe.features).is_precomputed
    ]

    def check(record: ImageRecord, properties: ImageProperties) -> str:
        for recipe in patch_recipes:
            if properties.size is None or (recipe.mpp is not None and properties.mpp is None):
                continue
            try:
                downsample = image_downsample(record.path, properties.mpp, recipe, None)
                PatchGrid.from_size(
                    properties.size, recipe.patch_px, recipe.grid_stride_px, downsample
                )
            except ValueError as error:
                reason = str(error)
                is_named = reason.startswith(str(record.path))
                return reason if is_named else f"{record.path}: {reason}"
        return ""

    return check


def check_and_sort_images(
    manifest: Manifest, recipe: Recipe, n_jobs: int | None, callback: Callback
) -> Manifest:
    """Check training images and return them sorted by content.

    The order of rows in a table does not change the model, as the images are sorted.

    Raises
    ------
    ImageError
        If images are unreadable or too small; the message lists the first of them.
    ValueError
        If equal images have different labels.
    """
    check_readable(
        manifest.records, n_jobs, callback, make_usability_check([recipe])
    ).raise_if_unusable()
    check_duplicates_by_content(manifest)
    return sorted_by_content(manifest)


def training_data_info(manifest: Manifest) -> dict[str, Any]:
    """Return entries for the training record, by name.

    The keys are "images" (fingerprints) and, unless empty, "left_out" (skipped images) and
    "confounders".
    """
    entries = {
        "images": image_fingerprints(record.path for record in manifest.records),
        "left_out": list(manifest.skipped),
        "confounders": [str(confounder) for confounder in find_confounders(manifest)],
    }
    return {name: lines for name, lines in entries.items() if lines}


def too_few_classes_message(manifest: Manifest) -> str:
    """Return the error message for training images of fewer than two classes."""
    classes = manifest.classes
    if any(record.has_regions for record in manifest.records):
        remedy = hint(
            python="use a RegionDetector",
            cli="give --regions NAME",
            web="choose the target 'regions'",
        )
        return (
            f"the images have masks, but a single class ({classes}). Masks train a region "
            f"detector: {remedy}. To classify images, label two or more classes"
        )
    return f"training needs images of at least two classes; found: {', '.join(classes)}"


def warn_assumed_pixel_sizes(predictions: Sequence[Prediction], model: Any) -> None:
    """Warn about images of unknown pixel size, for which the model assumed one."""
    if get_patch_features(model.recipe.features).is_precomputed:
        return  # pixel sizes have no effect on precomputed features
    for message in size_warnings(
        [a.size for a in predictions], model.model_.mpp_, model.recipe.mpp
    ):
        warnings.warn(message, stacklevel=4)  # attributed to the caller of predict


def image_region_label(record: ImageRecord, classes: list[str]) -> str:
    """Return `classes[1]` if an image contains the region `classes[1]`, or else `classes[0]`.

    The mask or outlines of the image decide, or its label if it has neither.
    """
    return classes[int(has_background_and_region(record, classes[1])[1])]


def has_background_and_region(record: ImageRecord, region: str) -> tuple[bool, bool]:
    """Return whether any part of an image is outside of the region, and whether any is inside.

    Without mask or outlines, the label holds for the whole image.
    """
    if not record.has_regions:
        return record.label != region, record.label == region
    mask = region_coverage(record, region)
    return not mask.all(), mask.any()


def labelled_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return the mask (rows, columns) of patches on tissue that are not in areas to ignore."""
    if record.annotations is None or IGNORED not in record.annotations.read().class_counts:
        return patch_map.tissue
    return patch_map.tissue & ~find_patches_in_region(record, IGNORED, patch_map)


def region_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return the mask (rows, columns) of patches in the true region `patch_map.classes[1]`."""
    return find_patches_in_region(record, patch_map.classes[1], patch_map)


def find_patches_in_region(
    record: ImageRecord, region: str, patch_map: PatchMap
) -> NDArray[np.bool_]:
    """Return the mask (rows, columns) of patches in a region.

    The mask or outlines of the image decide; without them, all patches have the label of the image.
    """
    (x, y), (right, down) = patch_map.corners(), coordinate_shift(record, patch_map)
    return squares_in_region(record, region, x + right, y + down, patch_map.grid.patch_side)


def coordinate_shift(record: ImageRecord, patch_map: PatchMap) -> tuple[int, int]:
    """Return the shift (x, y) that converts coordinates of a patch map to those of the image.

    The shift is in level-0 pixels. It differs from 0 for feature files with coordinates of the
    image, and for slides with cropped margins.
    """
    if not record.has_regions:
        return 0, 0
    with open_image(record.path, record.mpp) as source:
        x, y = (
            map_offset - image_offset
            for map_offset, image_offset in zip(patch_map.offset, source.offset, strict=True)
        )
    return x, y


def squares_in_region(
    record: ImageRecord, region: str, x: NDArray[np.float64], y: NDArray[np.float64], side: float
) -> NDArray[np.bool_]:
    """Return whether at least half of each square lies in the region.

    The mask or outlines define the region; without them, the label holds for the whole image.
    `x` and `y` are the upper left corners. Corners and `side` are in level-0 pixels; `x`, `y` and
    the returned array have the same shape.
    """
    if not record.has_regions:
        return np.full(x.shape, record.label == region)
    return region_coverage(record, region).coverage(x, y, side) >= MIN_OVERLAP


def region_coverage(record: ImageRecord, region: str) -> RegionCoverage:
    """Return the coverage by a region, from the record's mask or outlines."""
    with open_image(record.path, record.mpp) as source:
        return load_region(record, source, region)


def no_tissue_message(location: str, recipe: Recipe) -> str:
    """Return the message that no tissue was found, with a hint if quality filters are set."""
    message = f"no tissue was found in {location}"
    if recipe.quality_filters == NONE:
        return message
    return (
        f"{message} after quality_filters={recipe.quality_filters}. To use all tissue, set "
        f"quality_filters={NONE}"
    )


def warn_no_tissue(records: Sequence[ImageRecord]) -> None:
    """Warn that training images have no tissue, or none inside their outlines."""
    names = [
        f"{record.path.name}{' inside the outlines' * (record.region_of_interest is not None)}"
        for record in records
    ]
    if names:
        warnings.warn(
            f"{pluralize(len(names), 'training image')} without tissue "
            f"{'was' if len(names) == 1 else 'were'} not used: {truncated_list(names)}",
            stacklevel=2,
        )


def warn_whole_images(records: Sequence[ImageRecord]) -> None:
    """Warn that all patches of training images are used, because hardly any tissue was found."""
    if records:
        names = truncated_list([record.path.name for record in records])
        warnings.warn(
            f"{pluralize(len(records), 'training image')} with hardly any tissue, used as a "
            f"whole: {names}",
            stacklevel=2,
        )
