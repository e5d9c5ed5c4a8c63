"""Prepared images: an image or feature file as the grid of patches that a recipe requires.

The image is reduced and stain-normalised, and background is excluded. Tissue threshold and stain
normalisation are estimated from a thumbnail, which takes longer than all patches of a small image.
As folds, methods and estimators process the same images repeatedly, the estimates are cached in
memory. They take a few hundred bytes per image and normalisation.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as short
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..encoders import get_patch_features
from ..images.file_types import ImageError
from ..images.memory_image import ImageLike, cache_key, stable_cache_key
from ..images.pixel_size import file_pixel_size, pixel_size_advice, pixel_size_hint
from ..images.source import ImageSource, open_image
from ..patches.grid import PatchGrid, RegionSource, fit_grid, with_large_chunks
from ..patches.sampling import MIN_OVERLAP, LocationConstraint, region_constraint
from ..patches.vectors import no_feature_file_message
from ..precomputed.feature_file import FeatureFile, FeatureMetadata, is_feature_file, open_features
from ..preprocessing.quality import QualityMap, median_tissue_density, parse_quality_filters
from ..preprocessing.stain import NORMALIZERS, LookupTransform, StainTransform
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
from ..utils.validation import hint
from .recipe import Recipe

THUMBNAIL_PX = 1024  # longest side
_MAX_CACHED = 50_000  # number of entries of a cache
_MAX_QUALITY_MAPS = 64  # number of cached quality maps, of up to a megabyte each

Value = TypeVar("Value")


@dataclass(frozen=True)
class ThumbnailAnalysis:
    """Tissue threshold and stain normalisation of an image, estimated from its thumbnail."""

    tissue: TissueThreshold
    normalize: StainTransform


class _ResultCache(Generic[Value]):
    """Thread-safe cache of the latest `max_entries` results; 0 stands for `_MAX_CACHED`."""

    def __init__(self, max_entries: int = 0) -> None:
        self._cache: dict[str, Value] = {}
        self._max_entries = max_entries
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        return self._cache.get(key)

    def put(self, key: str, value: Value) -> None:
        with self._lock:
            self._cache[key] = value
            if len(self._cache) > (self._max_entries or _MAX_CACHED):
                del self._cache[next(iter(self._cache))]


_ANALYSES: _ResultCache[ThumbnailAnalysis] = _ResultCache()
_QUALITY_MAPS: _ResultCache[QualityMap] = _ResultCache(_MAX_QUALITY_MAPS)
_CONTENT_BOXES: _ResultCache[Box] = _ResultCache()


def crop_to_content(source: ImageSource, min_side: float, cache_key: Sequence[Any]) -> Source:
    """Return the image without its uniform margins.

    An image is returned unchanged if its content would be narrower than `min_side` level-0 pixels.
    `cache_key` identifies the image; if it is empty, nothing is cached.
    """
    key = repr(cache_key)
    box = _CONTENT_BOXES.get(key) if cache_key else None
    if box is None:
        box = content_box(source)
        if cache_key:
            _CONTENT_BOXES.put(key, box)
    content = Crop(source, box)
    return source if content.size == source.size or min(content.size) < min_side else content


def analyse_thumbnail(source: Source, stain: str, cache_key: Sequence[Any]) -> ThumbnailAnalysis:
    """Estimate tissue threshold and stain normalisation of an open image from its thumbnail.

    `stain` is a key of `NORMALIZERS`. `cache_key` identifies the image; if it is empty, nothing is
    cached.
    """
    key = repr((cache_key, stain, source.size))
    analysis = _ANALYSES.get(key) if cache_key else None
    if analysis is None:
        thumbnail = source.thumbnail(THUMBNAIL_PX)
        is_slide = source.overview_downsample is not None
        fit = TissueThreshold.from_thumbnail if is_slide else TissueThreshold.from_tile
        tissue = fit(thumbnail)
        analysis = ThumbnailAnalysis(
            tissue, NORMALIZERS[stain].estimate(thumbnail, tissue.mask(thumbnail))
        )
        if cache_key:
            _ANALYSES.put(key, analysis)
    return analysis


def compute_quality_map(
    source: Source, tissue: TissueThreshold, filters: Sequence[str], cache_key: Sequence[Any]
) -> QualityMap | None:
    """Return the map of tissue that quality `filters` exclude; None without filters.

    `cache_key` identifies the image; if it is empty, nothing is cached.
    """
    if not filters:
        return None
    key = repr((cache_key, list(filters)))
    quality = _QUALITY_MAPS.get(key) if cache_key else None
    if quality is None:
        density = median_tissue_density(source.thumbnail(THUMBNAIL_PX), tissue)
        quality = QualityMap(source, tissue, density, filters)
        if cache_key:
            _QUALITY_MAPS.put(key, quality)
    return quality


_MIN_PROGRESS_PIXELS = 16_000_000  # no progress is reported for smaller images


def chunk_progress(
    chunks: Sequence[tuple[slice, slice]], size: tuple[int, int], callback: Callback
) -> Callable[[int], None]:
    """Return a function that reports progress and is called with the number of finished chunks.

    Parameters
    ----------
    chunks : chunks (rows, columns) of the patch grid, weighted by their number of patches
    size : (width, height) of the image in pixels; no progress is reported for small images
    callback : receives the progress, starting with 0 chunks
    """
    if math.prod(size) <= _MIN_PROGRESS_PIXELS or not chunks:
        return lambda n_done: None
    work = cumulative_shares([float((r.stop - r.start) * (c.stop - c.start)) for r, c in chunks])

    def report(n_done: int) -> None:
        callback(Progress("slide", n_done, len(chunks), work=work[n_done]))

    report(0)
    return report


# Number of pixels of a reduced image above which normalised colours are looked up in a table.
_MIN_TABLE_PIXELS = 8_000_000


class PreparedImage:
    """Open image as a grid of patches with feature vectors, prepared for a recipe.

    Parameters
    ----------
    source : open image
    recipe : settings
    trained_mpp : pixel size (µm) of the training images, to be matched; None if unknown
    cache : cache of feature vectors; None stores nothing
    image_key : cache key of the file, computed before it was opened; required with a cache
    region_of_interest : outlines; only patches at least half inside are used

    Attributes
    ----------
    path, size, mpp, offset : path, (width, height), pixel size (µm) and offset of `source`
    downsample : factor by which the image is reduced
    content : image without uniform margins
    normalize : stain normalisation, a function of pixels
    quality : map of tissue that quality filters exclude; None without filters
    clip_size : (width, height) to which outlines of regions are clipped, because patches of a
        feature file may extend beyond the image; None for other files
    uses_whole_image : whether all patches are used because hardly any tissue was found
    stain_note : reason why the recipe's stain normalisation was not applied; empty otherwise
    """

    clip_size: tuple[int, int] | None = None
    uses_whole_image: bool = False  # always False for feature files
    stain_note = ""  # always empty for feature files

    def __init__(
        self,
        source: ImageSource,
        recipe: Recipe,
        trained_mpp: float | None,
        cache: ArrayCache | None = None,
        image_key: list[Any] | None = None,
        region_of_interest: AnnotationFile | None = None,
    ) -> None:
        assert cache is None or image_key
        self._source = source
        self._image_key = image_key or []
        self._recipe = recipe
        self._features = get_patch_features(recipe.features)
        if self._features.is_precomputed:
            raise ImageError(f"{source.path}: {no_feature_file_message()}")
        self._features.check_grid(recipe.patch_px, recipe.grid_stride_px)
        self.context, self.is_augmented = recipe.context_scale, recipe.augment_patches
        self.border, self.cache = recipe.border_mode, cache
        self.path = source.path
        self.size = source.size
        self.mpp = source.mpp
        self.offset = source.offset
        self.downsample = image_downsample(source.path, source.mpp, recipe, trained_mpp)
        self._region = region_of_interest.region_mask(source) if region_of_interest else None
        # A tile or photograph is cropped to its content.
        content = crop_to_content(source, recipe.patch_px * self.downsample, self._image_key)
        self._box = content.box if isinstance(content, Crop) else (0, 0, *source.size)
        self.content: RegionSource = content
        analysis = analyse_thumbnail(content, recipe.stain, self._image_key)
        self._tissue = analysis.tissue
        self.uses_whole_image = analysis.tissue.accepts_all
        self.normalize: StainTransform = analysis.normalize
        reason = analysis.normalize.unchanged_reason
        self.stain_note = f"stain {reason}" if reason else ""
        self.quality = compute_quality_map(
            source, analysis.tissue, parse_quality_filters(recipe.quality_filters), self._image_key
        )
        if recipe.stain != "none" and math.prod(self.size) > _MIN_TABLE_PIXELS * self.downsample**2:
            self.normalize = LookupTransform(self.normalize)

    @property
    def pixels_key(self) -> list[Any]:
        """Cache key of the reduced, normalised pixels."""
        return [*self._image_key, self._recipe.stain, self.downsample, self._box]

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        """Return pixels of an area in level-0 coordinates, reduced, without normalisation."""
        return self._source.read(x, y, width, height, downsample)

    def grid(self) -> PatchGrid:
        """Return the patch grid; raise ImageError if the image is too small."""
        recipe = self._recipe
        try:
            return PatchGrid.from_size(
                self.content.size,
                recipe.patch_px,
                recipe.grid_stride_px,
                self.downsample,
                self._box[:2],
            )
        except ValueError as error:
            raise ImageError(f"{self._source.path}: {error}") from error

    def chunks(self, grid: PatchGrid) -> Iterator[tuple[slice, slice]]:
        """Yield the chunks (rows, columns) of the grid that may contain tissue.

        Chunks are cropped to possible tissue if this does not change the vectors.
        """
        if self._source.overview_downsample is None:
            yield from (chunk for chunk in grid.chunks() if self.inside_mask(grid, *chunk).any())
            return
        background = BackgroundMask(self._source, self._source.overview_downsample, self._tissue)
        side = math.ceil(grid.patch_side)
        # Encoder features depend on the extent of the chunk.
        may_crop = self._features.is_local and self._source.is_region_invariant(self.downsample)
        for rows, columns in grid.chunks():
            y, x = (
                np.rint(np.arange(part.start, part.stop) * grid.step).astype(np.int64)
                for part in (rows, columns)
            )
            maybe_tissue = background.may_have_tissue(x, y, side) & self.inside_mask(
                grid, rows, columns
            )
            if maybe_tissue.any():
                yield _crop_to_tissue(maybe_tissue, rows, columns) if may_crop else (rows, columns)

    def chunk_features(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which patches of a chunk are used, and their feature vectors.

        Returns
        -------
        used : mask (rows, columns) of patches on tissue that pass the quality filters and lie
            inside the outlines
        vectors : (n_used, n_features), in the order of the mask
        """
        tissue, vectors = self._features.compute_chunk(self, grid, rows, columns)
        used = tissue & self.inside_mask(grid, rows, columns)
        if self.quality is not None:
            y, x = (np.arange(part.start, part.stop) * grid.step for part in (rows, columns))
            half = grid.patch_side / 2
            used &= self.quality.is_usable(grid.left + x + half, grid.top + y[:, None] + half)
        return (used, vectors[used[tissue]]) if (used != tissue).any() else (tissue, vectors)

    def inside_mask(self, grid: PatchGrid, rows: slice, columns: slice) -> NDArray[np.bool_]:
        """Return the mask (rows, columns) of a chunk's patches that lie inside the outlines."""
        if self._region is None:
            return np.ones((rows.stop - rows.start, columns.stop - columns.start), bool)
        x = grid.left + np.arange(columns.start, columns.stop) * grid.step
        y = grid.top + np.arange(rows.start, rows.stop) * grid.step
        return self._region.coverage(*np.meshgrid(x, y), grid.patch_side) >= MIN_OVERLAP

    def sample_features(
        self, n_vectors: int, rng: np.random.Generator, allowed: LocationConstraint | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors of up to `n_vectors` random tissue patches.

        `allowed` restricts the positions of the patches; None allows all positions.
        """
        grid = self.grid()
        if self._region is not None:
            allowed = region_constraint(self._region, grid).intersection(allowed)
        if self.quality is not None:
            usable = LocationConstraint(partial(self._is_usable, grid.patch_px / 2))
            allowed = usable.intersection(allowed)
        return self._features.sample(self, grid, n_vectors, rng, allowed)

    def _is_usable(self, half_side: float, corners: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each patch passes the quality filters.

        `corners` (n, 2) are the upper left corners (x, y), and `half_side` is half the side of a
        patch. Both are in pixels of the reduced image.
        """
        assert self.quality is not None
        x, y = ((corners + half_side) * self.downsample + np.array(self._box[:2])).T
        return self.quality.is_usable(x, y)

    def is_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the tissue fraction of each patch reaches the recipe's minimum."""
        if len(patches) == 0:
            return np.zeros(0, bool)
        return self.tissue_fraction(patches) >= self._recipe.min_tissue_fraction

    def tissue_patch_mask(
        self, pixels: NDArray[np.uint8], side: int, stride: int
    ) -> NDArray[np.bool_]:
        """Return the mask (rows, columns) of patches with enough tissue.

        The patches lie on a grid over the image area `pixels`; `side` and `stride` are in pixels.
        """
        return (
            window_fraction(pixels, self._tissue, side, stride) >= self._recipe.min_tissue_fraction
        )

    def tissue_fraction(self, patches: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the fraction of tissue of each patch."""
        return tissue_fraction(patches, self._tissue)


def _crop_to_tissue(mask: NDArray[np.bool_], rows: slice, columns: slice) -> tuple[slice, slice]:
    """Return rows and columns of a chunk, cropped to its patches that may contain tissue.

    `mask` has True for these patches of the chunk.
    """
    spans = []
    for part, axis in ((rows, 1), (columns, 0)):
        positions = np.flatnonzero(mask.any(axis=axis))
        spans.append(slice(part.start + int(positions[0]), part.start + int(positions[-1]) + 1))
    return spans[0], spans[1]


def image_downsample(
    path: ImageLike, mpp: float | None, recipe: Recipe, trained_mpp: float | None
) -> float:
    """Return the factor by which an image is reduced; raise ImageError if `mpp` is unsuitable.

    `mpp` and `trained_mpp` are the pixel sizes (µm) of the image and of the training images.
    """
    if recipe.mpp is not None:
        if mpp is None:
            file_hint = pixel_size_hint(path)
            raise ImageError(
                f"{path}: the pixel size is unknown, and the model works at {recipe.mpp:g} µm "
                f"per pixel: {pixel_size_advice()}{file_hint and f'. {file_hint}'}"
            )
        factor = recipe.mpp / mpp
        if factor < 0.95:
            raise ImageError(
                f"{path}: has {mpp:g} µm per pixel, which is coarser than the {recipe.mpp:g} µm "
                "of the model. Use a scan of higher resolution"
            )
        return max(1.0, factor)
    if trained_mpp and mpp and abs(mpp / trained_mpp - 1) > 0.1:
        if file_pixel_size(path) == mpp:
            source = "the pixel size in the file is wrong, set the true one"
            remedy = hint(
                python="with mpp=PixelSizeOption(override=…)",
                cli="with --override-mpp",
                web="in a column mpp",
            )
        else:
            source = "the specified pixel size is wrong, correct it"
            remedy = hint(
                python="(mpp=… or column 'mpp')",
                cli="(--mpp, --override-mpp or column 'mpp')",
                web="(data page, µm per pixel, or column 'mpp')",
            )
        raise ImageError(
            f"{path}: has {mpp:g} µm per pixel, but the model was trained on images with "
            f"{trained_mpp:g} µm per pixel. Rescale the image or, if {source} {remedy}"
        )
    return recipe.downsample


NO_PATCH = -1  # index of grid positions without a patch


class PrecomputedImage(PreparedImage):
    """Patches of a feature file, with the interface of `PreparedImage`.

    The vectors are used as stored; scale and stain of the recipe have no effect. If the recipe
    computes features from pixels, the file must have the same `extraction_settings`. It must match
    `trained_metadata`, the metadata of the training files; None if unknown.
    """

    def __init__(
        self,
        file: FeatureFile,
        recipe: Recipe,
        mpp: float | None,
        trained_metadata: FeatureMetadata | None,
        region_of_interest: AnnotationFile | None = None,
    ) -> None:
        self._file = file
        self._kind = get_patch_features(recipe.features)
        _check_feature_file(file, recipe, trained_metadata)
        self.border, self.cache, self.quality = recipe.border_mode, None, None
        self.context, self.is_augmented = recipe.context_scale, recipe.augment_patches
        grid, positions = fit_grid(file)
        # If the recipe has an encoder, chunks are those of the image, for identical results.
        self._grid = with_large_chunks(grid) if self._kind.is_precomputed else grid
        self._index_map = np.full((self._grid.n_rows, self._grid.n_columns), NO_PATCH, np.int32)
        self.downsample = self._grid.downsample
        self.path, self.offset, self.size = file.path, file.offset, file.extent
        self.clip_size = file.extent if file.size else None
        self.mpp = file.mpp if mpp is None else mpp
        self.content = self
        self._region = region_of_interest.region_mask(self) if region_of_interest else None
        self._rows = np.flatnonzero(self._stored_patches_inside())  # rows of the file
        self.grid_positions = positions[self._rows]
        self._index_map[tuple(self.grid_positions.T)] = np.arange(len(self._rows))

    def _stored_patches_inside(self) -> NDArray[np.bool_]:
        """Return the mask (n,) of the patches that are at least half inside the outlines."""
        if self._region is None:
            return np.ones(self._file.n_rows, bool)
        x, y = (self._file.coords - np.array(self.offset)).astype(np.float64).T
        return self._region.coverage(x, y, self._file.side) >= MIN_OVERLAP

    @property
    def pixels_key(self) -> list[Any]:
        """Raise NotImplementedError, as feature files are not cached."""
        raise NotImplementedError("feature files are not cached")

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        """Raise ImageError, as feature files have no pixels."""
        raise ImageError(f"{self._file.path}: is a feature file and has no pixels")

    def grid(self) -> PatchGrid:
        """Return the patch grid of the file."""
        return self._grid

    def chunks(self, grid: PatchGrid) -> Iterator[tuple[slice, slice]]:
        """Yield the chunks (rows, columns) of the grid that have patches."""
        for rows, columns in grid.chunks():
            if (self._index_map[rows, columns] != NO_PATCH).any():
                yield rows, columns

    def chunk_features(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which patches of a chunk are stored, and their feature vectors.

        Returns
        -------
        stored : mask (rows, columns) of the patches that the file has and that lie inside the
            outlines
        vectors : (n_stored, n_features), in the order of the mask
        """
        indices = self._index_map[rows, columns]
        has_patch = indices != NO_PATCH
        return has_patch, self.read_vectors(indices[has_patch].astype(np.int64))

    def read_vectors(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return vectors by their `indices` among the patches of the file inside the outlines."""
        return self._file.read_rows(self._rows[indices])

    def sample_features(
        self, n_vectors: int, rng: np.random.Generator, allowed: LocationConstraint | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors of up to `n_vectors` random patches; see `PreparedImage`."""
        return self._kind.sample_stored(self, self._grid, n_vectors, rng, allowed)


def extraction_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings, by name, that determine the patches and vectors of a feature file."""
    kind = get_patch_features(recipe.features)
    return {
        "features": recipe.features,
        "weights": kind.weights_digest(),
        "patch_px": recipe.patch_px,
        "stride_px": recipe.grid_stride_px,
        "downsample": None if recipe.mpp else recipe.downsample,
        "mpp": recipe.mpp,
        "stain": recipe.stain,
        "min_tissue_fraction": recipe.min_tissue_fraction,
        "quality_filters": recipe.quality_filters,
        "context_scale": recipe.context_scale,
        # Pixel patches are augmented at training time only, and have no border mode.
        "turned": recipe.augment_patches and not kind.is_local,
        "mirrored": recipe.border_mode == "reflect" and not kind.is_local,
    }


def _check_feature_file(
    file: FeatureFile, recipe: Recipe, trained_metadata: FeatureMetadata | None
) -> None:
    """Raise ImageError if a feature file does not match the recipe or the training files."""
    if not file.n_rows:
        file.check_values()
    mismatches = file.metadata.differences(trained_metadata) if trained_metadata else []
    if mismatches:
        raise ImageError(
            f"{file.path}: its features differ from those of the training slides: "
            f"{'; '.join(mismatches)}. Compute them with the same settings"
        )
    if not get_patch_features(recipe.features).is_precomputed:
        _check_settings(file.path, file.settings.get("recipe"), extraction_settings(recipe))


def _check_settings(path: Path, stored: Any, required: dict[str, Any]) -> None:
    """Raise ImageError if stored settings differ from those that the recipe requires."""
    name = required["features"]
    if not isinstance(stored, dict):
        raise ImageError(
            f"{path}: is not a file with {name!r} vectors from `histodict features`. To train on "
            "other feature files, leave out --preset and --set features"
        )
    mismatches = [
        f"{k} {short(stored.get(k))}, not {v!r}" for k, v in required.items() if stored.get(k) != v
    ]
    if mismatches:
        raise ImageError(
            f"{path}: features were computed with other settings ({'; '.join(mismatches)}). "
            f"Compute them again with `histodict features --encoder {name}` and the settings of "
            "the model"
        )


@contextmanager
def open_prepared_image(
    path: ImageLike,
    mpp: float | None,
    recipe: Recipe,
    trained_mpp: float | None = None,
    cache: ArrayCache | None = None,
    trained_metadata: FeatureMetadata | None = None,
    region_of_interest: AnnotationFile | None = None,
) -> Iterator[PreparedImage]:
    """Open an image or feature file and yield it as a grid of patches, prepared for a recipe.

    Parameters
    ----------
    path : image, slide or feature file
    mpp : pixel size (µm) that replaces the one in the file; None keeps it
    recipe : settings
    trained_mpp : pixel size (µm) of the training images, to be matched; None if unknown
    cache : cache of feature vectors; None stores nothing
    trained_metadata : metadata of the training files, which a feature file must match; None if
        unknown
    region_of_interest : outlines; only patches at least half inside are used
    """
    if isinstance(path, Path) and is_feature_file(path):
        with open_features(path) as file:
            yield PrecomputedImage(file, recipe, mpp, trained_metadata, region_of_interest)
        return
    # Computed first, as the file may be replaced while it is open.
    key = cache_key(path) if cache else stable_cache_key(path)
    with open_image(path, mpp) as source:
        yield PreparedImage(source, recipe, trained_mpp, cache, key, region_of_interest)
