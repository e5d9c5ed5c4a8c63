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

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 500_000_000
_FORMATS = ("JPEG", "PNG", "BMP", "TIFF")
_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274
_X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 282, 283, 296
_MICRONS = {2: 25_400.0, 3: 10_000.0}  # per inch, per centimetre
# Below and above are not microscopes but what programs write when they know nothing: 72 dpi is
# 353 µm, and one pixel per unit 10,000 µm or more.
_LEAST_MPP, _MOST_MPP = 0.05, 20.0


class ImageError(ValueError):
    """An image cannot be read; the message says which one, why, and what to do."""


@dataclass(frozen=True)
class Header:
    """What a file says of its pixels before they are decoded; size is (width, height)."""

    size: tuple[int, int]
    mpp: float | None


def plausible_mpp(values: list[float]) -> float | None:
    """The mean of a pixel's width and height in µm, or None where it cannot be a microscope's."""
    mpp = sum(values) / len(values) if values else math.nan
    return mpp if _LEAST_MPP <= mpp <= _MOST_MPP else None


def read_header(path: Path) -> Header:
    """Size as displayed (after EXIF rotation), and pixel size if a TIFF gives one."""
    with _opened(path) as image:
        return Header(_displayed_size(image), _tiff_mpp(_tags(image)))


def decode(path: Path) -> NDArray[np.uint8]:
    """All pixels, (height, width, 3), as displayed: rotated by EXIF, transparency over white.

    16-bit grey is divided by 257, so that 65535 becomes 255, if its maximum exceeds 255; otherwise
    the numbers are taken as they are. 16-bit colour keeps its upper 8 bits.
    """
    from PIL import ImageOps

    with _opened(path) as image:
        image.load()
        return _as_rgb(path, ImageOps.exif_transpose(image))


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The file as a Pillow image; whatever Pillow raises on it becomes an ImageError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _own_pixel_limit(), Image.open(path, formats=_FORMATS) as image:
            _check_size(path, image.size)
            yield image
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{path}: this is not a {', '.join(_FORMATS)} image, whatever its name says; "
            "save it again as one of these"
        ) from error
    except PermissionError as error:
        raise ImageError(f"{path}: you are not allowed to read this file") from error
    except Exception as error:  # decoders raise all sorts: OSError, SyntaxError, struct.error, …
        raise ImageError(
            f"{path}: the image is damaged or cut short ({error}); copy it again from its source"
        ) from error


def _check_size(path: Path, size: tuple[int, int]) -> None:
    if math.prod(size) > MOST_PIXELS:
        raise ImageError(
            f"{path}: {size[0]} x {size[1]} pixels are too many for a plain image (the limit is "
            f"{MOST_PIXELS // 10**6} million); convert it to a pyramidal TIFF, which is read piece "
            "by piece"
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
    value = image.getexif().get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _tiff_mpp(tags: Mapping[int, Any]) -> float | None:
    microns = _MICRONS.get(tags.get(_RESOLUTION_UNIT, 2))
    resolutions = [float(tags.get(tag, math.nan)) for tag in (_X_RESOLUTION, _Y_RESOLUTION)]
    if microns is None or not all(resolution > 0 for resolution in resolutions):
        return None
    return plausible_mpp([microns / resolution for resolution in resolutions])


# --- colours ------------------------------------------------------------------------------------


def _as_rgb(path: Path, image: Image.Image) -> NDArray[np.uint8]:
    from PIL import Image

    if image.mode.startswith("I"):
        return np.repeat(_grey_as_8_bits(path, np.asarray(image))[..., None], 3, axis=2)
    if image.mode in ("F", "LAB", "HSV"):
        raise ImageError(
            f"{path}: pixels of mode {image.mode} cannot be shown as colours; "
            "save the image with 8 bits per colour (RGB)"
        )
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def _grey_as_8_bits(path: Path, grey: NDArray) -> NDArray[np.uint8]:
    least, most = int(grey.min()), int(grey.max())
    if least < 0 or most > 65535:
        raise ImageError(
            f"{path}: grey values from {least} to {most} do not fit 16 bits; "
            "save the image with 8 bits per colour (RGB)"
        )
    return (np.rint(grey / 257) if most > 255 else grey).astype(np.uint8)


def check_file(path: Path) -> None:
    """Refuse what no reader could read: no such file, a folder, an empty file."""
    if not path.exists():
        raise ImageError(f"{path}: there is no such file; check the name and the folder")
    if path.is_dir():
        raise ImageError(f"{path}: this is a folder; give the image file itself")
    if os.path.getsize(path) == 0:
        raise ImageError(f"{path}: the file is empty (0 bytes); copy it again from its source")
