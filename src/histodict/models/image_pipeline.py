"""Base class of pipelines from image files to scores; pipeline for methods of whole images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.survey import common_pixel_size
from ..decision.aggregation import Aggregator, PatchStatistics, check_scores
from ..decision.atom_annotations import AtomAnnotations, AtomMeans
from ..encoders import get_patch_features
from ..images.memory_image import ImageLike
from ..images.source import ImageError
from ..methods.patch_classifier import DistanceContributions
from ..methods.registry import MEAN_VECTOR, get_method
from ..patches.grid import PatchGrid
from ..patches.patch_map import PatchMap
from ..precomputed.feature_file import FeatureMetadata, common_metadata
from ..utils.array_schema import ArraySpec
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor, map_blocks
from ..utils.progress import Callback, Progress, no_callback
from .inputs import no_tissue_message, warn_no_tissue
from .model_file import ModelData
from .prepared_image import PreparedImage, open_prepared_image
from .recipe import Recipe


@dataclass(frozen=True)
class ImageScores:
    """Scores of an image, with its patch map and patch statistics.

    Attributes
    ----------
    scores : (n_scores,); None without tissue, and for region detectors, which have no aggregator
    patch_map : classes and margins of the patches; None for methods of the whole image
    patch_statistics : input of the aggregator; None for methods of the whole image
    n_abstaining : number of estimators without a score; None for a single model
    """

    scores: NDArray[np.float64] | None
    patch_map: PatchMap | None = None
    patch_statistics: PatchStatistics | None = None
    n_abstaining: int | None = None


class PatchRecorder:
    """Base class of objects that receive the codes of all patches of an image.

    Attributes
    ----------
    needs_contributions : whether `add` needs the contributions of atoms to the distances
    """

    needs_contributions = False

    def add(
        self,
        positions: NDArray[np.int64],
        codes: csr_array,
        contributions: DistanceContributions | None,
    ) -> None:
        """Add the patches of one chunk of the image.

        Parameters
        ----------
        positions : (n_patches, 2), row and column of each patch on the grid
        codes : (n_patches, n_codes), sparse codes of the patches
        contributions : contributions of the atoms to the distances; None if `needs_contributions`
            is False
        """

    def finish(self, image_scores: ImageScores) -> None:
        """Complete the recording of an image with its scores, after its last chunk."""


@dataclass(frozen=True)
class AtomTable:
    """Atoms of the class dictionaries of a model.

    Attributes
    ----------
    D : (n_atoms, n_features), atoms
    classes : class index of each atom
    patch_px : side in pixels of atoms that are images; None if atoms are not images
    signs : sign of each atom's mean coefficient in patches of its class, 1 or -1
    """

    D: NDArray[Any]
    classes: NDArray[np.int64]
    patch_px: int | None
    signs: NDArray[np.float64]

    def digest(self, atom: int) -> str:
        """Return a digest of the atom at index `atom`, which identifies it in different models."""
        numbers = np.ascontiguousarray(self.D[atom], "<f4").tobytes()
        return hashlib.sha256(numbers).hexdigest()[:16]

    @property
    def signed_atoms(self) -> NDArray[Any]:
        """Atoms (n_atoms, n_features) multiplied by `signs`, for display."""
        return self.D * self.signs[:, None].astype(self.D.dtype)


class ImagePipeline:
    """Base class of pipelines from an image file to the scores of a fitted method.

    Attributes
    ----------
    classifier_ : fitted classifier of patches or images, an estimator of the recipe's method
    mpp_ : median pixel size (µm) of the training images; None if it is unknown or not used, because
        images are resampled or features are precomputed
    feature_metadata_ : metadata of precomputed features; None if trained on images
    aggregator_ : aggregator from patches to the score of an image; None for methods of the whole
        image
    recorder : object that receives the codes of the patches of each image; None if there is none
    atom_annotations : annotations of the atoms by users
    class_reference_ : for each class, the atom statistics of its training patches; empty for
        methods of the whole image
    """

    classifier_: Any
    mpp_: float | None
    feature_metadata_: FeatureMetadata | None = None
    aggregator_: Aggregator | None = None
    recorder: PatchRecorder | None = None
    atom_annotations: AtomAnnotations = AtomAnnotations()
    class_reference_: Sequence[AtomMeans] = ()

    def __init__(
        self,
        recipe: Recipe,
        classes: list[str],
        random_state: int,
        n_jobs: int | None,
        cache: ArrayCache | None = None,
    ) -> None:
        self.recipe = recipe
        self.classes = classes
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = cache

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImagePipeline | None,
    ) -> dict[str, Any]:
        """Fit the pipeline and return entries for the training record.

        Parameters
        ----------
        manifest : training images
        labels : class index of each image
        callback : receives the progress
        executor : runs the images in parallel; None uses threads
        start_from : pipeline whose dictionaries are trained further; None initialises new ones

        Returns
        -------
        dict
            "n_patches", the number of training patches; empty for methods of the whole image.
        """
        raise NotImplementedError

    def _check_training_files(self, records: Sequence[ImageRecord]) -> None:
        """Set `mpp_` and `feature_metadata_`; raise ValueError if they differ among the images."""
        self.feature_metadata_ = common_metadata(record.path for record in records)
        is_precomputed = get_patch_features(self.recipe.features).is_precomputed
        # The pixel size has no effect on precomputed features.
        self.mpp_ = None if is_precomputed else common_pixel_size(records, self.recipe.mpp)

    def score_image(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImageScores:
        """Return the scores of an image.

        Parameters
        ----------
        path : image, slide or feature file
        mpp : pixel size (µm) that replaces the one in the file; None keeps it
        callback : receives the progress within a slide
        region_of_interest : outlines; patches outside of these are ignored
        """
        raise NotImplementedError

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Project vectors on principal components; return them unchanged without `n_components`."""
        return vectors

    def atoms(self) -> AtomTable | None:
        """Return the atoms; None if the method has no atoms that belong to classes."""
        return None

    def no_atoms_reason(self) -> str:
        """Return the error message that is shown if `atoms` returns None."""
        return f"the method {self.recipe.method!r} uses whole images and has no atoms"

    def with_atom_annotations(self, annotations: AtomAnnotations) -> Self:
        """Return a copy with these annotations of atoms; disabled atoms have no effect."""
        raise ValueError(self.no_atoms_reason())

    def refit_decision_rule(
        self, records: Sequence[ImageRecord], labels: NDArray[np.int64], callback: Callback
    ) -> Self:
        """Return a copy whose aggregator is fitted on images with their class indices `labels`."""
        raise ValueError(f"the method {self.recipe.method!r} has no decision rule to fit again")

    def with_jobs(self, n_jobs: int | None) -> Self:
        """Return a copy that uses `n_jobs` threads."""
        changed = copy(self)
        changed.n_jobs = n_jobs
        return changed

    def with_recorder(self, recorder: PatchRecorder) -> Self:
        """Return a copy that passes the codes of patches to `recorder`, chunk by chunk."""
        changed = copy(self)
        changed.recorder = recorder
        return changed

    def make_classifier(self) -> Any:
        """Return the unfitted classifier of the recipe's method."""
        return get_method(self.recipe.method).make_estimator(
            self.recipe.method_parameters, random_state=self.random_state, n_jobs=self.n_jobs
        )

    # --- model file -----------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays by their names in a model file."""
        classifier = self.classifier_
        names = classifier.fitted_arrays
        return {f"method.{name}": np.asarray(getattr(classifier, name)) for name in names}

    def to_model_data(
        self, kind: str, decision_parameters: dict[str, float], training_info: dict[str, Any]
    ) -> ModelData:
        """Return the content of a model file with this pipeline.

        Parameters
        ----------
        kind : kind of model
        decision_parameters : values by name, see `model_file.DECISION_PARAMETERS`
        training_info : record of the training
        """
        return ModelData(
            kind=kind,
            classes=self.classes,
            recipe=self.recipe.to_dict(),
            mpp=self.mpp_,
            n_features=self.classifier_.n_features_in_,
            weights=get_patch_features(self.recipe.features).weights_digest(),
            decision_parameters=decision_parameters,
            training_info=training_info
            | ({"vectors": self.feature_metadata_.to_dict()} if self.feature_metadata_ else {}),
            atom_annotations=self.atom_annotations.to_list(),
            arrays=self.arrays(),
        )

    def array_schema(self) -> dict[str, ArraySpec]:
        """Return the specification, by name, of each array that the pipeline itself has.

        Arrays of the method and of the aggregator are not included.
        """
        return {}

    def aggregator_schema(self) -> dict[str, ArraySpec]:
        """Return the specification of each array of the aggregator; empty if there is none."""
        return {}

    def load_state(self, content: ModelData, specs: Mapping[str, ArraySpec] | None = None) -> None:
        """Set the fitted attributes from the content of a model file.

        `specs` specify, by name, arrays that the file has in addition to those of the
        pipeline.
        """
        self.mpp_ = content.mpp
        metadata = content.training_info.get("vectors")
        self.feature_metadata_ = FeatureMetadata.from_dict(metadata) if metadata else None
        self.recipe.check_method()
        classifier = get_method(self.recipe.method).load_class()(**self.recipe.method_parameters)
        declared = {f"method.{name}": spec for name, spec in classifier.fitted_arrays.items()}
        content.check_arrays(
            declared | self.array_schema() | dict(specs or {}), self._array_dimensions(classifier)
        )
        for name in classifier.fitted_arrays:
            setattr(classifier, name, content.arrays[f"method.{name}"])
        classifier.classes_ = np.arange(len(self.classes))
        classifier.n_features_in_ = content.n_features
        self.classifier_ = classifier

    def _array_dimensions(self, classifier: Any) -> dict[str, int | str]:
        """Return the dimensions of arrays in a model file that follow from the recipe, by name.

        `classifier` is the unfitted classifier of the recipe's method.
        """
        return {}


