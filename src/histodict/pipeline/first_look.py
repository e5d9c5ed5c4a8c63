"""What an image's thumbnail tells: from where on it is tissue, and how its stain is corrected.

On a small image this takes longer than all of its patches. Folds, methods and the members of a
panel look at the same images again and again, so that it is remembered as long as the process
lives: some hundred bytes for each image and kind of correction.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..images.margin import Box, Crop, Source, content_box
from ..images.quality import QualityMap, median_tissue_density
from ..images.readers import ImageSource
from ..images.stain import NORMALISERS, StainTransform
from ..images.tissue import TissueThreshold

THUMBNAIL_SIDE = 1024
_MAX_KEPT = 50_000
_MAX_MAPS = 64  # up to a megabyte each


Kept = TypeVar("Kept")


@dataclass(frozen=True)
class ThumbnailAnalysis:
    """By what pixels are told from glass, and how their colours are changed."""

    tissue: TissueThreshold
    normalise: StainTransform


class _Memory(Generic[Kept]):
    """What was made last. Two threads may make the same: it comes out the same.

    most : of these; 0 stands for as many as there may be looks
    """

    def __init__(self, most: int = 0) -> None:
        self._cache: dict[str, Kept] = {}
        self._max_entries = most
        self._lock = threading.Lock()

    def get(self, key: str) -> Kept | None:
        return self._cache.get(key)

    def put(self, key: str, made: Kept) -> None:
        with self._lock:
            self._cache[key] = made
            if len(self._cache) > (self._max_entries or _MAX_KEPT):
                del self._cache[next(iter(self._cache))]


_MEMORY: _Memory[ThumbnailAnalysis] = _Memory()
_MAPS: _Memory[QualityMap] = _Memory(_MAX_MAPS)
_BOXES: _Memory[Box] = _Memory()


def content_of(source: ImageSource, least_side: float, image: Sequence[Any]) -> Source:
    """Return the image without its uniform margins. `image` as below.

    An image whose content is smaller than `least_side` level-0 pixels is returned unchanged.
    """
    key = repr(image)
    box = _BOXES.get(key) if image else None
    if box is None:
        box = content_box(source)
        if image:
            _BOXES.put(key, box)
    content = Crop(source, box)
    return source if content.size == source.size or min(content.size) < least_side else content


def analyse_thumbnail(source: Source, stain: str, image: Sequence[Any]) -> ThumbnailAnalysis:
    """Return the overview of an open image, or of its content.

    `image` is the key of the image in the cache; empty to bypass the cache.
    """
    key = repr((image, stain, source.size))
    look = _MEMORY.get(key) if image else None
    if look is None:
        thumbnail = source.thumbnail(THUMBNAIL_SIDE)
        is_slide = source.overview_downsample is not None
        fit = TissueThreshold.from_thumbnail if is_slide else TissueThreshold.from_tile
        tissue = fit(thumbnail)
        look = ThumbnailAnalysis(
            tissue, NORMALISERS[stain].estimate(thumbnail, tissue.mask(thumbnail))
        )
        if image:
            _MEMORY.put(key, look)
    return look


def quality_map(
    source: Source, tissue: TissueThreshold, rules: Sequence[str], image: Sequence[Any]
) -> QualityMap | None:
    """What of an open image these rules leave out; None without rules. `image` as above."""
    if not rules:
        return None
    key = repr((image, list(rules)))
    found = _MAPS.get(key) if image else None
    if found is None:
        density = median_tissue_density(source.thumbnail(THUMBNAIL_SIDE), tissue)
        found = QualityMap(source, tissue, density, rules)
        if image:
            _MAPS.put(key, found)
    return found
