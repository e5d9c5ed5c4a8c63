"""Patch features: vectors of pixels, principal components, and patches stored on disk.

A patch is a uint8 array (size, size, 3). Pixel vectors are float32 of unit norm; they contain the
three colour channels one after another, as in the paper. A chunk is a range of grid rows and
columns whose patches are read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..utils.cache import ArrayCache
from ..utils.parallel import single_blas_thread
from ..utils.validation import hint
from .grid import (
    PatchGrid,
    RegionSource,
    block_means,
    downsample_contexts,
    extract_selected_patches,
    read_with_context,
)
from .sampling import LocationConstraint, rotate_and_mirror_randomly, sample_patches

# Components with less than this fraction of the variance of the first component are noise, which
# whitening would amplify.
_MIN_VARIANCE = 1e-6
# Vectors up to this length have a covariance matrix that fits into memory (128 MiB).
_MAX_COVARIANCE_FEATURES = 4096


@dataclass(frozen=True)
class Projection:
    """Projection on principal components, optionally whitened, and scaling to unit norm.

    Attributes
    ----------
    mean : (n_features,), mean of the training vectors
    components : (n_components, n_features), principal components, divided by their standard
        deviations if whitened
    """

    mean: NDArray[np.float32]
    components: NDArray[np.float32]

    @classmethod
    def fit(cls, X: NDArray[np.float32], n_components: int, *, whiten: bool = False) -> Projection:
        """Fit up to `n_components` leading components with significant variance to vectors X.

        Components are exact for vectors of up to 4,096 features; for longer ones, they are computed
        by a randomized singular value decomposition.
        """
        mean = X.mean(axis=0, dtype=np.float64)
        with single_blas_thread():
            if X.shape[1] <= _MAX_COVARIANCE_FEATURES:
                variances, vectors = np.linalg.eigh(_covariance(X, mean))
                order = np.argsort(variances)[::-1][:n_components]
                variances, components = variances[order], vectors[:, order].T
            else:
                from sklearn.utils.extmath import randomized_svd  # importing it takes a second

                n_components = min(n_components, *X.shape)
                _, singular_values, components = randomized_svd(
                    X - mean.astype(np.float32), n_components, random_state=0
                )
                variances = singular_values**2 / len(X)
        is_significant = variances > _MIN_VARIANCE * max(variances[0], np.finfo(np.float64).tiny)
        if not is_significant.any():
            raise ValueError("all training vectors are equal, so they have no principal components")
        components = components[is_significant]
        components *= np.sign(components.sum(axis=1, keepdims=True) + 1e-300)
        if whiten:
            components /= np.sqrt(variances[is_significant])[:, None]
        return cls(mean.astype(np.float32), np.ascontiguousarray(components, dtype=np.float32))

    def __call__(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the projected vectors with unit norm; a vector equal to the mean becomes zero."""
        with single_blas_thread():
            projected = np.asarray((X - self.mean) @ self.components.T, dtype=np.float32)
        norms = np.linalg.norm(projected, axis=1, keepdims=True)
        return (projected / np.where(norms > 0, norms, 1)).astype(np.float32)


