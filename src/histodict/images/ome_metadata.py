"""Metadata of OME images: levels, axes, channels and pixel sizes.

OME-TIFF describes its images in XML, by the OME data model
(http://www.openmicroscopy.org/Schemas/OME/2016-06); OME-Zarr in the attributes of its folder,
versions 0.4 and 0.5 (https://ngff.openmicroscopy.org).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from .folder_images import OME_LAYOUT, ome_attributes
from .opened_slide import UnsupportedSlideError

# Micrometres per unit, by the symbols of OME-XML and the names of OME-Zarr.
_MICROMETRES = {
    **{"m": 1e6, "dm": 1e5, "cm": 1e4, "mm": 1e3, "µm": 1.0, "um": 1.0, "nm": 1e-3, "pm": 1e-6},
    **{"meter": 1e6, "decimeter": 1e5, "centimeter": 1e4, "millimeter": 1e3, "micrometer": 1.0},
    **{"micron": 1.0, "nanometer": 1e-3, "picometer": 1e-6, "å": 1e-4, "angstrom": 1e-4},
    **{"in": 25_400.0, "inch": 25_400.0},
}
_COLOURS = (("r", "red", "ff0000"), ("g", "green", "00ff00"), ("b", "blue", "0000ff"))
# Names that programs give to unnamed channels.
_NO_NAME = re.compile(r"(channel|ch|c|image)?[\s:_#-]*\d*([\s:_#-]+\d+)*", re.IGNORECASE)
_MAX_NAMED = 4
_VERSIONS = ("0.4", "0.5")
_AXES = "tczyx"


def micrometres(length: float, unit: str) -> float | None:
    """Return a length in µm; None for a unit that is no length, such as pixels."""
    # Two characters look like the Greek letter, and `lower` converts one to the other.
    factor = _MICROMETRES.get(unit.strip().replace("\u03bc", "\u00b5").lower())
    return None if factor is None else length * factor


# --- channels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Channel:
    """colour : six hexadecimal digits, or empty; is_fluorescence : according to its metadata"""

    name: str = ""
    colour: str = ""
    is_fluorescence: bool = False

    def could_be_colour(self, place: int) -> bool:
        """Return whether it may be red, green or blue, by its place."""
        name, own = self.name.strip().lower(), _COLOURS[place]
        if self.is_fluorescence:
            return False
        if name in own:
            return True
        return bool(_NO_NAME.fullmatch(name)) and self.colour.lower() in ("", "ffffff", own[2])


def check_channels(channels: list[Channel], n_channels: int) -> None:
    """Refuse channels other than red, green and blue, or grey."""
    shown = channels[:n_channels]
    if n_channels == 3 and all(channel.could_be_colour(at) for at, channel in enumerate(shown)):
        return
    if n_channels == 1 and not any(channel.is_fluorescence for channel in shown):
        return
    names = [channel.name for channel in shown if channel.name][:_MAX_NAMED]
    more = ", …" if names and n_channels > len(names) else ""
    named = f" ({', '.join(names)}{more})" if names else ""
    plural = "channel" if n_channels == 1 else "channels"
    raise UnsupportedSlideError(
        f"has {n_channels} {plural}{named} that are not red, green and blue; fluorescence and "
        "other images of channels are not read: save it as RGB"
    )


def check_one_plane(sizes: dict[str, int]) -> None:
    """Refuse stacks and time series; `sizes` by the letters of their axes."""
    words = {"z": "planes of focus (z)", "t": "points in time (t)"}
    for letter, what in words.items():
        if sizes.get(letter, 1) != 1:
            raise UnsupportedSlideError(
                f"has {sizes[letter]} {what}, of which one would have to be chosen: save one of "
                "them as an image of its own"
            )


# --- OME-XML ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OmeImage:
    """mpp : known values of µm per pixel along x and y

    is_whole : whether all of the image is in this file
    """

    mpp: list[float] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    is_whole: bool = True


def read_ome_xml(text: str) -> list[OmeImage]:
    """Return the images in their order."""
    root = ElementTree.fromstring(text)
    pixels = root.findall("{*}Image/{*}Pixels")
    own = root.get("UUID")
    return [OmeImage(_xml_mpp(p), _xml_channels(p), _is_whole(p, own)) for p in pixels]


def _is_whole(pixels: ElementTree.Element, own: str | None) -> bool:
    """Compare identifiers of files, as file names may have changed since they were written."""
    named = {(found.text or "").strip() for found in pixels.findall("{*}TiffData/{*}UUID")}
    return len(named) < 2 if own is None else named <= {own}


def _xml_mpp(pixels: ElementTree.Element) -> list[float]:
    found = []
    for axis in "XY":
        length = pixels.get(f"PhysicalSize{axis}")
        unit = pixels.get(f"PhysicalSize{axis}Unit", "µm")
        size = micrometres(float(length), unit) if length else None
        found += [] if size is None else [size]
    return found


def _xml_channels(pixels: ElementTree.Element) -> list[Channel]:
    """Return one channel per sample; a channel of three samples is red, green and blue."""
    found: list[Channel] = []
    for channel in pixels.findall("{*}Channel"):
        n_samples = int(channel.get("SamplesPerPixel", "1"))
        found += [_xml_channel(channel)] if n_samples == 1 else [Channel()] * min(n_samples, 4)
    return found


def _xml_channel(channel: ElementTree.Element) -> Channel:
    mode = channel.get("ContrastMethod", "") + channel.get("IlluminationType", "")
    is_fluorescence = "fluorescence" in mode.lower() or any(
        channel.get(name) is not None for name in ("Fluor", "EmissionWavelength")
    )
    # A signed number of 32 bits: red, green, blue and opacity.
    colour = channel.get("Color", "")
    digits = f"{(int(colour) & 0xFFFFFFFF) >> 8:06x}" if colour else ""
    return Channel(channel.get("Name", ""), digits, is_fluorescence)


# --- attributes of OME-Zarr ---------------------------------------------------------------------


@dataclass(frozen=True)
class Multiscale:
    """paths : of the levels, the finest first; axes : a letter for each, such as "cyx"

    mpp : known values of µm per pixel along x and y
    scale_without_unit : scale along x and y, if its axes have no unit
    """

    paths: list[str]
    axes: str
    mpp: list[float]
    channels: list[Channel]
    scale_without_unit: list[float]


def first_of_several(attributes: Mapping[str, Any]) -> str | None:
    """Return the path of the first of several images; None for a folder of one image."""
    ome = ome_attributes(attributes)
    if "plate" in ome:
        raise UnsupportedSlideError(
            "is a plate with images in its wells: give the folders of these, each copied under a "
            "name that ends in .ome.zarr"
        )
    return "0" if OME_LAYOUT in ome and "multiscales" not in ome else None


def read_multiscale(attributes: Mapping[str, Any]) -> Multiscale:
    """Read the attributes of one image."""
    ome = ome_attributes(attributes)
    if not ome.get("multiscales"):
        raise UnsupportedSlideError(
            "is a zarr folder, but no image: its attributes name no 'multiscales'"
        )
    found = ome["multiscales"][0]
    version = str(ome.get("version") or found.get("version") or "0.4")
    if version not in _VERSIONS:
        raise UnsupportedSlideError(
            f"is of version {version} of OME-Zarr; {' and '.join(_VERSIONS)} are read"
        )
    axes = found["axes"]
    letters = "".join(str(axis["name"]).lower() for axis in axes)
    if [letter for letter in _AXES if letter in letters] != list(letters) or letters[-2:] != "yx":
        raise UnsupportedSlideError(
            f"has the axes {letters!r}; t, c, z, y, x in this order are read"
        )
    paths = [str(dataset["path"]) for dataset in found["datasets"]]
    scales = [scale for scale in (_scale(found["datasets"][0]), _scale(found)) if scale]
    lengths = {at: math.prod(scale[at] for scale in scales) for at in (-1, -2)} if scales else {}
    units = {at: str(axes[at]["unit"]) for at in (-1, -2) if "unit" in axes[at]}
    mpp = [micrometres(lengths[at], units[at]) for at in lengths if at in units]
    channels = (ome.get("omero") or {}).get("channels") or []
    return Multiscale(
        paths,
        letters,
        [size for size in mpp if size is not None],
        [Channel(str(c.get("label", "")), str(c.get("color", ""))) for c in channels],
        [] if units else list(lengths.values()),
    )


def _scale(part: Mapping[str, Any]) -> list[float]:
    for transform in part.get("coordinateTransformations", ()):
        if transform.get("type") == "scale" and "scale" in transform:
            return [float(number) for number in transform["scale"]]
    return []
