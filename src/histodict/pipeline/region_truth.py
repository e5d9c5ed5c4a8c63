"""What is known of regions: which patches of an image are region, by its mask or by its label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..execution.texts import truncated_list
from ..images.annotations.outlines import IGNORED
from ..images.classes import is_healthy
from ..images.manifest import ImageRecord, Manifest
from ..images.masks import RegionCoverage, load_region
from ..images.readers import open_image
from ..parameters import hint
from ..patches.inside import MIN_OVERLAP
from ..patches.patch_map import PatchMap


def region_classes(manifest: Manifest, region: str | None) -> list[str]:
    """[other, region] from the labels; where only masks tell, from the region's name.

    Refused where it is not known of an image whether it is region: it would be learnt from as none.
    """
    if any(record.is_mapped for record in manifest.records):
        _check_labelled(manifest)
        _check_unmasked(manifest, region)
        if region is None and any(record.annotations for record in manifest.records):
            raise ValueError(
                f"say which class of the outlines is the region, with {_region_option()}"
            )
        name = region or "region"
        return [f"no {name}", name]
    labels = manifest.classes
    if len(labels) != 2:
        raise ValueError(
            "to learn regions, give images with masks (a column 'mask') or with outlines "
            "(--annotations), or crops of two classes; "
            f"there are no masks, and the classes are {labels}"
        )
    _check_labelled(manifest)
    if region is None:
        return labels
    if region not in labels:
        raise ValueError(f"the region {region!r} is not among the classes {labels}")
    return [next(label for label in labels if label != region), region]


def _check_unmasked(manifest: Manifest, region: str | None) -> None:
    """Beside masks, the label of an image without one must say whether it is region."""
    labels = {record.label for record in manifest.records if not record.is_mapped}
    if region is None and labels:
        raise ValueError(
            f"beside the masks there are images without one, labelled {sorted(labels)}: say which "
            f"label is the region, with {_region_option()}"
        )
    if region is None or region in {record.label for record in manifest.records}:
        return
    unclear = sorted(label for label in labels if not _is_without(label, region))
    if unclear:
        raise ValueError(
            f"no image is labelled {region!r}, but images without a mask are labelled {unclear}: "
            "name the region as its label is, or give them masks, or label those that show "
            f"nothing of it 'no {region}'"
        )


def _is_without(label: str, region: str) -> bool:
    """Whether a label says by itself that an image shows nothing of the region."""
    return label == f"no {region}" or (is_healthy(label) and not is_healthy(region))


def image_region_label(record: ImageRecord, classes: list[str]) -> str:
    """Whether the record's mask or, without one, its label shows any region."""
    return classes[int(has_background_and_region(record, classes[1])[1])]


def has_background_and_region(record: ImageRecord, region: str) -> tuple[bool, bool]:
    """Whether the image has something outside of the region, and something inside."""
    if not record.is_mapped:
        return record.label != region, record.label == region
    found = mask_of(record, region)
    return not found.all(), found.any()


def labelled_by_region(manifest: Manifest, region: str) -> Manifest:
    """The same images, each labelled by whether it shows any region.

    Splits then spread images with and without it, and answers have a truth to stand beside.
    """
    classes = region_classes(manifest, region)
    records = tuple(replace(r, label=image_region_label(r, classes)) for r in manifest.records)
    return replace(manifest, records=records, positive=region)


def _check_labelled(manifest: Manifest) -> None:
    """An image without a mask is all of its class: it must have one."""
    unknown = [manifest.name(r) for r in manifest.records if not r.is_mapped and not r.label]
    if unknown:
        raise ValueError(
            f"images with neither a mask nor a label: {truncated_list(unknown)}; fill the column "
            "mask (or "
            "label, where all of an image is region, or nothing of it)"
        )


def labelled_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches are on tissue, and not in outlines of what is to be ignored."""
    if record.annotations is None or IGNORED not in record.annotations.read().names:
        return patch_map.tissue
    return patch_map.tissue & ~map_in_region(record, IGNORED, patch_map)


def region_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches of the map are region by the record's mask, or by its label without one."""
    return map_in_region(record, patch_map.classes[1], patch_map)


def map_in_region(record: ImageRecord, region: str, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches of the map are region; it may lie over the image of a feature file."""
    (x, y), (right, down) = patch_map.corners(), coordinate_shift(record, patch_map)
    return in_region(record, region, x + right, y + down, patch_map.grid.patch_side)


def coordinate_shift(record: ImageRecord, patch_map: PatchMap) -> tuple[int, int]:
    """From places in a map to those in the record's file: the map of a feature file may lie over
    its image, of which slides leave out a margin.
    """
    if not record.is_mapped:
        return 0, 0
    with open_image(record.path, record.mpp) as source:
        x, y = (own - at for own, at in zip(patch_map.offset, source.offset, strict=True))
    return x, y


def in_region(
    record: ImageRecord, region: str, x: NDArray[np.float64], y: NDArray[np.float64], side: float
) -> NDArray[np.bool_]:
    """Of squares with these corners, x and y of one shape: whether they are region."""
    if not record.is_mapped:
        return np.full(x.shape, record.label == region)
    return mask_of(record, region).coverage(x, y, side) >= MIN_OVERLAP


def mask_of(record: ImageRecord, region: str) -> RegionCoverage:
    with open_image(record.path, record.mpp) as source:
        return load_region(record, source, region)


def _region_option() -> str:
    return hint(python="region=…", cli="--regions NAME", web="the field for regions")
