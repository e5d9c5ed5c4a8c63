"""Metadata and levels of OME images.

OME-TIFF describes images in XML (http://www.openmicroscopy.org/Schemas/OME/2016-06), OME-Zarr in
the attributes of the folder (versions 0.4 and 0.5, https://ngff.openmicroscopy.org). Tiles of grey,
RGB or RGBA, of 8 or 16 bits, are converted to 8-bit RGB.
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

from .file_types import OME_LAYOUT, UnreadableContentError, ome_attributes
from .raster import to_8_bits, white_level
from .resampling import ResampleTile, composite_on_white
from .slide_backend import Pixels, TileCache, TiledLevel, level_downsamples

# Micrometres per unit: symbols of OME-XML and names of OME-Zarr.
_MICROMETRES = {
    **{"m": 1e6, "dm": 1e5, "cm": 1e4, "mm": 1e3, "µm": 1.0, "um": 1.0, "nm": 1e-3, "pm": 1e-6},
    **{"meter": 1e6, "decimeter": 1e5, "centimeter": 1e4, "millimeter": 1e3, "micrometer": 1.0},
    **{"micron": 1.0, "nanometer": 1e-3, "picometer": 1e-6, "å": 1e-4, "angstrom": 1e-4},
    **{"in": 25_400.0, "inch": 25_400.0},
}
_RGB_CHANNELS = (("r", "red", "ff0000"), ("g", "green", "00ff00"), ("b", "blue", "0000ff"))
# Default names that programs give to channels.
_DEFAULT_CHANNEL_NAME = re.compile(
    r"(channel|ch|c|image)?[\s:_#-]*\d*([\s:_#-]+\d+)*", re.IGNORECASE
)
_MAX_LISTED_CHANNELS = 4
_OME_ZARR_VERSIONS = ("0.4", "0.5")
_AXES = "tczyx"


def to_micrometres(length: float, unit: str) -> float | None:
    """Convert a length to µm; return None if `unit` is not a unit of length, such as "pixel"."""
    # The micro sign and the Greek letter mu look alike, and `lower` converts one to the other.
    factor = _MICROMETRES.get(unit.strip().replace("\u03bc", "\u00b5").lower())
    return None if factor is None else length * factor


# --- channels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Channel:
    """Channel of an image.

    Attributes
    ----------
    name : name of the channel; "" if it has none
    colour : six hexadecimal digits (RGB); "" if the metadata state none
    is_fluorescence : whether the metadata state that the channel is fluorescence
    """

    name: str = ""
    colour: str = ""
    is_fluorescence: bool = False

    def could_be_colour(self, index: int) -> bool:
        """Return whether the channel may be red (`index` 0), green (1) or blue (2)."""
        name, colour = self.name.strip().lower(), _RGB_CHANNELS[index]
        if self.is_fluorescence:
            return False
        if name in colour:
            return True
        return bool(_DEFAULT_CHANNEL_NAME.fullmatch(name)) and self.colour.lower() in (
            "",
            "ffffff",
            colour[2],
        )


def check_channels(channels: list[Channel], n_channels: int) -> None:
    """Raise UnreadableContentError unless the channels are red, green and blue, or grey.

    The metadata in `channels` may have fewer or more entries than `n_channels`.
    """
    shown = channels[:n_channels]
    if n_channels == 3 and all(channel.could_be_colour(at) for at, channel in enumerate(shown)):
        return
    if n_channels == 1 and not any(channel.is_fluorescence for channel in shown):
        return
    names = [channel.name for channel in shown if channel.name][:_MAX_LISTED_CHANNELS]
    more = ", …" if names and n_channels > len(names) else ""
    named = f" ({', '.join(names)}{more})" if names else ""
    plural = "channel" if n_channels == 1 else "channels"
    raise UnreadableContentError(
        f"has {n_channels} {plural}{named} that are not red, green and blue; fluorescence and "
        "other multichannel images are not supported; save it as RGB"
    )


def check_single_plane(sizes: dict[str, int]) -> None:
    """Raise UnreadableContentError if the image has several focal planes (z) or time points (t).

    `sizes` maps the letter of each axis to the length of the axis.
    """
    labels = {"z": "focal planes (z)", "t": "time points (t)"}
    for letter, label in labels.items():
        if sizes.get(letter, 1) != 1:
            raise UnreadableContentError(
                f"has {sizes[letter]} {label}; save one of them as a separate image"
            )


# --- OME-XML ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OmeImage:
    """Metadata of one image, from OME-XML.

    Attributes
    ----------
    mpp : known values of µm per pixel along x and y
    channels : metadata of the channel of each sample of a pixel
    is_whole : whether all pixels of the image are in this file
    """

    mpp: list[float] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    is_whole: bool = True


def read_ome_xml(text: str) -> list[OmeImage]:
    """Return the metadata of all images in OME-XML."""
    root = ElementTree.fromstring(text)
    pixels = root.findall("{*}Image/{*}Pixels")
    file_uuid = root.get("UUID")
    return [OmeImage(_xml_mpp(p), _xml_channels(p), _is_whole(p, file_uuid)) for p in pixels]


def _is_whole(pixels: ElementTree.Element, file_uuid: str | None) -> bool:
    """Return whether all parts of an image are in the file with the UUID `file_uuid`.

    UUIDs are compared, not names, as files may have been renamed.
    """
    named = {(element.text or "").strip() for element in pixels.findall("{*}TiffData/{*}UUID")}
    return len(named) < 2 if file_uuid is None else named <= {file_uuid}


def _xml_mpp(pixels: ElementTree.Element) -> list[float]:
    """Return the known values of µm per pixel along x and y."""
    found = []
    for axis in "XY":
        length = pixels.get(f"PhysicalSize{axis}")
        unit = pixels.get(f"PhysicalSize{axis}Unit", "µm")
        size = to_micrometres(float(length), unit) if length else None
        found += [] if size is None else [size]
    return found


def _xml_channels(pixels: ElementTree.Element) -> list[Channel]:
    """Return the channel of each sample; samples of an RGB channel have no name and no colour."""
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
    # A signed 32-bit number of the bytes red, green, blue and opacity.
    colour = channel.get("Color", "")
    digits = f"{(int(colour) & 0xFFFFFFFF) >> 8:06x}" if colour else ""
    return Channel(channel.get("Name", ""), digits, is_fluorescence)


# --- attributes of OME-Zarr ---------------------------------------------------------------------


@dataclass(frozen=True)
class Multiscale:
    """Metadata of one OME-Zarr image.

    Attributes
    ----------
    paths : paths of the levels, the finest first
    axes : letters of the axes in order, such as "cyx"
    mpp : known values of µm per pixel along x and y
    channels : metadata of the channels, possibly incomplete
    scale_without_unit : scale along x and y if these axes have no unit; otherwise empty
    """

    paths: list[str]
    axes: str
    mpp: list[float]
    channels: list[Channel]
    scale_without_unit: list[float]


def first_image_path(attributes: Mapping[str, Any]) -> str | None:
    """Return the path of the first image of a Zarr folder; None if the folder is the image."""
    ome = ome_attributes(attributes)
    if "plate" in ome:
        raise UnreadableContentError(
            "is a plate with images in its wells; copy each image to a folder with a name "
            "that ends in .ome.zarr and use these"
        )
    return "0" if OME_LAYOUT in ome and "multiscales" not in ome else None


def read_multiscale(attributes: Mapping[str, Any]) -> Multiscale:
    """Return the metadata in the attributes of an OME-Zarr image.

    Raises
    ------
    UnreadableContentError
        If the attributes describe no image, an unknown version or unsupported axes.
    """
    ome = ome_attributes(attributes)
    if not ome.get("multiscales"):
        raise UnreadableContentError(
            "is a Zarr folder without an image: its attributes lack 'multiscales'"
        )
    found = ome["multiscales"][0]
    version = str(ome.get("version") or found.get("version") or "0.4")
    if version not in _OME_ZARR_VERSIONS:
        raise UnreadableContentError(
            f"has version {version} of OME-Zarr; supported are {' and '.join(_OME_ZARR_VERSIONS)}"
        )
    axes = found["axes"]
    letters = "".join(str(axis["name"]).lower() for axis in axes)
    if [letter for letter in _AXES if letter in letters] != list(letters) or letters[-2:] != "yx":
        raise UnreadableContentError(
            f"has axes {letters!r}; supported are t, c, z, y, x in this order"
        )
    paths = [str(dataset["path"]) for dataset in found["datasets"]]
    scales = [scale for scale in (_read_scale(found["datasets"][0]), _read_scale(found)) if scale]
    lengths = {at: math.prod(scale[at] for scale in scales) for at in (-1, -2)} if scales else {}
    units = {at: str(axes[at]["unit"]) for at in (-1, -2) if "unit" in axes[at]}
    mpp = [to_micrometres(lengths[at], units[at]) for at in lengths if at in units]
    channels = (ome.get("omero") or {}).get("channels") or []
    return Multiscale(
        paths,
        letters,
        [size for size in mpp if size is not None],
        [Channel(str(c.get("label", "")), str(c.get("color", ""))) for c in channels],
        [] if units else list(lengths.values()),
    )


def _read_scale(metadata: Mapping[str, Any]) -> list[float]:
    """Return the scale of each axis from the metadata of a level or image; empty if none."""
    for transform in metadata.get("coordinateTransformations", ()):
        if transform.get("type") == "scale" and "scale" in transform:
            return [float(number) for number in transform["scale"]]
    return []


# Maximum size of a decoded tile; the process that decodes it has about a gigabyte of memory.
MAX_TILE_BYTES = 256 * 2**20
_DTYPES = ("uint8", "uint16")
# Maximum ratio of the reductions of a level along x and y; otherwise it is a separate image.
_MAX_ASPECT_CHANGE = 1.05


class OmeLevel(TiledLevel):
    """Level of an OME image of 8 or 16 bits.

    Attributes
    ----------
    dtype : data type of the values
    white : value that becomes 255 in 8-bit pixels
    """

    def __init__(
        self, size: tuple[int, int], tile: tuple[int, int], dtype: Any, cache: TileCache
    ) -> None:
        super().__init__(size, tile, cache)
        self.dtype = np.dtype(dtype)
        self.white = 255.0
        check_dtype(self.dtype)

    @abstractmethod
    def read_values(self, index: int) -> NDArray[Any] | None:
        """Return a tile (height, width, n_samples) by its row-major index; None if it is missing.

        The tile is cropped at the border of the level. n_samples is 1 (grey), 3 (RGB) or 4 (RGBA).
        """

    def check_tile_size(self, n_samples: int) -> None:
        """Raise UnreadableContentError if tiles with `n_samples` values per pixel are too large."""
        n_bytes = self.tile_size[0] * self.tile_size[1] * n_samples * self.dtype.itemsize
        if n_bytes > MAX_TILE_BYTES:
            raise UnreadableContentError(
                f"has tiles of {self.tile_size[0]} x {self.tile_size[1]} pixels "
                f"({n_bytes >> 20} MiB); at most {MAX_TILE_BYTES >> 20} MiB are supported; save "
                "it again with tiles of 512 x 512"
            )

    def max_pixel_value(self) -> int:
        """Return the maximum pixel value of the level, after reading all tiles."""
        found = (self.read_values(index) for index in range(self.n_across * self.n_down))
        return max((int(tile.max(initial=0)) for tile in found if tile is not None), default=0)

    def decode(self, index: int, out: Pixels) -> Pixels:
        """Decode a tile into the first three channels of `out`, as 8-bit RGB, and return `out`."""
        values = self.read_values(index)
        if values is None:
            out[:] = 255
            return out
        height, width, n_samples = values.shape
        colours = to_8_bits(values, self.white)
        if n_samples == 4:
            colours = np.asarray(composite_on_white(Image.fromarray(colours)))
        out[:height, :width, :3] = colours
        return out


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise UnreadableContentError unless the data type is uint8 or uint16."""
    if dtype.name not in _DTYPES:
        raise UnreadableContentError(
            f"has values of type {dtype.name} instead of 8 or 16 bits per colour; save it as "
            "RGB with 8 bits per colour"
        )


