"""Images that are in memory: they are opened as files are, and give the same bits.

Decoded images that are looked at again soon: by steps of a training, by folds and by methods.

They are kept only while somebody says that images come again (`image_cache_enabled`): of use to
nobody
else, they would take memory. First come, first kept: whoever goes round and round through more
images than there is room for finds those that fitted, which he would not if the newest drove out
the oldest.
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
from ..utils.files import exists, file_bytes, file_key, modification_time
from .file_types import ImageError, NoRoomError
from .raster import (
    HEIGHT,
    TWELVE_BITS,
    WIDTH,
    DecodedImage,
    decode,
    decoded_bytes,
    fix_planar_16bit,
    floats_to_8_bits,
    is_wide_colour,
    max_value,
    tags_of,
    tiff_mpp,
)

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


_MAX_BYTES = 384 * 2**20  # of a process
_MEMORY_FRACTION = 1 / 8  # of the memory that is free, for all processes of a run


class _ImageCache:
    """Pictures by the key of their file, which changes with it.

    A lock that its own thread may take again: whatever is thrown away meanwhile may come by here.
    """

    def __init__(self) -> None:
        self.n_users = 0
        self._run = ""
        self._budget = 0
        self._images: dict[str, DecodedImage] = {}
        self._lock = threading.RLock()

    def enter(self) -> None:
        room = _budget(1)
        with self._lock:
            if self.n_users == 0:
                self._budget = room
            self.n_users += 1

    def leave(self) -> None:
        with self._lock:
            self.n_users -= 1
            if self.n_users == 0:
                self._images.clear()

    def serve(self, run: str, n_processes: int) -> None:
        """From now on for this run, of so many processes; what was kept for another one goes."""
        if run == self._run:
            return
        room = _budget(n_processes)
        with self._lock:
            self.n_users += not self._run
            self._run, self._budget = run, room
            self._images.clear()

    def get(self, key: str) -> DecodedImage | None:
        return self._images.get(key)

    def put(self, key: str, picture: DecodedImage, n_bytes: int) -> None:
        with self._lock:
            if self.n_users and n_bytes <= self._budget and key not in self._images:
                self._images[key] = picture
                self._budget -= n_bytes

    def clear(self) -> bool:
        """Nothing more is kept; whether anything was."""
        with self._lock:
            had, self._budget = bool(self._images), 0
            self._images.clear()
            return had

    def renew_lock(self) -> None:
        """In a forked process: a thread that is not there may have held it."""
        self._lock = threading.RLock()


def _budget(n_processes: int) -> int:
    free = available_bytes()
    if free is None:
        return _MAX_BYTES // n_processes
    return min(_MAX_BYTES, int(free * _MEMORY_FRACTION / n_processes))


_CACHE = _ImageCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _CACHE.renew_lock())


@contextmanager
def image_cache_enabled() -> Iterator[None]:
    """Within it images come again; the memory is given back at the end of the outermost one."""
    _CACHE.enter()
    try:
        yield
    finally:
        _CACHE.leave()


def enable_worker_image_cache(run: str, n_processes: int) -> None:
    """In one of the processes that work for another one: until that begins another run, or they
    end, as they do some minutes after the last.
    """
    _CACHE.serve(run, n_processes)


def decode_cached(path: Path, n_bytes: int) -> DecodedImage:
    """All of an image, which takes so many bytes; decoded if it is not at hand."""
    key = repr(found) if _CACHE.n_users and (found := stable_cache_key(path)) else ""
    picture = _CACHE.get(key) if key else None
    if picture is None:
        try:
            picture = decode(path)
        except NoRoomError:
            if not _CACHE.clear():
                raise
            picture = decode(path)
        if key:
            _CACHE.put(key, picture, n_bytes)
    return picture
