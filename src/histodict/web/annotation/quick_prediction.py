"""Prediction for the visible part of an image, from the annotations so far, in a second or two.

The features of a patch are those of a pretrained encoder if it is installed, or else colours and
edges of its pixels and of its neighbours. They are computed by chunks (parts of the patch grid) and
cached. After each stroke, a multinomial logistic regression is fitted to the features of
annotated patches, which takes milliseconds. Its accuracy is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ...annotations.outlines import IGNORED, AnnotationPolygon, RunLengthMask
from ...encoders import get_patch_features, missing_dependency
from ...images.source import ImageSource
from ...models.prepared_image import PreparedImage
from ...models.recipe import Recipe, preset
from ...patches.grid import PatchGrid
from ...patches.rendering import png_data_uri
from ...patches.sampling import MIN_OVERLAP
from ...utils.cache import Key, LRUCache
from ..schema import Json
from .store import AnnotationClass, Shape, bounding_box, shape_polygons

Chunk = tuple[slice, slice]  # rows and columns of the patch grid
Box = tuple[float, float, float, float]  # left, top, right, bottom in level-0 pixels
# Tissue mask of a chunk's patches (rows, columns), and features of tissue patches (n, n_features).
PatchFeatures = tuple[NDArray[np.bool_], NDArray[np.float32]]

ENCODER = "efficientnet-lite0-half"
_CHUNK_PX = 512  # side of a chunk in pixels of the patches' resolution
_ENCODER_MPP, _PIXEL_MPP = 0.5, 1.0  # µm per pixel of the patches, if the pixel size is known


def is_encoder_installed() -> bool:
    """Return whether the packages for the pretrained encoder are installed."""
    return missing_dependency(ENCODER) is None


def make_quick_recipe(mpp: float | None, with_encoder: bool) -> Recipe:
    """Return the recipe of the patch features of an image.

    Parameters
    ----------
    mpp : µm per pixel of the image; None if unknown
    with_encoder : True for features of the encoder, False for colours and edges of the pixels
    """
    target_mpp = _ENCODER_MPP if with_encoder else _PIXEL_MPP
    downsample = max(1.0, target_mpp / mpp) if mpp else 1.0
    if with_encoder:
        return preset("embeddings", regions=True).with_changes(
            features=ENCODER, downsample=downsample, augment_patches=False
        )
    return Recipe(patch_px=16, downsample=downsample, features="rgb")


class InteractiveImage:
    """Image with a patch grid, whose patch features are cached by chunk."""

    def __init__(self, source: ImageSource, recipe: Recipe, image_key: list[Any]) -> None:
        """Make the grid for an open image and a recipe; `image_key` is the image's cache key."""
        self.prepared_image = PreparedImage(source, recipe, None, None, image_key)
        self.grid = replace(self.prepared_image.grid(), chunk_px=_CHUNK_PX)
        self.chunks = list(self.grid.chunks())
        self._uses_pixels = get_patch_features(recipe.features).atoms_are_images
        self._key: Key = (repr(image_key), repr(recipe))

    def cached_features(self, cache: LRUCache[PatchFeatures], chunk: Chunk) -> PatchFeatures | None:
        """Return the features of a chunk from the cache; None if not cached."""
        return cache.find((*self._key, repr(chunk)))

    def patch_features(self, cache: LRUCache[PatchFeatures], chunk: Chunk) -> PatchFeatures:
        """Return the features of a chunk; compute them if not cached."""

        def compute() -> tuple[PatchFeatures, int]:
            if self._uses_pixels:
                features = _pixel_chunk_features(self.prepared_image, self.grid, chunk)
            else:
                features = self.prepared_image.chunk_features(self.grid, *chunk)
            return features, sum(part.nbytes for part in features)

        return cache.get((*self._key, repr(chunk)), compute)

    def chunks_in_box(self, box: Box) -> list[Chunk]:
        """Return the chunks that overlap a box, central ones first."""
        origin = (self.grid.left, self.grid.top) * 2
        left, top, right, bottom = (
            (edge - start) / self.grid.step for edge, start in zip(box, origin, strict=True)
        )
        centre = (top + bottom) / 2, (left + right) / 2
        visible = [
            (rows, columns)
            for rows, columns in self.chunks
            if rows.start < bottom and top < rows.stop
            if columns.start < right and left < columns.stop
        ]

        def distance_from_centre(chunk: Chunk) -> float:
            offsets = [(p.start + p.stop) / 2 - c for p, c in zip(chunk, centre, strict=True)]
            return float(np.hypot(*offsets))

        return sorted(visible, key=distance_from_centre)


