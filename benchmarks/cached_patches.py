"""Train many models on the same patches; every image is read once.

Reading an image and normalising its stain takes longer than training a dictionary on a thousand
patches. Methods and aggregators are those of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histodict.datasets.manifest import Manifest
from histodict.decision.aggregation import (
    AGGREGATORS,
    PatchStatistics,
    patch_margins,
    predicted_class,
)
from histodict.encoders import get_patch_features
from histodict.methods.patch_classifier import PatchClassifier
from histodict.methods.registry import get_method
from histodict.model_selection.splits import Split
from histodict.models.prepared_image import open_prepared_image
from histodict.models.recipe import Recipe
from histodict.patches.vectors import Projection

from .result_store import Results

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class ImagePatches:
    """Patches of an image: those of the grid on tissue, and a sample for training."""

    label: int
    everywhere: Vectors
    sampled: Vectors


def read_patches(
    manifest: Manifest, recipe: Recipe, n_sampled: int, random_state: int = 0
) -> list[ImagePatches]:
    """Read every image and sample `n_sampled` training patches of each, augmented by the recipe.

    Encoder features are computed on the grid and sampled from it.
    """
    seen = []
    for place, record in enumerate(manifest.records):
        rng = np.random.default_rng([random_state, place])
        with open_prepared_image(record.path, record.mpp, recipe) as prepared:
            grid = prepared.grid()
            parts = [prepared.chunk_features(grid, *chunk)[1] for chunk in grid.chunks()]
            everywhere = np.concatenate([part for part in parts if len(part)])
            if get_patch_features(recipe.features).atoms_are_images:
                synthetic = prepared.sample_features(n_sampled, rng)
            else:
                synthetic = everywhere[rng.permutation(len(everywhere))[:n_sampled]]
        seen.append(ImagePatches(manifest.classes.index(record.label), everywhere, synthetic))
    return seen


def max_sampled(manifest: Manifest, splits: Sequence[Split], n_per_class: int) -> int:
    """Return the number of patches per image that suffices for the training set of every split."""
    labels = np.array(manifest.labels)
    fewest = min(int(np.sum(labels[s.train] == name)) for s in splits for name in manifest.classes)
    return -(-n_per_class // fewest)


@dataclass(frozen=True)
class FittedMethod:
    """Fitted method with its projection, if any."""

    method: PatchClassifier
    projection: Projection | None

    def distances(self, vectors: Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return distances of patches to classes, and sums of absolute codes."""
        codes, distances = self.method.encode(self._project(vectors))
        return distances, np.asarray(abs(codes).sum(axis=0), dtype=np.float64).ravel()

    def _project(self, vectors: Vectors) -> Vectors:
        return self.projection(vectors) if self.projection else vectors

    @classmethod
    def fit(
        cls, recipe: Recipe, seen: Sequence[ImagePatches], n_per_class: int, random_state: int = 0
    ) -> FittedMethod:
        """Fit on about equally many patches of every image of a class."""
        labels = np.array([image.label for image in seen])
        wanted = [-(-n_per_class // int(np.sum(labels == label))) for label in labels]
        parts = [image.sampled[:n] for image, n in zip(seen, wanted, strict=True)]
        X, y = np.concatenate(parts), np.repeat(labels, [len(part) for part in parts])
        projection = None
        if recipe.n_components:
            projection = Projection.fit(X, recipe.n_components, whiten=recipe.whiten)
            X = projection(X)
        entry = get_method(recipe.method)
        method = entry.make_estimator(recipe.method_parameters, random_state=random_state, n_jobs=1)
        return cls(method.fit(X, y), projection)


def train_and_test(
    recipe: Recipe, seen: Sequence[ImagePatches], manifest: Manifest, split: Split, n_per_class: int
) -> Results:
    """Train on the training set; return the results of the test set as `results_of_model` does.

    `patches`: for each image, the number of patches with its class, and the number of patches.
    """
    train, test = ([seen[place] for place in side] for side in (split.train, split.test))
    trained = FittedMethod.fit(recipe, train, n_per_class)
    statistics = [[_statistics(trained, image) for image in side] for side in (train, test)]
    labels = np.array([image.label for image in train])
    rule = AGGREGATORS[recipe.aggregation].fit(recipe.aggregation, statistics[0], labels)
    scores = [rule.scores(own) for own in statistics[1]]
    shown = manifest.select(split.test)
    return {
        "repeat": split.repeat,
        "classes": manifest.classes,
        "truth": shown.labels,
        "patients": shown.patients,
        "labels": [manifest.classes[predicted_class(own)] for own in scores],
        "scores": [own.tolist() for own in scores],
        "patches": [
            [int(own.class_counts[image.label]), own.n_patches]
            for own, image in zip(statistics[1], test, strict=True)
        ],
    }


def _statistics(fitted: FittedMethod, image: ImagePatches) -> PatchStatistics:
    distances, codes = fitted.distances(image.everywhere)
    margins = patch_margins(distances).astype(np.float32)
    return PatchStatistics.from_map(distances.argmin(axis=1).astype(np.int16), margins, codes)
