"""What would go wrong after a night of training, found before it."""

from __future__ import annotations

from collections.abc import Iterable

from ..evaluation.answers import gather
from ..evaluation.intervals import PatientDraws
from ..evaluation.splits import SplitError, Splits, check_splits
from ..images.manifest import Manifest
from ..images.pixel_size import common_size
from ..pipeline.plan import Plan


def check_measurable(manifest: Manifest, splits: Splits) -> None:
    """The splits are of these images and leak nothing, and every figure will be defined."""
    if splits.manifest != manifest.digest():
        raise SplitError(
            "the splits were made for other images than the manifest lists: make them again"
        )
    check_splits(manifest, splits)
    _check_classes(manifest, splits)
    for size in {split.n_per_class for split in splits}:
        own = [split for split in splits if split.n_per_class == size]
        PatientDraws(gather(manifest, own, [manifest.select(s.test).labels for s in own]))


def check_sizes(manifest: Manifest, plans: Iterable[Plan]) -> None:
    """The images' pixel sizes are what every plan can learn from."""
    for works_at in {recipe.mpp for plan in plans for recipe in plan.recipes}:
        common_size(manifest.records, works_at)


def tested_classes(manifest: Manifest, splits: Splits) -> list[str]:
    """The classes of the tested images; of two, the one to be found is the second."""
    return manifest.select([place for split in splits for place in split.test]).classes


def _check_classes(manifest: Manifest, splits: Splits) -> None:
    """Scores of different trainings can be put together only if all know the same classes."""
    tested = tested_classes(manifest, splits)
    for split in splits:
        trained = manifest.select(split.train).classes
        if trained != tested or "" in manifest.select(split.train).labels:
            raise SplitError(
                f"split {split.name!r} trains on images of {trained}, but {tested} are tested: "
                "every split must train on the classes that are tested, and on no others; leave "
                "out images without a label"
            )
