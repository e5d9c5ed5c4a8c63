"""The whole way on one page: images with labels in, a model; an image in, an answer and a map.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and residuals
      ─► patch winners ─► rule ─► answer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decisions.image_rules import Evidence, ImageRule, patch_margins
from .execution.local import map_blocks
from .execution.progress import Callback, Progress, ignore
from .images.manifest import Manifest, Record
from .images.readers import ImageError, ImageSource, open_image
from .images.stain import NORMALISERS
from .images.tissue import TissueThreshold, tissue_fraction
from .methods.dfdl import DFDL
from .methods.residual_rule import ResidualClassifier
from .patches.grid import PatchGrid
from .patches.sampling import sample_patches, turn_at_random
from .patches.vectors import VECTORS
from .recipes import Recipe, preset

METHODS: dict[str, type[ResidualClassifier]] = {"dfdl": DFDL}
_THUMBNAIL_SIDE = 1024
BLANK = -1  # of a patch that lies on glass


@dataclass(frozen=True)
class PatchMap:
    """Per patch of a grid: the winning class's place (BLANK on glass), and each class's margin."""

    grid: PatchGrid
    winners: NDArray[np.int16]
    margins: NDArray[np.float32]


@dataclass(frozen=True)
class ImageAnswer:
    """The answer for one image; `label` is None where there is only glass."""

    path: Path
    label: str | None
    score: float
    proportions: dict[str, float]
    threshold: float | None
    n_patches: int
    patch_map: PatchMap


class _View:
    """An image as a recipe sees it: reduced, stain-normalised, with glass left out."""

    def __init__(self, source: ImageSource, recipe: Recipe, mpp: float | None) -> None:
        self._source = source
        self._recipe = recipe
        self.size = source.size
        self.mpp = source.mpp
        self.downsample = _downsample(source, recipe, mpp)
        thumbnail = source.thumbnail(_THUMBNAIL_SIDE)
        self._tissue = TissueThreshold.from_thumbnail(thumbnail)
        mask = self._tissue.mask(thumbnail)
        self.transform = NORMALISERS[recipe.stain].estimate(thumbnail, mask)

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        return self._source.read(x, y, width, height, downsample)

    def on_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if len(patches) == 0:
            return np.zeros(0, bool)
        return tissue_fraction(patches, self._tissue) >= self._recipe.least_tissue

    def vectors(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        return VECTORS[self._recipe.vectors](self.transform(patches))

    def grid(self) -> PatchGrid:
        recipe = self._recipe
        return PatchGrid.over(self.size, recipe.patch_px, recipe.grid_stride_px, self.downsample)


def _downsample(source: ImageSource, recipe: Recipe, trained_mpp: float | None) -> float:
    """The factor by which the image is reduced; refuses pixel sizes that do not fit the model."""
    if recipe.mpp is not None:
        if source.mpp is None:
            raise ImageError(
                f"{source.path}: its pixel size is not known, and the model works at "
                f"{recipe.mpp:g} µm per pixel: give the pixel size (mpp)"
            )
        factor = recipe.mpp / source.mpp
        if factor < 0.95:
            raise ImageError(
                f"{source.path}: has {source.mpp:g} µm per pixel, coarser than the "
                f"{recipe.mpp:g} µm the model works at"
            )
        return max(1.0, factor)
    if trained_mpp and source.mpp and abs(source.mpp / trained_mpp - 1) > 0.1:
        raise ImageError(
            f"{source.path}: has {source.mpp:g} µm per pixel, but the model was trained on "
            f"images of {trained_mpp:g}: rescale the image, or give its true pixel size (mpp)"
        )
    return recipe.downsample


class TissueClassifier:
    """Answers "which class?" for whole images, from labelled images.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset
    random_state : seed; the same seed and images give the same model
    n_jobs : threads; None for all cores

    Attributes
    ----------
    classes_ : names in order; with two, the second is the one that scores positive
    method_ : the trained patch classifier
    rule_ : the fitted `ImageRule`
    mpp_ : pixel size of the training images, where all have the same
    training_ : what is known of the training, for the record
    """

    classes_: list[str]
    method_: ResidualClassifier
    rule_: ImageRule
    mpp_: float | None
    training_: dict[str, Any]

    def __init__(
        self, recipe: Recipe | str = "default", *, random_state: int = 0, n_jobs: int | None = None
    ) -> None:
        self.recipe = preset(recipe) if isinstance(recipe, str) else recipe
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, manifest: Manifest, *, callback: Callback = ignore) -> TissueClassifier:
        """Sample patches, train the patch classifier, then fit the rule on the same images."""
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(f"images of at least two classes are needed; there are: {classes}")
        labels = np.array([classes.index(record.label) for record in manifest.records])
        self.classes_ = classes
        self.mpp_ = _common_mpp(manifest)
        X, y = self._training_vectors(manifest, labels, callback)
        self.method_ = METHODS[self.recipe.method](
            **self.recipe.method_parameters, random_state=self.random_state, n_jobs=self.n_jobs
        ).fit(X, y, callback=callback)
        evidence = self._training_evidence(manifest, callback)
        seen = np.array([e.n_patches > 0 for e in evidence])
        self.rule_ = ImageRule.fit(
            self.recipe.rule, [e for e, s in zip(evidence, seen, strict=True) if s], labels[seen]
        )
        self.training_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(manifest.records),
            "n_patients": len(set(manifest.patients)),
            "n_patches": len(X),
            "random_state": self.random_state,
        }
        return self

    def predict(self, path: Path | str, *, mpp: float | None = None) -> ImageAnswer:
        """The answer for an image or slide; mpp overrides its pixel size."""
        with self._open(Path(path), mpp) as view:
            grid = view.grid()
            winners = np.full((grid.n_rows, grid.n_columns), BLANK, np.int16)
            margins = np.zeros((grid.n_rows, grid.n_columns, len(self.classes_)), np.float32)
            evidence = self._no_evidence()
            for rows, columns, here, residuals, part in _judge(self.method_, view):
                winners[rows, columns][here] = residuals.argmin(axis=1)
                margins[rows, columns][here] = patch_margins(residuals)
                evidence = evidence.plus(part)
        patch_map = PatchMap(grid, winners, margins)
        if evidence.n_patches == 0:
            return ImageAnswer(Path(path), None, np.nan, {}, self.rule_.threshold, 0, patch_map)
        place, score = self.rule_.decide(evidence)
        shares = dict(zip(self.classes_, evidence.proportions.tolist(), strict=True))
        return ImageAnswer(
            Path(path),
            self.classes_[place],
            score,
            shares,
            self.rule_.threshold,
            evidence.n_patches,
            patch_map,
        )

    # ------------------------------------------------------------ steps

    @contextmanager
    def _open(self, path: Path, mpp: float | None) -> Iterator[_View]:
        with open_image(path, mpp) as source:
            yield _View(source, self.recipe, self.mpp_)

    def _training_vectors(
        self, manifest: Manifest, labels: NDArray[np.int64], callback: Callback
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        per_image = [
            -(-self.recipe.patches_per_class // int(np.sum(labels == label))) for label in labels
        ]

        def work(place: int) -> NDArray[np.float32]:
            record = manifest.records[place]
            rng = np.random.default_rng([self.random_state, place])
            with self._open(record.path, record.mpp) as view:
                patches = sample_patches(
                    view,
                    per_image[place],
                    self.recipe.patch_px,
                    view.downsample,
                    rng,
                    lambda patches, corners: view.on_tissue(patches),
                )
                if self.recipe.turn_patches:
                    patches = turn_at_random(patches, rng)
                return view.vectors(patches)

        parts = self._for_every_image(work, len(labels), "patches", callback)
        y = np.repeat(labels, [len(part) for part in parts])
        counts = np.bincount(y, minlength=len(self.classes_))
        for name, count in zip(self.classes_, counts, strict=True):
            if count == 0:
                raise ValueError(f"no tissue was found in any image of class {name!r}")
        return np.concatenate(parts), y

    def _training_evidence(self, manifest: Manifest, callback: Callback) -> list[Evidence]:
        method = copy(self.method_).set_params(n_jobs=1)  # the images are what runs in parallel

        def work(place: int) -> Evidence:
            record: Record = manifest.records[place]
            evidence = self._no_evidence()
            with self._open(record.path, record.mpp) as view:
                for *_, part in _judge(method, view):
                    evidence = evidence.plus(part)
            return evidence

        return self._for_every_image(work, len(manifest.records), "rule", callback)

    def _for_every_image(
        self, work: Callable[[int], Any], n_images: int, stage: str, callback: Callback
    ) -> list[Any]:
        results = []
        for result in map_blocks(work, range(n_images), self.n_jobs):
            results.append(result)
            callback(Progress(stage, len(results), n_images))
        return results

    def _no_evidence(self) -> Evidence:
        n_classes, n_atoms, _ = self.method_.dictionaries_.shape
        zeros = np.zeros(n_classes)
        return Evidence(0, zeros.astype(np.int64), zeros, np.zeros(n_classes * n_atoms))


def _common_mpp(manifest: Manifest) -> float | None:
    values = {record.mpp for record in manifest.records}
    return values.pop() if len(values) == 1 else None


def _judge(
    method: ResidualClassifier, view: _View
) -> Iterator[tuple[slice, slice, NDArray[np.bool_], NDArray[np.float64], Evidence]]:
    """Per chunk: where it is, which patches are tissue, their residuals, and the evidence."""
    grid = view.grid()
    for rows, columns in grid.chunks():
        patches = grid.read(view, rows, columns)
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        tissue = view.on_tissue(patches)
        if not tissue.any():
            continue
        S, residuals = method.encode(view.vectors(patches[tissue]))
        sums = np.asarray(abs(S).sum(axis=0), dtype=np.float64).ravel()
        yield rows, columns, tissue.reshape(shape), residuals, Evidence.of_patches(residuals, sums)
