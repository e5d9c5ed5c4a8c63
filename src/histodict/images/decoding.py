"""Plain image files (JPEG, PNG, BMP, TIFF) decoded to 8-bit RGB, whatever their colours are."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..execution.memory import available_bytes
from ..execution.outputs import format_bytes
from .errors import ImageError, NoRoomError, UnknownImageError
from .folder_images import NO_SUCH_FILE, is_closed, is_zarr, odd_kind
from .picture import DecodedImage, orientation_of
from .wide_pixels import (
    combine_bytes,
    decode_low_bytes,
    fix_planar_16bit,
    float_page,
    is_wide_colour,
    read_floats,
)

if TYPE_CHECKING:
    from PIL import Image

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
