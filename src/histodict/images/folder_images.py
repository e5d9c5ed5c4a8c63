"""File types: images that are folders (OME-Zarr), and directory entries that are not files."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER_IMAGES = (".zarr",)
_ALWAYS_IMAGES = (".ome.zarr",)
_ATTRIBUTES = ("zarr.json", ".zattrs")
_MAX_BYTES = 2**24
NO_SUCH_FILE = "no such file"
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_ERRORS = {
    errno.ELOOP: "a cycle of links",
    errno.EACCES: "not readable",
    errno.ENAMETOOLONG: "a name that is too long",
}
OME_LAYOUT = "bioformats2raw.layout"  # of a folder with images called 0, 1, 2, …


def is_ome_zarr_name(path: Path) -> bool:
    """Return whether a folder is an image by its name, also if it is damaged.

    Zarr folders may hold other data: those not called .ome.zarr are images by their attributes.
    """
    name = path.name.lower()
    if not name.endswith(FOLDER_IMAGES) or not os.path.isdir(path):
        return False
    return name.endswith(_ALWAYS_IMAGES) or any(_has_image(path / file) for file in _ATTRIBUTES)


def is_image_path(path: Path) -> bool:
    """Return whether there is a file, or a folder that is an image."""
    return os.path.isfile(path) or is_ome_zarr_name(path)


def is_zarr(path: Path) -> bool:
    """Return whether it is a Zarr folder by its name, which is not searched for images."""
    return path.name.lower().endswith(FOLDER_IMAGES)


def _has_image(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return False
        found = json.loads(file.read_bytes())
        attributes = found.get("attributes", {}) if file.name == _ATTRIBUTES[0] else found
        return isinstance(attributes, dict) and is_image(attributes)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False


# --- entries that are neither files nor folders --------------------------------------------------


def odd_kind(path: Path) -> str:
    """Return what a path is if it is neither a file nor a folder; else an empty string.

    The path is not opened, as opening a pipe blocks until another process writes to it.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a dangling link" if path.is_symlink() else NO_SUCH_FILE
    except OSError as error:
        return _ERRORS.get(error.errno or 0, error.strerror or str(error))
    return _KINDS.get(stat.S_IFMT(mode), "")


def is_closed(folder: Path) -> bool:
    """Return whether it is a folder without read permission."""
    return os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)


def in_brackets(kind: str) -> str:
    return f" ({kind})" if kind else ""


def ome_attributes(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of OME, which version 0.5 has under a key."""
    return attributes.get("ome", attributes)


def is_image(attributes: Mapping[str, Any]) -> bool:
    """Return whether a folder's attributes are those of one image or several."""
    return bool({"multiscales", OME_LAYOUT, "plate"} & set(ome_attributes(attributes)))
