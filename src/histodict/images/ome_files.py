"""Reading of OME-TIFF with tifffile and of OME-Zarr with zarr.

The levels of an OME-TIFF are the sub-directories of its pages, and tiles are read one by one.
Colours are interleaved, separate planes of a page, or separate pages. JPEG tiles are decoded as in
other slides; for compressions other than deflate, tifffile needs imagecodecs. The `aszarr` of
tifffile is not used, as it reads uncompressed images strip by strip, often the whole image.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..utils.validation import install_command
from .file_types import SCALE_WITHOUT_UNIT, MissingLibraryError, UnreadableContentError
from .ome_metadata import (
    MAX_TILE_BYTES,
    Multiscale,
    OmeBackend,
    OmeImage,
    OmeLevel,
    check_channels,
    check_dtype,
    check_single_plane,
    first_image_path,
    read_multiscale,
    read_ome_xml,
)
from .raster import divide_rational, plausible_mpp, tiff_mpp
from .slide_backend import (
    JpegTileLevel,
    Pixels,
    TileCache,
    can_decode_jpeg_tiles,
    is_supported_page,
)

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage, TiffPageSeries

    from .zarr_store import OpenedArray, ZarrFolder


# Values of the TIFF tags Compression, PhotometricInterpretation and PlanarConfiguration.
_UNCOMPRESSED, _BLACK_IS_ZERO, _RGB, _YCBCR = 1, 1, 2, 6
_PLANAR = 2
# Maximum (width, height) of tiles that uncompressed images are divided into.
_ROW_TILE_SIZE = (1024, 128)
# Maximum size of a label or overview image, as a fraction of the pixels of the main image.
_MAX_SECONDARY_FRACTION = 0.25


def is_ome_tiff(path: str) -> bool:
    """Return whether a file is a TIFF that contains OME-XML."""
    from tifffile import TiffFile

    try:
        with TiffFile(path, _multifile=False) as file:
            return bool(file.is_ome)
    except MemoryError:
        raise
    except Exception:  # not a TIFF, or damaged: tifffile raises many types
        return False


class OmeTiff(OmeBackend):
    """Slide backend of an OME-TIFF file."""

    def __init__(self, path: str) -> None:
        from tifffile import TiffFile

        # References to other files are not followed.
        self._tiff = TiffFile(path, _multifile=False)
        try:
            self._file = _SharedFile(path)
            series, image = _find_main_image(self._tiff)
            cache = TileCache()
            levels = [_make_level(self._file, level, image, cache) for level in series.levels]
            mpp = plausible_mpp(image.mpp) or _read_tagged_mpp(series)
            super().__init__(path, levels, mpp)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._tiff.close()
        if hasattr(self, "_file"):
            self._file.close()


class _SharedFile:
    """File that several threads can read at the same time; `descriptor` is its file descriptor."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._lock = threading.Lock()

    def read(self, n_bytes: int, offset: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self.descriptor, n_bytes, offset)
        with self._lock:
            os.lseek(self.descriptor, offset, os.SEEK_SET)
            return os.read(self.descriptor, n_bytes)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


# --- image and metadata -------------------------------------------------------------------------


def _find_main_image(tiff: TiffFile) -> tuple[TiffPageSeries, OmeImage]:
    """Return the pages and the metadata of the first image.

    Raise UnreadableContentError if another image is of similar size.
    """
    series = tiff.series
    if not series or not tiff.is_ome:
        raise ValueError("the OME description lists no image")
    n_pixels = [each.sizes.get("width", 1) * each.sizes.get("height", 1) for each in series]
    if any(n > _MAX_SECONDARY_FRACTION * n_pixels[0] for n in n_pixels[1:]):
        raise UnreadableContentError(
            f"contains {len(series)} images of similar size; save each as a separate file"
        )
    images = read_ome_xml(tiff.ome_metadata or "")
    image = images[0] if images else OmeImage()
    _check_axes(series[0], image)
    return series[0], image


