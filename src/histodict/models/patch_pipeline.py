"""Patch classifiers: training on patches of labelled images, and patch maps of images.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and distances ─► class

Every image of a class contributes about the same number of training patches, from the whole image
or from inside or outside of its mask. The pipeline also stores atom statistics of each class's
training patches, so that predictions can be explained without the training images.
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
from ..decision.atom_annotations import (
    AtomAccumulator,
    AtomAnnotations,
    AtomMeans,
    class_reference_from_arrays,
    class_reference_to_arrays,
    dominant_code_signs,
)
from ..encoders import get_patch_features
from ..images.memory_image import ImageLike, estimated_bytes
from ..methods.patch_classifier import DistanceContributions, PatchClassifier
from ..methods.registry import get_method
from ..patches.grid import PatchGrid
from ..patches.patch_map import NO_TISSUE, PatchMap
from ..patches.sampling import LocationConstraint, region_constraint
from ..patches.vectors import Projection
from ..utils.array_schema import ArraySpec
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor, ThreadExecutor, map_blocks
from ..utils.progress import Callback, Progress, cumulative_shares, no_callback
from .image_pipeline import AtomTable, ImagePipeline, ImageScores
from .inputs import no_tissue_message, warn_no_tissue, warn_whole_images
from .model_file import ModelData, array_specs
from .prepared_image import PreparedImage, chunk_progress, open_prepared_image
from .recipe import Recipe


@dataclass(frozen=True)
class SamplingArea:
    """Image area from which training patches of one class are sampled.

    Attributes
    ----------
    record : the image
    class_index : index of the class
    is_inside : True for patches inside the region, False for outside, None for the whole image
    region : name of the region in the mask or outlines; empty for the whole image
    """

    record: ImageRecord
    class_index: int
    is_inside: bool | None = None
    region: str = ""

    @classmethod
    def from_record(cls, record: ImageRecord, region: str) -> list[SamplingArea]:
        """Return the areas outside and inside the region; without mask, the whole image."""
        if not record.has_regions:
            return [cls(record, int(record.label == region))]
        return [cls(record, int(inside), inside, region) for inside in (False, True)]


@dataclass(frozen=True)
class TrainingPatches:
    """Feature vectors (n, n_features) and class indices (n,) of training patches."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]


