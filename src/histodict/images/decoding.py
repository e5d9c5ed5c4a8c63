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
from numpy.typing import NDArray

from ..execution.memory import available_bytes, in_words

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 500_000_000
# Bytes of pixels to a byte of file: deflate and JPEG reach 1,000, LZW twice as much, no more.
MOST_SQUEEZED = 3000
FORMATS = ("JPEG", "PNG", "BMP", "TIFF")
_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274
_ROWS_PER_STRIP, _SAMPLES, _BITS = 278, 277, 258
_X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 282, 283, 296
_MICRONS = {2: 25_400.0, 3: 10_000.0}  # per inch, per centimetre
# Below and above are not microscopes but what programs write when they know nothing: 72 dpi is
# 353 µm, and one pixel per unit 10,000 µm or more.
_LEAST_MPP, _MOST_MPP = 0.05, 20.0


# How Pillow holds a pixel; all else takes 4 bytes.
_BYTES_OF_MODE = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_STRIP_ROWS = 256
_MOST_WORDS = 300


class ImageError(ValueError):
    """An image cannot be read; the message says which one, why, and what to do."""


@dataclass(frozen=True)
class Header:
    """What a file says of its pixels before they are decoded; size is (width, height).

    n_bytes : memory that the pixels take, once decoded
    """

    size: tuple[int, int]
    mpp: float | None
    n_bytes: int


def plausible_mpp(values: list[float]) -> float | None:
    """The mean of a pixel's width and height in µm, or None where it cannot be a microscope's."""
    mpp = sum(values) / len(values) if values else math.nan
    return mpp if _LEAST_MPP <= mpp <= _MOST_MPP else None


def read_header(path: Path) -> Header:
    """Size as displayed (after EXIF rotation), and pixel size if a TIFF gives one."""
    with opened(path) as image:
        _check_size(path, image.size)
        return Header(_displayed_size(image), tiff_mpp(image), held_bytes(image))


def decode(path: Path) -> Picture:
    """All pixels, in memory as the file has them; refused where there is too little."""
    with opened(path) as image:
        _check_size(path, image.size)
        _check_squeezed(path, image)
        check_memory(path, image.size, held_bytes(image) + _working_bytes(image))
        image.load()
        return Picture(path, image)


@contextmanager
def opened(path: Path, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """The file as a Pillow image; whatever Pillow raises on it becomes an ImageError."""
    from PIL import Image, UnidentifiedImageError

    try:
        # Not by its name: Pillow would map the file, and die where it is cut short meanwhile.
        with _own_pixel_limit(), open(path, "rb") as file, Image.open(file, "r", formats) as image:
            yield image
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{path}: this is not a {', '.join(formats)} image, whatever its name says; "
            "save it again as one of these"
        ) from error
    except PermissionError as error:
        raise ImageError(f"{path}: you are not allowed to read this file") from error
    except Exception as error:  # decoders raise all sorts: OSError, SyntaxError, struct.error, …
        words = " ".join(str(error).split())[:_MOST_WORDS] or type(error).__name__
        raise ImageError(
            f"{path}: the image is damaged or cut short ({words}); copy it again from its source"
        ) from error


# --- how much memory ----------------------------------------------------------------------------


def check_memory(path: Path, size: tuple[int, int], n_bytes: int) -> None:
    """Refuse an image that takes more than there is, before it takes any."""
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise ImageError(
            f"{path}: {size[0]} x {size[1]} pixels take {in_words(n_bytes)} of memory while they "
            f"are read, and {in_words(available)} are free; end other programs, or convert it to a "
            "pyramidal TIFF, which is read piece by piece"
        )


def held_bytes(image: Image.Image) -> int:
    """Memory that a decoded image takes."""
    return image.width * image.height * _BYTES_OF_MODE.get(image.mode, 4)


def _working_bytes(image: Image.Image) -> int:
    """What decoders take besides: all coefficients of a progressive JPEG, a strip of a TIFF."""
    area = image.width * image.height
    if image.format == "JPEG" and "progressive" in image.info:
        factors = [across * down for _, across, down, _ in getattr(image, "layer", [])]
        return 2 * area * sum(factors) // max(factors, default=1)
    if image.format == "TIFF":
        tags = _tags(image)
        rows = min(image.height, tags.get(_ROWS_PER_STRIP, image.height))
        depth = tags.get(_SAMPLES, 1) * max(tags.get(_BITS, (8,))) / 8
        turned = held_bytes(image) if _orientation(image) > 1 else 0
        return int(rows * image.width * depth) + turned
    return 0


