"""Plain image files (JPEG, PNG, BMP, TIFF) decoded to 8-bit RGB, whatever their colours are.

Pixels of more than 8 bits, and of floating point: which number is white.

No file says it, but cameras and programs keep to few ranges. It is the least of these that holds
the largest value: 255, 4095 (a camera's 12 bits in words of 16), 65535; of floating point also 1.
They lie 16 times apart or more, so that a dark image is not taken for one of another range; nor is
one of floating point whose values overshoot: what lies above white, below twice that, is white.

A decoded image, of which any part is shown as 8-bit RGB.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..utils.cache import available_bytes
from ..utils.files import format_bytes
from .file_types import (
    NO_SUCH_FILE,
    ImageError,
    NoRoomError,
    UnknownImageError,
    is_closed,
    is_zarr,
    odd_kind,
)

if TYPE_CHECKING:
    from PIL import Image
if TYPE_CHECKING:
    from PIL import Image

_WHITES = (255, 4095, 65535)
_SLACK = 1e-3  # what computing with floats leaves below 0, and above the last white, as a share
_OVERSHOOT = 2  # times white, in which floats end that were resized or sharpened
_SWAPPED = {"16L": "16B", "16B": "16L", "16N": "16B" if sys.byteorder == "little" else "16L"}
_N_BANDS = 3


def white_level(path: Path, least: float, most: float, *, is_float: bool = False) -> float:
    """The number that is white, for values from `least` to `most`."""
    slack = _SLACK if is_float else 0.0
    for white in (1, *_WHITES) if is_float else _WHITES:
        overshoots = is_float and white < most < _OVERSHOOT * white and white != _WHITES[-1]
        if least >= -slack * most and (most <= (1 + slack) * white or overshoots):
            return float(white)
    raise ImageError(
        f"{path}: values from {least:g} to {most:g} are no colours: they must be from 0 to 1, 255, "
        "4095 or 65535; save the image with 8 bits per colour (RGB)"
    )


def to_8_bits(values: NDArray[Any], white: float) -> NDArray[np.uint8]:
    scaled = values if white == 255 else np.rint(values / (white / 255))
    return np.clip(scaled, 0, 255).astype(np.uint8)


# --- colours of 16 bits, of which Pillow keeps the upper 8 --------------------------------------


def is_wide_colour(image: Any) -> bool:
    """Whether an image that is not loaded yet has colours of 16 bits."""
    has_tiles = bool(getattr(image, "tile", ()))
    return image.mode in ("RGB", "RGBA") and has_tiles and "16" in _raw_mode(image)


def fix_planar_16bit(image: Any) -> None:
    """Pillow takes 16-bit colours that lie plane by plane in a TIFF for 8-bit ones: tell it."""
    tags: Any = getattr(image, "tag_v2", {})
    if image.mode not in ("RGB", "RGBA") or max(tags.get(258, (8,))) != 16:
        return
    ending = "16L" if tags.prefix == b"II" else "16B"
    image.tile = [
        tile._replace(args=(f"{tile.args[0]};{ending}", *tile.args[1:]))
        if tile.args[0] in ("R", "G", "B", "A") and tile.codec_name == "raw"
        else tile
        for tile in image.tile
    ]


def decode_low_bytes(image: Any) -> None:
    """Have an image of 16-bit colours, not loaded yet, read its lower 8 bits."""
    ending = _raw_mode(image)[-3:]
    image.tile = [_with_raw_mode(tile, ending, _SWAPPED[ending]) for tile in image.tile]


def combine_bytes(path: Path, high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Both halves of 16-bit colours, as 8 bits."""
    values = high.astype(np.uint16) * 256 + low
    return to_8_bits(values, white_level(path, 0, int(values.max(initial=0))))


def _raw_mode(image: Any) -> str:
    args = image.tile[0].args
    return str(args if isinstance(args, str) else args[0])


def _with_raw_mode(tile: Any, old: str, new: str) -> Any:
    if isinstance(tile.args, str):
        return tile._replace(args=tile.args.replace(old, new))
    return tile._replace(args=(tile.args[0].replace(old, new), *tile.args[1:]))


# --- floating point -----------------------------------------------------------------------------


