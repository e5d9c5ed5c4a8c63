"""What an image's thumbnail tells: from where on it is tissue, and how its stain is corrected.

On a small image this takes longer than all of its patches. Folds, methods and the members of a
panel look at the same images again and again, so that it is remembered as long as the process
lives: some hundred bytes for each image and kind of correction.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..images.readers import ImageSource
from ..images.stain import NORMALISERS, StainTransform
from ..images.tissue import TissueThreshold

THUMBNAIL_SIDE = 1024
_MOST_KEPT = 50_000


@dataclass(frozen=True)
class FirstLook:
    """By what pixels are told from glass, and how their colours are changed."""

    tissue: TissueThreshold
    normalise: StainTransform


class _Memory:
    """The looks that were taken last. Two threads may take the same one: it comes out the same."""

    def __init__(self) -> None:
        self._looks: dict[str, FirstLook] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> FirstLook | None:
        return self._looks.get(key)

    def put(self, key: str, look: FirstLook) -> None:
        with self._lock:
            self._looks[key] = look
            if len(self._looks) > _MOST_KEPT:
                del self._looks[next(iter(self._looks))]


_MEMORY = _Memory()


def first_look(source: ImageSource, stain: str, image: Sequence[Any]) -> FirstLook:
    """Of an open image; `image` is its key, empty where nothing is to be remembered of it."""
    key = repr((image, stain))
    look = _MEMORY.get(key) if image else None
    if look is None:
        thumbnail = source.thumbnail(THUMBNAIL_SIDE)
        tissue = TissueThreshold.from_thumbnail(thumbnail)
        look = FirstLook(tissue, NORMALISERS[stain].estimate(thumbnail, tissue.mask(thumbnail)))
        if image:
            _MEMORY.put(key, look)
    return look
