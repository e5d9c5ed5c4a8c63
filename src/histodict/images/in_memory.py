"""Images that are in memory: they are opened as files are, and give the same bits."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..execution.files import exists, file_bytes, file_key, modification_time
from .decoding import HEIGHT, TWELVE_BITS, WIDTH, decoded_bytes, max_value, tags_of, tiff_mpp
from .errors import ImageError
from .picture import DecodedImage
from .wide_pixels import fix_planar_16bit, floats_to_8_bits, is_wide_colour

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class MemoryImage:
    """Pixels under a name that messages and tables give them.

    mpp : µm per pixel, where the image itself knows, as one that was read from a TIFF does
    """

    name: str
    picture: DecodedImage
    mpp: float | None
    n_bytes: int

    @classmethod
    def of_array(cls, pixels: NDArray[Any], name: str) -> MemoryImage:
        """From (height, width, 3) uint8; a copy is kept."""
        from PIL import Image

        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise ImageError(
                f"{name}: an image is an array (height, width, 3) of uint8, and this one is "
                f"{pixels.shape} of {pixels.dtype}"
            )
        return cls.of_pillow(Image.fromarray(np.ascontiguousarray(pixels)), name)

    @classmethod
    def of_pillow(cls, image: Image.Image, name: str) -> MemoryImage:
        """From an image of Pillow, of any colours; it is called by its file if it has one."""
        from PIL import Image

        name = str(getattr(image, "filename", "")) or name
        try:
            fix_planar_16bit(image)
            is_wide = is_wide_colour(image)
            image.load()
        except Exception as error:  # decoders raise all sorts
            words = " ".join(str(error).split())
            raise ImageError(f"{name}: the image cannot be decoded ({words})") from error
        if is_wide and max_value(image) < TWELVE_BITS:
            raise ImageError(
                f"{name}: of its 16 bits per colour the upper 8, which Pillow keeps, say next to "
                "nothing: give the path of the file instead"
            )
        mpp = _image_mpp(image)
        if image.mode == "F":
            image = Image.fromarray(floats_to_8_bits(Path(name), np.asarray(image)))
        return cls(name, DecodedImage(Path(name), image), mpp, decoded_bytes(image))

    def __str__(self) -> str:
        return self.name

    def key(self) -> list[Any]:
        """Changes when a pixel does."""
        pixels = np.asarray(self.picture.region(0, 0, *self.picture.size))
        return [*self.picture.size, hashlib.sha256(pixels.tobytes()).hexdigest()]


def _image_mpp(image: Image.Image) -> float | None:
    """As the file says; `thumbnail` leaves its tags, which are then of pixels that are gone."""
    tags = tags_of(image)
    written = {tags.get(WIDTH), tags.get(HEIGHT)}  # the image may have been turned
    return tiff_mpp(tags) if set(image.size) == written else None


ImageLike = Path | MemoryImage

# Since a file was changed, at least: disks count that in steps of up to two seconds.
_SETTLED_S = 2.5


def estimated_bytes(image: ImageLike) -> int:
    """About as much as there is to be done for it: a file of a slide's glass is small."""
    if isinstance(image, MemoryImage):
        return image.n_bytes
    return file_bytes(image) if exists(image) else 0


def cache_key(image: ImageLike) -> list[Any]:
    """Changes when the image is another one, or was changed."""
    return image.key() if isinstance(image, MemoryImage) else file_key(image)


def stable_cache_key(image: ImageLike) -> list[Any]:
    """The key where it is soon made and sure to change with the image; else empty.

    A file that was written just now may be written once more within a step of the disk's clock.
    """
    if isinstance(image, MemoryImage):
        return []
    try:
        key = file_key(image)
        return key if time.time() - modification_time(image) > _SETTLED_S else []
    except OSError:  # whoever opens it says what is wrong
        return []
