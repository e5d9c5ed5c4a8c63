"""What the attributes of an OME-Zarr folder say: its levels, axes and pixel size.

The next-generation file format of OME, versions 0.4 and 0.5: https://ngff.openmicroscopy.org.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .ome_channels import Channel, micrometres
from .opened_slide import UnfitError

_VERSIONS = ("0.4", "0.5")
_AXES = "tczyx"
_LAYOUT = "bioformats2raw.layout"  # of a folder with images called 0, 1, 2, …


@dataclass(frozen=True)
class Multiscale:
    """paths : of the levels, the finest first; axes : a letter for each, such as "cyx"

    mpp : µm per pixel across and down, as far as they are known
    scale_without_unit : scale along x and y, if its axes have no unit
    """

    paths: list[str]
    axes: str
    mpp: list[float]
    channels: list[Channel]
    scale_without_unit: list[float]


def is_image(attributes: Mapping[str, Any]) -> bool:
    """Whether a folder's attributes are those of an image, or of images by their numbers."""
    return bool({"multiscales", _LAYOUT, "plate"} & set(_ome(attributes)))


def first_of_several(attributes: Mapping[str, Any]) -> str | None:
    """The path of the first image where a folder has several of them; None where it is one."""
    ome = _ome(attributes)
    if "plate" in ome:
        raise UnfitError(
            "is a plate with images in its wells: give the folders of these, each copied under a "
            "name that ends in .ome.zarr"
        )
    return "0" if _LAYOUT in ome and "multiscales" not in ome else None


def read_multiscale(attributes: Mapping[str, Any]) -> Multiscale:
    """Of one image."""
    ome = _ome(attributes)
    if not ome.get("multiscales"):
        raise UnfitError("is a zarr folder, but no image: its attributes name no 'multiscales'")
    found = ome["multiscales"][0]
    version = str(ome.get("version") or found.get("version") or "0.4")
    if version not in _VERSIONS:
        raise UnfitError(f"is of version {version} of OME-Zarr; {' and '.join(_VERSIONS)} are read")
    axes = found["axes"]
    letters = "".join(str(axis["name"]).lower() for axis in axes)
    if [letter for letter in _AXES if letter in letters] != list(letters) or letters[-2:] != "yx":
        raise UnfitError(f"has the axes {letters!r}; t, c, z, y, x in this order are read")
    paths = [str(dataset["path"]) for dataset in found["datasets"]]
    scales = [_scale(found["datasets"][0]), _scale(found)]
    mpp = [_size(axes[place], [s[place] for s in scales if s]) for place in (-1, -2)]
    bare = [math.prod(s[place] for s in scales if s) for place in (-1, -2) if any(scales)]
    has_unit = any("unit" in axes[place] for place in (-1, -2))
    known = [size for size in mpp if size is not None]
    return Multiscale(paths, letters, known, _channels(ome), [] if has_unit else bare)


def _ome(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Version 0.5 has a place of its own for them."""
    return attributes.get("ome", attributes)


def _scale(part: Mapping[str, Any]) -> list[float]:
    for transform in part.get("coordinateTransformations", ()):
        if transform.get("type") == "scale" and "scale" in transform:
            return [float(number) for number in transform["scale"]]
    return []


def _size(axis: Mapping[str, Any], scales: list[float]) -> float | None:
    """µm from a pixel to the next; None where no unit is given, or no scale."""
    if not scales or "unit" not in axis:
        return None
    length = 1.0
    for scale in scales:
        length *= scale
    return micrometres(length, str(axis["unit"]))


def _channels(ome: Mapping[str, Any]) -> list[Channel]:
    channels = (ome.get("omero") or {}).get("channels") or []
    return [Channel(str(c.get("label", "")), str(c.get("color", ""))) for c in channels]