def _check_axes(series: TiffPageSeries, image: OmeImage) -> None:
    """Raise UnreadableContentError unless an image is a single plane of grey, RGB or RGBA."""
    sizes = dict(zip(series.axes.lower(), series.shape, strict=True))
    check_single_plane(sizes)
    if "s" not in sizes:
        check_channels(image.channels, sizes.get("c", 1))
    elif sizes.get("c", 1) != 1 or sizes["s"] not in (3, 4):
        raise UnreadableContentError(
            f"has {sizes.get('c', 1)} x {sizes['s']} samples per pixel instead of red, green "
            "and blue; save it as RGB"
        )
    others = set(sizes) - set("tczyxs")
    if others or not {"y", "x"} <= set(sizes):
        raise UnreadableContentError(f"has unsupported axes ({series.axes}); save it as RGB")


def _read_tagged_mpp(series: TiffPageSeries) -> float | None:
    """Return µm per pixel from the TIFF tags of the first page; None if unknown."""
    tags = series.keyframe.tags
    return tiff_mpp(
        {tag.code: divide_rational(tag.value) for tag in tags.values() if tag.count <= 2}
    )


# --- levels -------------------------------------------------------------------------------------


def _make_level(
    file: _SharedFile, series: TiffPageSeries, image: OmeImage, cache: TileCache
) -> OmeLevel:
    """Return a pyramid level as the first of these classes that can read it.

    The classes are `_JpegLevel`, `_RowLevel` and `_SegmentLevel`.

    Parameters
    ----------
    file : open file
    series : pages of the level
    image : metadata of the image
    cache : cache of the tiles of all levels
    """
    if not image.is_whole or any(page is None for page in series.pages):
        raise UnreadableContentError(
            "part of the image is in another file; save it as a single file"
        )
    pages = [page.aspage() for page in series.pages if page is not None]
    first = pages[0]
    check_dtype(np.dtype(first.dtype or "void"))
    if first.photometric not in (_BLACK_IS_ZERO, _RGB, _YCBCR):
        raise UnreadableContentError(
            f"has colours of type {_tag_value_name(first.photometric)}; save it as RGB"
        )
    if any(page.shape != first.shape or page.dtype != first.dtype for page in pages):
        raise ValueError("the channels have different sizes")
    if len(pages) == 1 and is_supported_page(first) and can_decode_jpeg_tiles():
        return _JpegLevel(file, first, cache)
    _check_compression(first)
    # Uncompressed pixels need not be read as tiles or strips.
    kind = (
        _RowLevel if first.compression == _UNCOMPRESSED and first.is_contiguous else _SegmentLevel
    )
    return kind(file, pages, cache)


def _check_compression(page: TiffPage) -> None:
    """Raise UnreadableContentError if tifffile cannot decompress a page."""
    from tifffile import TIFF

    try:
        TIFF.DECOMPRESSORS[page.compression]
    except KeyError as error:
        reason = str(error.args[0])
        if "imagecodecs" not in reason:
            raise UnreadableContentError(
                f"has an unknown compression ({reason}); save it with another one"
            ) from error
        raise UnreadableContentError(
            f"is compressed with {_tag_value_name(page.compression)}, which needs imagecodecs. "
            f"Run: {install_command('ome')}"
        ) from error


def _tag_value_name(tag_value: int) -> str:
    """Return the name of an enumerated value of a TIFF tag; the number if it has no name."""
    return str(getattr(tag_value, "name", tag_value))


class _JpegLevel(OmeLevel):
    """Level of JPEG tiles in one page."""

    def __init__(self, file: _SharedFile, page: TiffPage, cache: TileCache) -> None:
        self._tiles = JpegTileLevel(file.descriptor, page, cache)
        super().__init__(self._tiles.size, self._tiles.tile_size, np.uint8, cache)
        self.check_tile_size(4)

    def read_values(self, index: int) -> NDArray[Any] | None:
        return self._tiles.decode(
            index, np.empty((self.tile_size[1], self.tile_size[0], 4), np.uint8)
        )

    def decode(self, index: int, out: Pixels) -> Pixels:
        return self._tiles.decode(index, out)


