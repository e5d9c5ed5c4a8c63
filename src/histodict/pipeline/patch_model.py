"""From the patches of labelled images to a patch classifier, and from an image to its patch map.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and distances ─► winners
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import Evidence, mean_of_neighbours, patch_margins
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor, Threads
from ..execution.local import map_blocks
from ..execution.progress import Callback, Progress, ignore
from ..images.manifest import Record
from ..images.masks import RegionMask
from ..methods.patch_classifier import PatchClassifier
from ..methods.registry import method_entry
from ..patches.grid import PatchGrid
from ..patches.projection import Projection
from ..patches.sampling import Allowed
from ..recipes import Recipe
from .view import View, open_view

BLANK = -1  # of a patch that lies on glass
Chunk = tuple[slice, slice]
HALF = 0.5  # a patch belongs to a mask's region if at least so much of it does


@dataclass(frozen=True)
class PatchMap:
    """Per patch of a grid: the winning class's place (BLANK on glass), and each class's margin."""

    grid: PatchGrid
    winners: NDArray[np.int16]
    margins: NDArray[np.float32]


@dataclass(frozen=True)
class PatchSource:
    """Training patches of one class from one image: all of it, or its mask's inside or outside."""

    record: Record
    label: int
    inside: bool | None = None


class PatchModel:
    """A patch classifier with everything that stands between it and an image file.

    Attributes
    ----------
    method_ : the trained patch classifier
    projection_ : principal components of the vectors, where the recipe asks for them
    mpp_ : pixel size of the training images, where all have the same
    """

    method_: PatchClassifier
    projection_: Projection | None
    mpp_: float | None

    def __init__(
        self,
        recipe: Recipe,
        classes: list[str],
        random_state: int,
        n_jobs: int | None,
        cache: ArrayCache | None = None,
    ) -> None:
        self.cache = cache
        self.recipe = recipe
        self.classes = classes
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(
        self,
        sources: Sequence[PatchSource],
        callback: Callback = ignore,
        executor: Executor | None = None,
        start_from: PatchModel | None = None,
    ) -> int:
        """Sample patches, about as many from every image of a class, and train; their number.

        `start_from`: a model of the same recipe and classes, whose dictionaries are gone on from.
        """
        X, y = self._training_vectors(sources, callback, executor)
        n_components = self.recipe.components
        self.projection_ = start_from.projection_ if start_from else None
        if n_components and not self.projection_:
            self.projection_ = Projection.fit(X, n_components, whiten=self.recipe.whiten)
        X = self.project(X)
        self.method_ = method_entry(self.recipe.method).make(
            self.recipe.method_parameters, random_state=self.random_state, n_jobs=self.n_jobs
        )
        if start_from:
            self.method_.set_params(warm_start=True)
            for name in ("classes_", "n_features_in_", *self.method_.fitted_arrays):
                setattr(self.method_, name, getattr(start_from.method_, name))
        options = {"callback": callback, "executor": executor}
        # Most methods train in this process alone.
        known = signature(self.method_.fit).parameters
        self.method_.fit(X, y, **{name: options[name] for name in options if name in known})
        return len(X)

    def judge(self, path: Path, mpp: float | None = None) -> tuple[PatchMap, Evidence]:
        """The map of an image and what its patches say together; the chunks run in parallel."""
        return self._judge(path, mpp, self.n_jobs)

    def judge_all(
        self,
        records: Sequence[Record],
        look: Callable[[int, PatchMap, Evidence], Any],
        callback: Callback = ignore,
        executor: Executor | None = None,
    ) -> list[Any]:
        """look(place, map, evidence) of every image; the images run in parallel."""

        def work(place: int) -> Any:
            record = records[place]
            return look(place, *self._judge(record.path, record.mpp, 1))

        return for_every(work, len(records), "rule", callback, executor or Threads(self.n_jobs))

    def _judge(
        self, path: Path, mpp: float | None, n_jobs: int | None
    ) -> tuple[PatchMap, Evidence]:
        method = copy(self.method_).set_params(n_jobs=1)  # the chunks are what runs in parallel
        codes = np.zeros(method.n_codes_)
        with open_view(path, mpp, self.recipe, self.mpp_, self.cache) as view:
            grid = view.grid()
            winners = np.full((grid.n_rows, grid.n_columns), BLANK, np.int16)
            margins = np.zeros((grid.n_rows, grid.n_columns, len(self.classes)), np.float32)
            work = partial(self._judge_chunk, method, view, grid)
            for (rows, columns), tissue, distances, sums in map_blocks(work, grid.chunks(), n_jobs):
                winners[rows, columns][tissue] = distances.argmin(axis=1)
                margins[rows, columns][tissue] = patch_margins(distances)
                codes += sums
        if self.recipe.neighbours:
            margins = mean_of_neighbours(margins, winners != BLANK, self.recipe.neighbours)
            winners = np.where(winners == BLANK, BLANK, margins.argmax(axis=2)).astype(np.int16)
        return PatchMap(grid, winners, margins), Evidence.of_map(winners, margins, codes)

    def _judge_chunk(
        self, method: PatchClassifier, view: View, grid: PatchGrid, chunk: Chunk
    ) -> tuple[Chunk, NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
        """Where the chunk is, which patches are tissue, their distances and summed |codes|."""
        tissue, vectors = view.chunk_vectors(grid, *chunk)
        if len(vectors) == 0:
            nothing = np.empty((0, len(self.classes)))
            return chunk, tissue, nothing, np.zeros(method.n_codes_)
        S, distances = method.encode(self.project(vectors))
        return chunk, tissue, distances, np.asarray(abs(S).sum(axis=0), dtype=np.float64).ravel()

    def start(self, other: object) -> PatchModel:
        """The other model, if training can go on from it: a ValueError says why it cannot."""
        known = signature(method_entry(self.recipe.method).load()).parameters
        if "warm_start" not in known:
            raise ValueError(f"the method {self.recipe.method!r} cannot go on from another model")
        theirs = getattr(other, "recipe", None)
        if not isinstance(other, PatchModel) or self.recipe != other.recipe:
            raise ValueError(
                "training goes on only from a model with the same settings; these differ: "
                + _differences(self.recipe.to_dict(), theirs.to_dict() if theirs else {})
            )
        if self.classes != other.classes:
            raise ValueError(
                f"training goes on only with the same classes, not {self.classes} after "
                f"{other.classes}"
            )
        return other

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Patch vectors as the method sees them."""
        return self.projection_(vectors) if self.projection_ else vectors

    def _training_vectors(
        self, sources: Sequence[PatchSource], callback: Callback, executor: Executor | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        recipe = self.recipe
        labels = np.array([source.label for source in sources])
        wanted = [-(-recipe.patches_per_class // int(np.sum(labels == label))) for label in labels]

        def work(place: int) -> tuple[NDArray[np.float32], float | None]:
            source = sources[place]
            rng = np.random.default_rng([self.random_state, place])
            record = source.record
            with open_view(record.path, record.mpp, recipe, cache=self.cache) as view:
                view.grid()  # says so if the image is too small
                allowed = _allowed_corners(source, view, recipe.patch_px)
                return view.sample_vectors(wanted[place], rng, allowed), view.mpp

        executor = executor or Threads(self.n_jobs)
        found = for_every(work, len(sources), "patches", callback, executor)
        parts = [vectors for vectors, _ in found]
        self.mpp_ = _common_mpp([mpp for _, mpp in found], recipe)
        y = np.repeat(labels, [len(part) for part in parts])
        counts = np.bincount(y, minlength=len(self.classes))
        for name, count in zip(self.classes, counts, strict=True):
            if count == 0:
                raise ValueError(f"no tissue was found in any image of class {name!r}")
        return np.concatenate([part for part in parts if len(part)]), y


def for_every(
    work: Callable[[int], Any], n_items: int, stage: str, callback: Callback, executor: Executor
) -> list[Any]:
    """work(0), work(1), …, in parallel, with a report after each."""
    results = []
    for result in executor.map(work, range(n_items)):
        results.append(result)
        callback(Progress(stage, len(results), n_items))
    return results


def _common_mpp(sizes: Sequence[float | None], recipe: Recipe) -> float | None:
    """The pixel size of the images, if all have one; refuses a mixture that is not reduced to one.

    With a recipe's own pixel size every image is reduced to it, and none has to match another.
    """
    known = [size for size in sizes if size is not None]
    if recipe.mpp is not None or len(known) < len(sizes):
        return None
    if max(known) > 1.1 * min(known):
        raise ValueError(
            f"the training images have pixel sizes (mpp) from {min(known):g} to {max(known):g} µm: "
            f"reduce them to a common one with the setting mpp={max(known):g}, or leave some out"
        )
    return float(np.median(known))


def _allowed_corners(source: PatchSource, view: View, patch_px: int) -> Allowed | None:
    """Which reduced-pixel corners have their patch inside (at least half), or fully outside."""
    if source.inside is None:
        return None
    assert source.record.mask is not None
    mask = RegionMask.read(source.record.mask, view.size)

    def allowed(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * view.downsample).T
        share = mask.share(x, y, patch_px * view.downsample)
        return share >= HALF if source.inside else share == 0

    return allowed


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Settings in which two recipes differ, ours first."""
    return ", ".join(
        f"{name} ({value!r}, not {theirs.get(name)!r})"
        for name, value in ours.items()
        if value != theirs.get(name)
    )
