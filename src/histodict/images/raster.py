"""Plain image files (JPEG, PNG, BMP, TIFF) decoded to 8-bit RGB.

Files do not state which value is white. For pixels of more than 8 bits, white is the smallest of
255, 4095 (12-bit cameras) and 65535 that is not less than the maximum pixel value; for floating
point it may also be 1. These values are far apart, so that a dark image rarely gets a lower one.
Floating-point values between white and twice white count as white.
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
    InsufficientMemoryError,
    UnknownImageError,
    check_not_special,
    is_unreadable_folder,
    is_zarr,
    special_file_kind,
)

if TYPE_CHECKING:
    from PIL import Image


_WHITE_LEVELS = (255, 4095, 65535)
_ROUNDING = 1e-3  # relative rounding error of floats below 0 and above 65535
_OVERSHOOT = 2  # maximum of floats after resizing or sharpening, as a multiple of white
_SWAPPED_ORDER = {"16L": "16B", "16B": "16L", "16N": "16B" if sys.byteorder == "little" else "16L"}
_N_BANDS = 3


def white_level(path: Path, low: float, high: float, *, is_float: bool = False) -> float:
    """Return the pixel value of white for this range of values; see the module docstring.

    Parameters
    ----------
    path : file, for messages
    low : minimum of the pixel values
    high : maximum of the pixel values
    is_float : whether the values are floating-point numbers

    Raises
    ------
    ImageError
        If a value is negative or larger than 65535.
    """
    rounding = _ROUNDING if is_float else 0.0
    for white in (1, *_WHITE_LEVELS) if is_float else _WHITE_LEVELS:
        overshoots = is_float and white < high < _OVERSHOOT * white and white != _WHITE_LEVELS[-1]
        if low >= -rounding * high and (high <= (1 + rounding) * white or overshoots):
            return float(white)
    raise ImageError(
        f"{path}: values from {low:g} to {high:g} are not colours; the maximum must be 1, "
        "255, 4095 or 65535; save the image as RGB with 8 bits per colour"
    )


def to_8_bits(values: NDArray[Any], white: float) -> NDArray[np.uint8]:
    """Scale values to 8 bits, so that `white` becomes 255."""
    scaled = values if white == 255 else np.rint(values / (white / 255))
    return np.clip(scaled, 0, 255).astype(np.uint8)


# --- 16-bit colours, of which Pillow keeps the upper 8 bits -------------------------------------


def has_16bit_colours(image: Any) -> bool:
    """Return whether a Pillow image that is not loaded yet has 16-bit colours."""
    has_tiles = bool(getattr(image, "tile", ()))
    return image.mode in ("RGB", "RGBA") and has_tiles and "16" in _raw_mode(image)


def fix_planar_16bit(image: Any) -> None:
    """Correct the raw mode of a TIFF with planar 16-bit colours, which Pillow reads as 8-bit."""
    tags: Any = getattr(image, "tag_v2", {})
    if image.mode not in ("RGB", "RGBA") or max(tags.get(258, (8,))) != 16:
        return
    byte_order = "16L" if tags.prefix == b"II" else "16B"
    image.tile = [
        tile._replace(args=(f"{tile.args[0]};{byte_order}", *tile.args[1:]))
        if tile.args[0] in ("R", "G", "B", "A") and tile.codec_name == "raw"
        else tile
        for tile in image.tile
    ]


def select_low_bytes(image: Any) -> None:
    """Change the raw mode so that Pillow decodes the lower bytes of 16-bit colours."""
    order = _raw_mode(image)[-3:]
    image.tile = [_replace_raw_mode(tile, order, _SWAPPED_ORDER[order]) for tile in image.tile]


def combine_bytes(path: Path, high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Combine the upper and lower bytes of 16-bit colours, and scale the colours to 8 bits."""
    values = high.astype(np.uint16) * 256 + low
    return to_8_bits(values, white_level(path, 0, int(values.max(initial=0))))


def _raw_mode(image: Any) -> str:
    args = image.tile[0].args
    return str(args if isinstance(args, str) else args[0])


def _replace_raw_mode(tile: Any, old: str, new: str) -> Any:
    if isinstance(tile.args, str):
        return tile._replace(args=tile.args.replace(old, new))
    return tile._replace(args=(tile.args[0].replace(old, new), *tile.args[1:]))


# --- floating point -----------------------------------------------------------------------------