def sample_training_patches(
    areas: Sequence[SamplingArea],
    recipe: Recipe,
    random_state: int,
    cache: ArrayCache | None,
    callback: Callback,
    executor: Executor,
) -> TrainingPatches:
    """Return random training patches, about `patches_per_class` of each class.

    Parameters
    ----------
    areas : image areas from which patches are sampled, equally many from each area of a class
    recipe : settings
    random_state : seed
    cache : cache of feature vectors; None stores nothing
    callback : receives the progress
    executor : runs the images in parallel
    """
    labels = np.array([area.class_index for area in areas])
    n_patches = [-(-recipe.patches_per_class // int(np.sum(labels == label))) for label in labels]

    def sample(index: int) -> tuple[NDArray[np.float32], bool]:
        area = areas[index]
        rng = np.random.default_rng([random_state, index])
        record, region = area.record, area.record.region_of_interest
        with open_prepared_image(
            record.path, record.mpp, recipe, cache=cache, region_of_interest=region
        ) as prepared:
            grid = prepared.grid()  # raises an error if the image is too small
            allowed = _allowed_corners(area, prepared, grid)
            vectors = prepared.sample_features(n_patches[index], rng, allowed)
            return vectors, prepared.uses_whole_image

    results = map_with_progress(sample, len(areas), "patches", callback, executor)
    vectors = [area_vectors for area_vectors, _ in results]
    y = np.repeat(labels, [len(v) for v in vectors])
    empty = (area for area, v in zip(areas, vectors, strict=True) if not len(v))
    warn_no_tissue([area.record for area in empty if area.is_inside is None])
    whole = [area.record for area, (_, is_whole) in zip(areas, results, strict=True) if is_whole]
    warn_whole_images(whole)
    non_empty = [v for v in vectors if len(v)]
    return TrainingPatches(
        np.concatenate(non_empty) if non_empty else np.empty((0, 0), np.float32), y
    )


def map_with_progress(
    function: Callable[[int], Any],
    n_items: int,
    stage: str,
    callback: Callback,
    executor: Executor,
    weights: Sequence[float] = (),
) -> list[Any]:
    """Return [function(0), …, function(n_items - 1)], computed in parallel.

    Parameters
    ----------
    function : function of an index
    n_items : number of calls
    stage : key of `progress.STAGE_LABELS`
    callback : receives the progress at the start and after each item
    executor : runs the calls
    weights : relative durations of the calls; empty if they are equal
    """
    results: list[Any] = []
    fractions = cumulative_shares(weights or [1.0] * n_items)
    callback(Progress(stage, 0, n_items, work=fractions[0]))
    for result in executor.map(function, range(n_items)):
        results.append(result)
        callback(Progress(stage, len(results), n_items, work=fractions[len(results)]))
    return results


def _allowed_corners(
    area: SamplingArea, prepared: PreparedImage, grid: PatchGrid
) -> LocationConstraint | None:
    """Return the constraint on patches of an area; None for the whole image.

    A patch is inside a region if at least half of it is, and outside if no part of it is inside.
    """
    if area.is_inside is None:
        return None
    if area.is_inside:
        region = load_region(area.record, prepared, area.region)
        return region_constraint(region, grid)
    mask = load_region(area.record, prepared, area.region, IGNORED)

    def outside(corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = (corners * grid.downsample + np.array([grid.left, grid.top])).T
        return mask.coverage(x, y, grid.patch_side) == 0

    return LocationConstraint(outside)


_EQUAL_SCORES = "the scores of all patches are equal: the prediction does not depend on the image"
_N_REFERENCE_PATCHES = 1000  # for atom statistics; approximate number per class


def fit_class_reference(
    classifier: PatchClassifier,
    patches: TrainingPatches,
    project: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    n_classes: int,
) -> list[AtomMeans]:
    """Return the mean atom statistics of each class, from a subset of its training patches.

    `project` is `PatchPipeline.project`, which is applied to the vectors before `classifier`.
    """
    references = []
    for index in range(n_classes):
        rows = np.flatnonzero(patches.labels == index)
        rows = rows[:: max(1, len(rows) // _N_REFERENCE_PATCHES)]
        vectors = project(patches.features[rows])
        accumulator = AtomAccumulator(n_classes, classifier.n_codes_)
        codes, distances = classifier.encode(vectors)
        contributions = classifier.distance_contributions(vectors, codes, distances)
        ones = np.ones(len(rows))
        accumulator.add(codes, contributions, distances.argmin(axis=1), ones, ones > 0)
        references.append(accumulator.mean())
    return references


Chunk = tuple[slice, slice]  # rows and columns of the patch grid


@dataclass(frozen=True)
class _EncodedChunk:
    """Codes and class distances of the patches of a chunk; `tissue` is the mask of patches."""

    chunk: Chunk
    tissue: NDArray[np.bool_]
    codes: csr_array
    distances: NDArray[np.float64]
    contributions: DistanceContributions | None = None

    @property
    def positions(self) -> NDArray[np.int64]:
        """Row and column of each patch on the grid, as an array (n, 2)."""
        return np.add(np.argwhere(self.tissue), [part.start for part in self.chunk])


class _PatchResults:
    """Results of an image's patches, as arrays over the rows and columns of the patch grid.

    These are the class index (`predicted`), the margins and, by name, the use of each concept.
    `code_sums` (n_codes,) has the sums of the absolute codes over all patches.
    """

    def __init__(
        self, grid: PatchGrid, n_classes: int, n_codes: int, concept_atoms: dict[str, list[int]]
    ) -> None:
        self.predicted = np.full((grid.n_rows, grid.n_columns), NO_TISSUE, np.int16)
        self.margins = np.zeros((*self.predicted.shape, n_classes), np.float32)
        self.code_sums = np.zeros(n_codes)
        self.concepts = {name: np.zeros(self.predicted.shape, bool) for name in concept_atoms}
        self._concept_atoms = concept_atoms

    def add(self, encoded: _EncodedChunk) -> None:
        """Add the results of a chunk."""
        chunk, tissue, codes = encoded.chunk, encoded.tissue, encoded.codes
        self.predicted[chunk][tissue] = encoded.distances.argmin(axis=1)
        self.margins[chunk][tissue] = patch_margins(encoded.distances)
        self.code_sums += np.asarray(abs(codes).sum(axis=0), dtype=np.float64).ravel()
        for name, atoms in self._concept_atoms.items():
            used = (codes[:, atoms] != 0).sum(axis=1) > 0
            self.concepts[name][chunk][tissue] = np.asarray(used).ravel()


class PatchPipeline(ImagePipeline):
    """Pipeline of a method that classifies patches.

    Attributes
    ----------
    classifier_ : fitted patch classifier
    projection_ : projection on principal components; None unless the recipe has `n_components`

    Other attributes are those of `ImagePipeline`.
    """

    classifier_: PatchClassifier
    projection_: Projection | None

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImagePipeline | None,
    ) -> dict[str, Any]:
        """Train on patches of all images, then fit the aggregator; see `ImagePipeline`."""
        areas = [
            SamplingArea(record, label)
            for record, label in zip(manifest.records, labels.tolist(), strict=True)
        ]
        n_patches = self.fit(areas, callback, executor, start_from)
        self.aggregator_ = self._fit_aggregator(manifest.records, labels, callback, executor)
        return {"n_patches": n_patches}

    def _fit_aggregator(
        self,
        records: Sequence[ImageRecord],
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None = None,
    ) -> Aggregator:
        """Return an aggregator that is fitted on images and their class indices."""
        statistics = self.score_images(records, _patch_statistics, callback, executor)
        has_tissue = np.array([s.n_patches > 0 for s in statistics])
        statistics, name = [s for s in statistics if s.n_patches], self.recipe.aggregation
        missing = sorted(set(range(len(self.classes))) - set(labels[has_tissue].tolist()))
        if missing:
            where = f"any image of class {self.classes[missing[0]]!r}"
            raise ValueError(no_tissue_message(where, self.recipe))
        return AGGREGATORS[name].fit(name, statistics, labels[has_tissue])

    def refit_decision_rule(
        self, records: Sequence[ImageRecord], labels: NDArray[np.int64], callback: Callback
    ) -> Self:
        """Return a copy whose aggregator is fitted on images with their class indices `labels`."""
        changed = copy(self)
        changed.aggregator_ = self._fit_aggregator(records, labels, callback)
        return changed

    def fit(
        self,
        areas: Sequence[SamplingArea],
        callback: Callback = no_callback,
        executor: Executor | None = None,
        start_from: ImagePipeline | None = None,
    ) -> int:
        """Sample patches and train the method; return the number of patches.

        Parameters
        ----------
        areas : image areas from which patches are sampled
        callback : receives the progress
        executor : runs the images in parallel; None uses threads
        start_from : pipeline of the same recipe and classes whose dictionaries are trained further
        """
        start = self._check_warm_start(start_from) if start_from is not None else None
        if start and start.atom_annotations:
            warnings.warn(
                "resumed training changes the atoms: their names and disabled atoms are not "
                "carried over",
                stacklevel=2,
            )
        self._check_training_files([area.record for area in areas])
        patches = sample_training_patches(
            areas,
            self.recipe,
            self.random_state,
            self.cache,
            callback,
            executor or ThreadExecutor(self.n_jobs),
        )
        X = patches.features
        self._check_classes(patches.labels)
        self.projection_ = start.projection_ if start else None
        if self.recipe.n_components and not self.projection_:
            n_components = self.recipe.n_components
            self.projection_ = Projection.fit(X, n_components, whiten=self.recipe.whiten)
        self.classifier_ = self.make_classifier()
        if start:
            self.classifier_.set_params(warm_start=True)
            for name in ("classes_", "n_features_in_", *self.classifier_.fitted_arrays):
                setattr(self.classifier_, name, getattr(start.classifier_, name))
        options = {"callback": callback, "executor": executor}
        # Most methods have no executor.
        accepted = signature(self.classifier_.fit).parameters
        fit_options = {name: options[name] for name in options if name in accepted}
        self.classifier_.fit(self.project(X), patches.labels, **fit_options)
        self.class_reference_ = fit_class_reference(
            self.classifier_, patches, self.project, len(self.classes)
        )
        return len(X)

    def _check_classes(self, labels: NDArray[np.int64]) -> None:
        """Raise ValueError if a class has no training patches."""
        counts = np.bincount(labels, minlength=len(self.classes))
        for name, count in zip(self.classes, counts, strict=True):
            if count == 0:
                raise ValueError(no_tissue_message(f"any image of class {name!r}", self.recipe))

    def score_image(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImageScores:
        """Return scores, patch map and patch statistics of an image; see `ImagePipeline`."""
        classifier = copy(self.classifier_).set_params(n_jobs=1)  # the chunks run in parallel
        options = (self.mpp_, self.cache, self.feature_metadata_, region_of_interest)
        with open_prepared_image(path, mpp, self.recipe, *options) as image:
            grid = image.grid()
            chunks = list(image.chunks(grid))
            encode = partial(self._encode_chunk, classifier, image, grid)
            concept_atoms = self.atom_annotations.by_name()
            results = _PatchResults(grid, len(self.classes), classifier.n_codes_, concept_atoms)
            report = chunk_progress(chunks, image.size, callback)
            for n_done, encoded in enumerate(map_blocks(encode, chunks, self.n_jobs), 1):
                results.add(encoded)
                if self.recorder:
                    positions, codes = encoded.positions, encoded.codes
                    self.recorder.add(positions, codes, encoded.contributions)
                report(n_done)
            patch_map = self._make_patch_map(path, image, grid, results)
        statistics = PatchStatistics.from_map(
            patch_map.predicted_classes, patch_map.margins, results.code_sums
        )
        image_scores = ImageScores(self._aggregate(path, statistics), patch_map, statistics)
        if self.recorder:
            self.recorder.finish(image_scores)
        return image_scores

    def score_images(
        self,
        records: Sequence[ImageRecord],
        reduce: Callable[[int, ImageScores], Any],
        callback: Callback = no_callback,
        executor: Executor | None = None,
    ) -> list[Any]:
        """Score images in parallel and return ``reduce(index, scores)`` for each, in order.

        Parameters
        ----------
        records : images
        reduce : function of image index and `ImageScores` that extracts the required values
        callback : receives the progress
        executor : runs the images; None uses threads
        """
        single = self.with_jobs(1)

        def score(index: int) -> Any:
            r = records[index]
            return reduce(
                index, single.score_image(r.path, r.mpp, region_of_interest=r.region_of_interest)
            )

        executor = executor or ThreadExecutor(self.n_jobs)
        n_bytes = [estimated_bytes(record.path) for record in records]
        return map_with_progress(score, len(records), "decision", callback, executor, n_bytes)

    def _encode_chunk(
        self, classifier: PatchClassifier, image: PreparedImage, grid: PatchGrid, chunk: Chunk
    ) -> _EncodedChunk:
        """Encode the patches of a chunk, and compute contributions if the recorder needs them."""
        tissue, features = image.chunk_features(grid, *chunk)
        if len(features) == 0:
            no_distances = np.empty((0, len(self.classes)))
            no_codes = csr_array((0, classifier.n_codes_), dtype=np.float32)
            return _EncodedChunk(chunk, tissue, no_codes, no_distances)
        X = self.project(features)
        codes, distances = classifier.encode(X)
        contributions = None
        if self.recorder and self.recorder.needs_contributions:
            contributions = classifier.distance_contributions(X, codes, distances)
        return _EncodedChunk(chunk, tissue, codes, distances, contributions)

    def _make_patch_map(
        self, path: ImageLike, image: PreparedImage, grid: PatchGrid, results: _PatchResults
    ) -> PatchMap:
        """Return the patch map of an image, smoothed by the recipe's `smoothing_radius`."""
        check_scores(path, results.margins, results.code_sums)
        predicted, margins = results.predicted, results.margins
        tissue = predicted != NO_TISSUE
        if self.recipe.smoothing_radius:
            margins = smooth_margins(margins, tissue, self.recipe.smoothing_radius)
            predicted = np.where(tissue, margins.argmax(axis=2), NO_TISSUE).astype(np.int16)
        excluded = None if image.quality is None else image.quality.describe_excluded()
        notes = [image.stain_note]
        on_tissue = margins[tissue]
        if len(on_tissue) > 1 and (on_tissue == on_tissue[0]).all():
            notes.append(_EQUAL_SCORES)
        metadata = (path, image.mpp, image.offset, excluded, results.concepts)
        options = (image.uses_whole_image, image.clip_size, tuple(filter(None, notes)))
        return PatchMap(grid, predicted, margins, tuple(self.classes), *metadata, *options)

    def _aggregate(
        self, path: ImageLike, statistics: PatchStatistics
    ) -> NDArray[np.float64] | None:
        """Return the scores of an image; None without tissue or without aggregator."""
        if self.aggregator_ is None or not statistics.n_patches:
            return None
        aggregator = self.aggregator_
        if self.classifier_.disabled_atoms_:
            n_codes = self.classifier_.n_codes_
            enabled = np.delete(np.arange(n_codes), list(self.classifier_.disabled_atoms_))
            aggregator = aggregator.select_atoms(enabled, n_codes)
            statistics = statistics.select_atoms(enabled)
        scores = aggregator.scores(statistics)
        check_scores(path, scores)
        return scores

    def with_atom_annotations(self, annotations: AtomAnnotations) -> Self:
        """Return a copy with these annotations of atoms; disabled atoms have no effect."""
        atoms = self.atoms()
        if annotations and atoms is None:
            raise ValueError(self.no_atoms_reason())
        for note in annotations.entries:
            if atoms is not None and note.atom >= len(atoms.D):
                raise ValueError(f"there is no atom {note.atom}; the last is {len(atoms.D) - 1}")
        changed = copy(self)
        changed.atom_annotations = annotations
        changed.classifier_ = self.classifier_.disable_atoms(annotations.disabled)
        return changed

    def _check_warm_start(self, other: ImagePipeline) -> PatchPipeline:
        """Return `other`; raise ValueError if training cannot be resumed from it."""
        accepted = signature(get_method(self.recipe.method).load_class()).parameters
        if "warm_start" not in accepted:
            raise ValueError(f"the method {self.recipe.method!r} cannot resume training")
        if self.recipe != other.recipe:
            raise ValueError(
                "training can only be resumed from a model with the same settings; different "
                "settings: " + self.recipe.describe_differences(other.recipe)
            )
        if self.classes != other.classes:
            raise ValueError(
                "training can only be resumed with the same classes: the classes are "
                f"{self.classes}, those of the model {other.classes}"
            )
        return cast(PatchPipeline, other)  # equal recipes give the same class

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Project vectors on principal components; return them unchanged without `n_components`."""
        return self.projection_(vectors) if self.projection_ else vectors

    def atoms(self) -> AtomTable | None:
        """Return the atoms; None if the method has no atoms that belong to classes."""
        if not self.classifier_.has_class_atoms:
            return None
        D, classes = self.classifier_.labelled_atoms()
        if len(D) != self.classifier_.n_codes_:
            return None
        side = self.recipe.patch_px
        features = get_patch_features(self.recipe.features)
        is_pixels = self.projection_ is None and features.atoms_are_images
        return AtomTable(
            D,
            classes,
            side if is_pixels else None,
            dominant_code_signs(self.class_reference_, classes),
        )

    def no_atoms_reason(self) -> str:
        """Return the error message that is shown if `atoms` returns None."""
        return (
            f"the method {self.recipe.method!r} has no atoms of classes. Methods with atoms: "
            "dfdl, odl, fddl, lcksvd and src"
        )

    # --- model file -----------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays by their names in a model file."""
        arrays = super().arrays()
        if self.projection_:
            arrays["projection.mean"] = self.projection_.mean
            arrays["projection.components"] = self.projection_.components
        if self.aggregator_:
            arrays |= {f"rule.{name}": array for name, array in self.aggregator_.arrays().items()}
        return arrays | class_reference_to_arrays(self.class_reference_)

    def array_schema(self) -> dict[str, ArraySpec]:
        """Return the specification of class reference and projection; see `ImagePipeline`."""
        return array_specs("class_reference", *["projection"] * bool(self.recipe.n_components))

    def aggregator_schema(self) -> dict[str, ArraySpec]:
        """Return the specification of each array of the aggregator."""
        name = self.recipe.aggregation
        return {f"rule.{key}": spec for key, spec in AGGREGATORS[name].array_schema(name).items()}

    def _array_dimensions(self, classifier: Any) -> dict[str, int | str]:
        sizes: dict[str, int | str] = {"codes": classifier.code_dimension}
        recipe, features = self.recipe, get_patch_features(self.recipe.features)
        length = features.vector_length(recipe.patch_px, recipe.n_channels)
        if length is not None:
            sizes["inputs" if recipe.n_components else "features"] = length
        return sizes

    def load_state(self, content: ModelData, specs: Mapping[str, ArraySpec] | None = None) -> None:
        """Set the fitted attributes from the content of a model file; see `ImagePipeline`."""
        super().load_state(content, specs)
        self.classifier_.check_features(content.n_features)
        arrays = content.arrays
        self.projection_ = None
        if "projection.mean" in arrays:
            mean, components = arrays["projection.mean"], arrays["projection.components"]
            self.projection_ = Projection(mean, components)
        self.class_reference_ = class_reference_from_arrays(arrays)
        annotated = self.with_atom_annotations(AtomAnnotations.from_list(content.atom_annotations))
        self.atom_annotations, self.classifier_ = annotated.atom_annotations, annotated.classifier_
        if content.kind == "tissue-classifier":  # an aggregator may have no fitted arrays
            rule = {k.removeprefix("rule."): v for k, v in arrays.items() if k.startswith("rule.")}
            name = self.recipe.aggregation
            self.aggregator_ = AGGREGATORS[name](name=name, **rule)  # type: ignore[call-arg]


def _patch_statistics(index: int, image_scores: ImageScores) -> PatchStatistics:
    assert image_scores.patch_statistics is not None
    return image_scores.patch_statistics
