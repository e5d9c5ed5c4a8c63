"""What would go wrong after a night of training, found before it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..evaluation.answers import Repeat, collect_repeats
from ..evaluation.intervals import PatientBootstrap
from ..evaluation.splits import SplitError, Splits, check_splits
from ..images.manifest import Manifest
from ..images.survey import common_size
from ..networks import get_patch_features
from ..pipeline.plan import Plan
from ..pipeline.region_truth import has_background_and_region
from .patch_measures import KINDS


def check_measurable(manifest: Manifest, splits: Splits, region: str | None = None) -> None:
    """The splits are of these images and leak nothing, and every figure will be defined."""
    if splits.manifest != manifest.digest():
        raise SplitError(
            "the splits were made for other images than the manifest lists: make them again"
        )
    check_splits(manifest, splits)
    if region is not None:
        _check_regions(manifest, splits, region)
        return
    _check_classes(manifest, splits)
    for size in {split.n_per_class for split in splits}:
        own = [split for split in splits if split.n_per_class == size]
        PatientBootstrap(
            collect_repeats(manifest, own, [manifest.select(s.test).labels for s in own])
        )


def _check_regions(manifest: Manifest, splits: Splits, region: str) -> None:
    """Every split trains on both kinds of tissue; two patients or more are tested on each."""
    known = [has_background_and_region(record, region) for record in manifest.records]
    for split in splits:
        for kind, name in enumerate(KINDS):
            if not any(known[place][kind] for place in split.train):
                raise SplitError(
                    f"split {split.name!r} trains on no tissue {name} ({region}): give more "
                    "images, or other splits"
                )
    for size, repeat in {(split.n_per_class, split.repeat) for split in splits}:
        own = [s for s in splits if (s.n_per_class, s.repeat) == (size, repeat)]
        rows = [(i, kind) for s in own for i in s.test for kind in (0, 1) if known[i][kind]]
        labels = np.array([KINDS[kind] for _, kind in rows])
        patients = np.array([manifest.records[i].patient for i, _ in rows])
        if len(set(labels)) < len(KINDS):
            raise SplitError(f"all tested tissue is {labels[0]} ({region}): test both kinds")
        PatientBootstrap([Repeat(labels, patients, labels)])


def check_sizes(manifest: Manifest, plans: Iterable[Plan]) -> None:
    """The images' pixel sizes are what every plan can learn from."""
    recipes = [recipe for plan in plans for recipe in plan.recipes]
    of_pixels = [r for r in recipes if not get_patch_features(r.features).is_precomputed]
    for works_at in {recipe.mpp for recipe in of_pixels}:
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
