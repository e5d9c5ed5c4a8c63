"""An image as a recipe sees it: reduced, stain-normalised, with glass left out.

What an image's thumbnail tells: from where on it is tissue, and how its stain is corrected.

On a small image this takes longer than all of its patches. Folds, methods and the members of a
panel look at the same images again and again, so that it is remembered as long as the process
lives: some hundred bytes for each image and kind of correction.

Progress within one large image.

A feature file where an image is expected: a recipe asks the same of it, its rows answer.

An image, or the feature file that stands for one, opened as a recipe sees it.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as short
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..datasets.record import ImageRecord
from ..encoders import get_patch_features
from ..images.file_types import ImageError
from ..images.memory_image import ImageLike, cache_key, stable_cache_key
from ..images.pixel_size import how_to_set, size_hint
from ..images.source import ImageSource, open_image
from ..patches.grid import PatchGrid, RegionSource, fit_grid, with_large_chunks
from ..patches.sampling import MIN_OVERLAP, LocationConstraint, region_constraint
from ..patches.vectors import no_feature_file
from ..precomputed.feature_file import FeatureFile, FeatureMetadata, is_feature_file, open_features
from ..preprocessing.quality import NONE, QualityMap, median_tissue_density, parse_quality_filters
from ..preprocessing.stain import NORMALISERS, LookupTransform, StainTransform
from ..preprocessing.tissue import (
    BackgroundMask,
    Box,
    Crop,
    Source,
    TissueThreshold,
    content_box,
    tissue_fraction,
    window_fraction,
)
from ..utils.cache import ArrayCache
from ..utils.progress import Callback, Progress, cumulative_shares
from ..utils.text_io import pluralize, truncated_list
from ..utils.validation import hint
from .recipe import Recipe

THUMBNAIL_SIDE = 1024
_MAX_KEPT = 50_000
_MAX_MAPS = 64  # up to a megabyte each


Kept = TypeVar("Kept")


@dataclass(frozen=True)
class ThumbnailAnalysis:
    """By what pixels are told from glass, and how their colours are changed."""

    tissue: TissueThreshold
    normalise: StainTransform


class _Memory(Generic[Kept]):
    """What was made last. Two threads may make the same: it comes out the same.

    most : of these; 0 stands for as many as there may be looks
    """

    def __init__(self, most: int = 0) -> None:
        self._cache: dict[str, Kept] = {}
        self._max_entries = most
        self._lock = threading.Lock()

    def get(self, key: str) -> Kept | None:
        return self._cache.get(key)

    def put(self, key: str, made: Kept) -> None:
        with self._lock:
            self._cache[key] = made
            if len(self._cache) > (self._max_entries or _MAX_KEPT):
                del self._cache[next(iter(self._cache))]


_MEMORY: _Memory[ThumbnailAnalysis] = _Memory()
_MAPS: _Memory[QualityMap] = _Memory(_MAX_MAPS)
_BOXES: _Memory[Box] = _Memory()


def content_of(source: ImageSource, least_side: float, image: Sequence[Any]) -> Source:
    """Return the image without its uniform margins. `image` as below.

    An image whose content is smaller than `least_side` level-0 pixels is returned unchanged.
    """
    key = repr(image)
    box = _BOXES.get(key) if image else None
    if box is None:
        box = content_box(source)
        if image:
            _BOXES.put(key, box)
    content = Crop(source, box)
    return source if content.size == source.size or min(content.size) < least_side else content


def analyse_thumbnail(source: Source, stain: str, image: Sequence[Any]) -> ThumbnailAnalysis:
    """Return the overview of an open image, or of its content.

    `image` is the key of the image in the cache; empty to bypass the cache.
    """
    key = repr((image, stain, source.size))
    look = _MEMORY.get(key) if image else None
    if look is None:
        thumbnail = source.thumbnail(THUMBNAIL_SIDE)
        is_slide = source.overview_downsample is not None
        fit = TissueThreshold.from_thumbnail if is_slide else TissueThreshold.from_tile
        tissue = fit(thumbnail)
        look = ThumbnailAnalysis(
            tissue, NORMALISERS[stain].estimate(thumbnail, tissue.mask(thumbnail))
        )
        if image:
            _MEMORY.put(key, look)
    return look


def quality_map(
    source: Source, tissue: TissueThreshold, rules: Sequence[str], image: Sequence[Any]
) -> QualityMap | None:
    """What of an open image these rules leave out; None without rules. `image` as above."""
    if not rules:
        return None
    key = repr((image, list(rules)))
    found = _MAPS.get(key) if image else None
    if found is None:
        density = median_tissue_density(source.thumbnail(THUMBNAIL_SIDE), tissue)
        found = QualityMap(source, tissue, density, rules)
        if image:
            _MAPS.put(key, found)
    return found


Result = TypeVar("Result")

_LARGE = 16_000_000  # pixels; smaller images are done in one step


def report_windows(
    results: Iterable[Result],
    windows: Sequence[tuple[slice, slice]],
    size: tuple[int, int],
    callback: Callback,
) -> Iterator[Result]:
    """Yield the results of windows in order, and report those done of a large image.

    Parameters
    ----------
    results : iterable
        One result per window.
    windows : sequence of (rows, columns)
        Windows of the patch grid that may show tissue. A window counts by its number of patches.
    size : (int, int)
        Size of the image in pixels.
    callback : callable
        Called before the first window and after each one.
    """
    if math.prod(size) <= _LARGE or not windows:
        yield from results
        return
    work = cumulative_shares([float((r.stop - r.start) * (c.stop - c.start)) for r, c in windows])
    callback(Progress("slide", 0, len(windows), work=0.0))
    for done, result in enumerate(results, 1):
        yield result
        callback(Progress("slide", done, len(windows), work=work[done]))


# Of the reduced image, from which on colours are remembered rather than computed again.
_MANY_PIXELS = 8_000_000


class PreparedImage:
    """The patches and vectors of one open image.

    clip_size : (width, height) to which outlines are clipped; None if no patch extends beyond
    uses_whole_image : whether all patches count, because hardly any tissue was found
    """

    clip_size: tuple[int, int] | None = None
    uses_whole_image: bool = False  # always, for a feature file

    def __init__(
        self,
        source: ImageSource,
        recipe: Recipe,
        trained_mpp: float | None,
        cache: ArrayCache | None = None,
        image: list[Any] | None = None,
        within: AnnotationFile | None = None,
    ) -> None:
        """`image` : its key from before it was opened, to keep what is made of it.

        `within` : outlines outside of which no patch is looked at; one of which half or more lies
        inside is.
        """
        assert cache is None or image
        self._source = source
        self._image = image or []
        self._recipe = recipe
        self._features = get_patch_features(recipe.features)
        if self._features.is_precomputed:
            raise ImageError(f"{source.path}: {no_feature_file()}")
        self._features.check(recipe.patch_px, recipe.grid_stride_px)
        self.context, self.turned, self.cache = recipe.context_scale, recipe.augment_patches, cache
        self.border = recipe.border_mode
        self.path = source.path
        self.size = source.size
        self.mpp = source.mpp
        self.offset = source.offset
        self.downsample = _downsample(source, recipe, trained_mpp)
        self._inside = within.region(source) if within else None
        # A tile or photograph is cropped to its content.
        content = content_of(source, recipe.patch_px * self.downsample, self._image)
        self._box = content.box if isinstance(content, Crop) else (0, 0, *source.size)
        self.content: RegionSource = content
        look = analyse_thumbnail(content, recipe.stain, self._image)
        self._tissue = look.tissue
        self.uses_whole_image = look.tissue.accepts_all
        self.normalise: StainTransform = look.normalise
        self.quality = quality_map(
            source, look.tissue, parse_quality_filters(recipe.quality_filters), self._image
        )
        if recipe.stain != "none" and math.prod(self.size) > _MANY_PIXELS * self.downsample**2:
            self.normalise = LookupTransform(self.normalise)

    @property
    def pixels_key(self) -> list[Any]:
        """All that decides its pixels."""
        return [*self._image, self._recipe.stain, self.downsample, self._box]

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        return self._source.read(x, y, width, height, downsample)

    def grid(self) -> PatchGrid:
        recipe = self._recipe
        try:
            return PatchGrid.covering(
                self.content.size,
                recipe.patch_px,
                recipe.grid_stride_px,
                self.downsample,
                self._box[:2],
            )
        except ValueError as error:
            raise ImageError(f"{self._source.path}: {error}") from error

    def chunks(self, grid: PatchGrid) -> Iterator[tuple[slice, slice]]:
        """Chunks of the grid that may have tissue, cut down to where it may be."""
        if self._source.overview_downsample is None:
            yield from (chunk for chunk in grid.chunks() if self.inside(grid, *chunk).any())
            return
        glass = BackgroundMask(self._source, self._source.overview_downsample, self._tissue)
        side = math.ceil(grid.patch_side)
        # What a network makes of a cell depends on where the chunk ends.
        may_cut = self._features.is_local and self._source.is_region_invariant(self.downsample)
        for rows, columns in grid.chunks():
            y, x = (
                np.rint(np.arange(part.start, part.stop) * grid.step).astype(np.int64)
                for part in (rows, columns)
            )
            maybe = glass.maybe_tissue(x, y, side) & self.inside(grid, rows, columns)
            if maybe.any():
                yield _around(maybe, rows, columns) if may_cut else (rows, columns)

    def chunk_features(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Of a chunk: which patches are tissue (rows, columns), and these patches' vectors."""
        tissue, vectors = self._features.compute_chunk(self, grid, rows, columns)
        kept = tissue & self.inside(grid, rows, columns)
        if self.quality is not None:
            y, x = (np.arange(part.start, part.stop) * grid.step for part in (rows, columns))
            half = grid.patch_side / 2
            kept &= self.quality.is_usable(grid.left + x + half, grid.top + y[:, None] + half)
        return (kept, vectors[kept[tissue]]) if (kept != tissue).any() else (tissue, vectors)

    def inside(self, grid: PatchGrid, rows: slice, columns: slice) -> NDArray[np.bool_]:
        """Which patches of a chunk may be looked at (rows, columns)."""
        if self._inside is None:
            return np.ones((rows.stop - rows.start, columns.stop - columns.start), bool)
        x = grid.left + np.arange(columns.start, columns.stop) * grid.step
        y = grid.top + np.arange(rows.start, rows.stop) * grid.step
        return self._inside.coverage(*np.meshgrid(x, y), grid.patch_side) >= MIN_OVERLAP

    def sample_features(
        self, n_vectors: int, rng: np.random.Generator, allowed: LocationConstraint | None = None
    ) -> NDArray[np.float32]:
        """Up to n_vectors of random tissue patches, at places that `allowed` accepts."""
        grid = self.grid()
        if self._inside is not None:
            allowed = region_constraint(self._inside, grid).both(allowed)
        if self.quality is not None:
            allowed = LocationConstraint(partial(self._is_usable, grid.patch_px / 2)).both(allowed)
        return self._features.sample(self, grid, n_vectors, rng, allowed)

    def _is_usable(self, half: float, corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which corners (n, 2) in reduced pixels have nothing wrong with them."""
        assert self.quality is not None
        x, y = ((corners + half) * self.downsample + np.array(self._box[:2])).T
        return self.quality.is_usable(x, y)

    def is_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if len(patches) == 0:
            return np.zeros(0, bool)
        return self.tissue_fraction(patches) >= self._recipe.min_tissue_fraction

    def tissue_windows(
        self, pixels: NDArray[np.uint8], side: int, stride: int
    ) -> NDArray[np.bool_]:
        """Which patches of an area are tissue: (rows, columns)."""
        return (
            window_fraction(pixels, self._tissue, side, stride) >= self._recipe.min_tissue_fraction
        )

    def tissue_fraction(self, patches: NDArray[np.uint8]) -> NDArray[np.float64]:
        return tissue_fraction(patches, self._tissue)


def no_tissue_message(where: str, recipe: Recipe) -> str:
    """That there is no tissue, in words."""
    words = f"no tissue was found in {where}"
    if recipe.quality_filters == NONE:
        return words
    return (
        f"{words}, beside what quality_filters={recipe.quality_filters} leaves out; "
        f"quality_filters={NONE} "
        "keeps all"
    )


def warn_no_tissue(records: Sequence[ImageRecord]) -> None:
    """Of training images, or of what is outlined in them, in which no tissue was found."""
    names = [
        f"{record.path.name}{' inside of the outlines' * (record.region_of_interest is not None)}"
        for record in records
    ]
    if names:
        warnings.warn(
            f"nothing is learnt from {pluralize(len(names), 'training image')}, as no tissue was "
            f"found there: {truncated_list(names)}",
            stacklevel=2,
        )


def warn_whole_images(records: Sequence[ImageRecord]) -> None:
    """Warn about training images used whole because hardly any tissue was found."""
    if records:
        names = truncated_list([record.path.name for record in records])
        warnings.warn(
            f"hardly any tissue was found in {pluralize(len(records), 'training image')}, used "
            "whole "
            f"instead: {names}",
            stacklevel=2,
        )


def _around(maybe: NDArray[np.bool_], rows: slice, columns: slice) -> tuple[slice, slice]:
    """The part of a chunk that holds all its patches that may be tissue (rows, columns)."""
    spans = []
    for part, axis in ((rows, 1), (columns, 0)):
        there = np.flatnonzero(maybe.any(axis=axis))
        spans.append(slice(part.start + int(there[0]), part.start + int(there[-1]) + 1))
    return spans[0], spans[1]


def _downsample(source: ImageSource, recipe: Recipe, trained_mpp: float | None) -> float:
    """The factor by which the image is reduced; refuses pixel sizes that do not fit the model."""
    if recipe.mpp is not None:
        if source.mpp is None:
            found = size_hint(source.path)
            raise ImageError(
                f"{source.path}: its pixel size is not known, and the model works at "
                f"{recipe.mpp:g} µm per pixel: {how_to_set()}{found and f'. {found}'}"
            )
        factor = recipe.mpp / source.mpp
        if factor < 0.95:
            raise ImageError(
                f"{source.path}: has {source.mpp:g} µm per pixel, coarser than the "
                f"{recipe.mpp:g} µm the model works at"
            )
        return max(1.0, factor)
    if trained_mpp and source.mpp and abs(source.mpp / trained_mpp - 1) > 0.1:
        remedy = hint(
            python="with mpp=PixelSizeOption(override=…)",
            cli="with --override-mpp",
            web="in a column mpp",
        )
        raise ImageError(
            f"{source.path}: has {source.mpp:g} µm per pixel, but the model was trained on "
            f"images of {trained_mpp:g}: rescale the image or, if the file is wrong, give the true "
            f"size {remedy}"
        )
    return recipe.downsample


NO_PATCH = -1


class PrecomputedImage(PreparedImage):
    """The patches of a feature file, as those of an image that was cut up.

    The vectors are the file's, whatever the recipe says of scale and stain. Where the recipe names
    others than given ones, the file must have been made with just its settings
    (`extraction_settings`).
    """

    def __init__(
        self,
        file: FeatureFile,
        recipe: Recipe,
        mpp: float | None,
        trained: FeatureMetadata | None,
        within: AnnotationFile | None = None,
    ) -> None:
        self._file = file
        self._kind = get_patch_features(recipe.features)
        _check(file, recipe, trained)
        self.border, self.cache, self.quality = recipe.border_mode, None, None
        self.context, self.turned = recipe.context_scale, recipe.augment_patches
        grid, cells = fit_grid(file)
        # Vectors that a recipe names are looked at in the chunks that it would cut: the same bits.
        self._grid = with_large_chunks(grid) if self._kind.is_precomputed else grid
        self._positions = np.full((self._grid.n_rows, self._grid.n_columns), NO_PATCH, np.int32)
        self.downsample = self._grid.downsample
        self.path, self.offset, self.size = file.path, file.offset, file.extent
        self.clip_size = file.extent if file.size else None
        self.mpp = file.mpp if mpp is None else mpp
        self.content = self
        self._inside = within.region(self) if within else None
        self._rows = np.flatnonzero(self._checked())  # of the file
        self.cells = cells[self._rows]
        self._positions[tuple(self.cells.T)] = np.arange(len(self._rows))

    def _checked(self) -> NDArray[np.bool_]:
        """Which patches of the file lie inside of the outlines."""
        if self._inside is None:
            return np.ones(self._file.n_rows, bool)
        x, y = (self._file.coords - np.array(self.offset)).astype(np.float64).T
        return self._inside.coverage(x, y, self._file.side) >= MIN_OVERLAP

    @property
    def pixels_key(self) -> list[Any]:
        raise NotImplementedError("of a feature file nothing is kept")

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        raise ImageError(f"{self._file.path}: is a feature file, which holds no pixels")

    def grid(self) -> PatchGrid:
        return self._grid

    def chunks(self, grid: PatchGrid) -> Iterator[tuple[slice, slice]]:
        """Chunks of the grid that have patches."""
        for rows, columns in grid.chunks():
            if (self._positions[rows, columns] != NO_PATCH).any():
                yield rows, columns

    def chunk_features(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        places = self._positions[rows, columns]
        found = places != NO_PATCH
        return found, self.features_of(places[found].astype(np.int64))

    def features_of(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of the patches whose `cells` have these places."""
        return self._file.read_some(self._rows[places])

    def sample_features(
        self, n_vectors: int, rng: np.random.Generator, allowed: LocationConstraint | None = None
    ) -> NDArray[np.float32]:
        return self._kind.sample_stored(self, self._grid, n_vectors, rng, allowed)


def extraction_settings(recipe: Recipe) -> dict[str, Any]:
    """All settings that decide which patches of an image have vectors, and which these are."""
    kind = get_patch_features(recipe.features)
    return {
        "features": recipe.features,
        "weights": kind.weights(),
        "patch_px": recipe.patch_px,
        "stride_px": recipe.grid_stride_px,
        "downsample": None if recipe.mpp else recipe.downsample,
        "mpp": recipe.mpp,
        "stain": recipe.stain,
        "min_tissue_fraction": recipe.min_tissue_fraction,
        "quality_filters": recipe.quality_filters,
        "context_scale": recipe.context_scale,
        # Patches of pixels are turned when they are learnt from, and have no border to look beyond.
        "turned": recipe.augment_patches and not kind.is_local,
        "mirrored": recipe.border_mode == "reflect" and not kind.is_local,
    }


def _check(file: FeatureFile, recipe: Recipe, trained: FeatureMetadata | None) -> None:
    if not file.n_rows:
        file.check()
    others = file.origin.differences(trained) if trained else []
    if others:
        raise ImageError(
            f"{file.path}: is not what the model learnt from: {'; '.join(others)}. Compute its "
            "features as those of the training slides were"
        )
    if not get_patch_features(recipe.features).is_precomputed:
        _check_settings(file.path, file.settings.get("recipe"), extraction_settings(recipe))


def _check_settings(path: Path, before: Any, today: dict[str, Any]) -> None:
    """A recipe that names its vectors takes those that it would have computed, and no others."""
    vectors = today["features"]
    if not isinstance(before, dict):
        raise ImageError(
            f"{path}: does not say that it holds vectors {vectors!r}: only files that `histodict "
            "features` made stand for those. To learn from any, leave out --preset and --set "
            "features"
        )
    others = [
        f"{k} {short(before.get(k))}, not {v!r}" for k, v in today.items() if before.get(k) != v
    ]
    if others:
        raise ImageError(
            f"{path}: was made otherwise ({'; '.join(others)}): make it again with `histodict "
            f"features --vectors {vectors}` and the same settings"
        )


@contextmanager
def open_prepared_image(
    path: ImageLike,
    mpp: float | None,
    recipe: Recipe,
    trained_mpp: float | None = None,
    cache: ArrayCache | None = None,
    trained: FeatureMetadata | None = None,
    within: AnnotationFile | None = None,
) -> Iterator[PreparedImage]:
    """The image at `path`; mpp overrides its pixel size, trained_mpp is what it must match.

    `trained`: of a feature file, how the vectors were made that it must match. `within`: outlines
    outside of which nothing is looked at.
    """
    if isinstance(path, Path) and is_feature_file(path):
        with open_features(path) as file:
            yield PrecomputedImage(file, recipe, mpp, trained, within)
        return
    # First: it may be replaced while it is open.
    key = cache_key(path) if cache else stable_cache_key(path)
    with open_image(path, mpp) as source:
        yield PreparedImage(source, recipe, trained_mpp, cache, key, within)
