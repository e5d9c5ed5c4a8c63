"""Generators of small feature files whose content would take gigabytes of memory."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np

from .zarr_files import write_array_2, write_array_3, write_group

VECTORS = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
COORDS = np.stack([np.arange(40) % 8, np.arange(40) // 8], axis=1) * 512
# Larger than the compressed content of any of the files below.
MANY = np.ones((4000, 256), np.float32)
PLACES = np.stack([np.arange(4000) % 80, np.arange(4000) // 80], axis=1) * 256
_MIB = 2**20
_STEP = 16 * _MIB


@cache
def deflated_zeros(n_mib: int) -> bytes:
    """Return a zlib stream of n_mib mebibytes of zeros (a multiple of 16)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(_STEP)) + packer.flush(zlib.Z_FULL_FLUSH)
    # Adler-32 of n zeros: a = 1, b = n.
    checksum = struct.pack(">HH", n_mib * _MIB % 65521, 1)
    return b"\x78\xda" + block * (n_mib // 16) + b"\x03\x00" + checksum


def npz(path: Path, head: bytes, n_mib: int, name: str = "features", **arrays: Any) -> Path:
    """Write an .npz file with a member of `head` and zeros, with a wrong checksum."""
    np.savez(path, **arrays)
    size = len(head) + n_mib * _MIB
    stored = b"\x00" + struct.pack("<HH", len(head), len(head) ^ 0xFFFF) + head
    data = stored + deflated_zeros(n_mib)[2:-4]
    with zipfile.ZipFile(path, "a") as file:
        member = zipfile.ZipInfo(f"{name}.npy")
        start = file.fp.seek(file.start_dir)  # type: ignore[union-attr]
        member.compress_type, member.header_offset = zipfile.ZIP_DEFLATED, start
        member.CRC, member.file_size, member.compress_size = 0, size, len(data)
        file.fp.write(member.FileHeader() + data)  # type: ignore[union-attr]
        file.start_dir = file.fp.tell()  # type: ignore[union-attr]
        file.filelist.append(member)
        file.NameToInfo[member.filename] = member
        file._didModify = True  # type: ignore[attr-defined]
    return path


@cache
def _zeros() -> bytes:
    return bytes(_STEP)


def npy_head(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz_unused(path: Path, n_mib: int) -> Path:
    """Write a large member that is never read; the file is accepted."""
    return npz(path, npy_head((n_mib, _MIB), "|u1"), n_mib, "x", features=VECTORS, coords=COORDS)


def npz_features(path: Path, n_mib: int) -> Path:
    rows = np.arange(n_mib * 256)
    coords = np.stack([rows // 1024, rows % 1024], axis=1).astype(np.int16)
    return npz(path, npy_head((len(rows), 1024)), n_mib, coords=coords)


def npz_coords(path: Path, n_mib: int) -> Path:
    head = npy_head((n_mib * _MIB // 16, 2), "<i8")
    return npz(path, head, n_mib, "coords", features=VECTORS)


def npz_attribute(path: Path, n_mib: int) -> Path:
    head = npy_head((n_mib * _MIB // 8,), "<i8")
    return npz(path, head, n_mib, "patch_size", features=VECTORS, coords=COORDS)


def npz_header(path: Path, n_mib: int) -> Path:
    """Write a .npy header that states a huge length of the header."""
    head = b"\x93NUMPY\x02\x00" + struct.pack("<I", n_mib * _MIB)
    return npz(path, head, n_mib, coords=COORDS)


def zarr_chunk(path: Path, n_mib: int) -> Path:
    """Write a chunk that is as large as its array states."""
    return _zarr(path, "zlib", deflated_zeros(n_mib), n_mib * _MIB)


def zarr_zlib(path: Path, n_mib: int) -> Path:
    return _zarr(path, "zlib", deflated_zeros(n_mib))


def zarr_gzip(path: Path, n_mib: int) -> Path:
    """Write several consecutive gzip streams, each within the limit."""
    raw = deflated_zeros(16)[2:-4]
    tail = struct.pack("<II", zlib.crc32(_zeros()), _STEP)
    one = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + raw + tail
    return _zarr(path, "gzip", one * (n_mib // 16))


def zarr_zstd(path: Path, n_mib: int) -> Path:
    """Write a frame of run-length blocks without the total size."""
    block = ((128 * 1024 << 3) | 2).to_bytes(3, "little") + b"\0"
    frame = b"\x28\xb5\x2f\xfd\x00\x88" + block * (n_mib * 8) + b"\x01\x00\x00"
    return _zarr(path, "zstd", frame)


def zarr_zstd_stated(path: Path, n_mib: int) -> Path:
    return _zarr(path, "zstd", numcodecs.Zstd().encode(np.zeros(n_mib * _MIB, np.uint8)))


def zarr_blosc(path: Path, n_mib: int) -> Path:
    codec = numcodecs.Blosc(cname="lz4")
    return _zarr(path, "blosc", codec.encode(np.zeros(n_mib * _MIB, np.uint8)))


def zarr_lz4(path: Path, n_mib: int) -> Path:
    return _zarr(path, "lz4", struct.pack("<I", n_mib * _MIB) + b"\0" * 100)


def zarr_sparse(path: Path, n_mib: int) -> Path:
    """Write a sparse chunk file, which takes no disk space."""
    path = _zarr(path, None, b"")
    with (path / "features/0.0").open("r+b") as file:
        file.truncate(n_mib * _MIB)
    return path


def zarr_shard(path: Path, n_mib: int) -> Path:
    """Write a chunk in a shard that decompresses to more than stated."""
    packed = numcodecs.Zstd().encode(np.zeros(n_mib * _MIB, np.uint8))
    index = struct.pack("<QQ", 0, len(packed)) * 2
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    inner = {
        "chunk_shape": (len(MANY) // 2, MANY.shape[1]),
        "codecs": [little, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}],
        "index_codecs": [little],
    }
    write_group(path, 3)
    write_array_3(path / "coords", PLACES)
    codecs = [{"name": "sharding_indexed", "configuration": inner}]
    write_array_3(path / "features", MANY, packed + index, codecs)
    return path


def _zarr(path: Path, codec: str | None, chunk: bytes, n_bytes: int = 0) -> Path:
    write_group(path, 2)
    changes: dict[str, Any] = {"compressor": codec and {"id": codec}}
    if n_bytes:
        n_rows = n_bytes // 4 // MANY.shape[1]
        changes["chunks"] = (n_rows, MANY.shape[1])
    write_array_2(path / "coords", PLACES)
    write_array_2(path / "features", MANY, chunk, **changes)
    return path


def hdf5_chunk(path: Path, n_mib: int) -> Path:
    """Write the head of a chunk of n_mib rows."""
    with h5py.File(path, "w") as file:
        file["coords"] = PLACES
        chunks = (n_mib * _MIB // 4 // MANY.shape[1], MANY.shape[1])
        _direct(file, "features", MANY, chunks, n_mib, maxshape=(None, MANY.shape[1]))
    return path


def hdf5_deflate(path: Path, n_mib: int) -> Path:
    """Write a chunk that decompresses to more than stated."""
    with h5py.File(path, "w") as file:
        file["coords"] = PLACES
        _direct(file, "features", MANY, MANY.shape, n_mib)
    return path


def hdf5_coords(path: Path, n_mib: int) -> Path:
    """Write many small chunks whose total is large."""
    n_rows = min(n_mib * _MIB // 16, 9_900_000)
    with h5py.File(path, "w") as file:
        options: dict[str, Any] = {"chunks": (_MIB, 2), "compression": "gzip"}
        file.create_dataset("coords", (n_rows, 2), "i8", **options)
        file.create_dataset("features", (n_rows, 2), "f4", **options)
        for name, length in (("coords", 16), ("features", 8)):
            for row in range(0, n_rows, _MIB):
                file[name].id.write_direct_chunk((row, 0), deflated_zeros(length))
    return path


def h5ad_row(path: Path, n_mib: int) -> Path:
    """Write a sparse matrix with a row of more values than columns."""
    n = n_mib * _MIB // 8
    with h5py.File(path, "w") as file:
        file.create_group("obsm")["spatial"] = COORDS[:1].astype(float)
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", (1, 6)
        group["indptr"] = [0, n]
        for name, kind in (("data", "f4"), ("indices", "i4")):
            group.create_dataset(name, (n,), kind, chunks=(4 * _MIB,), compression="gzip")
            for row in range(0, n, 4 * _MIB):
                group[name].id.write_direct_chunk((row,), deflated_zeros(16))
    return path


def _direct(
    file: Any, name: str, values: Any, chunks: tuple[int, ...], n_mib: int, **more: Any
) -> None:
    made = file.create_dataset(
        name, values.shape, values.dtype, chunks=chunks, compression="gzip", **more
    )
    made.id.write_direct_chunk((0, 0), deflated_zeros(n_mib))


# File suffix and writer.
BOMBS: dict[str, tuple[str, Callable[[Path, int], Path]]] = {
    "npz: unused": (".npz", npz_unused),
    "npz: features": (".npz", npz_features),
    "npz: coords": (".npz", npz_coords),
    "npz: attribute": (".npz", npz_attribute),
    "npz: header": (".npz", npz_header),
    "zarr: chunk": (".zarr", zarr_chunk),
    "zarr: zlib": (".zarr", zarr_zlib),
    "zarr: gzip": (".zarr", zarr_gzip),
    "zarr: zstd": (".zarr", zarr_zstd),
    "zarr: zstd, stated": (".zarr", zarr_zstd_stated),
    "zarr: blosc": (".zarr", zarr_blosc),
    "zarr: lz4": (".zarr", zarr_lz4),
    "zarr: sparse": (".zarr", zarr_sparse),
    "zarr: shard": (".zarr", zarr_shard),
    "hdf5: chunk": (".h5", hdf5_chunk),
    "hdf5: deflate": (".h5", hdf5_deflate),
    "hdf5: coords": (".h5", hdf5_coords),
    "h5ad: row": (".h5ad", h5ad_row),
}