def float_page(path: Path) -> dict[str, Any] | None:
    """Size, tags and bytes of a TIFF of floating point; None for any other file."""
    from tifffile import TiffFile

    try:
        with TiffFile(path) as file:
            page: Any = file.pages[0]
            if page.dtype is None or page.dtype.kind != "f":
                return None
            tags = {tag.code: _number(tag.value) for tag in page.tags}
            size = page.imagewidth, page.imagelength
            return {"size": size, "tags": tags, "n_bytes": int(page.nbytes)}
    except MemoryError:
        raise  # says nothing of the file
    except Exception:  # no TIFF, or a damaged one, of which it raises all sorts
        return None


def _number(value: Any) -> Any:
    """A fraction, which is a pair, as a number."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and value[1]
    return value[0] / value[1] if is_pair else value


def read_floats(path: Path) -> NDArray[np.uint8]:
    """(height, width, 3) of the first page of a TIFF of floating point."""
    from tifffile import imread

    return floats_to_8_bits(path, np.asarray(imread(path, key=0)))


def floats_to_8_bits(path: Path, values: NDArray[Any]) -> NDArray[np.uint8]:
    """(height, width, 3), from grey or colours, also plane by plane."""
    if values.ndim == 3 and values.shape[0] == _N_BANDS != values.shape[2]:
        values = np.moveaxis(values, 0, -1)  # plane by plane
    if values.ndim == 2:
        values = np.repeat(values[..., None], 3, axis=2)
    if values.ndim != 3 or values.shape[2] != _N_BANDS:
        raise ImageError(
            f"{path}: floating point values of shape {values.shape} are no colours; save the image "
            "with 8 bits per colour (RGB)"
        )
    if not np.isfinite(values).all():
        raise ImageError(f"{path}: some of its values are no numbers (NaN); save it again as RGB")
    least, most = float(values.min()), float(values.max())
    return to_8_bits(values, white_level(path, least, most, is_float=True))


_ORIENTATION = 274
_STRIP_ROWS = 256


def orientation_of(exif: Image.Exif) -> int:
    """By EXIF, from 1 (as it is) to 8."""
    value = exif.get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


class DecodedImage:
    """A decoded image, of which regions are shown as 8-bit RGB, rotated by EXIF, over white.

    It is held as the file has it, so that nothing is in memory twice; but colours of 16 bits as 8.
    Which number is white is said in `wide_pixels`.
    """

    def __init__(self, path: Path, image: Image.Image) -> None:
        if image.mode in ("LAB", "HSV"):
            raise ImageError(
                f"{path}: pixels of mode {image.mode} cannot be shown as colours; "
                "save the image with 8 bits per colour (RGB)"
            )
        self._image = image
        self._orientation = orientation_of(image.getexif())
        self._white = _white(path, image) if image.mode.startswith("I") else 255.0
        turned = self._orientation >= 5
        self.size = (image.height, image.width) if turned else (image.width, image.height)

    def region(self, x: int, y: int, width: int, height: int) -> Image.Image:
        """As RGB; beyond the image everything is white."""
        from PIL import Image

        left, right = (min(max(0, at), self.size[0]) for at in (x, x + width))
        top, bottom = (min(max(0, at), self.size[1]) for at in (y, y + height))
        inside = self._inside(left, top, right, bottom)
        if inside.size == (width, height):
            return inside
        white = Image.new("RGB", (width, height), "white")
        white.paste(inside, (left - x, top - y))
        return white

    def _inside(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        from PIL import Image

        w, h = self._image.size
        mirrored = (w - right, h - bottom, w - left, h - top)
        across = (w - bottom, h - right, w - top, h - left)  # for those that swap x and y
        turn = Image.Transpose
        box, turns = {
            1: ((left, top, right, bottom), None),
            2: ((mirrored[0], top, mirrored[2], bottom), turn.FLIP_LEFT_RIGHT),
            3: (mirrored, turn.ROTATE_180),
            4: ((left, mirrored[1], right, mirrored[3]), turn.FLIP_TOP_BOTTOM),
            5: ((top, left, bottom, right), turn.TRANSPOSE),
            6: ((top, across[1], bottom, across[3]), turn.ROTATE_270),
            7: (across, turn.TRANSVERSE),
            8: ((across[0], left, across[2], right), turn.ROTATE_90),
        }[self._orientation]
        part = _as_rgb(self._image.crop(box), self._white)
        return part if turns is None else part.transpose(turns)


def _as_rgb(image: Image.Image, white: float) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        image = Image.fromarray(to_8_bits(np.asarray(image), white))
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def iter_strips(image: Image.Image) -> Iterator[tuple[slice, NDArray[Any]]]:
    """An image as arrays of some rows each, and which rows these are."""
    for y in range(0, image.height, _STRIP_ROWS):
        rows = slice(y, min(y + _STRIP_ROWS, image.height))
        yield rows, np.asarray(image.crop((0, rows.start, image.width, rows.stop)))


def _white(path: Path, grey: Image.Image) -> float:
    """The grey value that is white; looked at strip by strip."""
    limits = [(int(strip.min()), int(strip.max())) for _, strip in iter_strips(grey)]
    return white_level(path, min(low for low, _ in limits), max(high for _, high in limits))


MAX_PIXELS = 500_000_000
# Bytes of pixels to a byte of file: deflate and JPEG reach 1,000, LZW twice as much, no more.
MAX_COMPRESSION_RATIO = 3000
FORMATS = ("JPEG", "PNG", "BMP", "TIFF")
WIDTH, HEIGHT = 256, 257  # tags
_ROWS_PER_STRIP, _SAMPLES, _BITS = 278, 277, 258
_X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 282, 283, 296
_MICRONS = {2: 25_400.0, 3: 10_000.0}  # per inch, per centimetre
# Below and above are not microscopes but what programs write when they know nothing: 72 dpi is
# 353 µm, and one pixel per unit 10,000 µm or more.
_MIN_MPP, _MAX_MPP = 0.05, 20.0


# How Pillow holds a pixel; all else takes 4 bytes.
_BYTES_OF_MODE = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_MAX_MESSAGE = 300
TWELVE_BITS = 16  # of the upper 8 of 16 bits, where only 12 are used


@dataclass(frozen=True)
class ImageHeader:
    """What a file says of its pixels before they are decoded; size is (width, height).

    n_bytes : memory that the pixels take, once decoded
    """

    size: tuple[int, int]
    mpp: float | None
    n_bytes: int


def plausible_mpp(values: list[float]) -> float | None:
    """The mean of a pixel's width and height in µm, or None where it cannot be a microscope's."""
    mpp = sum(values) / len(values) if values else math.nan
    return mpp if _MIN_MPP <= mpp <= _MAX_MPP else None


def read_header(path: Path) -> ImageHeader:
    """Size as displayed (after EXIF rotation), and pixel size if a TIFF gives one."""
    try:
        with open_pillow(path) as image:
            _check_size(path, image.size)
            if image.mode != "F":
                return ImageHeader(
                    _displayed_size(image), tiff_mpp(tags_of(image)), decoded_bytes(image)
                )
    except UnknownImageError:
        if float_page(path) is None:
            raise
    return _float_header(path)


def decode(path: Path) -> DecodedImage:
    """All pixels, in memory as the file has them; refused where there is too little."""
    try:
        with open_pillow(path) as image:
            if image.mode != "F":
                _load(path, image)
                return DecodedImage(path, image)
    except UnknownImageError:
        if float_page(path) is None:
            raise
    return _decode_floats(path)


def _load(path: Path, image: Image.Image) -> None:
    _check_size(path, image.size)
    _check_squeezed(path, image)
    check_memory(path, image.size, decoded_bytes(image) + _working_bytes(image))
    fix_planar_16bit(image)
    is_wide = is_wide_colour(image)
    image.load()
    if is_wide and max_value(image) < TWELVE_BITS:
        _fill_low_bytes(path, image)


def max_value(image: Image.Image) -> int:
    """The largest value of any colour."""
    bands: Any = image.getextrema()
    return int(max(most for _, most in bands[:3]))


def _fill_low_bytes(path: Path, image: Image.Image) -> None:
    """Pillow has kept the upper 8 of 16 bits, of which nothing was used but the lower 12."""
    from PIL import Image

    check_memory(path, image.size, 20 * image.width * image.height)
    with open_pillow(path) as again:
        fix_planar_16bit(again)
        decode_low_bytes(again)
        again.load()
        high, low = np.asarray(image), np.asarray(again)
    # Transparency may have another range than the colours.
    parts = [
        combine_bytes(path, high[..., part], low[..., part]) for part in (np.s_[:3], np.s_[3:])
    ]
    image.paste(Image.fromarray(np.concatenate(parts, axis=2)))


def _float_header(path: Path) -> ImageHeader:
    facts = _float_statistics(path)
    _check_size(path, facts["size"])
    with _describe_error(path):
        return ImageHeader(facts["size"], tiff_mpp(facts["tags"]), 4 * math.prod(facts["size"]))


def _float_statistics(path: Path) -> dict[str, Any]:
    facts = float_page(path)
    if facts is None:
        raise ImageError(f"{path}: the image is damaged; copy it again from its source")
    return facts


def _decode_floats(path: Path) -> DecodedImage:
    from PIL import Image

    header, facts = _float_header(path), _float_statistics(path)
    if facts["n_bytes"] > MAX_COMPRESSION_RATIO * os.path.getsize(path):
        raise ImageError(f"{path}: is cut short; copy it again")
    check_memory(path, header.size, 4 * facts["n_bytes"] + header.n_bytes)
    with _describe_error(path):
        pixels = read_floats(path)
    if pixels.shape[1::-1] != header.size:
        raise ImageError(f"{path}: the image is damaged; copy it again from its source")
    return DecodedImage(path, Image.fromarray(pixels))


@contextmanager
def open_pillow(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """The file as a Pillow image; whatever Pillow raises on it becomes an ImageError."""
    from PIL import Image, UnidentifiedImageError

    try:
        # Not by its name: Pillow would map the file, and die where it is cut short meanwhile.
        with (
            _describe_error(path),
            _own_pixel_limit(),
            open(path, "rb") as file,
            Image.open(file, "r", formats) as image,
        ):
            yield image
    except UnidentifiedImageError as error:
        raise UnknownImageError(
            f"{path}: this is not a {', '.join(formats)} image, whatever its name says; "
            "save it again as one of these"
        ) from error


@contextmanager
def _describe_error(path: Path) -> Iterator[None]:
    """Whatever a decoder raises becomes an ImageError, but that the format is not known."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except (ImageError, MemoryError, UnidentifiedImageError):
        raise
    except PermissionError as error:
        raise ImageError(f"{path}: you are not allowed to read this file") from error
    except Exception as error:  # decoders raise all sorts: OSError, SyntaxError, struct.error, …
        words = " ".join(str(error).split())[:_MAX_MESSAGE] or type(error).__name__
        raise ImageError(
            f"{path}: the image is damaged or cut short ({words}); copy it again from its source"
        ) from error


