"""Generate a slide as large as those of a scanner, tile by tile.

Cells of synthetic tissue and of background form an island of tissue that covers about half of the
slide. Each cell is one of a few images, so only these are in memory. The file has the format that
scanners write: JPEG tiles of 256 × 256 pixels, and levels reduced by 4 and 16.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from histodict.synthetic.tissue_generator import (
    MICRONS_PER_PIXEL,
    Stain,
    make_tissue_image,
    random_stain,
)

CELL = 512
TILE = 256
DOWNSAMPLES = (1, 4, 16)
_CELL_KINDS = ("healthy", "inflamed", "healthy", "healthy", "inflamed", "healthy")
_BACKGROUND = len(_CELL_KINDS)
_TISSUE_SHARE = 0.5
_QUALITY = 80
# TIFF tags and their values: JPEG compression of luminance and chrominance.
_COMPRESSION, _JPEG = 259, 7
_PHOTOMETRIC, _YCBCR = 262, 6

Pixels = NDArray[np.uint8]
Encode = Callable[[int, int], bytes]  # row and column of a tile to its JPEG


def write_slide(path: Path, side: int, seed: int = 0) -> Path:
    """Write a square pyramidal TIFF of side × side pixels, which depends only on the seed."""
    rng = np.random.default_rng(seed)
    cells = [*_draw_cells(random_stain(rng), rng)]
    layout = _lay_out(side, rng)
    partial = path.with_name(f".partial.{path.name}")
    resolution = (1e4 / MICRONS_PER_PIXEL,) * 2
    with tifffile.TiffWriter(partial, bigtiff=True) as tiff:
        for downsample in DOWNSAMPLES:
            length = math.ceil(side / downsample)
            tiff.write(
                _tiles(math.ceil(length / TILE), _encoder(cells, layout, downsample)),
                shape=(length, length, 3),
                dtype=np.uint8,
                tile=(TILE, TILE),
                photometric="rgb",
                # The tiles are compressed beforehand, because tifffile needs another package for
                # JPEG; the tags are corrected below.
                compression="adobe_deflate",
                subfiletype=int(downsample > 1),
                metadata=None,
                resolution=resolution if downsample == 1 else None,
                resolutionunit=3,
            )
    with tifffile.TiffFile(partial, mode="r+b") as tiff:
        for page in tiff.pages:
            page.tags[_COMPRESSION].overwrite(_JPEG)
            page.tags[_PHOTOMETRIC].overwrite(_YCBCR)
    return partial.rename(path)


def tissue_cells(side: int) -> NDArray[np.bool_]:
    """Return a mask of the cells that are tissue, by row and column: a disc in the centre."""
    n_cells = math.ceil(side / CELL)
    centres = (np.arange(n_cells) + 0.5) / n_cells - 0.5
    distance = np.hypot(centres[:, None], centres[None, :])
    return distance <= math.sqrt(_TISSUE_SHARE / math.pi)


def _draw_cells(stain: Stain, rng: np.random.Generator) -> Iterator[Pixels]:
    for kind in _CELL_KINDS:
        yield make_tissue_image(kind, stain, rng, (CELL, CELL))
    noise = 2 * rng.standard_normal((CELL, CELL, 1))
    yield np.clip(np.array(stain.white) + noise, 0, 255).astype(np.uint8)


def _lay_out(side: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the kind of each cell."""
    tissue = tissue_cells(side)
    return np.where(tissue, rng.integers(0, len(_CELL_KINDS), tissue.shape), _BACKGROUND)


def _tiles(n_tiles: int, encode: Encode) -> Iterator[bytes]:
    for row in range(n_tiles):
        for column in range(n_tiles):
            yield encode(row, column)


def _encoder(cells: list[Pixels], layout: NDArray[np.int64], downsample: int) -> Encode:
    """Return a function from row and column to the JPEG of a tile of a level."""
    reduced = [np.asarray(Image.fromarray(cell).reduce(downsample)) for cell in cells]
    side = CELL // downsample
    most = len(layout) - 1

    @cache
    def part(kind: int, row: int, column: int) -> bytes:
        return _jpeg(reduced[kind][row : row + TILE, column : column + TILE])

    def encode(row: int, column: int) -> bytes:
        y, x = row * TILE, column * TILE
        if side >= TILE:
            kind = layout[min(y // side, most), min(x // side, most)]
            return part(int(kind), y % side, x % side)
        ys, xs = (np.minimum(np.arange(at, at + TILE, side) // side, most) for at in (y, x))
        return _jpeg(np.block([[[reduced[layout[i, j]]] for j in xs] for i in ys]))

    return encode


def _jpeg(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        buffer, "JPEG", quality=_QUALITY, subsampling="4:2:0"
    )
    return buffer.getvalue()
