"""In-memory images, and a cache of decoded images.

An in-memory image is opened like a file and gives the same pixels.

The cache contains decoded images that are read repeatedly: in the steps of a training, in
cross-validation folds and by several methods. It is only active within `image_cache_enabled`.
It never evicts images: a run that cycles through more images than fit always finds the first ones
in the cache, whereas with eviction of the oldest it would find none.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..utils.cache import available_bytes
from ..utils.files import exists, file_key, file_size, modification_time
from .file_types import ImageError, InsufficientMemoryError
from .raster import (
    HEIGHT_TAG,
    TWELVE_BIT_LIMIT,
    WIDTH_TAG,
    DecodedImage,
    decode,
    decoded_bytes,
    fix_planar_16bit,
    floats_to_8_bits,
    has_16bit_colours,
    max_colour_value,
    tiff_mpp,
    tiff_tags,
)

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class MemoryImage:
    """In-memory image, with a name for messages and tables.

    Attributes
    ----------
    name : name of the image, or the path of the file it was read from
    decoded : decoded pixels
    mpp : µm per pixel, from the tags of a TIFF; None if unknown
    n_bytes : memory of the pixels
    """

    name: str
    decoded: DecodedImage
    mpp: float | None
    n_bytes: int

    @classmethod
    def from_array(cls, pixels: NDArray[Any], name: str) -> MemoryImage:
        """Create an image called `name` from a copy of an array (height, width, 3) of uint8."""
        from PIL import Image

        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise ImageError(
                f"{name}: an image must be an array of shape (height, width, 3) and type "
                f"uint8, not {pixels.shape} of {pixels.dtype}"
            )
        return cls.from_pillow(Image.fromarray(np.ascontiguousarray(pixels)), name)

    @classmethod
    def from_pillow(cls, image: Image.Image, name: str) -> MemoryImage:
        """Create an image from a Pillow image of any mode.

        The image is called `name`, unless the Pillow image has a file name.

        Raises
        ------
        ImageError
            If the image cannot be decoded, or if the upper bytes of its 16-bit colours, which are
            the only ones that Pillow decodes, are nearly zero.
        """
        from PIL import Image

        name = str(getattr(image, "filename", "")) or name
        try:
            fix_planar_16bit(image)
            has_wide_colours = has_16bit_colours(image)
            image.load()
        except Exception as error:  # decoders raise many types
            reason = " ".join(str(error).split())
            raise ImageError(f"{name}: the image cannot be decoded ({reason})") from error
        if has_wide_colours and max_colour_value(image) < TWELVE_BIT_LIMIT:
            raise ImageError(
                f"{name}: Pillow drops the lower 8 of 16 bits per colour, and the upper 8 are "
                "nearly empty; pass the path of the file instead"
            )
        mpp = _image_mpp(image)
        if image.mode == "F":
            image = Image.fromarray(floats_to_8_bits(Path(name), np.asarray(image)))
        return cls(name, DecodedImage(Path(name), image), mpp, decoded_bytes(image))

    def __str__(self) -> str:
        return self.name

    def key(self) -> list[Any]:
        """Return a cache key: width, height and SHA-256 of the pixels."""
        pixels = np.asarray(self.decoded.region(0, 0, *self.decoded.size))
        return [*self.decoded.size, hashlib.sha256(pixels.tobytes()).hexdigest()]


def _image_mpp(image: Image.Image) -> float | None:
    """Return µm per pixel from the TIFF tags; None without tags or if the image was resized.

    `Image.thumbnail` keeps the tags of the original image.
    """
    tags = tiff_tags(image)
    tagged_sides = {tags.get(WIDTH_TAG), tags.get(HEIGHT_TAG)}  # the image may have been rotated
    return tiff_mpp(tags) if set(image.size) == tagged_sides else None


ImageLike = Path | MemoryImage

# Minimum age of a reliable modification time: file systems store it in steps of up to 2 s.
_MIN_AGE_S = 2.5


def estimated_bytes(image: ImageLike) -> int:
    """Return the size of an image in bytes, for estimates of processing time.

    This is the file size (0 if the file is missing), or the memory of an in-memory image. The file
    size predicts the time better than the number of pixels, as background compresses well and is
    skipped.
    """
    if isinstance(image, MemoryImage):
        return image.n_bytes
    return file_size(image) if exists(image) else 0


def cache_key(image: ImageLike) -> list[Any]:
    """Return a key that changes when the image is replaced or modified."""
    return image.key() if isinstance(image, MemoryImage) else file_key(image)


def stable_cache_key(image: ImageLike) -> list[Any]:
    """Return the cache key of a file; an empty list for an in-memory image or a new file.

    A file is new if it was modified less than 2.5 s ago. It may be modified again within the time
    resolution of the file system, which would not change its key.
    """
    if isinstance(image, MemoryImage):
        return []
    try:
        key = file_key(image)
        return key if time.time() - modification_time(image) > _MIN_AGE_S else []
    except OSError:  # opening the file reports the error
        return []


_MAX_CACHE_BYTES = 384 * 2**20  # memory budget of a process
_MEMORY_FRACTION = 1 / 8  # of the free memory: budget of all processes of a run


class _ImageCache:
    """Cache of decoded images, by the cache keys of the files.

    The lock is re-entrant, as garbage collection may call the cache while the lock is held.
    """

    def __init__(self) -> None:
        self.n_users = 0
        self._run = ""
        self._memory_budget = 0
        self._images: dict[str, DecodedImage] = {}
        self._lock = threading.RLock()

    def add_user(self) -> None:
        """Enable the cache; the first user sets the memory budget."""
        budget = _memory_budget(1)
        with self._lock:
            if self.n_users == 0:
                self._memory_budget = budget
            self.n_users += 1

    def remove_user(self) -> None:
        """Undo one call of `add_user`; the last one clears and disables the cache."""
        with self._lock:
            self.n_users -= 1
            if self.n_users == 0:
                self._images.clear()

    def start_run(self, run: str, n_processes: int) -> None:
        """Enable the cache for a run; see `enable_worker_image_cache`."""
        if run == self._run:
            return
        budget = _memory_budget(n_processes)
        with self._lock:
            self.n_users += not self._run
            self._run, self._memory_budget = run, budget
            self._images.clear()

    def get(self, key: str) -> DecodedImage | None:
        """Return a cached image; None if it is not in the cache."""
        return self._images.get(key)

    def put(self, key: str, image: DecodedImage, n_bytes: int) -> None:
        """Cache an image, which occupies `n_bytes` of memory, if the budget permits."""
        with self._lock:
            if self.n_users and n_bytes <= self._memory_budget and key not in self._images:
                self._images[key] = image
                self._memory_budget -= n_bytes

    def clear(self) -> bool:
        """Remove all images, accept no new ones, and return whether there were any."""
        with self._lock:
            was_filled, self._memory_budget = bool(self._images), 0
            self._images.clear()
            return was_filled

    def renew_lock(self) -> None:
        """Replace the lock in a forked process, as a thread of the parent may hold it."""
        self._lock = threading.RLock()


def _memory_budget(n_processes: int) -> int:
    """Return the maximum memory of the cache in bytes, in each of `n_processes` processes."""
    free = available_bytes()
    if free is None:
        return _MAX_CACHE_BYTES // n_processes
    return min(_MAX_CACHE_BYTES, int(free * _MEMORY_FRACTION / n_processes))


_CACHE = _ImageCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _CACHE.renew_lock())


@contextmanager
def image_cache_enabled() -> Iterator[None]:
    """Enable the cache of decoded images; leaving the outermost context clears it."""
    _CACHE.add_user()
    try:
        yield
    finally:
        _CACHE.remove_user()


def enable_worker_image_cache(run: str, n_processes: int) -> None:
    """Enable the cache in a worker process; clear the images of the previous run.

    Parameters
    ----------
    run : identifier of the run
    n_processes : number of processes that share the memory budget
    """
    _CACHE.start_run(run, n_processes)


def decode_cached(path: Path, n_bytes: int) -> DecodedImage:
    """Return a decoded image, from the cache if possible; `n_bytes` is the memory it occupies."""
    key = repr(found) if _CACHE.n_users and (found := stable_cache_key(path)) else ""
    image = _CACHE.get(key) if key else None
    if image is None:
        try:
            image = decode(path)
        except InsufficientMemoryError:
            if not _CACHE.clear():
                raise
            image = decode(path)
        if key:
            _CACHE.put(key, image, n_bytes)
    return image