def read_float_metadata(path: Path) -> dict[str, Any] | None:
    """Return the metadata of the first page of a floating-point TIFF; None for other files.

    The keys are size (width, height), tags (values by code) and n_bytes (memory of the pixels).
    """
    from tifffile import TiffFile

    try:
        with TiffFile(path) as file:
            page: Any = file.pages[0]
            if page.dtype is None or page.dtype.kind != "f":
                return None
            tags = {tag.code: divide_rational(tag.value) for tag in page.tags}
            size = page.imagewidth, page.imagelength
            return {"size": size, "tags": tags, "n_bytes": int(page.nbytes)}
    except MemoryError:
        raise  # not an error of the file
    except Exception:  # not a TIFF, or damaged: tifffile raises many types
        return None


def divide_rational(value: Any) -> Any:
    """Return the quotient of a (numerator, denominator) pair; other values unchanged."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and value[1]
    return value[0] / value[1] if is_pair else value


def read_floats(path: Path) -> NDArray[np.uint8]:
    """Return the first page of a floating-point TIFF as 8-bit pixels (height, width, 3)."""
    from tifffile import imread

    return floats_to_8_bits(path, np.asarray(imread(path, key=0)))


def floats_to_8_bits(path: Path, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return floating-point grey values or colours as 8-bit pixels (height, width, 3).

    Parameters
    ----------
    path : file, for messages
    values : (height, width), (height, width, 3) or (3, height, width)

    Raises
    ------
    ImageError
        If the shape or the range of the values is not that of an image.
    """
    if values.ndim == 3 and values.shape[0] == _N_BANDS != values.shape[2]:
        values = np.moveaxis(values, 0, -1)  # stored plane by plane
    if values.ndim == 2:
        values = np.repeat(values[..., None], 3, axis=2)
    if values.ndim != 3 or values.shape[2] != _N_BANDS:
        raise ImageError(
            f"{path}: floating-point values of shape {values.shape} are not colours; save the "
            "image as RGB with 8 bits per colour"
        )
    if not np.isfinite(values).all():
        raise ImageError(f"{path}: contains NaN; save the image as RGB with 8 bits per colour")
    low, high = float(values.min()), float(values.max())
    return to_8_bits(values, white_level(path, low, high, is_float=True))


_ORIENTATION_TAG = 274
_STRIP_ROWS = 256


