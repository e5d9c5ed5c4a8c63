"""From the patches of labelled images to a patch classifier, and from an image to its patch map.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and distances ─► winners

Training patches: as many of every image of a class, from all of it or one side of its mask.

What training patches of each class referencely say, atom by atom: what an image is held against.

A model keeps it, so that an answer can be explained without the training images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..annotations.annotation_file import AnnotationFile
from ..annotations.outlines import IGNORED
from ..datasets.annotated import load_region
from ..datasets.manifest import ImageRecord, Manifest
from ..decision.aggregation import (
    AGGREGATORS,
    Aggregator,
    PatchStatistics,
    check_scores,
    patch_margins,
    smooth_margins,
)
from ..decision.atom_annotations import AtomAccumulator, AtomAnnotations, AtomReference, code_signs
from ..encoders import get_patch_features
from ..images.memory_image import ImageLike, estimated_bytes
from ..methods.patch_classifier import PatchClassifier
from ..methods.registry import get_method
from ..patches.grid import PatchGrid
from ..patches.patch_map import NO_TISSUE, PatchMap
from ..patches.sampling import LocationConstraint, region_constraint
from ..patches.vectors import Projection
from ..utils.array_schema import ArraySpec
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor, Threads, map_blocks
from ..utils.progress import Callback, Progress, cumulative_shares, no_callback
from .image_pipeline import AtomTable, ImagePipeline, ImageScores
from .model_file import ModelData, array_specs
from .prepared_image import (
    PreparedImage,
    no_tissue_message,
    open_prepared_image,
    report_windows,
    warn_no_tissue,
    warn_whole_images,
)
from .recipe import Recipe


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


_NAMES = ("usage", "codes", "mean_codes", "margins", "class_votes")
_N_PATCHES = 1000  # of a class, about


def fit_class_reference(
    method: PatchClassifier,
    patches: TrainingPatches,
    project: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    n_classes: int,
) -> list[AtomReference]:
    """Of some patches of every class, spread over all of its images."""
    found = []
    for place in range(n_classes):
        rows = np.flatnonzero(patches.labels == place)
        rows = rows[:: max(1, len(rows) // _N_PATCHES)]
        vectors = project(patches.features[rows])
        sums = AtomAccumulator(n_classes, method.n_codes_)
        codes, distances = method.encode(vectors)
        parts = method.distance_contributions(vectors, codes, distances)
        every = np.ones(len(rows))
        sums.add(codes, parts, distances.argmin(axis=1), every, every > 0)
        found.append(sums.mean())
    return found


def class_reference_to_arrays(reference: Sequence[AtomReference]) -> dict[str, NDArray[Any]]:
    """Return the arrays for a model file."""
    return {
        f"class_reference.{name}": np.stack([getattr(each, name) for each in reference])
        for name in _NAMES
    }


def class_reference_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[AtomReference]:
    """Return the class statistics from the arrays of a model file."""
    by_name = [arrays[f"class_reference.{name}"] for name in _NAMES]
    return [AtomReference(*of_class) for of_class in zip(*by_name, strict=True)]


def dominant_code_signs(
    reference: Sequence[AtomReference], atom_classes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Per atom the sign of the sum of its codes in patches of its own class; 1 where it is 0.

    Training leaves an atom in the sign in which codes over its own class's atoms have it more
    often; here all classes' atoms compete, and weights count.
    """
    leaning = np.stack([of_class.mean_codes for of_class in reference])
    own = leaning[atom_classes, np.arange(len(atom_classes))]
    return code_signs(own)


Chunk = tuple[slice, slice]


