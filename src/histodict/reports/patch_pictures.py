"""Patches of a gallery cut from their images, in their surroundings and outlined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..execution.executor import Threads
from ..execution.progress import Callback, no_callback
from ..images.feature_file import is_feature_file
from ..images.manifest import ImageRecord
from ..images.readers import ImageSource, open_image
from ..patches.pictures import jpeg_data_uri
from ..pipeline.gallery import PatchSample
from ..pipeline.training_patches import map_images

_TIMES = 4  # a patch is shown in a square so many times as wide
_DISPLAY_PX = 144


def patch_images(
    gallery: PatchSample,
    records: Sequence[ImageRecord],
    patches: Iterable[int],
    *,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> dict[int, str]:
    """The pictures of these patches as data URIs; every image is opened once.

    Of a feature file whose image is not there they are empty.
    """
    wanted = np.unique(list(patches)).astype(np.int64)
    places = np.unique(gallery.images[wanted])

    def work(number: int) -> dict[int, str]:
        record = records[places[number]]
        own = wanted[gallery.images[wanted] == places[number]].tolist()
        if is_feature_file(record.display_image):
            return dict.fromkeys(own, "")
        with open_image(record.display_image, record.mpp) as source:
            at = _moved_by(record, source)
            return {p: jpeg_data_uri(_patch_image(source, gallery, p, at), quality=85) for p in own}

    found = map_images(work, len(places), "cut-outs", callback, Threads(n_jobs))
    return {patch: uri for part in found for patch, uri in part.items()}


def square_around(gallery: PatchSample, patch: int, times: int) -> tuple[tuple[int, int], int]:
    """Corner and side, in level-0 pixels, of a square so many times as wide as the patch."""
    side = float(gallery.side[patch])
    wide = round(times * side)
    x, y = (round(float(at) - (wide - side) / 2) for at in gallery.corners[patch])
    return (x, y), wide


def draw_outline(pixels: NDArray[np.uint8], times: int, thick: int = 1) -> NDArray[np.uint8]:
    """With an outline of its middle, the patch: dark within light, to be seen on any tissue."""
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    low, high = (round(drawn.width * (1 + sign / times) / 2) for sign in (-1, 1))
    for colour, edge in (("white", thick), ("black", 0)):
        box = low - edge, low - edge, high + edge, high + edge
        pen.rectangle(box, outline=colour, width=thick)
    return np.asarray(drawn)


def _moved_by(record: ImageRecord, source: ImageSource) -> tuple[int, int]:
    """From places in a feature file to those in the image, of which slides leave out a margin."""
    if record.image is None:
        return 0, 0
    with open_image(record.path) as sheet:
        return sheet.offset[0] - source.offset[0], sheet.offset[1] - source.offset[1]


def _patch_image(
    source: ImageSource, gallery: PatchSample, patch: int, moved_by: tuple[int, int]
) -> NDArray[np.uint8]:
    (x, y), wide = square_around(gallery, patch, _TIMES)
    x, y = x + moved_by[0], y + moved_by[1]
    pixels = source.read(x, y, wide, wide, max(1.0, wide / _DISPLAY_PX))
    shown = Image.fromarray(pixels).resize((_DISPLAY_PX, _DISPLAY_PX), Image.Resampling.BICUBIC)
    return draw_outline(np.asarray(shown), _TIMES, thick=2)
