"""Prediction for the visible part of an image, from the annotations so far, in a second or two.

The features of a patch are those of a pretrained encoder if one is installed, or else colours and
edges of its pixels and of its neighbours. They are computed once per field of the image and kept in
memory. After each stroke a multinomial logistic regression is fitted to them, which takes
milliseconds. It is not a trained model, and its accuracy is unknown.
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
from .store import AnnotationClass, Shape, box_of, polygons_of

Field = tuple[slice, slice]
Box = tuple[float, float, float, float]
# Which patches of a field are tissue (rows, columns), and their numbers (n, n_features).
Numbers = tuple[NDArray[np.bool_], NDArray[np.float32]]

ENCODER = "efficientnet-lite0-half"
_FIELD_PX = 512  # side of what is computed together
_ENCODER_MPP, _PIXEL_MPP = 0.5, 1.0  # µm per pixel at which patches are looked at, if known


def uses_encoder() -> bool:
    return missing_dependency(ENCODER) is None


def quick_recipe(mpp: float | None, network: bool) -> Recipe:
    """How patches are cut from an image of this pixel size: of 8 µm or, of pixels, 16."""
    wanted = _ENCODER_MPP if network else _PIXEL_MPP
    reduced = max(1.0, wanted / mpp) if mpp else 1.0
    if network:
        return preset("embeddings", regions=True).with_changes(
            features=ENCODER, downsample=reduced, augment_patches=False
        )
    return Recipe(patch_px=16, downsample=reduced, features="rgb")


class InteractiveImage:
    """An image as the quick answer sees it: its grid, and the numbers of its patches, as kept."""

    def __init__(self, source: ImageSource, recipe: Recipe, image: list[Any]) -> None:
        """`image`: the file's key."""
        self.prepared_image = PreparedImage(source, recipe, None, None, image)
        self.grid = replace(self.prepared_image.grid(), chunk_px=_FIELD_PX)
        self.fields = list(self.grid.chunks())
        self._of_pixels = get_patch_features(recipe.features).are_images
        self._key: Key = (repr(image), repr(recipe))

    def cached_features(self, kept: LRUCache[Numbers], field: Field) -> Numbers | None:
        return kept.find((*self._key, repr(field)))

    def patch_features(self, kept: LRUCache[Numbers], field: Field) -> Numbers:
        def made() -> tuple[Numbers, int]:
            if self._of_pixels:
                found = _pixel_numbers(self.prepared_image, self.grid, field)
            else:
                found = self.prepared_image.chunk_features(self.grid, *field)
            return found, sum(part.nbytes for part in found)

        return kept.get((*self._key, repr(field)), made)

    def on(self, box: Box) -> list[Field]:
        """The fields that a box (left, top, right, bottom) shows, the middle ones first."""
        first = (self.grid.left, self.grid.top) * 2
        left, top, right, bottom = (
            (edge - start) / self.grid.step for edge, start in zip(box, first, strict=True)
        )
        middle = (top + bottom) / 2, (left + right) / 2
        shown = [
            (rows, columns)
            for rows, columns in self.fields
            if rows.start < bottom and top < rows.stop
            if columns.start < right and left < columns.stop
        ]

        def far(field: Field) -> float:
            away = [(p.start + p.stop) / 2 - m for p, m in zip(field, middle, strict=True)]
            return float(np.hypot(*away))

        return sorted(shown, key=far)


def _pixel_numbers(view: PreparedImage, grid: PatchGrid, field: Field) -> Numbers:
    pixels = view.normalise(grid.read(view, *field))
    tissue = view.is_tissue(pixels).reshape([part.stop - part.start for part in field])
    return tissue, _with_neighbours(_of_pixels(pixels), tissue)