def exif_orientation(exif: Image.Exif) -> int:
    """Return the EXIF orientation, from 1 (upright) to 8."""
    value = exif.get(_ORIENTATION_TAG, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


class DecodedImage:
    """Decoded image, read as 8-bit RGB on a white background, rotated according to EXIF.

    Parameters
    ----------
    path : file, for messages
    image : loaded Pillow image

    Attributes
    ----------
    size : (width, height) after rotation
    """

    def __init__(self, path: Path, image: Image.Image) -> None:
        if image.mode in ("LAB", "HSV"):
            raise ImageError(
                f"{path}: unsupported pixel mode {image.mode}; save the image as RGB with 8 "
                "bits per colour"
            )
        self._image = image
        self._orientation = exif_orientation(image.getexif())
        self._white = _find_white(path, image) if image.mode.startswith("I") else 255.0
        is_transposed = self._orientation >= 5
        self.size = (image.height, image.width) if is_transposed else (image.width, image.height)

    def region(self, x: int, y: int, width: int, height: int) -> Image.Image:
        """Return a region as RGB; pixels outside the image are white."""
        from PIL import Image

        left, right = (min(max(0, at), self.size[0]) for at in (x, x + width))
        top, bottom = (min(max(0, at), self.size[1]) for at in (y, y + height))
        inside = self._crop(left, top, right, bottom)
        if inside.size == (width, height):
            return inside
        white = Image.new("RGB", (width, height), "white")
        white.paste(inside, (left - x, top - y))
        return white

    def _crop(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        """Return a region within the rotated image as RGB."""
        from PIL import Image

        w, h = self._image.size
        mirrored = (w - right, h - bottom, w - left, h - top)
        transposed = (w - bottom, h - right, w - top, h - left)  # if the orientation swaps x and y
        turn = Image.Transpose
        box, turns = {
            1: ((left, top, right, bottom), None),
            2: ((mirrored[0], top, mirrored[2], bottom), turn.FLIP_LEFT_RIGHT),
            3: (mirrored, turn.ROTATE_180),
            4: ((left, mirrored[1], right, mirrored[3]), turn.FLIP_TOP_BOTTOM),
            5: ((top, left, bottom, right), turn.TRANSPOSE),
            6: ((top, transposed[1], bottom, transposed[3]), turn.ROTATE_270),
            7: (transposed, turn.TRANSVERSE),
            8: ((transposed[0], left, transposed[2], right), turn.ROTATE_90),
        }[self._orientation]
        part = _as_rgb(self._image.crop(box), self._white)
        return part if turns is None else part.transpose(turns)


def _as_rgb(image: Image.Image, white: float) -> Image.Image:
    """Return an image as 8-bit RGB on white; the grey value `white` becomes 255."""
    from PIL import Image

    if image.mode.startswith("I"):
        image = Image.fromarray(to_8_bits(np.asarray(image), white))
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def iter_strips(image: Image.Image) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield (slice of rows, pixels of these rows) for successive blocks of rows."""
    for y in range(0, image.height, _STRIP_ROWS):
        rows = slice(y, min(y + _STRIP_ROWS, image.height))
        yield rows, np.asarray(image.crop((0, rows.start, image.width, rows.stop)))


def _find_white(path: Path, grey: Image.Image) -> float:
    """Return the value of white of a grey image, read strip by strip to limit memory."""
    limits = [(int(strip.min()), int(strip.max())) for _, strip in iter_strips(grey)]
    return white_level(path, min(low for low, _ in limits), max(high for _, high in limits))


MAX_PIXELS = 500_000_000
# Maximum bytes of pixels per byte of file: deflate and JPEG reach 1,000, LZW 2,000.
MAX_COMPRESSION_RATIO = 3000
FORMATS = ("JPEG", "PNG", "BMP", "TIFF")
WIDTH_TAG, HEIGHT_TAG = 256, 257
_ROWS_PER_STRIP_TAG, _SAMPLES_TAG, _BITS_TAG = 278, 277, 258
_X_RESOLUTION_TAG, _Y_RESOLUTION_TAG, _RESOLUTION_UNIT_TAG = 282, 283, 296
_MICRONS = {2: 25_400.0, 3: 10_000.0}  # by resolution unit: inch and centimetre
# Pixel sizes outside this range are defaults of programs: 72 dpi is 353 µm, and one pixel per unit
# is at least 10,000 µm.
_MIN_MPP, _MAX_MPP = 0.05, 20.0


# Bytes per pixel in Pillow; other modes take 4.
_BYTES_OF_MODE = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_MAX_MESSAGE_LENGTH = 300
TWELVE_BIT_LIMIT = 16  # the upper byte of a 12-bit value is less than this


@dataclass(frozen=True)
class ImageHeader:
    """Properties of an image file that are known before decoding.

    Attributes
    ----------
    size : (width, height) in pixels
    mpp : µm per pixel; None if unknown
    n_bytes : memory of the decoded pixels
    """

    size: tuple[int, int]
    mpp: float | None
    n_bytes: int


def plausible_mpp(values: list[float]) -> float | None:
    """Return the mean of pixel sizes in µm; None if empty or not between 0.05 and 20 µm."""
    mpp = sum(values) / len(values) if values else math.nan
    return mpp if _MIN_MPP <= mpp <= _MAX_MPP else None


def read_header(path: Path) -> ImageHeader:
    """Return the header of an image file: its size after EXIF rotation, and the mpp of a TIFF."""
    try:
        with open_pillow(path) as image:
            _check_size(path, image.size)
            if image.mode != "F":
                return ImageHeader(
                    _displayed_size(image), tiff_mpp(tiff_tags(image)), decoded_bytes(image)
                )
    except UnknownImageError:
        if read_float_metadata(path) is None:
            raise
    return _float_header(path)


def decode(path: Path) -> DecodedImage:
    """Return a decoded image file; raise InsufficientMemoryError if there is too little memory."""
    try:
        with open_pillow(path) as image:
            if image.mode != "F":
                _check_size(path, image.size)
                _check_compression_ratio(path, image)
                check_memory(path, image.size, decoded_bytes(image) + _working_bytes(image))
                fix_planar_16bit(image)
                has_wide_colours = has_16bit_colours(image)
                image.load()
                if has_wide_colours and max_colour_value(image) < TWELVE_BIT_LIMIT:
                    _fill_low_bytes(path, image)
                return DecodedImage(path, image)
    except UnknownImageError:
        if read_float_metadata(path) is None:
            raise
    return _decode_floats(path)


def max_colour_value(image: Image.Image) -> int:
    """Return the maximum value of red, green and blue in an image."""
    bands: Any = image.getextrema()
    return int(max(most for _, most in bands[:3]))


def _fill_low_bytes(path: Path, image: Image.Image) -> None:
    """Add the lower bytes to 16-bit colours that use only 12 bits, and scale them to 8 bits.

    Pillow decodes only the upper bytes; this function decodes the lower bytes.
    """
    from PIL import Image

    check_memory(path, image.size, 20 * image.width * image.height)
    with open_pillow(path) as low_image:
        fix_planar_16bit(low_image)
        select_low_bytes(low_image)
        low_image.load()
        high, low = np.asarray(image), np.asarray(low_image)
    # Transparency may have another range than the colours.
    bands = [combine_bytes(path, high[..., at], low[..., at]) for at in (np.s_[:3], np.s_[3:])]
    image.paste(Image.fromarray(np.concatenate(bands, axis=2)))


def _float_header(path: Path) -> ImageHeader:
    page = _require_float_metadata(path)
    _check_size(path, page["size"])
    with _convert_errors(path):
        return ImageHeader(page["size"], tiff_mpp(page["tags"]), 4 * math.prod(page["size"]))


def _require_float_metadata(path: Path) -> dict[str, Any]:
    page = read_float_metadata(path)
    if page is None:
        raise ImageError(f"{path}: the image is damaged; copy it again")
    return page


def _decode_floats(path: Path) -> DecodedImage:
    from PIL import Image

    header, page = _float_header(path), _require_float_metadata(path)
    if page["n_bytes"] > MAX_COMPRESSION_RATIO * os.path.getsize(path):
        raise ImageError(f"{path}: the file is truncated; copy it again")
    check_memory(path, header.size, 4 * page["n_bytes"] + header.n_bytes)
    with _convert_errors(path):
        pixels = read_floats(path)
    if pixels.shape[1::-1] != header.size:
        raise ImageError(f"{path}: the image is damaged; copy it again")
    return DecodedImage(path, Image.fromarray(pixels))


@contextmanager
def open_pillow(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open a file as a Pillow image; convert exceptions of Pillow to ImageError."""
    from PIL import Image, UnidentifiedImageError

    try:
        # Not by name: Pillow would map the file, and crash if it is truncated during the read.
        with (
            _convert_errors(path),
            _pillow_limit_suspended(),
            open(path, "rb") as file,
            Image.open(file, "r", formats) as image,
        ):
            yield image
    except UnidentifiedImageError as error:
        raise UnknownImageError(
            f"{path}: not a {', '.join(formats)} image despite its name; save it again in one "
            "of these formats"
        ) from error


@contextmanager
def _convert_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of a decoder to ImageError.

    UnidentifiedImageError is not converted, so that the caller can try other formats.
    """
    from PIL import UnidentifiedImageError

    try:
        yield
    except (ImageError, MemoryError, UnidentifiedImageError):
        raise
    except PermissionError as error:
        raise ImageError(
            f"{path}: permission denied; change the permissions of the file"
        ) from error
    except Exception as error:  # decoders raise many types: OSError, SyntaxError, struct.error, …
        reason = " ".join(str(error).split())[:_MAX_MESSAGE_LENGTH] or type(error).__name__
        raise ImageError(
            f"{path}: the image is damaged or truncated ({reason}); copy it again"
        ) from error


# --- memory and size limits ---------------------------------------------------------------------


def check_memory(path: Path, size: tuple[int, int], n_bytes: int) -> None:
    """Raise InsufficientMemoryError if less than `n_bytes` of memory are free to decode an image.

    `path` and `size` (width, height) are for the message.
    """
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise InsufficientMemoryError(
            f"{path}: reading {size[0]} x {size[1]} pixels needs {format_bytes(n_bytes)} of "
            f"memory, but {format_bytes(available)} are free; close other programs or convert "
            "the image to a pyramidal TIFF, which is read in tiles"
        )


def decoded_bytes(image: Image.Image) -> int:
    """Return the memory of a decoded image in bytes."""
    return image.width * image.height * _BYTES_OF_MODE.get(image.mode, 4)


def _working_bytes(image: Image.Image) -> int:
    """Return the memory that decoding needs in addition to the decoded image, in bytes."""
    area = image.width * image.height
    if image.format == "JPEG" and "progressive" in image.info:
        factors = [across * down for _, across, down, _ in getattr(image, "layer", [])]
        return 2 * area * sum(factors) // max(factors, default=1)
    if image.format == "TIFF":
        tags = tiff_tags(image)
        rows = min(image.height, tags.get(_ROWS_PER_STRIP_TAG, image.height))
        depth = tags.get(_SAMPLES_TAG, 1) * max(tags.get(_BITS_TAG, (8,))) / 8
        rotated_bytes = decoded_bytes(image) if _orientation(image) > 1 else 0
        return int(rows * image.width * depth) + rotated_bytes
    return 0


def _check_size(path: Path, size: tuple[int, int]) -> None:
    """Raise ImageError if an image has no pixels, or more than MAX_PIXELS."""
    if min(size) < 1:
        raise ImageError(
            f"{path}: the image has {size[0]} x {size[1]} pixels; it is damaged; copy it again"
        )
    if math.prod(size) > MAX_PIXELS:
        raise ImageError(
            f"{path}: {size[0]} x {size[1]} pixels exceed the limit of {MAX_PIXELS // 10**6} "
            "million for plain images; convert the image to a pyramidal TIFF, which is read "
            "in tiles"
        )


def _check_compression_ratio(path: Path, image: Image.Image) -> None:
    """Raise ImageError if the file is too small for the pixels that its header specifies.

    Bilevel images are not checked, as fax codes compress them to almost nothing.
    """
    n_bytes = len(image.getbands()) * image.width * image.height
    if image.mode in ("L", "P"):
        n_bytes //= 8  # the file may have one bit per pixel
    if image.mode != "1" and n_bytes > MAX_COMPRESSION_RATIO * os.path.getsize(path):
        raise ImageError(
            f"{path}: the header specifies {image.width} x {image.height} pixels, more than "
            f"{os.path.getsize(path)} bytes can contain; the file is truncated; copy it again"
        )


class _PixelLimit:
    """State of `_pillow_limit_suspended`: number of active contexts, and Pillow's own limit."""

    lock = threading.Lock()
    n_contexts = 0
    saved: int | None = None


@contextmanager
def _pillow_limit_suspended() -> Iterator[None]:
    """Suspend Pillow's global pixel limit; `_check_size` applies a higher limit."""
    from PIL import Image

    with _PixelLimit.lock:
        if _PixelLimit.n_contexts == 0:
            _PixelLimit.saved, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _PixelLimit.n_contexts += 1
    try:
        yield
    finally:
        with _PixelLimit.lock:
            _PixelLimit.n_contexts -= 1
            if _PixelLimit.n_contexts == 0:
                Image.MAX_IMAGE_PIXELS = _PixelLimit.saved


# --- header -------------------------------------------------------------------------------------


def tiff_tags(image: Image.Image) -> Mapping[int, Any]:
    """Return the tags of a TIFF; an empty mapping for other formats."""
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})  # only TIFFs have tags
    return tags


