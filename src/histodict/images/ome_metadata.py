"""Metadata of OME images: levels, axes, channels and pixel sizes.

OME-TIFF describes its images in XML, by the OME data model
(http://www.openmicroscopy.org/Schemas/OME/2016-06); OME-Zarr in the attributes of its folder,
versions 0.4 and 0.5 (https://ngff.openmicroscopy.org).

Levels of OME images: tiles of grey, RGB or RGBA, of 8 or 16 bits, converted to 8-bit RGB.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .file_types import OME_LAYOUT, ome_attributes
from .raster import to_8_bits, white_level
from .resampling import ResampleTile, composite_on_white
from .slide_backend import Pixels, TileCache, TiledLevel, UnsupportedSlideError, level_downsamples

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


# Of a decoded tile: the memory of the process that decodes is limited to about a gigabyte.
MAX_TILE_BYTES = 256 * 2**20
_KINDS = ("uint8", "uint16")
# Images reduced more unevenly than this are other images, not levels.
_MAX_SKEW = 1.05


class OmeLevel(TiledLevel):
    """dtype : of the values; white : the value that is white"""

    def __init__(
        self, size: tuple[int, int], tile: tuple[int, int], dtype: Any, kept: TileCache
    ) -> None:
        super().__init__(size, tile, kept)
        self.dtype = np.dtype(dtype)
        self.white = 255.0
        check_kind(self.dtype)

    @abstractmethod
    def values(self, place: int) -> NDArray[Any] | None:
        """Return a tile (height, width, n_samples), cropped to the level; None if it is missing.

        n_samples is 1 for grey, 3 for RGB, 4 for RGBA.
        """

    def check_tile(self, n_samples: int) -> None:
        """Refuse tiles that are too large to be decoded."""
        n_bytes = self.tile[0] * self.tile[1] * n_samples * self.dtype.itemsize
        if n_bytes > MAX_TILE_BYTES:
            raise UnsupportedSlideError(
                f"its pixels lie in pieces of {self.tile[0]} x {self.tile[1]}, {n_bytes >> 20} MiB "
                f"each; more than {MAX_TILE_BYTES >> 20} cannot be read in parts: save it again "
                "in tiles of, say, 512 x 512"
            )

    def largest(self) -> int:
        """Return the largest value, reading tile by tile."""
        found = (self.values(place) for place in range(self.n_across * self.n_down))
        return max((int(tile.max(initial=0)) for tile in found if tile is not None), default=0)

    def decode(self, place: int, out: Pixels) -> Pixels:
        values = self.values(place)
        if values is None:
            out[:] = 255
            return out
        height, width, n_samples = values.shape
        shown = to_8_bits(values, self.white)
        if n_samples == 4:
            shown = np.asarray(composite_on_white(Image.fromarray(shown)))
        out[:height, :width, :3] = shown
        return out


def check_kind(dtype: np.dtype[Any]) -> None:
    if dtype.name not in _KINDS:
        raise UnsupportedSlideError(
            f"its values are of the kind {dtype.name}, and colours have 8 or 16 bits: save it with "
            "8 bits per colour (RGB)"
        )


class OmeBackend:
    """Open OME image; `levels` begin with the finest. Subclasses define `close`."""

    def __init__(self, path: str, levels: Sequence[OmeLevel], mpp: float | None) -> None:
        self.levels = _true_levels(levels)
        if self.levels[0].dtype.itemsize > 1:
            # From the smallest level: in the others only single pixels could be brighter.
            white = white_level(Path(path), 0, self.levels[-1].largest())
            for level in self.levels:
                level.white = white
        sizes = [level.size for level in self.levels]
        self.metadata: dict[str, Any] = {
            "size": sizes[0],
            "level_sizes": sizes,
            "downsamples": level_downsamples(sizes),
            "properties": {} if mpp is None else {"openslide.mpp-x": repr(mpp)},
        }

    def picture(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        pixels = self.levels[piece.level].region(piece.x, piece.y, piece.width, piece.height)
        return Image.frombuffer("RGBX", (piece.width, piece.height), pixels, "raw", "RGBX", 0, 1)


def _true_levels(levels: Sequence[OmeLevel]) -> list[OmeLevel]:
    """Return the levels that are the first one reduced, each smaller than the one before."""
    found = [levels[0]]
    for level in levels[1:]:
        across, down = (a / b for a, b in zip(levels[0].size, level.size, strict=True))
        is_smaller = level.size[0] < found[-1].size[0] and level.size[1] <= found[-1].size[1]
        # Rounding changes the ratio of short sides.
        slack = _MAX_SKEW + 2 / min(level.size)
        if is_smaller and 1 / slack < across / down < slack and level.dtype == found[0].dtype:
            found.append(level)
    return found
