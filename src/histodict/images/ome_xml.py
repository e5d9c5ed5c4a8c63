"""What the description of an OME-TIFF says: pixel size and channels of its first image.

The OME data model, http://www.openmicroscopy.org/Schemas/OME/2016-06.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.etree import ElementTree

from .ome_channels import Channel, micrometres


@dataclass(frozen=True)
class OmeImage:
    """mpp : µm per pixel across and down, as far as they are known

    is_whole : whether all of it is in this file
    """

    mpp: list[float] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    is_whole: bool = True


def read_ome_xml(text: str) -> list[OmeImage]:
    """The images in their order."""
    root = ElementTree.fromstring(text)
    pixels = root.findall("{*}Image/{*}Pixels")
    own = root.get("UUID")
    return [OmeImage(_mpp(found), _channels(found), _is_whole(found, own)) for found in pixels]


def _is_whole(pixels: ElementTree.Element, own: str | None) -> bool:
    """By the numbers of files: names are those that the files had when they were written."""
    named = {(found.text or "").strip() for found in pixels.findall("{*}TiffData/{*}UUID")}
    return len(named) < 2 if own is None else named <= {own}


def _mpp(pixels: ElementTree.Element) -> list[float]:
    found = []
    for axis in "XY":
        length = pixels.get(f"PhysicalSize{axis}")
        unit = pixels.get(f"PhysicalSize{axis}Unit", "µm")
        size = micrometres(float(length), unit) if length else None
        found += [] if size is None else [size]
    return found


def _channels(pixels: ElementTree.Element) -> list[Channel]:
    """One for each sample; those of a pixel of three samples are red, green and blue."""
    found: list[Channel] = []
    for channel in pixels.findall("{*}Channel"):
        n_samples = int(channel.get("SamplesPerPixel", "1"))
        found += [_channel(channel)] if n_samples == 1 else [Channel()] * min(n_samples, 4)
    return found


def _channel(channel: ElementTree.Element) -> Channel:
    mode = channel.get("ContrastMethod", "") + channel.get("IlluminationType", "")
    glows = (
        "fluorescence" in mode.lower()
        or channel.get("Fluor") is not None
        or channel.get("EmissionWavelength") is not None
    )
    return Channel(channel.get("Name", ""), _colour(channel.get("Color", "")), glows)


def _colour(text: str) -> str:
    """Red, green and blue of a signed number of 32 bits, whose last byte is opacity."""
    return f"{(int(text) & 0xFFFFFFFF) >> 8:06x}" if text else ""