class PatchPipeline(ImagePipeline):
    """A patch classifier with everything that stands between it and an image file.

    Attributes, beside those of every `ImagePipeline`
    ----------
    projection_ : principal components of the vectors, where the recipe asks for them
    """

    method_: PatchClassifier
    projection_: Projection | None

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImagePipeline | None,
    ) -> dict[str, Any]:
        """Learn from patches of all images, then fit the rule on the same images."""
        sources = [
            PatchSamplingSpec(record, label)
            for record, label in zip(manifest.records, labels.tolist(), strict=True)
        ]
        n_patches = self.fit(sources, callback, executor, start_from)
        self.aggregator_ = self._fitted_aggregator(manifest.records, labels, callback, executor)
        return {"n_patches": n_patches}

    def _fitted_aggregator(
        self,
        records: Sequence[ImageRecord],
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None = None,
    ) -> Aggregator:
        evidence = self.predict_patches_many(records, _patch_statistics, callback, executor)
        seen = np.array([e.n_patches > 0 for e in evidence])
        evidence, name = [e for e in evidence if e.n_patches], self.recipe.aggregation
        missing = sorted(set(range(len(self.classes))) - set(labels[seen].tolist()))
        if missing:
            what = f"any image of class {self.classes[missing[0]]!r}"
            raise ValueError(no_tissue_message(what, self.recipe))
        return AGGREGATORS[name].fit(name, evidence, labels[seen])

    def refit_decision_rule(
        self, records: Sequence[ImageRecord], labels: NDArray[np.int64], callback: Callback
    ) -> Self:
        changed = copy(self)
        changed.aggregator_ = self._fitted_aggregator(records, labels, callback)
        return changed

    def fit(
        self,
        sources: Sequence[PatchSamplingSpec],
        callback: Callback = no_callback,
        executor: Executor | None = None,
        start_from: ImagePipeline | None = None,
    ) -> int:
        """Sample patches, about as many from every image of a class, and train; their number.

        `start_from`: a model of the same recipe and classes, whose dictionaries are gone on from.
        """
        start = self._start(start_from) if start_from is not None else None
        if start and start.atom_annotations:
            warnings.warn(
                "atoms change as training goes on: their names, and what was switched off, are "
                "not carried over",
                stacklevel=2,
            )
        self._check_training_files([source.record for source in sources])
        found = sample_training_patches(
            sources,
            self.recipe,
            self.random_state,
            self.cache,
            callback,
            executor or Threads(self.n_jobs),
        )
        X = found.features
        self._check_classes(found.labels)
        self.projection_ = start.projection_ if start else None
        if self.recipe.n_components and not self.projection_:
            n_components = self.recipe.n_components
            self.projection_ = Projection.fit(X, n_components, whiten=self.recipe.whiten)
        self.method_ = self.make_method()
        if start:
            self.method_.set_params(warm_start=True)
            for name in ("classes_", "n_features_in_", *self.method_.fitted_arrays):
                setattr(self.method_, name, getattr(start.method_, name))
        options = {"callback": callback, "executor": executor}
        # Most methods train in this process alone.
        known = signature(self.method_.fit).parameters
        own = {name: options[name] for name in options if name in known}
        self.method_.fit(self.project(X), found.labels, **own)
        self.class_reference_ = fit_class_reference(
            self.method_, found, self.project, len(self.classes)
        )
        return len(X)

    def _check_classes(self, labels: NDArray[np.int64]) -> None:
        counts = np.bincount(labels, minlength=len(self.classes))
        for name, count in zip(self.classes, counts, strict=True):
            if count == 0:
                raise ValueError(no_tissue_message(f"any image of class {name!r}", self.recipe))

    def score_image(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImageScores:
        assert self.aggregator_ is not None
        patch_map, evidence = self.predict_patches(path, mpp, callback, within)
        if not evidence.n_patches:
            return ImageScores(None, patch_map, evidence)
        scores = self._scores(evidence)
        check_scores(path, scores)
        return ImageScores(scores, patch_map, evidence)

    def _scores(self, evidence: PatchStatistics) -> NDArray[np.float64]:
        assert self.aggregator_ is not None
        if not self.method_.disabled_atoms_:
            return self.aggregator_.scores(evidence)
        n_codes = self.method_.n_codes_
        kept = np.delete(np.arange(n_codes), list(self.method_.disabled_atoms_))
        return self.aggregator_.select_atoms(kept, n_codes).scores(evidence.select_atoms(kept))

    def with_atom_annotations(self, notes: AtomAnnotations) -> Self:
        atoms = self.atoms()
        if notes and atoms is None:
            raise ValueError(self.no_atoms_reason())
        for note in notes.notes:
            if atoms is not None and note.atom >= len(atoms.D):
                raise ValueError(f"there is no atom {note.atom}: there are {len(atoms.D)}")
        changed = copy(self)
        changed.atom_annotations, changed.method_ = (
            notes,
            self.method_.disable_atoms(notes.disabled),
        )
        return changed

    def predict_patches(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> tuple[PatchMap, PatchStatistics]:
        """The map of an image and what its patches say together; the chunks run in parallel."""
        return self._predict_patches(path, mpp, self.n_jobs, callback, within)

    def predict_patches_many(
        self,
        records: Sequence[ImageRecord],
        look: Callable[[int, PatchMap, PatchStatistics], Any],
        callback: Callback = no_callback,
        executor: Executor | None = None,
    ) -> list[Any]:
        """look(place, map, evidence) of every image; the images run in parallel."""

        def work(place: int) -> Any:
            record = records[place]
            return look(
                place,
                *self._predict_patches(
                    record.path, record.mpp, 1, within=record.region_of_interest
                ),
            )

        executor = executor or Threads(self.n_jobs)
        n_bytes = [estimated_bytes(record.path) for record in records]
        return map_images(work, len(records), "rule", callback, executor, n_bytes)

    def _predict_patches(
        self,
        path: ImageLike,
        mpp: float | None,
        n_jobs: int | None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> tuple[PatchMap, PatchStatistics]:
        method = copy(self.method_).set_params(n_jobs=1)  # the chunks are what runs in parallel
        codes, named = np.zeros(method.n_codes_), self.atom_annotations.by_name()
        with open_prepared_image(
            path, mpp, self.recipe, self.mpp_, self.cache, self.feature_metadata_, within
        ) as view:
            grid = view.grid()
            winners = np.full((grid.n_rows, grid.n_columns), NO_TISSUE, np.int16)
            margins = np.zeros((grid.n_rows, grid.n_columns, len(self.classes)), np.float32)
            concepts = {name: np.zeros(winners.shape, bool) for name in named}
            work = partial(self._predict_chunk, method, view, grid)
            chunks = list(view.chunks(grid))
            results = map_blocks(work, chunks, n_jobs)
            for (rows, columns), tissue, distances, S in report_windows(
                results, chunks, view.size, callback
            ):
                winners[rows, columns][tissue] = distances.argmin(axis=1)
                margins[rows, columns][tissue] = patch_margins(distances)
                codes += np.asarray(abs(S).sum(axis=0), dtype=np.float64).ravel()
                for name, atoms in named.items():
                    used = (S[:, atoms] != 0).sum(axis=1) > 0
                    concepts[name][rows, columns][tissue] = np.asarray(used).ravel()
                if self.code_callback:
                    self.code_callback(np.add(np.argwhere(tissue), (rows.start, columns.start)), S)
        check_scores(path, margins, codes)
        if self.recipe.smoothing_radius:
            margins = smooth_margins(margins, winners != NO_TISSUE, self.recipe.smoothing_radius)
            winners = np.where(winners == NO_TISSUE, NO_TISSUE, margins.argmax(axis=2)).astype(
                np.int16
            )
        left_out = None if view.quality is None else view.quality.describe_excluded()
        known = path, view.mpp, view.offset, left_out, concepts, view.uses_whole_image
        found = PatchMap(grid, winners, margins, tuple(self.classes), *known, view.clip_size)
        return found, PatchStatistics.of_map(winners, margins, codes)

    def _predict_chunk(
        self, method: PatchClassifier, view: PreparedImage, grid: PatchGrid, chunk: Chunk
    ) -> tuple[Chunk, NDArray[np.bool_], NDArray[np.float64], csr_array]:
        """Where the chunk is, which patches are tissue, their distances and codes."""
        tissue, vectors = view.chunk_features(grid, *chunk)
        if len(vectors) == 0:
            nothing = np.empty((0, len(self.classes)))
            return chunk, tissue, nothing, csr_array((0, method.n_codes_), dtype=np.float32)
        S, distances = method.encode(self.project(vectors))
        return chunk, tissue, distances, S

    def _start(self, other: ImagePipeline) -> PatchPipeline:
        """The other model, if training can go on from it: a ValueError says why it cannot."""
        known = signature(get_method(self.recipe.method).load()).parameters
        if "warm_start" not in known:
            raise ValueError(f"the method {self.recipe.method!r} cannot go on from another model")
        if self.recipe != other.recipe:
            raise ValueError(
                "training goes on only from a model with the same settings; these differ: "
                + self.recipe.describe_differences(other.recipe)
            )
        if self.classes != other.classes:
            raise ValueError(
                f"training goes on only with the same classes, not {self.classes} after "
                f"{other.classes}"
            )
        return cast(PatchPipeline, other)  # the same recipe makes the same kind of model

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.projection_(vectors) if self.projection_ else vectors

    def atoms(self) -> AtomTable | None:
        if not self.method_.has_class_atoms:
            return None
        D, classes = self.method_.labelled_atoms()
        if len(D) != self.method_.n_codes_:
            return None
        side = self.recipe.patch_px
        is_pixels = self.projection_ is None and get_patch_features(self.recipe.features).are_images
        return AtomTable(
            D,
            classes,
            side if is_pixels else None,
            dominant_code_signs(self.class_reference_, classes),
        )

    def no_atoms_reason(self) -> str:
        return (
            f"the method {self.recipe.method!r} has no atoms that belong to classes: dfdl, odl, "
            "fddl, lcksvd and src have"
        )

    # --- for a model file -----------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        found = super().arrays()
        if self.projection_:
            found["projection.mean"] = self.projection_.mean
            found["projection.components"] = self.projection_.components
        if self.aggregator_:
            found |= {f"rule.{name}": array for name, array in self.aggregator_.arrays().items()}
        return found | class_reference_to_arrays(self.class_reference_)

    def array_schema(self) -> dict[str, ArraySpec]:
        return array_specs("class_reference", *["projection"] * bool(self.recipe.n_components))

    def aggregator_schema(self) -> dict[str, ArraySpec]:
        """What the arrays of the rule must be."""
        name = self.recipe.aggregation
        return {f"rule.{key}": what for key, what in AGGREGATORS[name].array_schema(name).items()}

    def _sizes(self, method: Any) -> dict[str, int | str]:
        sizes: dict[str, int | str] = {"codes": method.code_length}
        recipe = self.recipe
        length = get_patch_features(recipe.features).length(recipe.patch_px, recipe.n_channels)
        if length is not None:
            sizes["inputs" if recipe.n_components else "features"] = length
        return sizes

    def load_state(self, content: ModelData, others: Mapping[str, ArraySpec] | None = None) -> None:
        super().load_state(content, others)
        self.method_.check_features(content.n_features)
        arrays = content.arrays
        self.projection_ = None
        if "projection.mean" in arrays:
            mean, components = arrays["projection.mean"], arrays["projection.components"]
            self.projection_ = Projection(mean, components)
        self.class_reference_ = class_reference_from_arrays(arrays)
        noted = self.with_atom_annotations(AtomAnnotations.from_list(content.atom_annotations))
        self.atom_annotations, self.method_ = noted.atom_annotations, noted.method_
        learnt = {k.removeprefix("rule."): v for k, v in arrays.items() if k.startswith("rule.")}
        if learnt:
            name = self.recipe.aggregation
            self.aggregator_ = AGGREGATORS[name](name=name, **learnt)  # type: ignore[call-arg]


def _patch_statistics(
    place: int, patch_map: PatchMap, evidence: PatchStatistics
) -> PatchStatistics:
    return evidence
