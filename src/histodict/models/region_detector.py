"""Where in the image is it? Regions of one class of tissue, from masks or from crops of them.

What is known of regions: which patches of an image are region, by its mask or by its label.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..annotations.outlines import IGNORED
from ..datasets.annotated import RegionCoverage, check_classes, load_region
from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.record import is_healthy
from ..decision.aggregation import PatchStatistics
from ..decision.atom_annotations import AtomAnnotations
from ..decision.threshold import (
    DecisionThreshold,
    LargestRegion,
    SizeCurve,
    describe_min_size,
    fit_margin_threshold,
    image_fingerprints,
    match_regions,
    tuned,
)
from ..images.memory_image import ImageLike, image_cache_enabled
from ..images.pixel_size import MppLike, PixelSize, PixelSizeOption
from ..images.source import open_image
from ..patches.patch_map import PatchMap, Ring, Window, label_regions
from ..patches.sampling import MIN_OVERLAP
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, no_callback
from ..utils.text_io import truncated_list
from ..utils.validation import hint
from .estimator import ImageEstimator, raise_no_predict_proba
from .image_pipeline import CodeCallback
from .inputs import (
    LabelledImages,
    ManyImages,
    RegionOfInterest,
    SingleImage,
    checked_training_images,
    data_notes,
    resolve_training_set,
)
from .model_file import ModelData, array_specs
from .patch_pipeline import PatchPipeline, PatchSamplingSpec
from .predictions import DetectedRegion, Predictions, RegionPrediction
from .recipe import Recipe, default_region_preset
from .tissue_classifier import recipe_fingerprint

if TYPE_CHECKING:
    from ..explain.explanation import ScoreContributions


def region_classes(manifest: Manifest, region: str | None) -> list[str]:
    """[other, region] from the labels; where only masks tell, from the region's name.

    Refused where it is not known of an image whether it is region: it would be learnt from as none.
    """
    if any(record.is_mapped for record in manifest.records):
        _check_labelled(manifest)
        _check_unmasked(manifest, region)
        if region is None and any(record.annotations for record in manifest.records):
            raise ValueError(
                f"say which class of the outlines is the region, with {_region_option()}"
            )
        name = region or "region"
        return [f"no {name}", name]
    labels = manifest.classes
    if len(labels) != 2:
        raise ValueError(
            "to learn regions, give images with masks (a column 'mask') or with outlines "
            "(--annotations), or crops of two classes; "
            f"there are no masks, and the classes are {labels}"
        )
    _check_labelled(manifest)
    if region is None:
        return labels
    if region not in labels:
        raise ValueError(f"the region {region!r} is not among the classes {labels}")
    return [next(label for label in labels if label != region), region]


def _check_unmasked(manifest: Manifest, region: str | None) -> None:
    """Beside masks, the label of an image without one must say whether it is region."""
    labels = {record.label for record in manifest.records if not record.is_mapped}
    if region is None and labels:
        raise ValueError(
            f"beside the masks there are images without one, labelled {sorted(labels)}: say which "
            f"label is the region, with {_region_option()}"
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


def image_region_label(record: ImageRecord, classes: list[str]) -> str:
    """Whether the record's mask or, without one, its label shows any region."""
    return classes[int(has_background_and_region(record, classes[1])[1])]


def has_background_and_region(record: ImageRecord, region: str) -> tuple[bool, bool]:
    """Whether the image has something outside of the region, and something inside."""
    if not record.is_mapped:
        return record.label != region, record.label == region
    found = mask_of(record, region)
    return not found.all(), found.any()


def labelled_by_region(manifest: Manifest, region: str) -> Manifest:
    """The same images, each labelled by whether it shows any region.

    Splits then spread images with and without it, and answers have a truth to stand beside.
    """
    classes = region_classes(manifest, region)
    records = tuple(replace(r, label=image_region_label(r, classes)) for r in manifest.records)
    return replace(manifest, records=records, positive=region)


def _check_labelled(manifest: Manifest) -> None:
    """An image without a mask is all of its class: it must have one."""
    unknown = [manifest.name(r) for r in manifest.records if not r.is_mapped and not r.label]
    if unknown:
        raise ValueError(
            f"images with neither a mask nor a label: {truncated_list(unknown)}; fill the column "
            "mask (or "
            "label, where all of an image is region, or nothing of it)"
        )


def labelled_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches are on tissue, and not in outlines of what is to be ignored."""
    if record.annotations is None or IGNORED not in record.annotations.read().names:
        return patch_map.tissue
    return patch_map.tissue & ~map_in_region(record, IGNORED, patch_map)


def region_patch_mask(record: ImageRecord, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches of the map are region by the record's mask, or by its label without one."""
    return map_in_region(record, patch_map.classes[1], patch_map)