# --- how much memory ----------------------------------------------------------------------------


def check_memory(path: Path, size: tuple[int, int], n_bytes: int) -> None:
    """Refuse an image that takes more than there is, before it takes any."""
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise NoRoomError(
            f"{path}: {size[0]} x {size[1]} pixels take {format_bytes(n_bytes)} of memory while "
            "they "
            f"are read, and {format_bytes(available)} are free; end other programs, or convert it "
            "to a "
            "pyramidal TIFF, which is read piece by piece"
        )


def decoded_bytes(image: Image.Image) -> int:
    """Memory that a decoded image takes."""
    return image.width * image.height * _BYTES_OF_MODE.get(image.mode, 4)


def _working_bytes(image: Image.Image) -> int:
    """What decoders take besides: all coefficients of a progressive JPEG, a strip of a TIFF."""
    area = image.width * image.height
    if image.format == "JPEG" and "progressive" in image.info:
        factors = [across * down for _, across, down, _ in getattr(image, "layer", [])]
        return 2 * area * sum(factors) // max(factors, default=1)
    if image.format == "TIFF":
        tags = tags_of(image)
        rows = min(image.height, tags.get(_ROWS_PER_STRIP, image.height))
        depth = tags.get(_SAMPLES, 1) * max(tags.get(_BITS, (8,))) / 8
        turned = decoded_bytes(image) if _orientation(image) > 1 else 0
        return int(rows * image.width * depth) + turned
    return 0