def _pixel_chunk_features(prepared: PreparedImage, grid: PatchGrid, chunk: Chunk) -> PatchFeatures:
    pixels = prepared.normalize(grid.read(prepared, *chunk))
    tissue = prepared.is_tissue(pixels).reshape([part.stop - part.start for part in chunk])
    return tissue, _with_neighbours(_pixel_features(pixels), tissue)


def _pixel_features(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return features (n, 14) of RGB patches: colour statistics, edge strengths, grey quantiles."""
    values = patches.astype(np.float32) / 255
    flat = values.reshape(len(values), -1, 3)
    grey = values.mean(axis=3)
    edges = [
        np.abs(np.diff(grey[:, ::step, ::step], axis=axis)).mean(axis=(1, 2))
        for step in (1, 3)
        for axis in (1, 2)
    ]
    quantiles = np.quantile(grey.reshape(len(grey), -1), [0.05, 0.25, 0.75, 0.95], axis=1)
    parts = [flat.mean(axis=1), flat.std(axis=1), np.stack(edges, axis=1), quantiles.T]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _with_neighbours(
    features: NDArray[np.float32], tissue: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Append to the features of each tissue patch their means over the 3 × 3 patches around it.

    `features` (n_patches, n_features) are those of all patches of a chunk, and `tissue` is the mask
    (rows, columns) of its tissue patches.
    """
    features = features.reshape(*tissue.shape, -1) * tissue[..., None]
    size = (3, 3, 1)
    weight = np.maximum(ndimage.uniform_filter(tissue.astype(np.float32), 3, mode="nearest"), 1e-6)
    neighbours = ndimage.uniform_filter(features, size, mode="nearest") / weight[..., None]
    combined: NDArray[np.float32] = np.concatenate([features, neighbours], axis=2)[tissue]
    return combined


# --- annotations ----------------------------------------------------------------------------------


_MAX_CHUNKS = 30  # chunks of a viewport that are predicted, the central ones
_MAX_CHUNKS_PER_SHAPE, _MAX_CHUNKS_PER_IMAGE = 4, 24  # for training
_MAX_SAMPLES = 2000  # per class
_MIN_OPACITY = 0.25  # opacity of a patch with equal probabilities


@dataclass(frozen=True)
class AnnotatedImage:
    """Image and the shapes annotated on it."""

    image: InteractiveImage
    shapes: Sequence[Shape]

    def class_regions(self) -> dict[str, RunLengthMask]:
        """Return the annotated region of each class as a mask, by class id."""
        by_class: dict[str, list[Shape]] = {}
        for shape in self.shapes:
            by_class.setdefault(shape["label"], []).append(shape)
        size = self.image.prepared_image.size
        return {label: _shape_mask(shapes, size) for label, shapes in by_class.items()}

    def training_chunks(self) -> list[Chunk]:
        """Return chunks to train on: a limited number per shape and image, latest shapes first."""
        chunks: dict[str, Chunk] = {}
        for shape in reversed(self.shapes):
            touched = self._overlapping_chunks(shape)
            step = -(-len(touched) // _MAX_CHUNKS_PER_SHAPE) or 1
            chunks |= {repr(chunk): chunk for chunk in touched[::step]}
            if len(chunks) >= _MAX_CHUNKS_PER_IMAGE:
                break
        return list(chunks.values())[:_MAX_CHUNKS_PER_IMAGE]

    def _overlapping_chunks(self, shape: Shape) -> list[Chunk]:
        """Return the chunks that contain a part of the shape, central ones first."""
        candidates = self.image.chunks_in_box(_shape_box(shape))
        if len(candidates) <= _MAX_CHUNKS_PER_SHAPE:
            return candidates
        step = self.image.grid.step
        y, x, side = (
            np.array([(r.start, c.start, r.stop - r.start) for r, c in candidates]).T * step
        )
        x, y = x + self.image.grid.left, y + self.image.grid.top
        region = _shape_mask([shape], self.image.prepared_image.size)
        is_inside = region.coverage(x, y, float(side.max())) > 0
        return [c for c, inside in zip(candidates, is_inside.tolist(), strict=True) if inside]

    def iter_samples(
        self, cache: LRUCache[PatchFeatures]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield (class id, features of the patches in its region) for each chunk and class.

        Chunks whose features are not in the cache are omitted.
        """
        regions, grid = self.class_regions(), self.image.grid
        for chunk in self.training_chunks():
            features = self.image.cached_features(cache, chunk)
            if features is None or not features[0].any():  # not computed yet, or background
                continue
            tissue, vectors = features
            rows, columns = np.nonzero(tissue)
            x = (columns + chunk[1].start) * grid.step + grid.left
            y = (rows + chunk[0].start) * grid.step + grid.top
            for label, region in regions.items():
                yield label, vectors[region.coverage(x, y, grid.patch_side) >= MIN_OVERLAP]


def _shape_mask(shapes: Sequence[Shape], size: tuple[int, int]) -> RunLengthMask:
    outlines = [AnnotationPolygon("", tuple(rings)) for s in shapes for rings in shape_polygons(s)]
    return RunLengthMask.from_outlines(outlines, size)


def _shape_box(shape: Shape) -> Box:
    (left, top), (right, bottom) = (x_y.tolist() for x_y in bounding_box(shape_polygons(shape)))
    return left, top, right, bottom


# --- prediction -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Viewport:
    """Visible part of an image, to be predicted from annotations.

    Attributes
    ----------
    image : image to predict
    box : visible part of the image, as left, top, right, bottom in level-0 pixels
    annotations : annotated images to fit the classifier to
    classes : annotation classes
    deadline : value of time.monotonic after which no further chunk is computed
    """

    image: InteractiveImage
    box: Box
    annotations: Sequence[AnnotatedImage]
    classes: Sequence[AnnotationClass]
    deadline: float


def predict_viewport(viewport: Viewport, cache: LRUCache[PatchFeatures]) -> Json:
    """Predict the viewport as far as time permits.

    Returns
    -------
    dict
        "picture": the map of predicted classes as an image with its position, or None; "patches":
        number of annotated patches by class id; "left": number of chunks whose features are not yet
        computed; "beyond": number of visible chunks above the maximum, which are never predicted.
    """
    visible = viewport.image.chunks_in_box(viewport.box)
    chunks = visible[:_MAX_CHUNKS]
    required = [
        (annotated.image, chunk)
        for annotated in viewport.annotations
        for chunk in annotated.training_chunks()
    ]
    n_left = _compute_chunks(
        [*required, *((viewport.image, chunk) for chunk in chunks)], cache, viewport.deadline
    )
    counts, classifier = _fit_classifier(viewport, cache)
    features = {
        repr(chunk): chunk_features
        for chunk in chunks
        if (chunk_features := viewport.image.cached_features(cache, chunk)) is not None
    }
    image = None
    if classifier is not None and features:
        image = _render_map(
            viewport, [chunk for chunk in chunks if repr(chunk) in features], features, classifier
        )
    return {
        "left": n_left,
        "beyond": len(visible) - len(chunks),
        "patches": counts,
        "picture": image,
    }


def _compute_chunks(
    required: Sequence[tuple[InteractiveImage, Chunk]],
    cache: LRUCache[PatchFeatures],
    deadline: float,
) -> int:
    """Compute the features of chunks that are not in the cache, until the deadline.

    The features of at least one chunk are computed. Return the number of chunks that remain.
    """
    missing = {
        (id(image), repr(chunk)): (image, chunk)
        for image, chunk in required
        if image.cached_features(cache, chunk) is None
    }
    for n_done, (image, chunk) in enumerate(missing.values()):
        if n_done and time.monotonic() > deadline:
            return len(missing) - n_done
        image.patch_features(cache, chunk)
    return 0


@dataclass(frozen=True)
class SoftmaxClassifier:
    """Multinomial logistic regression on features standardised by `mean` and `scale`."""

    labels: list[str]
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(cls, samples: Mapping[str, NDArray[np.float32]]) -> SoftmaxClassifier:
        """Fit to features (n, n_features) by class id, with equal weights of the classes."""
        from sklearn.linear_model import LogisticRegression

        labels = list(samples)
        X = np.concatenate([samples[label] for label in labels])
        y = np.repeat(np.arange(len(labels)), [len(samples[label]) for label in labels])
        mean, scale = X.mean(axis=0), np.maximum(X.std(axis=0), 1e-6)
        model = LogisticRegression(C=0.5, class_weight="balanced", max_iter=100, tol=1e-3)
        model.fit((X - mean) / scale, y)
        weights, bias = model.coef_.T, model.intercept_
        if len(labels) == 2:  # a binary model has the score of the second class only
            weights, bias = np.hstack([-weights, weights]) / 2, np.array([-bias[0], bias[0]]) / 2
        return cls(labels, mean, scale, weights, bias)

    def predict_proba(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return class probabilities (n, n_classes), in the order of `labels`."""
        scores = (X - self.mean) / self.scale @ self.weights + self.bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = scores / scores.sum(axis=1, keepdims=True)
        return probabilities


def _fit_classifier(
    viewport: Viewport, cache: LRUCache[PatchFeatures]
) -> tuple[dict[str, int], SoftmaxClassifier | None]:
    """Return the number of annotated patches by class id, and the fitted classifier.

    The classifier is None if fewer than two classes have patches; the class `IGNORED` is not used.
    """
    features_by_class: dict[str, list[NDArray[np.float32]]] = {
        class_.id: [] for class_ in viewport.classes
    }
    for annotated in viewport.annotations:
        for label, vectors in annotated.iter_samples(cache):
            features_by_class.setdefault(label, []).append(vectors)
    counts = {label: sum(map(len, parts)) for label, parts in features_by_class.items()}
    ignored = {class_.id for class_ in viewport.classes if class_.name == IGNORED}
    samples = {
        label: np.concatenate(parts)[:: -(-counts[label] // _MAX_SAMPLES)]
        for label, parts in features_by_class.items()
        if counts[label] and label not in ignored
    }
    return counts, SoftmaxClassifier.fit(samples) if len(samples) > 1 else None


def _render_map(
    viewport: Viewport,
    chunks: Sequence[Chunk],
    features: Mapping[str, PatchFeatures],
    classifier: SoftmaxClassifier,
) -> Json:
    """Return the map of predicted classes of chunks as JSON.

    "png" is an image (data URI) with one pixel per patch, and "box" its position and size: x, y,
    width and height in level-0 pixels.
    """
    grid = viewport.image.grid
    top, left = (min(chunk[axis].start for chunk in chunks) for axis in (0, 1))
    bottom, right = (max(chunk[axis].stop for chunk in chunks) for axis in (0, 1))
    pixels = np.zeros((bottom - top, right - left, 4), np.uint8)
    colours = {class_.id: class_.rgb for class_ in viewport.classes}
    palette = np.array([colours[label] for label in classifier.labels], np.uint8)
    for rows, columns in chunks:
        tissue, vectors = features[repr((rows, columns))]
        if not tissue.any():
            continue
        probabilities = classifier.predict_proba(vectors)
        confidence = (probabilities.max(axis=1) * len(classifier.labels) - 1) / (
            len(classifier.labels) - 1
        )
        window = slice(rows.start - top, rows.stop - top), slice(columns.start - left, None)
        part = pixels[window][:, : columns.stop - columns.start]
        alpha = 255 * (_MIN_OPACITY + (1 - _MIN_OPACITY) * confidence)
        part[tissue] = np.column_stack([palette[probabilities.argmax(axis=1)], alpha])
    x, y = grid.cell_corner((left, top))
    sides = [count * grid.step for count in (right - left, bottom - top)]
    return {"png": png_data_uri(pixels), "box": [x, y, *sides]}