class _SegmentLevel(OmeLevel):
    """Level of tiles or strips, in one page or in one page per colour."""

    def __init__(self, file: _SharedFile, pages: Sequence[TiffPage], cache: TileCache) -> None:
        page = pages[0]
        width, height = page.imagewidth, page.imagelength
        tile = (
            (page.tilewidth, page.tilelength)
            if page.is_tiled
            else (width, min(page.rowsperstrip or height, height))
        )
        super().__init__((width, height), tile, page.dtype, cache)
        self._file, self._pages = file, pages
        self._is_planar = page.planarconfig == _PLANAR and page.samplesperpixel > 1
        self._n_planes = page.samplesperpixel if self._is_planar else 1
        self.check_tile_size(page.samplesperpixel * len(pages))
        n_expected = self.n_across * self.n_down * self._n_planes
        if any(len(each.dataoffsets) != n_expected for each in pages):
            raise ValueError("the directory lists too few or too many tiles for the image size")

    def read_values(self, index: int) -> NDArray[Any] | None:
        step = self.n_across * self.n_down
        planes = [
            self._decode_plane(page, index + step * plane)
            for page in self._pages
            for plane in range(self._n_planes)
        ]
        present = [plane for plane in planes if plane is not None]
        if len(present) < len(planes):
            return None
        return present[0] if len(present) == 1 else np.concatenate(present, axis=2)

    def _decode_plane(self, page: TiffPage, index: int) -> NDArray[Any] | None:
        """Return a tile or strip of a page by its row-major index; None if it is missing."""
        length = page.databytecounts[index]
        if not length:
            return None
        data = self._file.read(length, page.dataoffsets[index])
        if len(data) != length:
            raise ValueError("the file is truncated")
        decoded, _, shape = page.decode(data, index, jpegtables=page.jpegtables)
        if decoded is None:
            return None
        plane: NDArray[Any] = decoded[0, : shape[1], : shape[2]]
        return plane


class _RowLevel(OmeLevel):
    """Level of consecutive uncompressed rows, which are read as tiles of `_ROW_TILE_SIZE`."""

    def __init__(self, file: _SharedFile, pages: Sequence[TiffPage], cache: TileCache) -> None:
        page = pages[0]
        size = page.imagewidth, page.imagelength
        tile = min(size[0], _ROW_TILE_SIZE[0]), min(size[1], _ROW_TILE_SIZE[1])
        super().__init__(size, tile, page.dtype, cache)
        self._file, self._offsets = file, [each.dataoffsets[0] for each in pages]
        self._stored_dtype = np.dtype(page.dtype).newbyteorder(page.parent.byteorder)
        self._n_samples = page.samplesperpixel  # interleaved
        if page.planarconfig == _PLANAR and page.samplesperpixel > 1:
            plane = size[0] * size[1] * self.dtype.itemsize
            self._offsets = [
                self._offsets[0] + channel * plane for channel in range(self._n_samples)
            ]
            self._n_samples = 1

    def read_values(self, index: int) -> NDArray[Any]:
        row, column = divmod(index, self.n_across)
        y, x = row * self.tile_size[1], column * self.tile_size[0]
        height, width = (
            min(self.tile_size[1], self.size[1] - y),
            min(self.tile_size[0], self.size[0] - x),
        )
        pixel_bytes = self._n_samples * self.dtype.itemsize
        found = np.empty((height, width, self._n_samples * len(self._offsets)), self.dtype)
        for plane, offset in enumerate(self._offsets):
            for line in range(height):
                start = offset + ((y + line) * self.size[0] + x) * pixel_bytes
                data = self._file.read(width * pixel_bytes, start)
                if len(data) != width * pixel_bytes:
                    raise ValueError("the file is truncated")
                samples = slice(plane, plane + 1) if len(self._offsets) > 1 else slice(None)
                found[line, :, samples] = np.frombuffer(data, self._stored_dtype).reshape(width, -1)
        return found