def _check_size(path: Path, size: tuple[int, int]) -> None:
    if min(size) < 1:
        raise ImageError(f"{path}: has {size[0]} x {size[1]} pixels: it is damaged; copy it again")
    if math.prod(size) > MAX_PIXELS:
        raise ImageError(
            f"{path}: {size[0]} x {size[1]} pixels are too many for a plain image (the limit is "
            f"{MAX_PIXELS // 10**6} million); convert it to a pyramidal TIFF, which is read piece "
            "by piece"
        )


def _check_squeezed(path: Path, image: Image.Image) -> None:
    """Refuse what cannot be all there; of black and white, fax codes make next to nothing."""
    n_bytes = len(image.getbands()) * image.width * image.height
    if image.mode in ("L", "P"):
        n_bytes //= 8  # a bit each in the file, perhaps
    if image.mode != "1" and n_bytes > MAX_COMPRESSION_RATIO * os.path.getsize(path):
        raise ImageError(
            f"{path}: says that it has {image.width} x {image.height} pixels, more than its "
            f"{os.path.getsize(path)} bytes can hold; it is cut short: copy it again"
        )


class _PixelLimit:
    """How many files are being decoded, and Pillow's limit to put back after the last."""

    lock = threading.Lock()
    users = 0
    saved: int | None = None