def map_in_region(record: ImageRecord, region: str, patch_map: PatchMap) -> NDArray[np.bool_]:
    """Which patches of the map are region; it may lie over the image of a feature file."""
    (x, y), (right, down) = patch_map.corners(), coordinate_shift(record, patch_map)
    return in_region(record, region, x + right, y + down, patch_map.grid.patch_side)


def coordinate_shift(record: ImageRecord, patch_map: PatchMap) -> tuple[int, int]:
    """From places in a map to those in the record's file: the map of a feature file may lie over
    its image, of which slides leave out a margin.
    """
    if not record.is_mapped:
        return 0, 0
    with open_image(record.path, record.mpp) as source:
        x, y = (own - at for own, at in zip(patch_map.offset, source.offset, strict=True))
    return x, y


def in_region(
    record: ImageRecord, region: str, x: NDArray[np.float64], y: NDArray[np.float64], side: float
) -> NDArray[np.bool_]:
    """Of squares with these corners, x and y of one shape: whether they are region."""
    if not record.is_mapped:
        return np.full(x.shape, record.label == region)
    return mask_of(record, region).coverage(x, y, side) >= MIN_OVERLAP


def mask_of(record: ImageRecord, region: str) -> RegionCoverage:
    with open_image(record.path, record.mpp) as source:
        return load_region(record, source, region)


def _region_option() -> str:
    return hint(python="region=…", cli="--regions NAME", web="the field for regions")


_MAX_PATCHES = 1000


