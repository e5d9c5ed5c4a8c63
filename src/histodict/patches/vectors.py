"""What stands for a patch, exchangeable by name; here vectors of the patch's own pixels.

A patch is (size, size, 3) uint8. Vectors are float32 of unit norm, the three colour channels one
after another, as in the paper.

Fewer, decorrelated features: principal components of the training vectors, unit norm after.

Fitted on training patches only. Whitening gives every component the same variance.

Patches on disk: as many as the disk holds, read and turned into vectors a block at a time.
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
    downsampled_context,
    extract_selected_patches,
    read_with_context,
)
from .sampling import LocationConstraint, random_dihedral, sample_patches

# A component with less than this share of the first one's variance is noise: whitening must not
# blow it up.
_MIN_VARIANCE = 1e-6


@dataclass(frozen=True)
class Projection:
    """mean (n_features,), components (n_components, n_features)."""

    mean: NDArray[np.float32]
    components: NDArray[np.float32]

    @classmethod
    def fit(cls, X: NDArray[np.float32], n_components: int, *, whiten: bool = False) -> Projection:
        """The leading components; as many as there are, where there are fewer."""
        mean = X.mean(axis=0, dtype=np.float64)
        with single_blas_thread():
            covariance = _covariance(X, mean)
            variances, vectors = np.linalg.eigh(covariance)
        order = np.argsort(variances)[::-1][:n_components]
        variances, components = variances[order], vectors[:, order].T
        kept = variances > _MIN_VARIANCE * max(variances[0], np.finfo(np.float64).tiny)
        if not kept.any():
            raise ValueError("all training vectors are equal: there are no components to find")
        components = components[kept]
        components *= np.sign(components.sum(axis=1, keepdims=True) + 1e-300)
        if whiten:
            components /= np.sqrt(variances[kept])[:, None]
        return cls(mean.astype(np.float32), np.ascontiguousarray(components, dtype=np.float32))

    def __call__(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Components of unit norm; a vector at the mean stays zero."""
        with single_blas_thread():
            projected = np.asarray((X - self.mean) @ self.components.T, dtype=np.float32)
        norms = np.linalg.norm(projected, axis=1, keepdims=True)
        return (projected / np.where(norms > 0, norms, 1)).astype(np.float32)