@contextmanager
def _own_pixel_limit() -> Iterator[None]:
    """Pillow's limit is global and lower than ours: `_check_size` stands in for it meanwhile."""
    from PIL import Image

    with _PixelLimit.lock:
        if _PixelLimit.users == 0:
            _PixelLimit.saved, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _PixelLimit.users += 1
    try:
        yield
    finally:
        with _PixelLimit.lock:
            _PixelLimit.users -= 1
            if _PixelLimit.users == 0:
                Image.MAX_IMAGE_PIXELS = _PixelLimit.saved


# --- what the header says -----------------------------------------------------------------------


def tags_of(image: Image.Image) -> Mapping[int, Any]:
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})  # of TIFFs only
    return tags


def _displayed_size(image: Image.Image) -> tuple[int, int]:
    # From the tags where there are some: whether `size` of a TIFF is before or after the rotation
    # depends on the version of Pillow.
    tags = tags_of(image)
    width, height = tags.get(WIDTH, image.width), tags.get(HEIGHT, image.height)
    return (height, width) if _orientation(image) >= 5 else (width, height)


def _orientation(image: Image.Image) -> int:
    # Asked for its EXIF, a PNG without any is decoded to the end.
    if image.format == "PNG" and not {"exif", "xmp", "XML:com.adobe.xmp"} & image.info.keys():
        return 1
    return orientation_of(image.getexif())


def tiff_mpp(tags: Mapping[int, Any]) -> float | None:
    """µm per pixel by the tags of a TIFF."""
    microns = _MICRONS.get(tags.get(_RESOLUTION_UNIT, 2))
    resolutions = [float(tags.get(tag, math.nan)) for tag in (_X_RESOLUTION, _Y_RESOLUTION)]
    if microns is None or not all(resolution > 0 for resolution in resolutions):
        return None
    return plausible_mpp([microns / resolution for resolution in resolutions])


def check_readable_file(path: Path) -> None:
    """Refuse what no reader could read: no such file, a folder that is no image, an empty file."""
    odd = odd_kind(path)
    if odd == NO_SUCH_FILE:
        raise ImageError(f"{path}: there is no such file; check the name and the folder")
    if odd:
        raise ImageError(f"{path}: this is not a regular file but {odd}; remove or replace it")
    if path.is_dir() and is_zarr(path):
        return
    if path.is_dir() and is_closed(path):
        raise ImageError(f"{path}: no permission to read this folder; ask its owner for access")
    if path.is_dir():
        raise ImageError(f"{path}: this is a folder; give the image file itself")
    if os.path.getsize(path) == 0:
        raise ImageError(f"{path}: the file is empty (0 bytes); copy it again from its source")
    if is_zarr(path):
        raise ImageError(f"{path}: this is a file, and an OME-Zarr image a folder; unpack it")