def _displayed_size(image: Image.Image) -> tuple[int, int]:
    # Tags take precedence: whether `size` of a TIFF is before or after the rotation depends on
    # the version of Pillow.
    tags = tiff_tags(image)
    width, height = tags.get(WIDTH_TAG, image.width), tags.get(HEIGHT_TAG, image.height)
    return (height, width) if _orientation(image) >= 5 else (width, height)


def _orientation(image: Image.Image) -> int:
    # Pillow decodes all of a PNG to find out that it has no EXIF data.
    if image.format == "PNG" and not {"exif", "xmp", "XML:com.adobe.xmp"} & image.info.keys():
        return 1
    return exif_orientation(image.getexif())


def tiff_mpp(tags: Mapping[int, Any]) -> float | None:
    """Return µm per pixel from the tags of a TIFF; None if missing or implausible."""
    microns = _MICRONS.get(tags.get(_RESOLUTION_UNIT_TAG, 2))
    resolutions = [float(tags.get(tag, math.nan)) for tag in (_X_RESOLUTION_TAG, _Y_RESOLUTION_TAG)]
    if microns is None or not all(resolution > 0 for resolution in resolutions):
        return None
    return plausible_mpp([microns / resolution for resolution in resolutions])


def check_readable_file(path: Path) -> None:
    """Raise ImageError unless a path is a readable file that is not empty, or a Zarr folder."""
    kind = special_file_kind(path)
    if kind == NO_SUCH_FILE:
        raise ImageError(f"{path}: file not found; check the name and the folder")
    check_not_special(path, ImageError)
    if path.is_dir() and is_zarr(path):
        return
    if path.is_dir() and is_unreadable_folder(path):
        raise ImageError(f"{path}: permission denied; change the permissions of the folder")
    if path.is_dir():
        raise ImageError(f"{path}: is a folder; give the name of an image file")
    if os.path.getsize(path) == 0:
        raise ImageError(f"{path}: the file is empty (0 bytes); copy it again")
    if is_zarr(path):
        raise ImageError(f"{path}: is a file, but OME-Zarr images are folders; unpack it")
