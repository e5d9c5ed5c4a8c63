"""Small valid images and slides of every supported format, created anew for each run."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
_APERIO = "Aperio Image Library v11.2.1\n200x140 (64x64) JPEG/RGB Q=70|AppMag = 20|MPP = 0.4990"
_SPACING = (
    '<DataObject ObjectType="PixelDataRepresentation"><Attribute Name="DICOM_PIXEL_SPACING" '
    'Group="0x0028" Element="0x0030" PMSVR="IDoubleArray">&quot;{0}&quot; &quot;{0}&quot;'
    "</Attribute></DataObject>"
)
_PHILIPS = (
    '<?xml version="1.0" encoding="UTF-8" ?><DataObject ObjectType="DPUfsImport">'
    '<Attribute Name="PIM_DP_SCANNED_IMAGES" Group="0x301D" Element="0x1003" '
    'PMSVR="IDataObjectArray"><Array><DataObject ObjectType="DPScannedImage">'
    '<Attribute Name="PIM_DP_IMAGE_TYPE" Group="0x301D" Element="0x1004" PMSVR="IString">WSI'
    '</Attribute><Attribute Name="PIIM_PIXEL_DATA_REPRESENTATION_SEQUENCE" Group="0x1001" '
    'Element="0x8B01" PMSVR="IDataObjectArray"><Array>'
    + _SPACING.format(0.00025)
    + _SPACING.format(0.0005)
    + "</Array></Attribute></DataObject></Array></Attribute></DataObject>"
)
_JPEG, _YCBCR, _COMPRESSION, _PHOTOMETRIC = 7, 6, 259, 262


def make_bases() -> dict[str, bytes]:
    """Return images by file name; the suffix selects the reader, the stem describes the content."""
    rng = np.random.default_rng(0)
    small, large = _tissue(rng, 90, 70), _tissue(rng, 200, 140)
    return {**_plain(small), **_tiffs(small), **_slides(large)}


def _tissue(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Return smooth colours with noise, which compress like tissue."""
    y, x = np.mgrid[:height, :width] / 20.0
    waves = np.stack([np.sin(x + y), np.sin(x - y), np.cos(y)], axis=2)
    pixels = 160 + 60 * waves + rng.normal(0, 2, (height, width, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _plain(pixels: Pixels) -> dict[str, bytes]:
    image = Image.fromarray(pixels)
    grey16 = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200)
    exif = Image.Exif()
    exif[274] = 6
    return {
        "plain.jpg": _saved(image, "JPEG"),
        "turned.jpg": _saved(image, "JPEG", exif=exif),
        "progressive.jpg": _saved(image, "JPEG", progressive=True),
        "cmyk.jpg": _saved(image.convert("CMYK"), "JPEG"),
        "plain.png": _saved(image, "PNG"),
        "grey16.png": _saved(grey16, "PNG"),
        "palette.png": _saved(image.quantize(16), "PNG", transparency=0),
        "rgba.png": _saved(image.convert("RGBA"), "PNG"),
        "plain.bmp": _saved(image, "BMP"),
        "palette.bmp": _saved(image.quantize(16), "BMP"),
    }


def _tiffs(pixels: Pixels) -> dict[str, bytes]:
    """Return TIFF files that are not slides."""
    image = Image.fromarray(pixels)
    grey16 = Image.fromarray(pixels[..., 0].astype(np.uint16) * 200)
    kinds = {"raw": None, "lzw": "tiff_lzw", "deflate": "tiff_adobe_deflate", "jpeg": "jpeg"}
    found = {f"{name}.tif": _saved(image, "TIFF", compression=kind) for name, kind in kinds.items()}
    found["grey16.tif"] = _saved(grey16, "TIFF")
    found["fax.tif"] = _saved(image.convert("1"), "TIFF", compression="group4")
    found["pages.tif"] = _saved(image, "TIFF", save_all=True, append_images=[image.reduce(2)])
    found["planes.tif"] = _written(
        lambda tiff: tiff.write(
            np.ascontiguousarray(pixels.transpose(2, 0, 1)),
            photometric="rgb",
            planarconfig="separate",
            compression="zlib",
        )
    )
    return found | {name: _written(partial(_write_deep, deep)) for name, deep in _deep(pixels)}


def _deep(pixels: Pixels) -> Iterator[tuple[str, NDArray[Any]]]:
    """Return images whose brightness Pillow reads incorrectly."""
    yield "twelve-bits.tif", pixels.astype(np.uint16) * 16
    yield "rgb16.tif", pixels.astype(np.uint16) * 257
    for kind in (np.float32, np.float64):
        yield f"{kind.__name__}.tif", (pixels / 255).astype(kind)
    yield "grey-float.tif", (pixels[..., 0] / 255).astype(np.float32)


def _write_deep(pixels: NDArray[Any], tiff: tifffile.TiffWriter) -> None:
    kind = "rgb" if pixels.ndim == 3 else "minisblack"
    tiff.write(pixels, photometric=kind, compression="zlib", metadata=None)


def _slides(pixels: Pixels) -> dict[str, bytes]:
    levels = [pixels, np.ascontiguousarray(pixels[::2, ::2])]
    return {
        "slide.tif": _tiled(levels),
        "jpeg-tiles.tif": _tiled(levels, jpeg=True),
        "big.tif": _tiled(levels, bigtiff=True),
        "one-level.tiff": _tiled(levels[:1]),
        "aperio.svs": _tiled(levels, jpeg=True, description=_APERIO),
        "aperio-deflate.svs": _tiled(levels, description=_APERIO),
        "levels.ome.tif": _ome(levels),
        "planes.ome.tif": _ome([levels[0]], planar=True),
        "philips.tif": _tiled(levels, jpeg=True, description=_PHILIPS, software="Philips DP v1.0"),
    }


def _written(write: Callable[[tifffile.TiffWriter], Any], **options: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tif"
        with tifffile.TiffWriter(path, **options) as tiff:
            write(tiff)
        return path.read_bytes()


def _ome(levels: list[Pixels], *, planar: bool = False) -> bytes:
    """Return an OME-TIFF in tiles with sub-directories as levels, or in strips plane by plane."""
    sized = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}

    def write(tiff: tifffile.TiffWriter) -> None:
        if planar:
            planes = levels[0].transpose(2, 0, 1)
            tiff.write(planes, photometric="rgb", metadata={"axes": "SYX", **sized})
            return
        options: dict[str, Any] = {"tile": (64, 64), "photometric": "rgb", "compression": "zlib"}
        n_below = len(levels) - 1
        tiff.write(levels[0], subifds=n_below, metadata={"axes": "YXS", **sized}, **options)
        for level in levels[1:]:
            tiff.write(level, subfiletype=1, **options)

    return _written(write, ome=True)


def _tiled(
    levels: list[Pixels],
    *,
    jpeg: bool = False,
    bigtiff: bool = False,
    description: str | None = None,
    software: str = "",
) -> bytes:
    """Return a pyramid in tiles of 64 pixels; JPEG tiles are compressed beforehand."""

    def write(tiff: tifffile.TiffWriter) -> None:
        for level, pixels in enumerate(levels):
            tiff.write(
                iter(_jpeg_tiles(pixels)) if jpeg else pixels,
                shape=pixels.shape,
                dtype=np.uint8,
                tile=(64, 64),
                photometric="rgb",
                compression="adobe_deflate",
                subfiletype=int(level > 0),
                description=description if description and not level else None,
                software=software or False,
                metadata=None,
            )

    data = _written(write, bigtiff=bigtiff)
    return _called_jpeg(data) if jpeg else data


def _jpeg_tiles(pixels: Pixels) -> list[bytes]:
    height, width = (-(-side // 64) * 64 for side in pixels.shape[:2])
    margins = ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0))
    padded = np.pad(pixels, margins, mode="edge")
    corners = [(y, x) for y in range(0, height, 64) for x in range(0, width, 64)]
    tiles = (np.ascontiguousarray(padded[y : y + 64, x : x + 64]) for y, x in corners)
    return [_saved(Image.fromarray(tile), "JPEG") for tile in tiles]


def _called_jpeg(data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tif"
        path.write_bytes(data)
        with tifffile.TiffFile(path, mode="r+b") as tiff:
            for page in tiff.pages:
                page.tags[_COMPRESSION].overwrite(_JPEG)
                page.tags[_PHOTOMETRIC].overwrite(_YCBCR)
        return path.read_bytes()