def _of_pixels(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Colour, its spread, and edges of patches (n, side, side, 3): (n, 14)."""
    values = patches.astype(np.float32) / 255
    flat = values.reshape(len(values), -1, 3)
    grey = values.mean(axis=3)
    edges = [
        np.abs(np.diff(grey[:, ::step, ::step], axis=axis)).mean(axis=(1, 2))
        for step in (1, 3)
        for axis in (1, 2)
    ]
    dark = np.quantile(grey.reshape(len(grey), -1), [0.05, 0.25, 0.75, 0.95], axis=1)
    parts = [flat.mean(axis=1), flat.std(axis=1), np.stack(edges, axis=1), dark.T]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def _with_neighbours(
    numbers: NDArray[np.float32], tissue: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Beside a patch's own numbers the mean of those around it: (n_tissue, 2 × n_features)."""
    laid = numbers.reshape(*tissue.shape, -1) * tissue[..., None]
    size = (3, 3, 1)
    weight = np.maximum(ndimage.uniform_filter(tissue.astype(np.float32), 3, mode="nearest"), 1e-6)
    around = ndimage.uniform_filter(laid, size, mode="nearest") / weight[..., None]
    both: NDArray[np.float32] = np.concatenate([laid, around], axis=2)[tissue]
    return both


# --- viewport prediction --------------------------------------------------------------------------


_MAX_FIELDS = 30  # on a screen, the middle ones
_FIELDS_OF_SHAPE, _FIELDS_OF_IMAGE = 4, 24  # that are learnt from
_MAX_SAMPLES = 2000  # of a class
_FAINTEST = 0.25  # opacity of a patch that could as well be any class


# --- what was drawn ------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnnotatedImage:
    """An image and the shapes on it."""

    image: InteractiveImage
    shapes: Sequence[Shape]

    def regions(self) -> dict[str, RunLengthMask]:
        """What is drawn of each class, by its id."""
        by_class: dict[str, list[Shape]] = {}
        for shape in self.shapes:
            by_class.setdefault(shape["label"], []).append(shape)
        size = self.image.prepared_image.size
        return {label: _region(own, size) for label, own in by_class.items()}

    def fields(self) -> list[Field]:
        """Those to learn from: of a large shape a few, of many shapes those that were drawn last.
        Else an outline of a whole slide would be waited for.
        """
        found: dict[str, Field] = {}
        for shape in reversed(self.shapes):
            own = self._touched(shape)
            every = -(-len(own) // _FIELDS_OF_SHAPE) or 1
            found |= {repr(field): field for field in own[::every]}
            if len(found) >= _FIELDS_OF_IMAGE:
                break
        return list(found.values())[:_FIELDS_OF_IMAGE]

    def _touched(self, shape: Shape) -> list[Field]:
        """Fields in which a part of the shape lies, the middle ones first."""
        near = self.image.on(_box(shape))
        if len(near) <= _FIELDS_OF_SHAPE:
            return near
        step = self.image.grid.step
        y, x, side = np.array([(r.start, c.start, r.stop - r.start) for r, c in near]).T * step
        x, y = x + self.image.grid.left, y + self.image.grid.top
        region = _region([shape], self.image.prepared_image.size)
        there = region.coverage(x, y, float(side.max())) > 0
        return [field for field, is_there in zip(near, there.tolist(), strict=True) if is_there]

    def samples(self, kept: LRUCache[Numbers]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Class ids with the numbers of patches that lie half or more in its shapes; of fields that
        are not computed yet, none.
        """
        regions, grid = self.regions(), self.image.grid
        for field in self.fields():
            found = self.image.cached_features(kept, field)
            if found is None or not found[0].any():  # not computed yet, or glass
                continue
            tissue, numbers = found
            rows, columns = np.nonzero(tissue)
            x = (columns + field[1].start) * grid.step + grid.left
            y = (rows + field[0].start) * grid.step + grid.top
            for label, region in regions.items():
                yield label, numbers[region.coverage(x, y, grid.patch_side) >= MIN_OVERLAP]


def _region(shapes: Sequence[Shape], size: tuple[int, int]) -> RunLengthMask:
    outlines = [AnnotationPolygon("", tuple(rings)) for s in shapes for rings in polygons_of(s)]
    return RunLengthMask.of(outlines, size)


def _box(shape: Shape) -> Box:
    (left, top), (right, bottom) = (corner.tolist() for corner in box_of(polygons_of(shape)))
    return left, top, right, bottom


# --- the answer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Viewport:
    """What is asked for: a part of an image, from all that was drawn; until when."""

    image: InteractiveImage
    box: Box
    annotations: Sequence[AnnotatedImage]
    classes: Sequence[AnnotationClass]
    deadline: float  # of time.monotonic


def predict_viewport(screen: Viewport, kept: LRUCache[Numbers]) -> dict[str, Any]:
    """The map of the screen as far as there is time; `left`: fields that are still to come."""
    shown = screen.image.on(screen.box)
    fields = shown[:_MAX_FIELDS]
    wanted = [(d.image, f) for d in screen.annotations for f in d.fields()]
    left = _compute([*wanted, *((screen.image, f) for f in fields)], kept, screen.deadline)
    counted, head = _learn(screen, kept)
    known = {
        repr(f): found
        for f in fields
        if (found := screen.image.cached_features(kept, f)) is not None
    }
    picture = None
    if head is not None and known:
        picture = _image(screen, [f for f in fields if repr(f) in known], known, head)
    return {
        "left": left,
        "beyond": len(shown) - len(fields),
        "patches": counted,
        "picture": picture,
    }


def _compute(
    wanted: Sequence[tuple[InteractiveImage, Field]], kept: LRUCache[Numbers], until: float
) -> int:
    """As many as there is time for, one at least; how many are left."""
    missing = {
        (id(sight), repr(field)): (sight, field)
        for sight, field in wanted
        if sight.cached_features(kept, field) is None
    }
    for n_done, (sight, field) in enumerate(missing.values()):
        if n_done and time.monotonic() > until:
            return len(missing) - n_done
        sight.patch_features(kept, field)
    return 0


@dataclass(frozen=True)
class SoftmaxClassifier:
    """A line between classes: scores are numbers @ weights + bias, of standardised numbers."""

    labels: list[str]
    mean: NDArray[np.float32]
    spread: NDArray[np.float32]
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(cls, samples: Mapping[str, NDArray[np.float32]]) -> SoftmaxClassifier:
        """From numbers (n, n_features) of two classes or more, each of which counts the same."""
        from sklearn.linear_model import LogisticRegression

        labels = list(samples)
        X = np.concatenate([samples[label] for label in labels])
        y = np.repeat(np.arange(len(labels)), [len(samples[label]) for label in labels])
        mean, spread = X.mean(axis=0), np.maximum(X.std(axis=0), 1e-6)
        model = LogisticRegression(C=0.5, class_weight="balanced", max_iter=100, tol=1e-3)
        model.fit((X - mean) / spread, y)
        weights, bias = model.coef_.T, model.intercept_
        if len(labels) == 2:  # it has one score, of the second
            weights, bias = np.hstack([-weights, weights]) / 2, np.array([-bias[0], bias[0]]) / 2
        return cls(labels, mean, spread, weights, bias)

    def probabilities(self, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
        """How much speaks for each class (n, n_classes); they add up to 1."""
        scores = (numbers - self.mean) / self.spread @ self.weights + self.bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = scores / scores.sum(axis=1, keepdims=True)
        return shares


def _learn(
    screen: Viewport, kept: LRUCache[Numbers]
) -> tuple[dict[str, int], SoftmaxClassifier | None]:
    """How many patches are drawn of each class, and the line between them, if there are two."""
    found: dict[str, list[NDArray[np.float32]]] = {one.id: [] for one in screen.classes}
    for drawn in screen.annotations:
        for label, numbers in drawn.samples(kept):
            found.setdefault(label, []).append(numbers)
    counted = {label: sum(map(len, parts)) for label, parts in found.items()}
    ignored = {one.id for one in screen.classes if one.name == IGNORED}
    samples = {
        label: np.concatenate(parts)[:: -(-counted[label] // _MAX_SAMPLES)]
        for label, parts in found.items()
        if counted[label] and label not in ignored
    }
    return counted, SoftmaxClassifier.fit(samples) if len(samples) > 1 else None


def _image(
    screen: Viewport, fields: Sequence[Field], known: Mapping[str, Numbers], head: SoftmaxClassifier
) -> dict[str, Any]:
    """One pixel for each patch of the fields, and where that lies."""
    grid = screen.image.grid
    top, left = (min(field[axis].start for field in fields) for axis in (0, 1))
    bottom, right = (max(field[axis].stop for field in fields) for axis in (0, 1))
    pixels = np.zeros((bottom - top, right - left, 4), np.uint8)
    colours = {one.id: one.rgb for one in screen.classes}
    palette = np.array([colours[label] for label in head.labels], np.uint8)
    for rows, columns in fields:
        tissue, numbers = known[repr((rows, columns))]
        if not tissue.any():
            continue
        shares = head.probabilities(numbers)
        sure = (shares.max(axis=1) * len(head.labels) - 1) / (len(head.labels) - 1)
        own = slice(rows.start - top, rows.stop - top), slice(columns.start - left, None)
        part = pixels[own][:, : columns.stop - columns.start]
        alpha = 255 * (_FAINTEST + (1 - _FAINTEST) * sure)
        part[tissue] = np.column_stack([palette[shares.argmax(axis=1)], alpha])
    x, y = grid.cell_corner((left, top))
    sides = [count * grid.step for count in (right - left, bottom - top)]
    return {"png": png_data_uri(pixels), "box": [x, y, *sides]}