class RegionDetector(ImageEstimator):
    """Finds regions of one class of tissue in images.

    It learns from images with masks (a `mask` column in the manifest; an image without a mask cell
    counts as all of its class), or from crops: images labelled by class, of which those of the
    positive class show the region and nothing else.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset; None takes embeddings where a pretrained network
        is installed and the settings leave it its cells, else regions, which is of pixels
    method : the method to take in it, one that works on patches
    region : the name of what is looked for: the positive class's label, or any name for masks;
        with two classes and no masks, None takes the second
    random_state : seed
    n_jobs : threads; None for all cores
    cache : folder for what is costly to compute of an image; None keeps nothing
    verbose : whether to show progress bars on stderr
    settings : of the recipe or its method, by name, such as n_atoms=100

    Attributes
    ----------
    classes_ : [other, region]
    cut_ : the margin beyond which a patch is region: fitted on the training images where the
        recipe's rule is "margin", else 0, where the class that is closest wins
    min_patches_ : m, connected patches from which a region counts
    curve_ : miss and false alarm rates of the training images for m = 1 … 20
    model_ : the patch model
    training_ : what is known of the training, for the record
    """

    kind: ClassVar[str] = "region-detector"
    table: ClassVar[str] = "detections"
    columns: ClassVar[tuple[str, ...]] = RegionPrediction.COLUMNS
    finds_regions: ClassVar[Literal[True]] = True
    n_estimators_: ClassVar[int] = 1
    margin_threshold_: float
    min_patches_: int
    size_curve_: SizeCurve
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
        self.recipe = self._recipe_of(chosen, method, settings)
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
        self.region = region
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = ArrayCache(cache) if cache else None
        if not self.recipe.is_patch_level:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and cannot say "
                "where something is: choose one that works on patches"
            )

    def _settings(self) -> dict[str, Any]:
        return self.recipe.values()

    def fit(
        self,
        images: LabelledImages,
        *,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: RegionDetector | None = None,
    ) -> Self:
        """Train on patches inside and outside the regions, then choose m on the same images.

        `images`: a folder with a sub-folder of crops per class, a CSV file (with a column mask), a
        DataFrame of the same columns, or a `Manifest`: see `read_manifest`. `callback` hears how
        far it is, in place of the bar. `executor` reads the images and codes their patches; None:
        threads. `start_from`: a model of the same recipe and classes; its dictionaries are gone on
        from (a warm start).
        """
        manifest = resolve_training_set(images, ask_by="" if self.region else "region")
        with self._progress_callback(callback) as watch:
            return self._assign_fitted(self._fit(manifest, watch, executor, start_from))

    def _fit(
        self,
        manifest: Manifest,
        watch: Callback,
        executor: Executor | None,
        start_from: RegionDetector | None,
    ) -> Self:
        """Return a fitted copy."""
        learnt = copy(self)
        learnt.classes_ = region_classes(manifest, self.region)
        manifest = checked_training_images(manifest, self.n_jobs, watch)
        records = manifest.records
        if any(record.annotations for record in records):
            check_classes(manifest, [learnt.classes_[1]])
        sources = [
            s for record in records for s in PatchSamplingSpec.of(record, learnt.classes_[1])
        ]
        learnt.model_ = learnt._new_model()
        start = start_from.model_ if start_from is not None else None
        with image_cache_enabled():
            n_patches = learnt.model_.fit(sources, watch, executor, start)
            seen = learnt._evaluate_training_images(manifest, watch, executor)
        learnt.margin_threshold_ = 0.0
        if self.recipe.aggregation == "margin":
            margins = np.concatenate([s.margins[s.tissue] for s in seen])
            learnt.margin_threshold_ = fit_margin_threshold(
                margins, np.concatenate([s.truth[s.tissue] for s in seen])
            )
        learnt.size_curve_ = SizeCurve.of([s.region_sizes(learnt.margin_threshold_) for s in seen])
        learnt.min_patches_ = learnt.size_curve_.min_patches
        learnt.training_info_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(records),
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
            "n_patches": n_patches,
            "images": image_fingerprints(record.path for record in records),
        } | data_notes(manifest)
        if start_from is not None:
            learnt.training_info_["started_from"] = start_from.training_info_
        return learnt

    def _new_model(self) -> PatchPipeline:
        return PatchPipeline(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)

    def region_sizes(
        self, manifest: Manifest, callback: Callback = no_callback, executor: Executor | None = None
    ) -> list[LargestRegion]:
        """What is found in every image, against its mask or label."""
        return [
            s.region_sizes(self.margin_threshold_)
            for s in self._evaluate_training_images(manifest, callback, executor)
        ]

    def _evaluate_training_images(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> list[_Seen]:
        def look(place: int, patch_map: PatchMap, evidence: PatchStatistics) -> _Seen:
            record = manifest.records[place]
            tissue, truth = (
                labelled_patch_mask(record, patch_map),
                region_patch_mask(record, patch_map),
            )
            return _Seen(patch_map.margins[..., 1], tissue, truth & tissue)

        return self.model_.predict_patches_many(manifest.records, look, callback, executor)

    @overload
    def predict(
        self, images: SingleImage, *, mpp: MppLike = ..., within: RegionOfInterest = ...
    ) -> RegionPrediction: ...
    @overload
    def predict(
        self, images: ManyImages, *, mpp: MppLike = ..., within: RegionOfInterest = ...
    ) -> Predictions[RegionPrediction]: ...
    @overload
    def predict(
        self, images: Any, *, mpp: MppLike = ..., within: RegionOfInterest = ...
    ) -> Any: ...

    def predict(self, images: Any, *, mpp: MppLike = None, within: RegionOfInterest = None) -> Any:
        """Where is it? A `RegionPrediction` for one image, `Answers` for several.

        `images`, `mpp` and `within` as in `TissueClassifier.predict`.
        """
        return self._predict(images, mpp, within)

    def predict_one(
        self,
        path: ImageLike | str,
        *,
        mpp: MppLike = None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> RegionPrediction:
        """The regions of one image or slide: what `predict` asks for each, without a warning."""
        self._check_fitted()
        path = Path(path) if isinstance(path, str) else path
        size = PixelSizeOption.of(mpp).at(path)
        patch_map, _ = self.model_.predict_patches(path, size.is_user_given, callback, within)
        return self._threshold_patches(
            patch_map.threshold(self.margin_threshold_), path, size.assuming(self.model_.mpp_)
        )

    def apply_threshold(self, answer: RegionPrediction) -> RegionPrediction:
        """What this model says of an image, from its answer with another m; no image is read."""
        return self._threshold_patches(answer.patch_map, answer.path, answer.size)

    def _threshold_patches(
        self, patch_map: PatchMap, path: ImageLike, size: PixelSize
    ) -> RegionPrediction:
        """The answer that the sizes of connected patches make."""
        _, sizes = label_regions(patch_map.predicted_classes == 1)
        largest, least = int(sizes.max(initial=0)), self.min_patches_
        regions = [_region(patch_map, *region) for region in patch_map.regions(1, least)]
        label = self.classes_[int(largest >= least)] if patch_map.n_patches else None
        return RegionPrediction(path, label, largest, least, regions, patch_map, size)

    @property
    def predict_proba(self) -> NoReturn:
        """Only a `EnsembleClassifier` has it."""
        raise_no_predict_proba(self)

    def with_jobs(self, n_jobs: int | None) -> Self:
        """The same model, on so many threads."""
        changed = copy(self)
        changed.n_jobs, changed.model_ = n_jobs, self.model_.with_jobs(n_jobs)
        return changed

    def with_atom_annotations(self, notes: AtomAnnotations, view: int = 0) -> Self:
        changed = copy(self)
        changed.model_ = self.model_.with_atom_annotations(notes)
        if notes.disabled != self.model_.atom_annotations.disabled:
            changed.training_info_ = tuned(self.training_info_, "atoms")
        return changed

    def score_contributions(self, *image: Any) -> list[ScoreContributions]:
        from ..explain.explanation import explain_regions

        own = explain_regions(self, *image)
        return [] if own is None else [own]

    def with_code_callback(self, codes_to: CodeCallback) -> Self:
        changed = copy(self)
        changed.model_ = self.model_.with_code_callback(codes_to)
        return changed

    @property
    def decision_threshold(self) -> DecisionThreshold:
        """m, the connected patches from which a region counts."""
        return DecisionThreshold("patches", self.min_patches_, is_inclusive=True)

    def with_threshold(self, value: float) -> Self:
        """A copy with another m."""
        if not 1 <= value <= _MAX_PATCHES:
            raise ValueError(f"a region has from one to {_MAX_PATCHES} patches")
        moved, points = copy(self), {"previous": self.min_patches_, "value": round(value)}
        moved.min_patches_ = round(value)
        moved.training_info_ = tuned(self.training_info_, "manual", **points)
        return moved

    def describe_decision(self) -> str:
        """How it decides, for a model card."""
        return describe_min_size(self.min_patches_)

    def true_label(self, record: ImageRecord) -> str:
        """Whether the record's mask or, without one, its label shows any region."""
        return image_region_label(record, self.classes_)

    def patch_labels(
        self, record: ImageRecord, corners: NDArray[np.int64], side: float
    ) -> list[str]:
        """Of patches with these corners (n, 2): at least half in the mask, or by the label."""
        x, y = corners.T.astype(np.float64)
        inside = in_region(record, self.classes_[1], x, y, side)
        return [self.classes_[int(is_inside)] for is_inside in inside.tolist()]

    def fingerprint(self) -> list[Any]:
        """All that decides what it learns from the same images, before it has learnt."""
        return [self.kind, *recipe_fingerprint(self.recipe), self.region, self.random_state]

    # --- for a model file -----------------------------------------------------------------------

    def to_model_data(self) -> ModelData:
        decision = {"min_patches": self.min_patches_, "margin_threshold": self.margin_threshold_}
        content = self.model_.content(self.kind, decision, self.training_info_)
        arrays = content.arrays | {
            f"region_size.{n}": getattr(self.size_curve_, n)
            for n in ("false_negative_rate", "false_positive_rate")
        }
        return replace(content, arrays=arrays)

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> RegionDetector:
        recipe, seed = Recipe.from_dict(content.recipe), content.training_info["random_state"]
        name = str(content.classes[1])
        model = cls(recipe, region=name, random_state=seed, n_jobs=n_jobs)
        model.classes_ = [str(name) for name in content.classes]
        model.training_info_ = content.training_info
        model.min_patches_ = int(content.decision_parameters["min_patches"])
        model.margin_threshold_ = float(content.decision_parameters["margin_threshold"])
        model.model_ = model._new_model()
        model.model_.load_state(content, array_specs("region_size"))
        model.size_curve_ = SizeCurve(
            content.arrays["region_size.false_negative_rate"],
            content.arrays["region_size.false_positive_rate"],
        )
        return model


@dataclass(frozen=True)
class _Seen:
    """A training image's patches (rows, columns): margins of the region, and which are tissue and
    region in truth.
    """

    margins: NDArray[np.float32]
    tissue: NDArray[np.bool_]
    truth: NDArray[np.bool_]

    def region_sizes(self, cut: float) -> LargestRegion:
        return match_regions(
            (self.margins > np.float64(cut)) & self.tissue, self.truth, self.tissue
        )


def _region(
    patch_map: PatchMap, window: Window, cells: NDArray[np.bool_], polygons: list[list[Ring]]
) -> DetectedRegion:
    grid, mpp = patch_map.grid, patch_map.mpp
    rows, columns = window
    area = float(cells.sum()) * grid.step**2
    return DetectedRegion(
        n_patches=int(cells.sum()),
        score=float(patch_map.margins[window][..., 1][cells].mean()),
        area_px=area,
        area_um2=area * mpp**2 if mpp else None,
        box=(
            *patch_map.cell_corner((int(columns.start), int(rows.start))),
            *patch_map.cell_corner((int(columns.stop), int(rows.stop))),
        ),
        polygons=polygons,
        atom_usage={
            name: float(used[window][cells].mean()) for name, used in patch_map.concepts.items()
        },
    )
