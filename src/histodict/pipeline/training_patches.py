"""Training patches: as many of every image of a class, from all of it or one side of its mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, Progress, shares
from ..images.annotations.outlines import IGNORED
from ..images.manifest import Record
from ..images.masks import region_of
from ..patches.grid import PatchGrid
from ..patches.inside import inside_of
from ..patches.sampling import Allowed
from ..recipes import Recipe
from .opening import open_view
from .view import View, warn_of_glass, warn_whole_images


@dataclass(frozen=True)
class PatchSource:
    """Training patches of one class from one image: all of it, or inside or outside of a region
    that its mask or its outlines show.
    """

    record: Record
    label: int
    inside: bool | None = None
    region: str = ""

    @classmethod
    def of(cls, record: Record, region: str) -> list[PatchSource]:
        """Return the inside and outside of the mask of an image, or all of it if it has none."""
        if not record.is_mapped:
            return [cls(record, int(record.label == region))]
        return [cls(record, int(inside), inside, region) for inside in (False, True)]


@dataclass(frozen=True)
class TrainingPatches:
    """vectors (n, n_features) and their classes (n,)."""

    vectors: NDArray[np.float32]
    labels: NDArray[np.int64]


def sample_training(
    sources: Sequence[PatchSource],
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
        with open_view(record.path, record.mpp, recipe, cache=cache, within=record.within) as view:
            grid = view.grid()  # says so if the image is too small
            allowed = _allowed_corners(source, view, grid)
            vectors = view.sample_vectors(wanted[place], rng, allowed)
            return vectors, view.uses_whole_image

    found = for_every(work, len(sources), "patches", callback, executor)
    parts = [vectors for vectors, _ in found]
    y = np.repeat(labels, [len(part) for part in parts])
    silent = (source for source, part in zip(sources, parts, strict=True) if not len(part))
    warn_of_glass([source.record for source in silent if source.inside is None])
    whole = [
        source.record for source, (_, is_whole) in zip(sources, found, strict=True) if is_whole
    ]
    warn_whole_images(whole)
    full = [part for part in parts if len(part)]
    return TrainingPatches(np.concatenate(full) if full else np.empty((0, 0), np.float32), y)


def for_every(
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
    share = shares(weights or [1.0] * n_items)
    callback(Progress(stage, 0, n_items, work=share[0]))
    for result in executor.map(work, range(n_items)):
        results.append(result)
        callback(Progress(stage, len(results), n_items, work=share[len(results)]))
    return results


def _allowed_corners(source: PatchSource, view: View, grid: PatchGrid) -> Allowed | None:
    """Which reduced-pixel corners have their patch inside (at least half), or fully outside."""
    if source.inside is None:
        return None
    if source.inside:
        own = region_of(source.record, view, source.region)
        return inside_of(own, grid)
    mask = region_of(source.record, view, source.region, IGNORED)

    def outside(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * grid.downsample + np.array([grid.left, grid.top])).T
        return mask.share(x, y, grid.patch_side) == 0

    return Allowed(outside)
