"""Detector of regions of one tissue class, fitted on masks, outlines or crops of regions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..datasets.annotated import check_classes
from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.record import is_healthy
from ..decision.atom_annotations import AtomAnnotations
from ..decision.threshold import (
    DecisionThreshold,
    LargestRegionSizes,
    RegionSizeCurve,
    add_change,
    describe_min_size,
    fit_margin_threshold,
    measure_largest_regions,
)
from ..images.memory_image import ImageLike, image_cache_enabled
from ..images.pixel_size import MppLike, PixelSize, PixelSizeOption
from ..patches.patch_map import PatchMap, Ring, Window
from ..patches.region_borders import label_regions
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, no_callback
from ..utils.text_io import truncated_list
from ..utils.validation import hint
from .estimator import ImageEstimator, raise_no_predict_proba
from .image_pipeline import ImageScores, PatchRecorder
from .inputs import (
    ManyImages,
    RegionOfInterest,
    SingleImage,
    TrainingImages,
    check_and_sort_images,
    image_region_label,
    labelled_patch_mask,
    region_patch_mask,
    squares_in_region,
    training_data_info,
)
from .model_file import ModelData, array_specs
from .patch_pipeline import PatchPipeline, SamplingArea
from .predictions import DetectedRegion, Predictions, RegionPrediction
from .recipe import Recipe, default_region_preset
from .tissue_classifier import recipe_fingerprint
from .training_set import resolve_training_set


def region_classes(manifest: Manifest, region: str | None) -> list[str]:
    """Return the class names [other, region].

    With masks or outlines, the names follow from `region`; without, they are the two image labels.
    """
    if any(record.has_regions for record in manifest.records):
        _check_labelled(manifest)
        _check_unmasked_labels(manifest, region)
        if region is None and any(record.annotations for record in manifest.records):
            raise ValueError(
                f"name the class of outlines that is the region, with {_region_option()}"
            )
        name = region or "region"
        return [f"not {name}", name]
    labels = manifest.classes
    if len(labels) != 2:
        raise ValueError(
            "a region detector needs images with masks (column 'mask') or outlines "
            "(--annotations), or crops of two classes. There are no masks, and the classes are "
            f"{labels}"
        )
    _check_labelled(manifest)
    if region is None:
        return labels
    if region not in labels:
        raise ValueError(f"the region {region!r} is not among the classes: {', '.join(labels)}")
    return [next(label for label in labels if label != region), region]


def _check_unmasked_labels(manifest: Manifest, region: str | None) -> None:
    """Raise ValueError if it is unclear whether an image without a mask shows the region."""
    labels = {record.label for record in manifest.records if not record.has_regions}
    if region is None and labels:
        raise ValueError(
            f"some images have no mask, and their labels are {sorted(labels)}: name the label of "
            f"the region, with {_region_option()}"
        )
    if region is None or region in {record.label for record in manifest.records}:
        return
    unclear = sorted(label for label in labels if not _excludes_region(label, region))
    if unclear:
        raise ValueError(
            f"no image is labelled {region!r}, but images without a mask are labelled {unclear}: "
            "use a label as name of the region, add masks, or label images without the region "
            f"'not {region}'"
        )


def _excludes_region(label: str, region: str) -> bool:
    """Return whether images with a label do not show the region.

    Such labels are "not REGION", "no REGION" and, if the region is not healthy, healthy classes.
    """
    is_healthy_only = is_healthy(label) and not is_healthy(region)
    return label in (f"not {region}", f"no {region}") or is_healthy_only


def relabel_by_region(manifest: Manifest, region: str) -> Manifest:
    """Return a manifest in which each image is labelled by whether it contains the region.

    The labels are used to stratify splits and to evaluate the prediction for the image.
    """
    classes = region_classes(manifest, region)
    records = tuple(replace(r, label=image_region_label(r, classes)) for r in manifest.records)
    return replace(manifest, records=records, positive=region)


def _check_labelled(manifest: Manifest) -> None:
    """Raise ValueError for images with neither a mask nor a label."""
    unknown = [manifest.name(r) for r in manifest.records if not r.has_regions and not r.label]
    if unknown:
        raise ValueError(
            f"images with neither a mask nor a label: {truncated_list(unknown)}; fill in the "
            "column mask, or the column label if the whole image is region or contains none"
        )


def _region_option() -> str:
    """Return the option that names the region, as text for a message."""
    return hint(python="region=…", cli="--regions NAME", web="the field for regions")


_MAX_MIN_PATCHES = 1000  # largest minimum region size in patches


class RegionDetector(ImageEstimator):
    """Detector of regions of one tissue class in images and slides.

    It is fitted on images with masks or outlines, or on crops of two classes. An image without a
    mask counts entirely as its class, so a crop of the positive class must show nothing but the
    region.

    Parameters
    ----------
    recipe : Recipe or str, optional
        Settings, or the name of a preset. None is ``"embeddings"`` if a pretrained encoder is
        installed and the settings do not require pixels, else ``"regions"``.
    method : str, optional
        Name of a method on patches that replaces the method of the recipe; see `methods.registry`.
    region : str, optional
        Name of the region: a label or class of outlines, or any name if there are masks. None is
        the second of two labels.
    random_state : int, default=0
        Seed. The same seed and images, in any order, give the same model.
    n_jobs : int, optional
        Number of threads; None uses all cores.
    cache : path, optional
        Folder that stores costly intermediate results of each image; None stores nothing.
    verbose : bool or int, default=False
        Whether to show progress bars on stderr.
    **settings
        Settings of the recipe or parameters of its method by name, such as ``n_atoms=100``.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The labels [other, region].
    class_names_ : list of str
        Class labels as text.
    margin_threshold_ : float
        Margin above which a patch belongs to the region. It is fitted on the training images if the
        aggregator is ``"margin"``; else it is 0, so that the closest class is predicted.
    min_patches_ : int
        Minimum number of connected patches of a region.
    size_curve_ : RegionSizeCurve
        Error rates of the training images for minimum region sizes of 1 … 20 patches.
    model_ : PatchPipeline
        Fitted pipeline from an image file to its patch map.
    training_info_ : dict
        Record of the training.
    """

    kind: ClassVar[str] = "region-detector"
    table_name: ClassVar[str] = "detections"
    columns: ClassVar[tuple[str, ...]] = RegionPrediction.COLUMNS
    finds_regions: ClassVar[Literal[True]] = True
    n_estimators_: ClassVar[int] = 1
    margin_threshold_: float
    min_patches_: int
    size_curve_: RegionSizeCurve
    model_: PatchPipeline

    def __init__(
        self,
        recipe: Recipe | str | None = None,
        *,
        method: str | None = None,
        region: str | None = None,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
        verbose: bool | int = False,
        **settings: Any,
    ) -> None:
        chosen = default_region_preset(settings, [method or ""])[0] if recipe is None else recipe
        self.recipe = self._resolve_recipe(chosen, method, settings)
        self.recipes = [self.recipe]
        self._store_params(
            settings,
            recipe=recipe,
            method=method,
            region=region,
            random_state=random_state,
            n_jobs=n_jobs,
            cache=cache,
            verbose=verbose,
        )
        self.region, self.random_state, self.n_jobs = region, random_state, n_jobs
        self.cache = ArrayCache(cache) if cache else None
        if not self.recipe.is_patch_level:
            raise ValueError(
                f"the method {self.recipe.method!r} uses whole images and cannot find regions. "
                "Choose a method that works on patches"
            )

    def _settings(self) -> dict[str, Any]:
        return self.recipe.setting_values()

    def _settings_of_preset(self) -> dict[str, Any]:
        preset, method = (self._init_params[name] for name in ("recipe", "method"))
        return {} if preset is None else self._resolve_recipe(preset, method, {}).setting_values()

    def fit(
        self,
        X: TrainingImages,
        y: Any = None,
        groups: Any = None,
        *,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: RegionDetector | None = None,
    ) -> Self:
        """Train on patches inside and outside of regions, then choose the minimum region size.

        Parameters
        ----------
        X : folder with a subfolder of crops per class, CSV file (with a column ``mask``),
            DataFrame with the same columns or `Manifest`, see `read_manifest`; or with `y`, a list
            of crops as in `TissueClassifier.fit`
        y, groups, callback, executor, start_from : see `TissueClassifier.fit`

        Returns
        -------
        Self
        """
        training = resolve_training_set(X, y, groups, option="" if self.region else "region")
        with training.write_files() as manifest, self._progress_callback(callback) as progress:
            fitted = self._fit(manifest, progress, executor, start_from)
        fitted.training_info_ |= training.training_info
        return self._assign_fitted(fitted)

    def _fit(
        self,
        manifest: Manifest,
        progress: Callback,
        executor: Executor | None,
        start_from: RegionDetector | None,
    ) -> Self:
        """Fit a copy of the model on a manifest and return the copy."""
        fitted = copy(self)
        fitted.class_names_ = region_classes(manifest, self.region)
        manifest = check_and_sort_images(manifest, self.recipe, self.n_jobs, progress)
        records = manifest.records
        region = fitted.class_names_[1]
        if any(record.annotations for record in records):
            check_classes(manifest, [region])
        areas = [area for r in records for area in SamplingArea.from_record(r, region)]
        fitted.model_ = fitted._build_pipeline()
        start = start_from.model_ if start_from is not None else None
        with image_cache_enabled():
            n_patches = fitted.model_.fit(areas, progress, executor, start)
            evaluations = fitted._evaluate_images(manifest, progress, executor)
        fitted.margin_threshold_ = 0.0
        if self.recipe.aggregation == "margin":
            margins = np.concatenate([s.margins[s.tissue] for s in evaluations])
            fitted.margin_threshold_ = fit_margin_threshold(
                margins, np.concatenate([s.truth[s.tissue] for s in evaluations])
            )
        fitted.size_curve_ = RegionSizeCurve.from_regions(
            [s.region_sizes(fitted.margin_threshold_) for s in evaluations]
        )
        fitted.min_patches_ = fitted.size_curve_.min_patches
        fitted.training_info_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(records),
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
            "n_patches": n_patches,
        } | training_data_info(manifest)
        if start_from is not None:
            fitted.training_info_["started_from"] = start_from.training_info_
        return fitted

    def _build_pipeline(self) -> PatchPipeline:
        return PatchPipeline(
            self.recipe, self.class_names_, self.random_state, self.n_jobs, self.cache
        )

    def region_sizes(
        self, manifest: Manifest, callback: Callback = no_callback, executor: Executor | None = None
    ) -> list[LargestRegionSizes]:
        """Return the sizes of the largest true positive and false positive regions of every image.

        Parameters
        ----------
        manifest : images with masks, outlines or labels
        callback : receives the progress
        executor : runs the images; None uses threads

        Returns
        -------
        list of LargestRegionSizes
        """
        return [
            s.region_sizes(self.margin_threshold_)
            for s in self._evaluate_images(manifest, callback, executor)
        ]

    def _evaluate_images(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> list[_ImageEvaluation]:
        """Return margins, tissue and true region of the patches of every image."""

        def evaluate(index: int, image_scores: ImageScores) -> _ImageEvaluation:
            record, patch_map = manifest.records[index], image_scores.patch_map
            assert patch_map is not None
            tissue = labelled_patch_mask(record, patch_map)
            truth = region_patch_mask(record, patch_map)
            return _ImageEvaluation(patch_map.margins[..., 1], tissue, truth & tissue)

        return self.model_.score_images(manifest.records, evaluate, callback, executor)

    @overload
    def predict(
        self, X: SingleImage, *, mpp: MppLike = ..., region_of_interest: RegionOfInterest = ...
    ) -> RegionPrediction: ...
    @overload
    def predict(
        self, X: ManyImages, *, mpp: MppLike = ..., region_of_interest: RegionOfInterest = ...
    ) -> Predictions[RegionPrediction]: ...
    @overload
    def predict(
        self, X: Any, *, mpp: MppLike = ..., region_of_interest: RegionOfInterest = ...
    ) -> Any: ...

    def predict(
        self, X: Any, *, mpp: MppLike = None, region_of_interest: RegionOfInterest = None
    ) -> Any:
        """Return a `RegionPrediction` for a single image, or `Predictions` for several.

        Parameters
        ----------
        X : images, as in `TissueClassifier.predict`
        mpp : pixel size (µm) of images for which neither file nor table gives one
        region_of_interest : outlines; patches outside of these are ignored

        Returns
        -------
        RegionPrediction or Predictions
        """
        return self._predict(X, mpp, region_of_interest)

    def predict_one(
        self,
        path: ImageLike | str,
        *,
        mpp: MppLike = None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> RegionPrediction:
        """Return the regions of one image without the warnings that `predict` gives.

        Parameters
        ----------
        path : path, array or Pillow image
        mpp : pixel size (µm) if the file gives none, or `PixelSizeOption`
        callback : receives the progress within a slide
        region_of_interest : outlines; patches outside of these are ignored

        Returns
        -------
        RegionPrediction
        """
        self._check_fitted()
        path = Path(path) if isinstance(path, str) else path
        size = PixelSizeOption.from_mpp(mpp).resolve(path)
        scores = self.model_.score_image(path, size.user_mpp, callback, region_of_interest)
        assert scores.patch_map is not None
        patch_map = scores.patch_map.threshold(self.margin_threshold_)
        return self._make_prediction(patch_map, path, size.with_assumed_mpp(self.model_.mpp_))

    def apply_threshold(self, prediction: RegionPrediction) -> RegionPrediction:
        """Apply this model's minimum region size to a prediction, without reading the image again.

        Parameters
        ----------
        prediction : prediction of this model with another minimum size

        Returns
        -------
        RegionPrediction
        """
        return self._make_prediction(prediction.patch_map, prediction.path, prediction.size)

    def _make_prediction(
        self, patch_map: PatchMap, path: ImageLike, size: PixelSize
    ) -> RegionPrediction:
        """Return the prediction for an image: regions of at least `min_patches_` patches."""
        _, sizes = label_regions(patch_map.predicted_classes == 1)
        largest, min_patches = int(sizes.max(initial=0)), self.min_patches_
        regions = [_make_region(patch_map, *region) for region in patch_map.regions(1, min_patches)]
        label = self.class_names_[int(largest >= min_patches)] if patch_map.n_patches else None
        return RegionPrediction(path, label, largest, min_patches, regions, patch_map, size)

    @property
    def predict_proba(self) -> NoReturn:
        """Raise AttributeError, as only an `EnsembleClassifier` returns probabilities."""
        raise_no_predict_proba(self)

    def with_jobs(self, n_jobs: int | None) -> Self:
        """Return a copy that uses `n_jobs` threads.

        Parameters
        ----------
        n_jobs : number of threads; None uses all cores

        Returns
        -------
        Self
        """
        changed = copy(self)
        changed.n_jobs, changed.model_ = n_jobs, self.model_.with_jobs(n_jobs)
        return changed

    def with_atom_annotations(self, annotations: AtomAnnotations, member_index: int = 0) -> Self:
        """Return a copy with these annotations of atoms; disabled atoms have no effect.

        Parameters
        ----------
        annotations : annotations of the atoms
        member_index : index of the estimator; only ensembles use it

        Returns
        -------
        Self
        """
        changed = copy(self)
        changed.model_ = self.model_.with_atom_annotations(annotations)
        if annotations.disabled != self.model_.atom_annotations.disabled:
            changed.training_info_ = add_change(self.training_info_, "atoms")
        return changed

    def with_recorders(self, recorders: Sequence[PatchRecorder]) -> Self:
        """Return a copy that passes the codes of patches to the first recorder."""
        changed = copy(self)
        changed.model_ = self.model_.with_recorder(recorders[0])
        return changed

    @property
    def decision_threshold(self) -> DecisionThreshold:
        """Decision threshold: minimum number of connected patches of a region."""
        return DecisionThreshold("patches", self.min_patches_, is_inclusive=True)

    def with_threshold(self, threshold: float) -> Self:
        """Return a copy with another minimum region size.

        Parameters
        ----------
        threshold : minimum number of connected patches of a region

        Returns
        -------
        Self
        """
        if not 1 <= threshold <= _MAX_MIN_PATCHES:
            raise ValueError(
                f"the minimum region size must be between 1 and {_MAX_MIN_PATCHES} patches"
            )
        changed, values = copy(self), {"previous": self.min_patches_, "value": round(threshold)}
        changed.min_patches_ = round(threshold)
        changed.training_info_ = add_change(self.training_info_, "manual", **values)
        return changed

    def describe_decision(self) -> str:
        """Return a description of the decision for a model card.

        Returns
        -------
        str
        """
        return describe_min_size(self.min_patches_)

    def true_label(self, record: ImageRecord) -> str:
        """Return the class of an image: the region class if its mask or label shows the region."""
        return image_region_label(record, self.class_names_)

    def patch_labels(
        self, record: ImageRecord, corners: NDArray[np.int64], side: float
    ) -> list[str]:
        """Return the class of n patches, from the mask or label of the image.

        `corners` (n, 2) are upper left corners (x, y); corners and `side` are in level-0 pixels.
        """
        x, y = corners.T.astype(np.float64)
        inside = squares_in_region(record, self.class_names_[1], x, y, side)
        return [self.class_names_[int(is_inside)] for is_inside in inside.tolist()]

    def fingerprint(self) -> list[Any]:
        """Return all settings that determine the fitted model for the same training images."""
        return [self.kind, *recipe_fingerprint(self.recipe), self.region, self.random_state]

    # --- model file -----------------------------------------------------------------------------

    def to_model_data(self) -> ModelData:
        """Convert the fitted model to the content of a model file."""
        decision = {"min_patches": self.min_patches_, "margin_threshold": self.margin_threshold_}
        content = self.model_.to_model_data(self.kind, decision, self.training_info_)
        arrays = content.arrays | {
            f"region_size.{n}": getattr(self.size_curve_, n)
            for n in ("false_negative_rate", "false_positive_rate")
        }
        return replace(content, arrays=arrays)

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> RegionDetector:
        """Create a fitted model from the content of a model file."""
        recipe, seed = Recipe.from_dict(content.recipe), content.training_info["random_state"]
        name = str(content.classes[1])
        model = cls(recipe, region=name, random_state=seed, n_jobs=n_jobs)
        model.class_names_ = [str(name) for name in content.classes]
        model.training_info_ = content.training_info
        model.min_patches_ = int(content.decision_parameters["min_patches"])
        model.margin_threshold_ = float(content.decision_parameters["margin_threshold"])
        model.model_ = model._build_pipeline()
        model.model_.load_state(content, array_specs("region_size"))
        model.size_curve_ = RegionSizeCurve(
            content.arrays["region_size.false_negative_rate"],
            content.arrays["region_size.false_positive_rate"],
        )
        return model


@dataclass(frozen=True)
class _ImageEvaluation:
    """Margins, tissue mask and true region mask of an image's patches, each (rows, columns)."""

    margins: NDArray[np.float32]
    tissue: NDArray[np.bool_]
    truth: NDArray[np.bool_]

    def region_sizes(self, margin_threshold: float) -> LargestRegionSizes:
        """Return the sizes of the largest true positive and false positive regions."""
        return measure_largest_regions(
            (self.margins > np.float64(margin_threshold)) & self.tissue, self.truth, self.tissue
        )


def _make_region(
    patch_map: PatchMap, window: Window, mask: NDArray[np.bool_], polygons: list[list[Ring]]
) -> DetectedRegion:
    """Return a region from its bounding `window`, the `mask` of its patches and its outline."""
    grid, mpp = patch_map.grid, patch_map.mpp
    rows, columns = window
    area = float(mask.sum()) * grid.step**2
    return DetectedRegion(
        n_patches=int(mask.sum()),
        score=float(patch_map.margins[window][..., 1][mask].mean()),
        area_px=area,
        area_um2=area * mpp**2 if mpp else None,
        box=(
            *patch_map.cell_corner((int(columns.start), int(rows.start))),
            *patch_map.cell_corner((int(columns.stop), int(rows.stop))),
        ),
        polygons=polygons,
        concept_usage={
            name: float(used[window][mask].mean()) for name, used in patch_map.concepts.items()
        },
    )
