"""Patches of a gallery cut from their images, in their surroundings and outlined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..execution.executor import Threads
from ..execution.progress import Callback, ignore
from ..images.manifest import Record
from ..images.readers import ImageSource, open_image
from ..patches.pictures import image_uri
from ..pipeline.gallery import Gallery
from ..pipeline.training_patches import for_every

_TIMES = 4  # a patch is shown in a square so many times as wide
_SHOWN_PX = 144


def patch_pictures(
    gallery: Gallery,
    records: Sequence[Record],
    patches: Iterable[int],
    *,
    n_jobs: int | None = None,
    callback: Callback = ignore,
) -> dict[int, str]:
    """The pictures of these patches as data URIs; every image is opened once."""
    wanted = np.unique(list(patches)).astype(np.int64)
    places = np.unique(gallery.images[wanted])

    def work(number: int) -> dict[int, str]:
        record = records[places[number]]
        own = wanted[gallery.images[wanted] == places[number]].tolist()
        with open_image(record.picture, record.mpp) as source:
            return {p: image_uri(_picture(source, gallery, p), quality=85) for p in own}

    found = for_every(work, len(places), "cut-outs", callback, Threads(n_jobs))
    return {patch: uri for part in found for patch, uri in part.items()}


def square_around(gallery: Gallery, patch: int, times: int) -> tuple[tuple[int, int], int]:
    """Corner and side, in level-0 pixels, of a square so many times as wide as the patch."""
    side = float(gallery.side[patch])
    wide = round(times * side)
    x, y = (round(float(at) - (wide - side) / 2) for at in gallery.corners[patch])
    return (x, y), wide


def outlined(pixels: NDArray[np.uint8], times: int, thick: int = 1) -> NDArray[np.uint8]:
    """With an outline of its middle, the patch: dark within light, to be seen on any tissue."""
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    low, high = (round(drawn.width * (1 + sign / times) / 2) for sign in (-1, 1))
    for colour, edge in (("white", thick), ("black", 0)):
        box = low - edge, low - edge, high + edge, high + edge
        pen.rectangle(box, outline=colour, width=thick)
    return np.asarray(drawn)


def _picture(source: ImageSource, gallery: Gallery, patch: int) -> NDArray[np.uint8]:
    corner, wide = square_around(gallery, patch, _TIMES)
    pixels = source.read(*corner, wide, wide, max(1.0, wide / _SHOWN_PX))
    shown = Image.fromarray(pixels).resize((_SHOWN_PX, _SHOWN_PX), Image.Resampling.BICUBIC)
    return outlined(np.asarray(shown), _TIMES, thick=2)
