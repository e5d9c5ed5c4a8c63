"""Small valid feature files and images of every container, as bytes with their values."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from numpy.typing import NDArray

from histodict.images.source import open_image
from histodict.precomputed.feature_file import check_features, open_features

from .target import InvariantError
from .zarr_files import image_attributes, write_group

PIXELS = np.random.default_rng(1).integers(1, 255, (3, 70, 90), np.uint8)
VECTORS = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
COORDS = np.stack([np.arange(40) % 8 + 1, np.arange(40) // 8 + 1], axis=1) * 512
_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LINK = "link:"  # content of a link, followed by its target


def make_folders(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return Zarr folders by name, each as a mapping of its files."""
    made = {}
    for version, shards in ((2, False), (3, False), (3, True)):
        of = f"{version}{'s' * shards}"
        path = write_group(folder / f"{of}.ome.zarr", version, image_attributes(version))
        options: dict[str, Any] = {"shards": (1, 64, 96)} if shards else {}
        _write(zarr.open_group(str(path), mode="r+"), "s0", PIXELS, (1, 32, 32), options)
        made[path.name] = files_of(path)
        path = folder / f"{of}.zarr"
        group = zarr.open_group(str(path), mode="w", zarr_format=version)
        options = {"shards": (24, 6)} if shards else {}
        _write(group, "features", VECTORS, (8, 3), options)
        _write(group, "coords", COORDS, (16, 2), {})
        made[path.name] = files_of(path)
    return made


def _write(group: Any, name: str, values: Any, chunks: Any, options: dict[str, Any]) -> None:
    array = group.create_array(
        name, shape=values.shape, dtype=values.dtype, chunks=chunks, **options
    )
    array[...] = values


def make_files(folder: Path) -> dict[str, bytes]:
    """Return single-file feature files by name."""
    np.savez_compressed(folder / "a.npz", features=VECTORS, coords=COORDS, patch_size=256)
    for name in ("a.h5", "b.h5"):
        options = {"compression": "gzip", "fletcher32": True} if name == "b.h5" else {}
        with h5py.File(folder / name, "w") as file:
            file.create_dataset("features", data=VECTORS, chunks=(8, 6), **options)
            file.create_dataset("coords", data=COORDS, chunks=(8, 2), **options)
    with h5py.File(folder / "a.h5ad", "w") as file:
        file.create_group("obsm")["spatial"] = COORDS.astype(float)
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", VECTORS.shape
        group["indptr"] = np.arange(0, VECTORS.size + 1, 6)
        group.create_dataset("data", data=VECTORS.ravel(), chunks=(60,), compression="gzip")
        group.create_dataset("indices", data=np.tile(np.arange(6), 40), chunks=(60,))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def packed(files: dict[str, bytes]) -> bytes:
    """Return a folder as a reproducible archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in sorted(files.items()):
            file.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Replace a folder by the archive; content that begins with LINK becomes a symbolic link."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        for name in file.namelist():
            place, content = folder / name, file.read(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith(LINK.encode()):
                os.symlink(content.decode().removeprefix(LINK), place)
            else:
                place.write_bytes(content)


def values_of(path: Path) -> tuple[NDArray[Any], ...]:
    """Return the input of a prediction: pixels, or vectors and positions."""
    if path.name.endswith(".ome.zarr"):
        with open_image(path) as source:
            width, height = source.size
            if width * height > 10**6:
                return (source.thumbnail(64), source.read(0, 0, 64, 64))
            return (source.read(0, 0, width, height),)
    check_features(path)
    with open_features(path) as file:
        n_read = min(file.n_rows, 1000)
        vectors = file.read(slice(0, n_read))
        if vectors.shape != (n_read, file.metadata.length) or not np.isfinite(vectors).all():
            raise InvariantError(
                f"vectors of shape {vectors.shape}, or with values that are not finite"
            )
        return vectors, file.coords


def undamaged(path: Path) -> tuple[NDArray[Any], ...]:
    if path.name.endswith(".ome.zarr"):
        return (PIXELS.transpose(1, 2, 0),)
    return VECTORS, COORDS


def are_undamaged(path: Path, values: tuple[NDArray[Any], ...]) -> bool:
    return all(map(np.array_equal, values, undamaged(path)))


def reset_peak_memory() -> int:
    """Return the memory of this process in KiB, and reset its peak."""
    if _REFERENCES.exists():
        _REFERENCES.write_text("5", encoding="ascii")
    return peak_kib()


def peak_kib() -> int:
    """Return the peak memory of this process in KiB; 0 if unknown."""
    if not _STATUS.exists():
        return 0
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
