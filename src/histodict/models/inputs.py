"""What people hand to a model: files, folders, tables, arrays, pictures; labelled or to be judged.

Pixels in memory take the same way as those of a file, and give the same bits.

What is looked at before a training starts, and what a run took for granted of pixel sizes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..annotations.annotation_file import AnnotationFile
from ..datasets.annotated import match_annotations
from ..datasets.folder_layout import find_images
from ..datasets.manifest import TABLE_SUFFIXES, Manifest, read_manifest, warn_multiple_splits
from ..datasets.record import Frame, guess_positive_class, is_dataframe
from ..datasets.survey import check_duplicates_by_content, check_readable, sorted_by_content
from ..encoders import get_patch_features
from ..images.file_types import ImageError, is_zarr
from ..images.memory_image import ImageLike, MemoryImage
from ..images.pixel_size import size_warnings
from ..metrics.confounding import find_confounders
from ..utils.progress import Callback
from ..utils.text_io import truncated_list
from ..utils.validation import hint
from .predictions import Prediction

if TYPE_CHECKING:
    from PIL.Image import Image

LabelledImages = Manifest | Path | str | Frame
# What of its type alone is known to be several images, or one; a path or an array may be either.
ManyImages = Manifest | Frame | list[Any] | tuple[Any, ...]
SingleImage: TypeAlias = "MemoryImage | Image"
AnnotationInput = (
    AnnotationFile | Path | str
)  # outlines in a file, or in a folder of files called like the images
RegionOfInterest = AnnotationInput | None


@dataclass(frozen=True)
class PredictionInputs:
    """Images to be judged, each with the pixel size that a table has for it, if any, and with the
    outlines outside of which nothing is looked at, if any.

    pictures : of those that are feature files, the images they were made of, where these are there
    is_one : whether one image was handed in, and so one answer is expected
    left_out : per folder a line on what is there and may have been meant
    """

    images: list[tuple[ImageLike, float | None, AnnotationFile | None]]
    is_one: bool = False
    skipped: list[str] = field(default_factory=list)
    pictures: list[Path | None] = field(default_factory=list)


def resolve_training_set(
    images: LabelledImages, positive: str | None = None, ask_by: str = ""
) -> Manifest:
    """Images with their labels; what there is to say of a list that is read here is warned of.

    `ask_by`: the argument that names the class to be found, for when the labels do not tell; empty
    where that does not matter. That several splits are learnt from is said of every list, and
    once: members of a panel get these images without them.
    """
    manifest = resolve_labelled(images, stacklevel=4)
    words = warn_multiple_splits(manifest.root, manifest.records)
    if words:
        warnings.warn(words, stacklevel=3)  # to whoever called fit
        manifest = manifest.drop_split_column()
    if positive is not None:
        return manifest.with_positive(positive)
    if ask_by and not isinstance(images, Manifest):
        _require_positive_class(manifest.classes, ask_by)
    return manifest


def resolve_labelled(images: LabelledImages, stacklevel: int = 3) -> Manifest:
    """Images with their labels, to learn from or to compare answers with."""
    if isinstance(images, Manifest):
        return images
    manifest = read_manifest(images)
    for words in manifest.warnings:
        warnings.warn(words, stacklevel=stacklevel)  # to whoever called fit or score
    return manifest


def _require_positive_class(classes: list[str], ask_by: str) -> None:
    if len(classes) == 2 and not guess_positive_class(classes):
        warnings.warn(
            f"the names do not tell which of {classes[0]!r} and {classes[1]!r} is the class to be "
            f"found; it is {classes[1]!r} unless you give {ask_by}=…",
            stacklevel=4,
        )


def resolve_inputs(images: Any, within: AnnotationInput | None = None) -> PredictionInputs:
    """The images of a file, a folder, a list, a table, a `Manifest`, an array or a picture.

    An array is (height, width, 3) of uint8; with one more dimension in front, several images.
    `within` holds for all of them.
    """
    found = _found(images)
    if within is None:
        return found
    inside = match_annotations([image for image, _, _ in found.images], within)
    pictures = found.pictures or [None] * len(inside)
    inside = [replace(d, image=own) for d, own in zip(inside, pictures, strict=True)]
    parts = zip(found.images, inside, strict=True)
    return replace(found, images=[(image, mpp, drawing) for (image, mpp, _), drawing in parts])


def _found(images: Any) -> PredictionInputs:
    if isinstance(images, Manifest) or is_dataframe(images) or _is_table(images):
        found = images if isinstance(images, Manifest) else read_manifest(images, labelled=False)
        for record in found.records:
            if record.error:
                raise ImageError(record.error)
        return PredictionInputs(
            [(record.path, record.mpp, record.region_of_interest) for record in found.records],
            pictures=[record.image for record in found.records],
        )
    if _is_one(images):
        return PredictionInputs([(_image(images, "image"), None, None)], is_one=True)
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, Iterable):
        left_out: list[str] = []
        return PredictionInputs(
            [(image, None, None) for image in _each(images, left_out)], skipped=left_out
        )
    raise TypeError(
        f"images are given as a path, a list of paths, an array or a picture of Pillow, not as "
        f"{type(images).__name__}"
    )


def _is_table(images: Any) -> bool:
    return isinstance(images, str | os.PathLike) and Path(images).suffix.lower() in TABLE_SUFFIXES


def _is_one(images: Any) -> bool:
    if isinstance(images, str | os.PathLike):
        return not _contains_images(Path(images))
    if isinstance(images, np.ndarray):
        return images.ndim != 4
    return isinstance(images, MemoryImage) or _is_image(images)


def _is_image(image: Any) -> bool:
    """Whether it is Pillow's; by what it can do, as Pillow may not be loaded."""
    return hasattr(image, "getbands") and hasattr(image, "load")