# Side of the tiles in which small chunks are read together, as each read takes a millisecond.
_TILE_PX = 512


class OmeZarr(OmeBackend):
    """Slide backend of an OME-Zarr folder."""

    def __init__(self, path: str) -> None:
        folder = _open_zarr(path)
        subfolder = first_image_path(folder.attributes())
        image = read_multiscale(folder.attributes(subfolder or ""))
        cache = TileCache()
        opened = [folder.open(_join_level_path(subfolder, name)) for name in image.paths]
        levels = [_ChunkLevel(each, image, cache) for each in opened]
        super().__init__(path, levels, plausible_mpp(image.mpp))
        used = [each for each, level in zip(opened, levels, strict=True) if level in self.levels]
        self.metadata["missing_chunks"] = [
            sum(each.n_missing for each in used),
            sum(each.n_chunks for each in used),
        ]
        scale = plausible_mpp(image.scale_without_unit)
        if scale is not None:
            self.metadata["properties"][SCALE_WITHOUT_UNIT] = repr(scale)

    def close(self) -> None:
        """Do nothing, as no file is open between two reads."""


def _open_zarr(path: str) -> ZarrFolder:
    try:
        from .zarr_store import ZarrFolder
    except ImportError as error:
        raise MissingLibraryError(str(error)) from error
    return ZarrFolder(Path(path), MAX_TILE_BYTES)


def _join_level_path(subfolder: str | None, path: str) -> str:
    """Return the path of a level relative to the Zarr folder.

    `subfolder` is the path of the image in the folder, and `path` the path of the level in the
    image. Raise ValueError if `path` is empty or leads outside the image.
    """
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or PurePosixPath(path).is_absolute():
        raise ValueError(f"the path {path!r} of a level is missing or outside the folder")
    return PurePosixPath(subfolder or "", *parts).as_posix()


class _ChunkLevel(OmeLevel):
    """Level stored as an array whose last two axes are y and x."""

    def __init__(self, opened: OpenedArray, image: Multiscale, cache: TileCache) -> None:
        array, shape = opened.array, opened.metadata.shape
        inner_chunks = opened.metadata.inner_chunks
        if len(shape) != len(image.axes):
            raise ValueError(f"a level has {len(shape)} axes, but {image.axes!r} are named")
        sizes = dict(zip(image.axes, shape, strict=True))
        check_single_plane(sizes)
        check_channels(image.channels, sizes.get("c", 1))
        tile_y, tile_x = (_tile_side(length) for length in inner_chunks[-2:])
        super().__init__((sizes["x"], sizes["y"]), (tile_x, tile_y), array.dtype, cache)
        self.check_tile_size(max(int(np.prod(inner_chunks[:-2])), sizes.get("c", 1)))
        self._array = array
        self._leading_index = tuple(slice(None) if axis == "c" else 0 for axis in image.axes[:-2])

    def read_values(self, index: int) -> NDArray[Any]:
        row, column = divmod(index, self.n_across)
        y, x = row * self.tile_size[1], column * self.tile_size[0]
        found = self._array[
            (*self._leading_index, slice(y, y + self.tile_size[1]), slice(x, x + self.tile_size[0]))
        ]
        planes = np.asarray(found)
        return planes[..., None] if planes.ndim == 2 else planes.transpose(1, 2, 0)


def _tile_side(chunk_side: int) -> int:
    """Return the side of a tile of whole chunks: the multiple of a chunk nearest to _TILE_PX."""
    return int(chunk_side) * max(1, round(_TILE_PX / max(1, int(chunk_side))))