def _check_size(path: Path, size: tuple[int, int]) -> None:
    if math.prod(size) > MOST_PIXELS:
        raise ImageError(
            f"{path}: {size[0]} x {size[1]} pixels are too many for a plain image (the limit is "
            f"{MOST_PIXELS // 10**6} million); convert it to a pyramidal TIFF, which is read piece "
            "by piece"
        )


def _check_squeezed(path: Path, image: Image.Image) -> None:
    """Refuse what cannot be all there; of black and white, fax codes make next to nothing."""
    n_bytes = len(image.getbands()) * image.width * image.height
    if image.mode in ("L", "P"):
        n_bytes //= 8  # a bit each in the file, perhaps
    if image.mode != "1" and n_bytes > MOST_SQUEEZED * os.path.getsize(path):
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


def _tags(image: Image.Image) -> Mapping[int, Any]:
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})  # of TIFFs only
    return tags


def _displayed_size(image: Image.Image) -> tuple[int, int]:
    # From the tags where there are some: whether `size` of a TIFF is before or after the rotation
    # depends on the version of Pillow.
    tags = _tags(image)
    width, height = tags.get(_WIDTH, image.width), tags.get(_HEIGHT, image.height)
    return (height, width) if _orientation(image) >= 5 else (width, height)


def _orientation(image: Image.Image) -> int:
    # Asked for its EXIF, a PNG without any is decoded to the end.
    if image.format == "PNG" and not {"exif", "xmp", "XML:com.adobe.xmp"} & image.info.keys():
        return 1
    return _orientation_of(image.getexif())


def _orientation_of(exif: Image.Exif) -> int:
    value = exif.get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def tiff_mpp(image: Image.Image) -> float | None:
    tags = _tags(image)
    microns = _MICRONS.get(tags.get(_RESOLUTION_UNIT, 2))
    resolutions = [float(tags.get(tag, math.nan)) for tag in (_X_RESOLUTION, _Y_RESOLUTION)]
    if microns is None or not all(resolution > 0 for resolution in resolutions):
        return None
    return plausible_mpp([microns / resolution for resolution in resolutions])


# --- pixels -------------------------------------------------------------------------------------


class Picture:
    """A decoded image, of which regions are shown as 8-bit RGB, rotated by EXIF, over white.

    It is held as the file has it, so that nothing is in memory twice. 16-bit grey is divided by
    257, so that 65535 becomes 255, if its maximum exceeds 255; otherwise the numbers are taken as
    they are. 16-bit colour keeps its upper 8 bits.
    """

    def __init__(self, path: Path, image: Image.Image) -> None:
        if image.mode in ("F", "LAB", "HSV"):
            raise ImageError(
                f"{path}: pixels of mode {image.mode} cannot be shown as colours; "
                "save the image with 8 bits per colour (RGB)"
            )
        self._image = image
        self._orientation = _orientation_of(image.getexif())
        self._is_wide = image.mode.startswith("I") and _is_wide(path, image)
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
        part = _as_rgb(self._image.crop(box), self._is_wide)
        return part if turns is None else part.transpose(turns)


def _as_rgb(image: Image.Image, is_wide: bool) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):
        grey = np.asarray(image)
        image = Image.fromarray((np.rint(grey / 257) if is_wide else grey).astype(np.uint8))
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def strips(image: Image.Image) -> Iterator[tuple[slice, NDArray[Any]]]:
    """An image as arrays of some rows each, and which rows these are."""
    for y in range(0, image.height, _STRIP_ROWS):
        rows = slice(y, min(y + _STRIP_ROWS, image.height))
        yield rows, np.asarray(image.crop((0, rows.start, image.width, rows.stop)))


def _is_wide(path: Path, grey: Image.Image) -> bool:
    """Whether grey values exceed 8 bits; looked at strip by strip."""
    limits = [(int(strip.min()), int(strip.max())) for _, strip in strips(grey)]
    least, most = min(low for low, _ in limits), max(high for _, high in limits)
    if least < 0 or most > 65535:
        raise ImageError(
            f"{path}: grey values from {least} to {most} do not fit 16 bits; "
            "save the image with 8 bits per colour (RGB)"
        )
    return most > 255


def check_file(path: Path) -> None:
    """Refuse what no reader could read: no such file, a folder, an empty file."""
    if not path.exists():
        raise ImageError(f"{path}: there is no such file; check the name and the folder")
    if path.is_dir():
        raise ImageError(f"{path}: this is a folder; give the image file itself")
    if os.path.getsize(path) == 0:
        raise ImageError(f"{path}: the file is empty (0 bytes); copy it again from its source")
