"""Training patches: as many of every image of a class, from all of it or one side of its mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, Progress, cumulative_shares
from ..images.annotations.outlines import IGNORED
from ..images.manifest import ImageRecord
from ..images.masks import load_region
from ..patches.grid import PatchGrid
from ..patches.inside import region_constraint
from ..patches.sampling import LocationConstraint
from ..recipes import Recipe
from .opening import open_prepared_image
from .view import PreparedImage, warn_no_tissue, warn_whole_images


@dataclass(frozen=True)
class PatchSamplingSpec:
    """Training patches of one class from one image: all of it, or inside or outside of a region
    that its mask or its outlines show.
    """

    record: ImageRecord
    label: int
    inside: bool | None = None
    region: str = ""

    @classmethod
    def of(cls, record: ImageRecord, region: str) -> list[PatchSamplingSpec]:
        """Return the inside and outside of the mask of an image, or all of it if it has none."""
        if not record.is_mapped:
            return [cls(record, int(record.label == region))]
        return [cls(record, int(inside), inside, region) for inside in (False, True)]


@dataclass(frozen=True)
class TrainingPatches:
    """vectors (n, n_features) and their classes (n,)."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]


def sample_training_patches(
    sources: Sequence[PatchSamplingSpec],
    recipe: Recipe,
    random_state: int,
    cache: ArrayCache | None,
    callback: Callback,
    executor: Executor,
) -> TrainingPatches:
    """`patches_per_class` patches of every class, about as many from each of its sources."""
    labels = np.array([source.label for source in sources])
    wanted = [-(-recipe.patches_per_class // int(np.sum(labels == label))) for label in labels]

    def work(place: int) -> tuple[NDArray[np.float32], bool]:
        source = sources[place]
        rng = np.random.default_rng([random_state, place])
        record = source.record
        with open_prepared_image(
            record.path, record.mpp, recipe, cache=cache, within=record.region_of_interest
        ) as view:
            grid = view.grid()  # says so if the image is too small
            allowed = _allowed_corners(source, view, grid)
            vectors = view.sample_features(wanted[place], rng, allowed)
            return vectors, view.uses_whole_image

    found = map_images(work, len(sources), "patches", callback, executor)
    parts = [vectors for vectors, _ in found]
    y = np.repeat(labels, [len(part) for part in parts])
    silent = (source for source, part in zip(sources, parts, strict=True) if not len(part))
    warn_no_tissue([source.record for source in silent if source.inside is None])
    whole = [
        source.record for source, (_, is_whole) in zip(sources, found, strict=True) if is_whole
    ]
    warn_whole_images(whole)
    full = [part for part in parts if len(part)]
    return TrainingPatches(np.concatenate(full) if full else np.empty((0, 0), np.float32), y)


def map_images(
    work: Callable[[int], Any],
    n_items: int,
    stage: str,
    callback: Callback,
    executor: Executor,
    weights: Sequence[float] = (),
) -> list[Any]:
    """work(0), work(1), …, in parallel, with a report at the start and after each.

    `weights`: about how long they take, where they are not alike.
    """
    results: list[Any] = []
    share = cumulative_shares(weights or [1.0] * n_items)
    callback(Progress(stage, 0, n_items, work=share[0]))
    for result in executor.map(work, range(n_items)):
        results.append(result)
        callback(Progress(stage, len(results), n_items, work=share[len(results)]))
    return results


def _allowed_corners(
    source: PatchSamplingSpec, view: PreparedImage, grid: PatchGrid
) -> LocationConstraint | None:
    """Which reduced-pixel corners have their patch inside (at least half), or fully outside."""
    if source.inside is None:
        return None
    if source.inside:
        own = load_region(source.record, view, source.region)
        return region_constraint(own, grid)
    mask = load_region(source.record, view, source.region, IGNORED)

    def outside(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * grid.downsample + np.array([grid.left, grid.top])).T
        return mask.coverage(x, y, grid.patch_side) == 0

    return LocationConstraint(outside)
