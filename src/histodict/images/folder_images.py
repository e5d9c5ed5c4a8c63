"""Images that are folders: OME-Zarr. Wherever images are listed such a folder is one of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .ome_metadata import is_image

FOLDER_IMAGES = (".zarr",)
_SURELY = (".ome.zarr",)
_ATTRIBUTES = ("zarr.json", ".zattrs")
_MOST_BYTES = 2**24


def is_folder_image(path: Path) -> bool:
    """Whether a folder is meant as an image by its name; for a damaged one that is said later.

    Tables and much else are kept in zarr, too: what is not called .ome.zarr is looked into.
    """
    name = path.name.lower()
    if not name.endswith(FOLDER_IMAGES) or not os.path.isdir(path):
        return False
    return name.endswith(_SURELY) or any(_has_image(path / file) for file in _ATTRIBUTES)


def is_image_path(path: Path) -> bool:
    """Whether there is a file, or a folder that is an image."""
    return os.path.isfile(path) or is_folder_image(path)


def is_zarr(path: Path) -> bool:
    """Whether it is a folder of chunks, which is not looked through for images."""
    return path.name.lower().endswith(FOLDER_IMAGES)


def _has_image(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return False
        found = json.loads(file.read_bytes())
        attributes = found.get("attributes", {}) if file.name == _ATTRIBUTES[0] else found
        return isinstance(attributes, dict) and is_image(attributes)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False