_MAX_PIXELS = 50_000_000  # of a reduced image
# Number and side of the tissue squares that represent a larger image.
_N_SQUARES, _SQUARE_PX = 64, 512


class WholeImagePipeline(ImagePipeline):
    """Pipeline of a method that classifies one feature vector per image."""

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImagePipeline | None,
    ) -> dict[str, Any]:
        """Train on one vector per image; see `ImagePipeline.fit_images`."""
        if start_from is not None:
            raise ValueError(f"the method {self.recipe.method!r} cannot resume training")
        records = manifest.records
        for record in records:
            self._reject_outlines(record.path, record.region_of_interest)
        self._check_training_files(records)
        X = self._feature_vectors({r.path: r.mpp for r in records}, None, callback)
        has_tissue = ~np.isnan(X[:, 0])  # NaN: no tissue
        untrainable = np.setdiff1d(labels, labels[has_tissue])
        if len(untrainable):
            name = records[int(np.argmax(labels == untrainable[0]))].label
            raise ValueError(no_tissue_message(f"any image of class {name!r}", self.recipe))
        warn_no_tissue(
            [record for record, is_used in zip(records, has_tissue, strict=True) if not is_used]
        )
        for row in np.flatnonzero(has_tissue):
            check_scores(records[row].path, X[row])
        X, labels = X[has_tissue], labels[has_tissue]
        self.classifier_ = self.make_classifier().fit(X, labels, callback=callback)
        return {}

    def score_image(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImageScores:
        """Return the scores of an image; see `ImagePipeline.score_image`.

        The scores are None if the image has no tissue and the features are computed from tissue
        only.
        """
        self._reject_outlines(path, region_of_interest)
        X = self._feature_vectors({path: mpp}, self.mpp_)
        if np.isnan(X[0, 0]):
            return ImageScores(None)
        check_scores(path, X)
        values = np.asarray(self.classifier_.decision_function(X), dtype=np.float64)
        check_scores(path, values)
        image_scores = ImageScores(np.atleast_1d(values[0]))
        if self.recorder:
            self.recorder.finish(image_scores)
        return image_scores

    def _reject_outlines(self, path: ImageLike, region_of_interest: AnnotationFile | None) -> None:
        """Raise ImageError if outlines are given, as the method uses the whole image."""
        if region_of_interest is not None:
            raise ImageError(
                f"{path}: the method {self.recipe.method!r} uses whole images and cannot be "
                f"limited to the outlines in {region_of_interest.path}. Use a method that works on "
                "patches"
            )

    def _feature_vectors(
        self,
        images: dict[ImageLike, float | None],
        trained_mpp: float | None,
        callback: Callback = no_callback,
    ) -> NDArray[np.float64]:
        """Return the feature vectors (n_images, n_features); NaN for an image without tissue.

        `images` has the pixel size (µm) of each image, or None if it is unknown.
        """
        features = get_method(self.recipe.method).features
        assert features is not None
        if features == MEAN_VECTOR:
            compute = partial(
                _mean_vector, self.recipe, trained_mpp, self.cache, self.feature_metadata_
            )
            means: list[NDArray[np.float64]] = []
            callback(Progress("features", 0, len(images)))
            for mean in map_blocks(lambda item: compute(*item), images.items(), self.n_jobs):
                means.append(mean)
                callback(Progress("features", len(means), len(images)))
            n_features = max(len(mean) for mean in means)
            X = np.full((len(means), n_features), np.nan)
            for row, mean in zip(X, means, strict=True):
                row[: len(mean)] = mean  # without tissue, a single NaN
            return X
        from ..image_features import FEATURES, extract_image_features

        recipe = self.recipe
        reduction: list[Any] = [recipe.stain, recipe.downsample]
        if recipe.mpp is not None:
            reduction = [recipe.stain, recipe.mpp, sorted({str(mpp) for mpp in images.values()})]
        if FEATURES[features].is_tile_mean:  # slides are represented by squares
            reduction += [recipe.min_tissue_fraction, _N_SQUARES, _SQUARE_PX]
        return extract_image_features(
            list(images),
            features,
            partial(_whole_image_pixels, images, recipe, trained_mpp),
            pixels_key=json.dumps(reduction),
            cache=self.cache,
            n_jobs=self.n_jobs,
            callback=callback,
        )


def _whole_image_pixels(
    images: dict[ImageLike, float | None],
    recipe: Recipe,
    trained_mpp: float | None,
    path: ImageLike,
) -> NDArray[np.uint8]:
    """Return the reduced, stain-normalised pixels of an image, or of tissue squares of a slide."""
    from ..image_features import FEATURES

    with open_prepared_image(path, images[path], recipe, trained_mpp) as prepared:
        width, height = prepared.content.size
        if width * height <= _MAX_PIXELS * prepared.downsample**2:
            pixels = prepared.content.read(0, 0, width, height, prepared.downsample)
            return prepared.normalize(pixels[None])[0]
        if not FEATURES[str(get_method(recipe.method).features)].is_tile_mean:
            raise ImageError(
                f"{path}: {width} x {height} pixels are too many for a method that uses whole "
                "images. Use a method that works on patches, or a larger downsample"
            )
        return _sample_tissue_squares(path, prepared, recipe.min_tissue_fraction)


def _sample_tissue_squares(
    path: ImageLike, prepared: PreparedImage, min_tissue_fraction: float
) -> NDArray[np.uint8]:
    """Return the pixels of random tissue squares of a slide, stacked vertically.

    The squares are stain-normalised. The random seed is fixed.
    """
    grid = PatchGrid.from_size(prepared.content.size, _SQUARE_PX, _SQUARE_PX, prepared.downsample)
    squares: list[NDArray[np.uint8]] = []
    fullest, max_fraction = None, 0.0  # square with most tissue, if none reaches the minimum
    for index in np.random.default_rng(0).permutation(grid.n_rows * grid.n_columns).tolist():
        row, column = divmod(index, grid.n_columns)
        square = grid.read(prepared.content, slice(row, row + 1), slice(column, column + 1))
        fraction = float(prepared.tissue_fraction(square)[0])
        if fraction >= min_tissue_fraction:
            squares.append(prepared.normalize(square)[0])
        elif fraction > max_fraction:
            fullest, max_fraction = square, fraction
        if len(squares) == _N_SQUARES:
            break
    if squares:
        return np.concatenate(squares)
    if fullest is None:
        raise ImageError(f"{path}: no tissue found")
    return prepared.normalize(fullest)[0]


def _mean_vector(
    recipe: Recipe,
    trained_mpp: float | None,
    cache: ArrayCache | None,
    feature_metadata: FeatureMetadata | None,
    path: ImageLike,
    mpp: float | None,
) -> NDArray[np.float64]:
    """Return the mean vector of an image's tissue patches; without tissue, an array [NaN]."""
    total, n_patches = np.zeros(1), 0
    with open_prepared_image(path, mpp, recipe, trained_mpp, cache, feature_metadata) as prepared:
        grid = prepared.grid()
        for chunk in prepared.chunks(grid):
            _, vectors = prepared.chunk_features(grid, *chunk)
            if len(vectors):
                total = total + vectors.sum(axis=0, dtype=np.float64)
                n_patches += len(vectors)
    return total / n_patches if n_patches else np.full(1, np.nan)
