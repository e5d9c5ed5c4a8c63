"""What is looked at before a training starts, and what a run took for granted of pixel sizes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..evaluation.confounding import find_confounders
from ..execution.progress import Callback
from ..images.manifest import Manifest
from ..images.pixel_size import size_warnings
from ..images.record_order import sorted_by_content
from ..images.survey import check_duplicates_by_content, check_readable
from ..networks import get_patch_features
from ..parameters import hint
from .answers import Prediction


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
