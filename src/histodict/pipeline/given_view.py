"""A feature file where an image is expected: a recipe asks the same of it, its rows answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.annotations.drawing import AnnotationFile
from ..images.errors import ImageError
from ..images.feature_file import FeatureFile, FeatureMetadata
from ..networks import get_patch_features
from ..patches.grid import PatchGrid
from ..patches.inside import MIN_OVERLAP
from ..patches.placing import fit_grid, with_large_chunks
from ..patches.sampling import LocationConstraint
from ..recipes import Recipe
from .view import PreparedImage

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
