"""An image as a recipe sees it: reduced, stain-normalised, with glass left out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.array_cache import ArrayCache
from ..execution.texts import pluralize, truncated_list
from ..images.annotations.drawing import AnnotationFile
from ..images.glass import BackgroundMask
from ..images.margin import Crop
from ..images.pixel_size import how_to_set, size_hint
from ..images.quality import NONE, parse_quality_filters
from ..images.readers import ImageError, ImageSource
from ..images.records import ImageRecord
from ..images.stain import LookupTransform, StainTransform
from ..images.tissue import tissue_fraction, window_fraction
from ..networks import get_patch_features
from ..parameters import hint
from ..patches.grid import PatchGrid, RegionSource
from ..patches.inside import MIN_OVERLAP, region_constraint
from ..patches.sampling import LocationConstraint
from ..patches.vectors import no_feature_file
from ..recipes import Recipe
from .first_look import analyse_thumbnail, content_of, quality_map

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