def _covariance(X: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance matrix of the rows of X, computed in blocks to save memory."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), 4096):
        centred = X[start : start + 4096] - mean
        total += centred.T @ centred
    return total / len(X)


PatchVectorFunction = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# Contrast below one grey level is noise, which is not amplified to unit norm.
_MIN_CONTRAST = 1 / 255


class PreparedSource(RegionSource, Protocol):
    """Image prepared by a recipe, from which patch vectors are computed.

    Attributes
    ----------
    downsample : level-0 pixels per pixel of a patch
    context : side of the context area around a patch, in patches; 1 for no context
    is_augmented : whether training patches are rotated and mirrored at random (`augment_patches`)
    border : how an encoder pads its input beyond the image (`border_mode` of the recipe)
    cache : cache of encoder features; None for no cache
    """

    downsample: float
    context: int
    is_augmented: bool
    border: str
    cache: ArrayCache | None

    @property
    def content(self) -> RegionSource:
        """Part of the image that the grid covers; contexts beyond its border are mirrored."""

    @property
    def normalize(self) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:
        """Function that normalises the colours of pixels."""

    @property
    def pixels_key(self) -> list[Any]:
        """Cache key: all properties of the image and the recipe that determine the pixels."""

    def is_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return the mask (n,) of the patches (n, patch_px, patch_px, 3) that are tissue."""

    def tissue_patch_mask(
        self, pixels: NDArray[np.uint8], side: int, stride: int
    ) -> NDArray[np.bool_]:
        """Return the mask (rows, columns) of tissue patches on a grid.

        `side` is the side of a patch and `stride` the distance of patches, in pixels of `pixels`.
        """


class PrecomputedSource(Protocol):
    """Image with precomputed vectors, such as `PrecomputedImage`.

    Attributes
    ----------
    border : how an encoder pads its input beyond the image (`border_mode` of the recipe)
    grid_positions : (n, 2), row and column of the patch of each vector
    """

    border: str
    grid_positions: NDArray[np.int64]

    def chunk_features(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return the vectors of the patches in a range of grid rows and columns.

        Returns
        -------
        mask : (rows, columns), whether each grid position of the range has a vector
        vectors : (n, n_features), row by row
        """

    def read_vectors(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors (n, n_features) of patches; `indices` refer to `grid_positions`."""


class PatchFeatures:
    """Base class of feature sets, which cut patches from an image and compute their vectors.

    Attributes
    ----------
    atoms_are_images : whether atoms of such vectors can be shown as images
    uses_context : whether vectors may include the context of a patch (`PreparedSource.context`)
    is_local : whether the vector of a patch depends only on the pixels of the patch and its context
    is_precomputed : whether vectors come from feature files, without pixels
    precision : NumPy type in which vectors can be stored without loss
    """

    atoms_are_images: bool = True
    uses_context: bool = True
    is_local: bool = True
    is_precomputed: bool = False
    precision: type = np.float32

    def weights_digest(self) -> str:
        """Return a digest of pretrained weights; empty if the features have none."""
        return ""

    def vector_length(self, patch_px: int, n_channels: int) -> int | None:
        """Return the length of the vectors; None if it is unknown before a vector is computed."""
        return None

    def check_grid(self, patch_px: int, stride_px: int) -> None:
        """Raise ValueError if patches of this size and stride are not supported."""

    def compute_chunk(
        self, image: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return the mask of tissue patches in a range of the grid, and their vectors.

        The mask has the shape (rows, columns), the vectors have the shape (n, n_features).
        """
        raise NotImplementedError

    def sample(
        self,
        image: PreparedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Return vectors (n, n_features) of random tissue patches.

        Parameters
        ----------
        image : image to sample
        grid : grid of the patches
        n : number of vectors; the result is smaller if the image has too few patches
        rng : random generator
        allowed : constraint on the positions of patches; None for the whole image
        """
        raise NotImplementedError

    def sample_stored(
        self,
        stored: PrecomputedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Return up to n vectors of a feature file at random positions that `allowed` accepts.

        By default, raise ValueError, as feature files are not supported.
        """
        raise ValueError(
            "this feature set samples pixels between grid positions, which feature files "
            "lack; train on images, or omit --preset and --set features to use the vectors "
            "of the files"
        )


class PrecomputedFeatures(PatchFeatures):
    """Feature set whose vectors are read from feature files, without pixels."""

    atoms_are_images = False
    uses_context = False
    is_precomputed = True

    def compute_chunk(
        self, image: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Raise ValueError, as vectors cannot be computed from pixels."""
        raise ValueError(no_feature_file_message())

    def sample_stored(
        self,
        stored: PrecomputedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Return up to n random vectors, independently of the order of vectors in the file."""
        positions = stored.grid_positions
        indices = np.lexsort((positions[:, 1], positions[:, 0]))
        if allowed is not None:
            indices = indices[allowed.accepts(positions[indices, ::-1] * grid.stride_px)]
        return stored.read_vectors(indices[np.sort(rng.permutation(len(indices))[:n])])


def no_feature_file_message() -> str:
    """Return the error message for an image if a model needs feature files."""
    how = hint(python="read_manifest(…, features=…)", cli="--features")
    return (
        "the model needs a feature file, but this is an image; name the folder of feature "
        f"files with {how}"
    )


class PixelFeatures(PatchFeatures):
    """Feature set whose vectors are a function of the pixels of each patch.

    Parameters
    ----------
    make_vectors : function from patches (n, side, side, 3) to vectors (n, n_features)
    atoms_are_images : whether atoms of such vectors can be shown as images
    """

    def __init__(self, make_vectors: PatchVectorFunction, *, atoms_are_images: bool = True) -> None:
        self.make_vectors = make_vectors
        self.atoms_are_images = atoms_are_images

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the vectors of patches."""
        return self.make_vectors(patches)

    def vector_length(self, patch_px: int, n_channels: int) -> int | None:
        """Return the number of values of a patch; None if vectors cannot be shown as images."""
        return n_channels * patch_px**2 if self.atoms_are_images else None

    def compute_chunk(
        self, image: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return the mask of tissue patches in a range of the grid, and their vectors."""
        area, pixels = read_with_context(grid, image.content, rows, columns, image.context)
        is_tissue = image.tissue_patch_mask(pixels, grid.patch_px, grid.stride_px)
        if not is_tissue.any():
            no_patches = np.empty((0, grid.patch_px, grid.patch_px, 3), np.uint8)
            return is_tissue, _concatenate_vectors(
                [self.make_vectors(no_patches)] * min(2, image.context)
            )
        # Pixels are normalised once, before overlapping patches are cut.
        parts = [
            self.make_vectors(
                extract_selected_patches(
                    image.normalize(pixels), grid.patch_px, grid.stride_px, is_tissue
                )
            )
        ]
        if image.context > 1:
            parts.append(self.make_vectors(_context_patches(image, grid, area, is_tissue)))
        return is_tissue, _concatenate_vectors(parts)

    def sample(
        self,
        image: PreparedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Return up to n vectors of random tissue patches at positions that `allowed` accepts."""
        content, context = image.content, image.context
        patches = sample_patches(content, n, grid, rng, image.is_tissue, allowed, context)
        if image.is_augmented:
            patches = rotate_and_mirror_randomly(patches, rng)
        return self._multiscale_vectors(image, patches if image.context > 1 else patches[:, None])

    def _multiscale_vectors(
        self, image: PreparedSource, patches: NDArray[np.uint8]
    ) -> NDArray[np.float32]:
        """Return one vector per patch, in which the patch and its context have equal weight.

        `patches` are the patches and their contexts, (n, n_scales, patch_px, patch_px, 3).
        """
        parts = [self.make_vectors(image.normalize(patches[:, i])) for i in range(patches.shape[1])]
        return _concatenate_vectors(parts)


def _context_patches(
    image: PreparedSource, grid: PatchGrid, area: NDArray[np.uint8], is_selected: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return the contexts of selected patches, reduced to patch size: (n, patch_px, patch_px, 3).

    `area` contains the patches and their contexts, from `read_with_context`; `is_selected` is a
    mask (rows, columns).
    """
    side, stride, context = grid.patch_px, grid.stride_px, image.context
    if stride % context == 0:  # neighbouring patches share their blocks
        reduced = image.normalize(block_means(area, context))
        return extract_selected_patches(reduced, side, stride // context, is_selected)
    return image.normalize(downsample_contexts(area, side * context, stride, context, is_selected))


def _concatenate_vectors(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Concatenate unit vectors of patches and of their contexts, and scale to unit norm."""
    if len(parts) == 1:
        return parts[0]
    joined = np.hstack(parts)
    joined /= np.float32(len(parts) ** 0.5)
    return joined


# --- pixel vectors ------------------------------------------------------------------------------


def rgb(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return vectors of pixel values (feature set "rgb"), as in the paper."""
    return _scale_to_unit_norm(_flatten_by_channel(patches), float(np.finfo(np.float32).tiny))


def centred(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return vectors of pixel values minus their mean, insensitive to brightness (not colour)."""
    values = _flatten_by_channel(patches)
    values -= values.mean(axis=1, keepdims=True)
    return _scale_to_unit_norm(values, _MIN_CONTRAST * np.sqrt(values.shape[1]))


def channel_centred(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return vectors of pixel values minus the channel means, insensitive to mean colour."""
    flat = _flatten_by_channel(patches)
    channels = flat.reshape(len(flat), 3, flat.shape[1] // 3)
    channels -= channels.mean(axis=2, keepdims=True)
    return _scale_to_unit_norm(flat, _MIN_CONTRAST * np.sqrt(flat.shape[1]))


PATCH_FEATURES: dict[str, PixelFeatures] = {
    "rgb": PixelFeatures(rgb),
    "centred": PixelFeatures(centred),
    "channel-centred": PixelFeatures(channel_centred),
}


def to_images(vectors: NDArray[Any], patch_px: int) -> NDArray[Any]:
    """Return pixel vectors, or atoms, as images (n, patch_px, width, 3).

    If vectors include the context, it is placed on the right of the patch.
    """
    planes = vectors.reshape(len(vectors), -1, 3, patch_px, patch_px)
    images: NDArray[Any] = planes.transpose(0, 3, 1, 4, 2).reshape(len(vectors), patch_px, -1, 3)
    return images


def _flatten_by_channel(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixel values from 0 to 1 as vectors, channel by channel."""
    # An explicit length, as NumPy cannot infer -1 for images without tissue, which have no patches.
    planes: NDArray[Any] = patches.transpose(0, 3, 1, 2).reshape(
        len(patches), math.prod(patches.shape[1:])
    )
    values = planes.astype(np.float32)
    values /= np.float32(255)
    return values


def _scale_to_unit_norm(vectors: NDArray[np.float32], min_norm: float) -> NDArray[np.float32]:
    """Scale vectors to unit norm in place; norms below `min_norm` count as `min_norm`."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(norms, np.float32(min_norm))
    return vectors


@dataclass(frozen=True)
class StoredPatches:
    """Training patches (n, size, size, 3) and their labels (n,), stored in two `.npy` files.

    An object contains only file names, so it can be sent to processes and machines with access to
    the same files. Files are read in blocks; see `methods.dfdl.DFDL.fit_blocks`.

    Attributes
    ----------
    patches_file : path of the patches
    labels_file : path of the labels
    features : name of the patch features, a key of `PATCH_FEATURES`
    """

    patches_file: Path
    labels_file: Path
    features: str = "centred"

    def __post_init__(self) -> None:
        if self.features not in PATCH_FEATURES:
            raise ValueError(
                f"features must be one of {sorted(PATCH_FEATURES)}, not {self.features!r}"
            )
        shape, n_labels = self._open_patches().shape, len(self.labels)
        if self._open_patches().dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise ValueError(
                f"{self.patches_file}: must contain uint8 values of shape (n, size, size, 3)"
            )
        if shape[0] != n_labels:
            raise ValueError(
                f"{self.patches_file} has {shape[0]} patches, but {self.labels_file} has "
                f"{n_labels} labels"
            )

    @property
    def labels(self) -> NDArray[Any]:
        """Labels (n,), memory-mapped."""
        labels: NDArray[Any] = np.load(self.labels_file, mmap_mode="r", allow_pickle=False)
        return labels

    def read(self, rows: slice) -> NDArray[np.float32]:
        """Return the vectors (n, n_features) of the patches in these rows."""
        # Opened each time, as pages of an open memory map count as memory of the process.
        return PATCH_FEATURES[self.features](self._open_patches()[rows])

    def _open_patches(self) -> NDArray[np.uint8]:
        patches: NDArray[np.uint8] = np.load(self.patches_file, mmap_mode="r", allow_pickle=False)
        return patches
