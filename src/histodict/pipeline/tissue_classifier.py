"""Which class is this image? From labelled images to a model, from an image to an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import Evidence, ImageRule, winner
from ..execution.array_cache import ArrayCache
from ..execution.progress import Callback, ignore
from ..images.manifest import Manifest
from ..methods.registry import method_entry
from ..recipes import Recipe, preset
from .patch_model import PatchMap, PatchModel, PatchSource
from .whole_image_model import WholeImageModel


@dataclass(frozen=True)
class ImageAnswer:
    """The answer for one image; `label` is None where there is only glass.

    scores : one number for two classes, positive for the second; else one per class
    A method that looks at the image as a whole leaves no proportions, threshold or map.
    """

    path: Path
    label: str | None
    scores: tuple[float, ...]
    proportions: dict[str, float] = field(default_factory=dict)
    threshold: float | None = None
    n_patches: int = 0
    patch_map: PatchMap | None = None

    @property
    def score(self) -> float:
        """For two classes, positive for the second; for more, the highest."""
        return max(self.scores)


class TissueClassifier:
    """Answers "which class?" for whole images, from labelled images.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset
    method : the method to take in the preset, by name; see `methods.registry`
    random_state : seed; the same seed and images give the same model
    n_jobs : threads; None for all cores
    cache : folder for what is costly to compute of an image; None keeps nothing

    Attributes
    ----------
    classes_ : names in order; with two, the second is the one that scores positive
    model_ : what judges the image's patches, or the image as a whole
    rule_ : the fitted `ImageRule` over patches; None for a method of the whole image
    training_ : what is known of the training, for the record
    """

    classes_: list[str]
    model_: PatchModel | WholeImageModel
    rule_: ImageRule | None
    training_: dict[str, Any]

    def __init__(
        self,
        recipe: Recipe | str = "default",
        *,
        method: str = "dfdl",
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.recipe = preset(recipe, method) if isinstance(recipe, str) else recipe
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = ArrayCache(cache) if cache else None

    def fit(self, manifest: Manifest, *, callback: Callback = ignore) -> TissueClassifier:
        """Train the method, then fit the rule for patches on the same images."""
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(f"images of at least two classes are needed; there are: {classes}")
        labels = np.array([classes.index(record.label) for record in manifest.records])
        self.classes_ = classes
        self.training_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(manifest.records),
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
        }
        if method_entry(self.recipe.method).features is None:
            self._fit_patches(manifest, labels, callback)
        else:
            self.model_ = WholeImageModel(self.recipe, self.random_state, self.n_jobs, self.cache)
            self.model_.fit(manifest.records, labels, callback)
            self.rule_ = None
        return self

    def predict(self, path: Path | str, *, mpp: float | None = None) -> ImageAnswer:
        """The answer for an image or slide; mpp overrides its pixel size."""
        path = Path(path)
        if isinstance(self.model_, WholeImageModel):
            scores = self.model_.scores(path, mpp)
            return ImageAnswer(path, self.classes_[winner(scores)], tuple(scores.tolist()))
        assert self.rule_ is not None
        patch_map, evidence = self.model_.judge(path, mpp)
        threshold = self.rule_.threshold
        if evidence.n_patches == 0:
            nothing = (np.nan,) * len(self.rule_.bias)
            return ImageAnswer(path, None, nothing, threshold=threshold, patch_map=patch_map)
        scores = self.rule_.scores(evidence)
        return ImageAnswer(
            path,
            self.classes_[winner(scores)],
            tuple(scores.tolist()),
            dict(zip(self.classes_, evidence.proportions.tolist(), strict=True)),
            threshold,
            evidence.n_patches,
            patch_map,
        )

    def _fit_patches(
        self, manifest: Manifest, labels: NDArray[np.int64], callback: Callback
    ) -> None:
        model = PatchModel(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)
        sources = [
            PatchSource(record, int(label))
            for record, label in zip(manifest.records, labels, strict=True)
        ]
        self.training_["n_patches"] = model.fit(sources, callback)

        def look(place: int, patch_map: PatchMap, evidence: Evidence) -> Evidence:
            return evidence

        evidence = model.judge_all(manifest.records, look, callback)
        seen = np.array([e.n_patches > 0 for e in evidence])
        self.rule_ = ImageRule.fit(
            self.recipe.rule, [e for e in evidence if e.n_patches], labels[seen]
        )
        self.model_ = model
