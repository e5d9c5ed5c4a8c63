"""Write small DICOM whole slides without a DICOM library."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_WSI = "1.2.840.10008.5.1.4.1.1.77.1.6"
_JPEG = "1.2.840.10008.1.2.4.50"
_LONG = ("OB", "SQ", "UN")
_TILE = 64


def element(group: int, number: int, kind: str, value: Any) -> bytes:
    """Return an element with explicit value representation; a sequence has undefined length."""
    head = struct.pack("<HH", group, number) + kind.encode()
    if kind == "SQ":
        items = b"".join(
            struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF)
            + item
            + bytes.fromhex("feff0de000000000")
            for item in value
        )
        return head + struct.pack("<HI", 0, 0xFFFFFFFF) + items + bytes.fromhex("feffdde000000000")
    if kind == "US":
        data = struct.pack("<H", value)
    elif kind == "UL":
        data = struct.pack("<I", value)
    else:
        data = value if isinstance(value, bytes) else str(value).encode()
        data += (b"\0" if kind in ("UI", "OB") else b" ") * (len(data) % 2)
    length = struct.pack("<HI", 0, len(data)) if kind in _LONG else struct.pack("<H", len(data))
    return head + length + data


def save_dicom_level(
    path: Path, pixels: NDArray[np.uint8], series: str, *, level: int = 0, mpp: float = 0.5
) -> Path:
    """Write one level of a slide in JPEG tiles."""
    height, width = pixels.shape[:2]
    frames = []
    for top in range(0, height, _TILE):
        for left in range(0, width, _TILE):
            part = pixels[top : top + _TILE, left : left + _TILE]
            tile = np.full((_TILE, _TILE, 3), 255, np.uint8)
            tile[: part.shape[0], : part.shape[1]] = part
            packed = io.BytesIO()
            Image.fromarray(tile).save(packed, "JPEG", quality=95, subsampling=0)
            data = packed.getvalue()
            frames.append(data + b"\0" * (len(data) % 2))
    kind = (
        "ORIGINAL\\PRIMARY\\VOLUME\\NONE" if level == 0 else "DERIVED\\PRIMARY\\VOLUME\\RESAMPLED"
    )
    instance = f"{series}.{level + 1}"
    spacing = element(0x0028, 0x0030, "DS", f"{mpp * 2**level / 1000}\\{mpp * 2**level / 1000}")
    measures = element(0x0028, 0x9110, "SQ", [spacing])
    body = b"".join(
        [
            element(0x0008, 0x0008, "CS", kind),
            element(0x0008, 0x0016, "UI", _WSI),
            element(0x0008, 0x0018, "UI", instance),
            element(0x0008, 0x0060, "CS", "SM"),
            element(0x0008, 0x1115, "SQ", [element(0x0020, 0x000E, "UI", "1.2.3.999")]),
            element(0x0020, 0x000D, "UI", "1.2.3.4"),
            element(0x0020, 0x000E, "UI", series),
            element(0x0020, 0x0052, "UI", f"{series}.0"),
            element(0x0020, 0x9311, "CS", "TILED_FULL"),
            element(0x0028, 0x0002, "US", 3),
            element(0x0028, 0x0004, "CS", "YBR_FULL_422"),
            element(0x0028, 0x0006, "US", 0),
            element(0x0028, 0x0008, "IS", len(frames)),
            element(0x0028, 0x0010, "US", _TILE),
            element(0x0028, 0x0011, "US", _TILE),
            element(0x0028, 0x0100, "US", 8),
            element(0x0028, 0x0101, "US", 8),
            element(0x0028, 0x0102, "US", 7),
            element(0x0028, 0x0103, "US", 0),
            element(0x0048, 0x0006, "UL", width),
            element(0x0048, 0x0007, "UL", height),
            element(0x0048, 0x0303, "UL", 1),
            element(0x5200, 0x9229, "SQ", [measures]),
        ]
    )
    meta = b"".join(
        [
            element(0x0002, 0x0001, "OB", b"\0\1"),
            element(0x0002, 0x0002, "UI", _WSI),
            element(0x0002, 0x0003, "UI", instance),
            element(0x0002, 0x0010, "UI", _JPEG),
            element(0x0002, 0x0012, "UI", "1.2.3.5"),
        ]
    )
    items = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(f)) + f for f in [b"", *frames])
    begin = struct.pack("<HH2sHI", 0x7FE0, 0x0010, b"OB", 0, 0xFFFFFFFF)
    stored = begin + items + bytes.fromhex("feffdde000000000")
    size = element(0x0002, 0x0000, "UL", len(meta))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * 128 + b"DICM" + size + meta + body + stored)
    return path


def save_dicom_slide(
    folder: Path, names: list[str], pixels: NDArray[np.uint8], series: str
) -> list[Path]:
    """Write a slide with one file per level, the finest first."""
    return [
        save_dicom_level(folder / name, pixels[:: 2**n, :: 2**n], series, level=n)
        for n, name in enumerate(names)
    ]
