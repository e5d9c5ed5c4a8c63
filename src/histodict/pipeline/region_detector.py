"""Where in the image is it? Regions of one class of tissue, from masks or from crops of them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_notes import AtomNotes
from ..decisions.image_rules import Evidence
from ..decisions.operating_point import OperatingPoint
from ..decisions.regions import Findings, SizeCurve, best_margin, compare, decision_words
from ..decisions.tuning import tuned
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.annotations.drawing import Drawing
from ..images.annotations.matching import check_classes
from ..images.in_memory import ImageFile
from ..images.kept_pictures import pictures_kept
from ..images.manifest import Manifest, Record
from ..images.pixel_size import GivenSize, Mpp, PixelSize
from ..model_content import ModelContent, arrays_of
from ..patches.outlines import label_regions
from ..patches.patch_map import PatchMap, Ring, Window
from ..presets import regions_preset
from ..recipes import Recipe
from .answers import Region, RegionAnswer
from .estimator import Estimator, no_probabilities
from .image_model import CodesTo
from .inputs import Labelled, One, Several, Within, to_learn
from .patch_model import PatchModel
from .region_truth import image_truth, in_region, known_patches, region_classes, true_patches
from .results import Answers
from .sizes import checked_training_images, data_notes
from .spoken import Spoken, speak_of_regions
from .tissue_classifier import recipe_facts
from .training_patches import PatchSource

_MOST_PATCHES = 1000


class RegionDetector(Estimator):
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
    least_patches_ : m, connected patches from which a region counts
    curve_ : miss and false alarm rates of the training images for m = 1 … 20
    model_ : the patch model
    training_ : what is known of the training, for the record
    """

    kind: ClassVar[str] = "region-detector"
    table: ClassVar[str] = "detections"
    columns: ClassVar[tuple[str, ...]] = RegionAnswer.COLUMNS
    finds_regions: ClassVar[Literal[True]] = True
    n_members: ClassVar[int] = 1
    cut_: float
    least_patches_: int
    curve_: SizeCurve
    model_: PatchModel

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
        chosen = regions_preset(settings, [method or ""])[0] if recipe is None else recipe
        self.recipe = self._recipe_of(chosen, method, settings)
        self.recipes = [self.recipe]
        self._take(
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
        if not self.recipe.on_patches:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and cannot say "
                "where something is: choose one that works on patches"
            )

    def _settings(self) -> dict[str, Any]:
        return self.recipe.values()

    def fit(
        self,
        images: Labelled,
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
        manifest = to_learn(images, ask_by="" if self.region else "region")
        with self._progress_callback(callback) as watch:
            return self._become(self._fit(manifest, watch, executor, start_from))

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
        if any(record.drawn for record in records):
            check_classes(manifest, [learnt.classes_[1]])
        sources = [s for record in records for s in PatchSource.of(record, learnt.classes_[1])]
        learnt.model_ = learnt._new_model()
        start = start_from.model_ if start_from is not None else None
        with pictures_kept():
            n_patches = learnt.model_.fit(sources, watch, executor, start)
            seen = learnt._seen(manifest, watch, executor)
        learnt.cut_ = 0.0
        if self.recipe.rule == "margin":
            margins = np.concatenate([s.margins[s.tissue] for s in seen])
            learnt.cut_ = best_margin(margins, np.concatenate([s.truth[s.tissue] for s in seen]))
        learnt.curve_ = SizeCurve.of([s.findings(learnt.cut_) for s in seen])
        learnt.least_patches_ = learnt.curve_.least_patches
        learnt.training_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(records),
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
            "n_patches": n_patches,
        } | data_notes(manifest)
        if start_from is not None:
            learnt.training_["started_from"] = start_from.training_
        return learnt

    def _new_model(self) -> PatchModel:
        return PatchModel(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)

    def findings(
        self, manifest: Manifest, callback: Callback = ignore, executor: Executor | None = None
    ) -> list[Findings]:
        """What is found in every image, against its mask or label."""
        return [s.findings(self.cut_) for s in self._seen(manifest, callback, executor)]

    def _seen(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> list[_Seen]:
        def look(place: int, patch_map: PatchMap, evidence: Evidence) -> _Seen:
            record = manifest.records[place]
            tissue, truth = known_patches(record, patch_map), true_patches(record, patch_map)
            return _Seen(patch_map.margins[..., 1], tissue, truth & tissue)

        return self.model_.judge_all(manifest.records, look, callback, executor)

    @overload
    def predict(self, images: One, *, mpp: Mpp = ..., within: Within = ...) -> RegionAnswer: ...
    @overload
    def predict(
        self, images: Several, *, mpp: Mpp = ..., within: Within = ...
    ) -> Answers[RegionAnswer]: ...
    @overload
    def predict(self, images: Any, *, mpp: Mpp = ..., within: Within = ...) -> Any: ...

    def predict(self, images: Any, *, mpp: Mpp = None, within: Within = None) -> Any:
        """Where is it? A `RegionAnswer` for one image, `Answers` for several.

        `images`, `mpp` and `within` as in `TissueClassifier.predict`.
        """
        return self._predict(images, mpp, within)

    def answer(
        self,
        path: ImageFile | str,
        *,
        mpp: Mpp = None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> RegionAnswer:
        """The regions of one image or slide: what `predict` asks for each, without a warning."""
        self._check_fitted()
        path = Path(path) if isinstance(path, str) else path
        size = GivenSize.of(mpp).at(path)
        patch_map, _ = self.model_.judge(path, size.from_outside, callback, within)
        return self._called(patch_map.cut_at(self.cut_), path, size.beside(self.model_.mpp_))

    def redrawn(self, answer: RegionAnswer) -> RegionAnswer:
        """What this model says of an image, from its answer with another m; no image is read."""
        return self._called(answer.patch_map, answer.path, answer.size)

    def _called(self, patch_map: PatchMap, path: ImageFile, size: PixelSize) -> RegionAnswer:
        """The answer that the sizes of connected patches make."""
        _, sizes = label_regions(patch_map.winners == 1)
        largest, least = int(sizes.max(initial=0)), self.least_patches_
        regions = [_region(patch_map, *region) for region in patch_map.regions(1, least)]
        label = self.classes_[int(largest >= least)] if patch_map.n_patches else None
        return RegionAnswer(path, label, largest, least, regions, patch_map, size)

    @property
    def predict_proba(self) -> NoReturn:
        """Only a `Panel` has it."""
        no_probabilities(self)

    def with_jobs(self, n_jobs: int | None) -> Self:
        """The same model, on so many threads."""
        changed = copy(self)
        changed.n_jobs, changed.model_ = n_jobs, self.model_.with_jobs(n_jobs)
        return changed

    def with_notes(self, notes: AtomNotes, view: int = 0) -> Self:
        changed = copy(self)
        changed.model_ = self.model_.with_notes(notes)
        if notes.off != self.model_.notes.off:
            changed.training_ = tuned(self.training_, "atoms")
        return changed

    def spoken(self, *image: Any) -> list[Spoken]:
        own = speak_of_regions(self, *image)
        return [] if own is None else [own]

    def with_codes_to(self, codes_to: CodesTo) -> Self:
        changed = copy(self)
        changed.model_ = self.model_.with_codes_to(codes_to)
        return changed

    @property
    def operating_point(self) -> OperatingPoint:
        """m, the connected patches from which a region counts."""
        return OperatingPoint("patches", self.least_patches_, reached=True)

    def with_operating_point(self, value: float) -> Self:
        """A copy with another m."""
        if not 1 <= value <= _MOST_PATCHES:
            raise ValueError(f"a region has from one to {_MOST_PATCHES} patches")
        moved, points = copy(self), {"previous": self.least_patches_, "value": round(value)}
        moved.least_patches_ = round(value)
        moved.training_ = tuned(self.training_, "manual", **points)
        return moved

    def decision_words(self) -> str:
        """How it decides, for a model card."""
        return decision_words(self.least_patches_)

    def truth(self, record: Record) -> str:
        """Whether the record's mask or, without one, its label shows any region."""
        return image_truth(record, self.classes_)

    def labels_at(self, record: Record, corners: NDArray[np.int64], side: float) -> list[str]:
        """Of patches with these corners (n, 2): at least half in the mask, or by the label."""
        x, y = corners.T.astype(np.float64)
        inside = in_region(record, self.classes_[1], x, y, side)
        return [self.classes_[int(is_inside)] for is_inside in inside.tolist()]

    def decided_by(self) -> list[Any]:
        """All that decides what it learns from the same images, before it has learnt."""
        return [self.kind, *recipe_facts(self.recipe), self.region, self.random_state]

    # --- for a model file -----------------------------------------------------------------------

    def content(self) -> ModelContent:
        decision = {"least_patches": self.least_patches_, "cut": self.cut_}
        content = self.model_.content(self.kind, decision, self.training_)
        arrays = content.arrays | {f"curve.{n}": getattr(self.curve_, n) for n in ("miss", "alarm")}
        return replace(content, arrays=arrays)

    @classmethod
    def of_content(cls, content: ModelContent, n_jobs: int | None) -> RegionDetector:
        recipe, seed = Recipe.from_dict(content.recipe), content.training["random_state"]
        name = str(content.classes[1])
        model = cls(recipe, region=name, random_state=seed, n_jobs=n_jobs)
        model.classes_ = [str(name) for name in content.classes]
        model.training_ = content.training
        model.least_patches_ = int(content.decision["least_patches"])
        model.cut_ = float(content.decision["cut"])
        model.model_ = model._new_model()
        model.model_.restore(content, arrays_of("curve"))
        model.curve_ = SizeCurve(content.arrays["curve.miss"], content.arrays["curve.alarm"])
        return model


@dataclass(frozen=True)
class _Seen:
    """A training image's patches (rows, columns): margins of the region, and which are tissue and
    region in truth.
    """

    margins: NDArray[np.float32]
    tissue: NDArray[np.bool_]
    truth: NDArray[np.bool_]

    def findings(self, cut: float) -> Findings:
        return compare((self.margins > np.float64(cut)) & self.tissue, self.truth, self.tissue)


def _region(
    patch_map: PatchMap, window: Window, cells: NDArray[np.bool_], polygons: list[list[Ring]]
) -> Region:
    grid, mpp = patch_map.grid, patch_map.mpp
    rows, columns = window
    area = float(cells.sum()) * grid.step**2
    return Region(
        n_patches=int(cells.sum()),
        score=float(patch_map.margins[window][..., 1][cells].mean()),
        area_px=area,
        area_um2=area * mpp**2 if mpp else None,
        box=(
            *patch_map.cell_corner((int(columns.start), int(rows.start))),
            *patch_map.cell_corner((int(columns.stop), int(rows.stop))),
        ),
        polygons=polygons,
        use={name: float(used[window][cells].mean()) for name, used in patch_map.concepts.items()},
    )