def _each(images: Iterable[Any], left_out: list[str]) -> Iterator[ImageLike]:
    for place, image in enumerate(images):
        if isinstance(image, str | os.PathLike) and _contains_images(Path(image)):
            yield from _below(Path(image), left_out)
        else:
            yield _image(image, f"image {place}")


def _contains_images(path: Path) -> bool:
    return path.is_dir() and not is_zarr(path)


def _image(image: Any, name: str) -> ImageLike:
    """`name`: of pixels that have none; a file's name is looked into only when it is opened."""
    if isinstance(image, str | os.PathLike):
        return Path(image)
    if isinstance(image, MemoryImage):
        return image
    if _is_image(image):
        return MemoryImage.of_pillow(image, name)
    return MemoryImage.of_array(np.asarray(image), name)


def _below(folder: Path, left_out: list[str]) -> list[Path]:
    found, others = find_images(folder)
    if not found:
        raise ValueError(f"{folder}: there is no image in this folder")
    if others:
        names = truncated_list([str(path.relative_to(folder)) for path in others])
        left_out.append(f"{folder}: left out: {names}")
    return found


def checked_training_images(manifest: Manifest, n_jobs: int | None, callback: Callback) -> Manifest:
    """Return the images sorted by content, so that the order of rows does not change the model.

    Raises an error that lists all unreadable images, and one for equal images with two labels.
    """
    check_readable(manifest.records, n_jobs, callback).check()
    check_duplicates_by_content(manifest)
    return sorted_by_content(manifest)


def data_notes(manifest: Manifest) -> dict[str, Any]:
    """Return unreadable images that were skipped, and confounders, for the training record."""
    notes = {
        "left_out": list(manifest.skipped),
        "confounders": [str(found) for found in find_confounders(manifest)],
    }
    return {name: lines for name, lines in notes.items() if lines}


def why_too_few_classes(manifest: Manifest) -> str:
    """Return the error message for fewer than two classes."""
    classes = manifest.classes
    if any(record.is_mapped for record in manifest.records):
        how = hint(
            python="use a RegionDetector",
            cli="give --regions NAME",
            web="ask where in the image it is",
        )
        return (
            f"the images have masks, which are for learning regions: {how}. To tell classes apart, "
            f"label two or more; there are {classes}"
        )
    return f"images of at least two classes are needed; there are: {classes}"


def warn_assumed_pixel_sizes(answers: Sequence[Prediction], model: Any) -> None:
    """In a line, through `warnings`, where a model of any kind took pixel sizes for granted."""
    if get_patch_features(model.recipe.features).is_precomputed:
        return  # they decided nothing
    for words in size_warnings([a.size for a in answers], model.model_.mpp_, model.recipe.mpp):
        warnings.warn(words, stacklevel=4)  # to whoever called predict