def _covariance(X: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """In blocks, so that no copy of X is made in double precision."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), 4096):
        centred = X[start : start + 4096] - mean
        total += centred.T @ centred
    return total / len(X)


PatchVectors = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# Contrast below one grey level is noise: such a patch keeps a short vector, it is not blown up.
_MIN_CONTRAST = 1 / 255


class PreparedSource(RegionSource, Protocol):
    """What vectors are cut from: an image as a recipe sees it.

    content : part covered by the grid; surroundings of patches are mirrored at its border
    context, turned : how much wider the surroundings are; whether patches are turned or mirrored
    border : what a network sees beyond it
    cache : keeps what is costly to compute; None keeps nothing
    pixels_key : all that decides its pixels, to keep things under
    """

    downsample: float
    context: int
    turned: bool
    border: str
    cache: ArrayCache | None

    @property
    def content(self) -> RegionSource: ...
    @property
    def normalise(self) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]: ...
    @property
    def pixels_key(self) -> list[Any]: ...

    def is_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]: ...

    def tissue_windows(
        self, pixels: NDArray[np.uint8], side: int, stride: int
    ) -> NDArray[np.bool_]: ...


class PrecomputedSource(Protocol):
    """An image whose patches' vectors are there already: `pipeline.given_view` is one.

    border : as of `Tissue`
    cells : per vector the row and column of its patch (n, 2)
    """

    border: str
    cells: NDArray[np.int64]

    def chunk_features(
        self, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]: ...

    def features_of(self, places: NDArray[np.int64]) -> NDArray[np.float32]: ...


class PatchFeatures:
    """What stands for a patch, and how it is cut; every kind of vectors derives from it.

    are_pictures : atoms of such vectors can be looked at
    uses_context : a patch may be seen with what lies around it (`context`)
    alone : a patch has the same vector whatever is read with it
    is_precomputed : they come from feature files, and nothing is known of pixels
    precision : what holds every number of them, so that they can be kept
    """

    are_images: bool = True
    uses_context: bool = True
    is_local: bool = True
    is_precomputed: bool = False
    precision: type = np.float32

    def weights(self) -> str:
        """A digest of what was learnt to compute them; empty where nothing was."""
        return ""

    def length(self, patch_px: int, n_channels: int) -> int | None:
        """Of a vector; None where that is not known before there is one."""
        return None

    def check(self, patch_px: int, stride_px: int) -> None:
        """Refuses patches that they cannot be made of."""

    def compute_chunk(
        self, tissue: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Which patches of a chunk are tissue (rows, columns), and these patches' vectors."""
        raise NotImplementedError

    def sample(
        self,
        tissue: PreparedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Up to n vectors of random patches on tissue, at places that `allowed` accepts."""
        raise NotImplementedError

    def sample_stored(
        self,
        kept: PrecomputedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """What `sample` gives of an image, from its vectors that were kept."""
        raise ValueError(
            "vectors of pixels are learnt from patches between those of the grid, which feature "
            "files do not have: learn from the images, or leave out --preset and --set vectors, so "
            "that the files' vectors are taken as they are"
        )


class PrecomputedFeatures(PatchFeatures):
    """Vectors of feature files, whoever made them; of pixels there are none."""

    are_images = False
    uses_context = False
    is_precomputed = True

    def compute_chunk(
        self, tissue: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        raise ValueError(no_feature_file())

    def sample_stored(
        self,
        kept: PrecomputedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Of all patches alike, each once; whatever their order in the file."""
        places = np.lexsort((kept.cells[:, 1], kept.cells[:, 0]))
        if allowed is not None:
            places = places[allowed.accepts(kept.cells[places, ::-1] * grid.stride_px)]
        return kept.features_of(places[np.sort(rng.permutation(len(places))[:n])])


def no_feature_file() -> str:
    """Return why an image without a feature file is refused."""
    how = hint(python="read_manifest(…, features=…)", cli="--features")
    return (
        "its vectors are to come from a feature file, and this is none: name the folder of such "
        f"files with {how}"
    )


class PixelFeatures(PatchFeatures):
    """A function of the patch's pixels: (n, side, side, 3) to (n, n_features)."""

    def __init__(self, make: PatchVectors, *, are_pictures: bool = True) -> None:
        self.make = make
        self.are_images = are_pictures

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.make(patches)

    def length(self, patch_px: int, n_channels: int) -> int | None:
        return n_channels * patch_px**2 if self.are_images else None

    def compute_chunk(
        self, tissue: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        area, own = read_with_context(grid, tissue.content, rows, columns, tissue.context)
        found = tissue.tissue_windows(own, grid.patch_px, grid.stride_px)
        if not found.any():
            nothing = np.empty((0, grid.patch_px, grid.patch_px, 3), np.uint8)
            return found, _side_by_side([self.make(nothing)] * min(2, tissue.context))
        # Pixels are normalised before they are cut: where patches overlap, each of them once.
        parts = [
            self.make(
                extract_selected_patches(
                    tissue.normalise(own), grid.patch_px, grid.stride_px, found
                )
            )
        ]
        if tissue.context > 1:
            parts.append(self.make(_around(tissue, grid, area, found)))
        return found, _side_by_side(parts)

    def sample(
        self,
        tissue: PreparedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        content, context = tissue.content, tissue.context
        patches = sample_patches(content, n, grid, rng, tissue.is_tissue, allowed, context)
        if tissue.turned:
            patches = random_dihedral(patches, rng)
        return self._of_scales(tissue, patches if tissue.context > 1 else patches[:, None])

    def _of_scales(self, tissue: PreparedSource, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of patches (n, n_scales, patch_px, patch_px, 3); the scales weigh the same."""
        parts = [self.make(tissue.normalise(patches[:, i])) for i in range(patches.shape[1])]
        return _side_by_side(parts)


def _around(
    tissue: PreparedSource, grid: PatchGrid, area: NDArray[np.uint8], found: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """The surroundings of the patches that were found, reduced and normalised."""
    side, stride, context = grid.patch_px, grid.stride_px, tissue.context
    if stride % context == 0:  # the blocks of one patch are those of its neighbours
        reduced = tissue.normalise(block_means(area, context))
        return extract_selected_patches(reduced, side, stride // context, found)
    return tissue.normalise(downsampled_context(area, side * context, stride, context, found))


def _side_by_side(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Vectors of a patch at several scales, which weigh the same, as one."""
    if len(parts) == 1:
        return parts[0]
    joined = np.hstack(parts)
    joined /= np.float32(len(parts) ** 0.5)
    return joined


# --- of pixels ----------------------------------------------------------------------------------


def rgb(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pixel values as they are: brightness and colour count, as published."""
    return _unit(_planar(patches), float(np.finfo(np.float32).tiny))


def centred(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Less the mean of the whole patch: brightness does not count, colour does."""
    values = _planar(patches)
    values -= values.mean(axis=1, keepdims=True)
    return _unit(values, _MIN_CONTRAST * np.sqrt(values.shape[1]))


def channel_centred(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Less the mean of each channel: neither brightness nor overall colour counts."""
    flat = _planar(patches)
    channels = flat.reshape(len(flat), 3, flat.shape[1] // 3)
    channels -= channels.mean(axis=2, keepdims=True)
    return _unit(flat, _MIN_CONTRAST * np.sqrt(flat.shape[1]))


PATCH_FEATURES: dict[str, PixelFeatures] = {
    "rgb": PixelFeatures(rgb),
    "centred": PixelFeatures(centred),
    "channel-centred": PixelFeatures(channel_centred),
}


def to_images(vectors: NDArray[Any], patch_px: int) -> NDArray[Any]:
    """Vectors of pixels, or atoms for such, as pictures (n, patch_px, width, 3).

    A patch and its surroundings stand side by side.
    """
    planes = vectors.reshape(len(vectors), -1, 3, patch_px, patch_px)
    pictures: NDArray[Any] = planes.transpose(0, 3, 1, 4, 2).reshape(len(vectors), patch_px, -1, 3)
    return pictures


def _planar(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    # The length is written out: an image of glass has no patches, and numpy cannot tell it then.
    planes: NDArray[Any] = patches.transpose(0, 3, 1, 2).reshape(
        len(patches), math.prod(patches.shape[1:])
    )
    values = planes.astype(np.float32)
    values /= np.float32(255)
    return values


def _unit(vectors: NDArray[np.float32], least_norm: float) -> NDArray[np.float32]:
    """In place: of a slide's chunk they take 25 MB."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(norms, np.float32(least_norm))
    return vectors


@dataclass(frozen=True)
class StoredPatches:
    """Two `.npy` files: patches (n, size, size, 3) as bytes, and their labels (n,).

    It holds the files' names alone, and can be sent to other processes and machines that see the
    same files. `methods.dfdl.DFDL.fit_blocks` takes it; no file is ever held in memory as a whole.

    patches_file, labels_file : the files
    vectors : what stands for a patch, of `patches.vectors.VECTORS`
    """

    patches_file: Path
    labels_file: Path
    features: str = "centred"

    def __post_init__(self) -> None:
        if self.features not in PATCH_FEATURES:
            raise ValueError(
                f"features must be one of {sorted(PATCH_FEATURES)}, not {self.features!r}"
            )
        shape, n_labels = self._open().shape, len(self.labels)
        if self._open().dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise ValueError(f"{self.patches_file}: must hold bytes of shape (n, size, size, 3)")
        if shape[0] != n_labels:
            raise ValueError(
                f"{self.patches_file} holds {shape[0]} patches, "
                f"but {self.labels_file} {n_labels} labels"
            )

    @property
    def labels(self) -> NDArray[Any]:
        found: NDArray[Any] = np.load(self.labels_file, mmap_mode="r", allow_pickle=False)
        return found

    def read(self, rows: slice) -> NDArray[np.float32]:
        """The vectors (n, n_features) of some patches."""
        # Opened anew each time: pages of a map that stays open count as this process's memory.
        return PATCH_FEATURES[self.features](self._open()[rows])

    def _open(self) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = np.load(self.patches_file, mmap_mode="r", allow_pickle=False)
        return found
