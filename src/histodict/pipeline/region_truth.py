"""What is known of regions: which patches of an image are region, by its mask or by its label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..images.classes import is_healthy
from ..images.manifest import Manifest, Record
from ..images.masks import RegionMask
from ..images.records import some_of
from ..patches.patch_map import PatchMap
from .training_patches import HALF


def region_classes(manifest: Manifest, region: str | None) -> list[str]:
    """[other, region] from the labels; where only masks tell, from the region's name.

    Refused where it is not known of an image whether it is region: it would be learnt from as none.
    """
    if any(record.mask for record in manifest.records):
        _check_known(manifest)
        _check_unmasked(manifest, region)
        name = region or "region"
        return [f"no {name}", name]
    labels = manifest.classes
    if len(labels) != 2:
        raise ValueError(
            "to learn regions, give images with masks (a column 'mask'), or crops of two classes; "
            f"there are no masks, and the classes are {labels}"
        )
    _check_known(manifest)
    if region is None:
        return labels
    if region not in labels:
        raise ValueError(f"the region {region!r} is not among the classes {labels}")
    return [next(label for label in labels if label != region), region]


def _check_unmasked(manifest: Manifest, region: str | None) -> None:
    """Beside masks, the label of an image without one must say whether it is region."""
    labels = {record.label for record in manifest.records if record.mask is None}
    if region is None and labels:
        raise ValueError(
            f"beside the masks there are images without one, labelled {sorted(labels)}: say which "
            "label is the region, with --regions NAME (in Python region=…)"
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


def image_truth(record: Record, classes: list[str]) -> str:
    """Whether the record's mask or, without one, its label shows any region."""
    return classes[int(sides(record, classes[1])[1])]


def sides(record: Record, region: str) -> tuple[bool, bool]:
    """Whether the image has something outside of the region, and something inside."""
    if record.mask is None:
        return record.label != region, record.label == region
    found = RegionMask.of(record).region
    return not found.all(), bool(found.any())


def labelled_by_region(manifest: Manifest, region: str) -> Manifest:
    """The same images, each labelled by whether it shows any region.

    Splits then spread images with and without it, and answers have a truth to stand beside.
    """
    classes = region_classes(manifest, region)
    records = tuple(replace(r, label=image_truth(r, classes)) for r in manifest.records)
    return replace(manifest, records=records, positive=region)


def _check_known(manifest: Manifest) -> None:
    """An image without a mask is all of its class: it must have one."""
    unknown = [manifest.name(r) for r in manifest.records if r.mask is None and not r.label]
    if unknown:
        raise ValueError(
            f"images with neither a mask nor a label: {some_of(unknown)}; fill the column mask (or "
            "label, where all of an image is region, or nothing of it)"
        )


def true_patches(record: Record, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches of the map are region by the record's mask, or by its label without one."""
    return in_region(record, patch_map.classes[1], *patch_map.corners(), patch_map.grid.patch_side)


def in_region(
    record: Record, region: str, x: NDArray[np.float64], y: NDArray[np.float64], side: float
) -> NDArray[np.bool_]:
    """Of squares with these corners, x and y of one shape: whether they are region."""
    if record.mask is None:
        return np.full(x.shape, record.label == region)
    return RegionMask.of(record).share(x, y, side) >= HALF
