"""Labels of images and patches for one tissue class, from masks, outlines or image labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..annotations.outlines import IGNORED
from ..datasets.annotated import RegionCoverage, load_region
from ..datasets.manifest import ImageRecord
from ..images.source import open_image
from ..patches.patch_map import PatchMap
from ..patches.sampling import MIN_OVERLAP


def image_region_label(record: ImageRecord, classes: list[str]) -> str:
    """Return the class of an image: whether its mask or, without one, its label shows region."""
    return classes[int(has_background_and_region(record, classes[1])[1])]


def has_background_and_region(record: ImageRecord, region: str) -> tuple[bool, bool]:
    """Return whether an image has parts outside, and whether it has parts inside the region."""
    if not record.is_mapped:
        return record.label != region, record.label == region
    mask = mask_of(record, region)
    return not mask.all(), mask.any()


def labelled_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return which patches are on tissue and not in outlines of ignored areas."""
    if record.annotations is None or IGNORED not in record.annotations.read().names:
        return patch_map.tissue
    return patch_map.tissue & ~map_in_region(record, IGNORED, patch_map)


def region_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return which patches of the map are region by the mask or, without one, by the label."""
    return map_in_region(record, patch_map.classes[1], patch_map)


def map_in_region(record: ImageRecord, region: str, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Return which patches of the map are region; the map may have the image's coordinates."""
    (x, y), (right, down) = patch_map.corners(), coordinate_shift(record, patch_map)
    return in_region(record, region, x + right, y + down, patch_map.grid.patch_side)


def coordinate_shift(record: ImageRecord, patch_map: PatchMap) -> tuple[int, int]:
    """Return the shift (x, y) from the coordinates of a map to those of the record's file.

    The map of a feature file may have the coordinates of its image, and slides crop a margin.
    """
    if not record.is_mapped:
        return 0, 0
    with open_image(record.path, record.mpp) as source:
        x, y = (
            map_offset - image_offset
            for map_offset, image_offset in zip(patch_map.offset, source.offset, strict=True)
        )
    return x, y


def in_region(
    record: ImageRecord, region: str, x: NDArray[np.float64], y: NDArray[np.float64], side: float
) -> NDArray[np.bool_]:
    """Return whether squares with these corners are region; x and y have the same shape."""
    if not record.is_mapped:
        return np.full(x.shape, record.label == region)
    return mask_of(record, region).coverage(x, y, side) >= MIN_OVERLAP


def mask_of(record: ImageRecord, region: str) -> RegionCoverage:
    """Return the region of a record's mask or outlines."""
    with open_image(record.path, record.mpp) as source:
        return load_region(record, source, region)
