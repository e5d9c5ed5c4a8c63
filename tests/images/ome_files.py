"""Write OME-TIFF and OME-Zarr images with the libraries of their authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray


def halved(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return means of blocks of 2 × 2 pixels (height, width, 3)."""
    height, width = (side // 2 * 2 for side in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // 2, 2, width // 2, 2, 3)
    return np.rint(blocks.mean(axis=(1, 3))).astype(pixels.dtype)


def sized(mpp: float | None, unit: str = "µm") -> dict[str, Any]:
    """Return the metadata of the pixel size for tifffile."""
    if mpp is None:
        return {}
    return {f"PhysicalSize{a}": mpp for a in "XY"} | {f"PhysicalSize{a}Unit": unit for a in "XY"}


def save_ome_tiff(
    path: Path,
    pixels: NDArray[Any],
    mpp: float | None = None,
    unit: str = "µm",
    n_levels: int = 1,
    planar: bool = False,
    **options: Any,
) -> Path:
    """Write pixels (height, width, 3) with smaller levels in sub-directories, interleaved or
    planar."""
    axes = "SYX" if planar else "YXS"
    options = {"photometric": "rgb", "planarconfig": "separate" if planar else "contig"} | options

    def laid(level: NDArray[Any]) -> NDArray[Any]:
        return level.transpose(2, 0, 1) if planar else level

    with tifffile.TiffWriter(path, ome=True) as tiff:
        metadata = {"axes": axes, **sized(mpp, unit)}
        tiff.write(laid(pixels), subifds=n_levels - 1, metadata=metadata, **options)
        for _ in range(n_levels - 1):
            pixels = halved(pixels)
            tiff.write(laid(pixels), subfiletype=1, **options)
    return path


def save_ome_zarr(
    path: Path,
    pixels: NDArray[Any],
    mpp: float | None = None,
    unit: str | None = "micrometer",
    version: str = "0.5",
    n_levels: int = 1,
    axes: str = "cyx",
    chunk: int = 128,
) -> Path:
    """Write pixels (height, width, 3) with zarr and ome_zarr metadata; levels are block means."""
    from ome_zarr.writer import write_multiscales_metadata

    group, form = zarr_group(path, version)
    chunks = tuple(chunk if axis in "yx" else 1 for axis in axes)
    datasets = []
    for level in range(n_levels):
        pixels = halved(pixels) if level else pixels
        group.create_array(f"s{level}", data=laid_out(pixels, axes), chunks=chunks)
        scale = [(mpp or 1.0) * 2**level if a in "yx" else 1.0 for a in axes]
        transform = [{"type": "scale", "scale": scale}]
        datasets.append({"path": f"s{level}", "coordinateTransformations": transform})
    unit = unit if mpp else None
    kinds = {"t": "time", "c": "channel"}
    described = [
        {"name": a, "type": kinds.get(a, "space")} | ({"unit": unit} if unit and a in "zyx" else {})
        for a in axes
    ]
    write_multiscales_metadata(group, datasets, form, described)
    return path


def laid_out(pixels: NDArray[Any], axes: str) -> NDArray[Any]:
    """Return (height, width, 3) with the axes in another order; further axes have length 1."""
    sizes = {"c": 3, "y": pixels.shape[0], "x": pixels.shape[1]}
    return pixels.transpose(2, 0, 1).reshape([sizes.get(axis, 1) for axis in axes])


def zarr_group(path: Path, version: str = "0.5") -> tuple[Any, Any]:
    """Return a new group, and the format of ome_zarr for the version."""
    import zarr
    from ome_zarr.format import FormatV04, FormatV05

    form = {"0.4": FormatV04, "0.5": FormatV05}[version]()
    return zarr.open_group(str(path), mode="w", zarr_format=form.zarr_format), form