class OmeBackend:
    """Base class of the slide backends of OME images; `levels` begin with the finest."""

    def __init__(self, path: str, levels: Sequence[OmeLevel], mpp: float | None) -> None:
        self.levels = _select_levels(levels)
        if self.levels[0].dtype.itemsize > 1:
            # Only the smallest level is read: in the others, only single pixels may be brighter.
            white = white_level(Path(path), 0, self.levels[-1].max_pixel_value())
            for level in self.levels:
                level.white = white
        sizes = [level.size for level in self.levels]
        self.metadata: dict[str, Any] = {
            "size": sizes[0],
            "level_sizes": sizes,
            "downsamples": level_downsamples(sizes),
            "properties": {} if mpp is None else {"openslide.mpp-x": repr(mpp)},
        }

    def read_region(self, corner: list[int], tile: ResampleTile) -> Image.Image:
        """Return the pixels of a tile before resampling; see `SlideBackend.read_region`."""
        pixels = self.levels[tile.level].region(tile.x, tile.y, tile.width, tile.height)
        return Image.frombuffer("RGBX", (tile.width, tile.height), pixels, "raw", "RGBX", 0, 1)


def _select_levels(levels: Sequence[OmeLevel]) -> list[OmeLevel]:
    """Return the first level and its reductions, by decreasing size.

    A level is omitted if it is not smaller than its predecessor, or differs from the first level in
    aspect ratio or data type.
    """
    found = [levels[0]]
    for level in levels[1:]:
        across, down = (a / b for a, b in zip(levels[0].size, level.size, strict=True))
        is_smaller = level.size[0] < found[-1].size[0] and level.size[1] <= found[-1].size[1]
        # Short sides, rounded to whole pixels, have another ratio.
        limit = _MAX_ASPECT_CHANGE + 2 / min(level.size)
        if is_smaller and 1 / limit < across / down < limit and level.dtype == found[0].dtype:
            found.append(level)
    return found
