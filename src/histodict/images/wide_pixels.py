"""Pixels of more than 8 bits, and of floating point: which number is white.

No file says it, but cameras and programs keep to few ranges. It is the least of these that holds
the largest value: 255, 4095 (a camera's 12 bits in words of 16), 65535; of floating point also 1.
They lie 16 times apart or more, so that a dark image is not taken for one of another range; nor is
one of floating point whose values overshoot: what lies above white, below twice that, is white.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ImageError

_WHITES = (255, 4095, 65535)
_SLACK = 1e-3  # what computing with floats leaves below 0, and above the last white, as a share
_OVERSHOOT = 2  # times white, in which floats end that were resized or sharpened
_SWAPPED = {"16L": "16B", "16B": "16L", "16N": "16B" if sys.byteorder == "little" else "16L"}
_N_BANDS = 3


def white_level(path: Path, least: float, most: float, *, is_float: bool = False) -> float:
    """The number that is white, for values from `least` to `most`."""
    slack = _SLACK if is_float else 0.0
    for white in (1, *_WHITES) if is_float else _WHITES:
        overshoots = is_float and white < most < _OVERSHOOT * white and white != _WHITES[-1]
        if least >= -slack * most and (most <= (1 + slack) * white or overshoots):
            return float(white)
    raise ImageError(
        f"{path}: values from {least:g} to {most:g} are no colours: they must be from 0 to 1, 255, "
        "4095 or 65535; save the image with 8 bits per colour (RGB)"
    )


def to_8_bits(values: NDArray[Any], white: float) -> NDArray[np.uint8]:
    scaled = values if white == 255 else np.rint(values / (white / 255))
    return np.clip(scaled, 0, 255).astype(np.uint8)


# --- colours of 16 bits, of which Pillow keeps the upper 8 --------------------------------------


def is_wide_colour(image: Any) -> bool:
    """Whether an image that is not loaded yet has colours of 16 bits."""
    has_tiles = bool(getattr(image, "tile", ()))
    return image.mode in ("RGB", "RGBA") and has_tiles and "16" in _raw_mode(image)


def fix_planar_16bit(image: Any) -> None:
    """Pillow takes 16-bit colours that lie plane by plane in a TIFF for 8-bit ones: tell it."""
    tags: Any = getattr(image, "tag_v2", {})
    if image.mode not in ("RGB", "RGBA") or max(tags.get(258, (8,))) != 16:
        return
    ending = "16L" if tags.prefix == b"II" else "16B"
    image.tile = [
        tile._replace(args=(f"{tile.args[0]};{ending}", *tile.args[1:]))
        if tile.args[0] in ("R", "G", "B", "A") and tile.codec_name == "raw"
        else tile
        for tile in image.tile
    ]


def decode_low_bytes(image: Any) -> None:
    """Have an image of 16-bit colours, not loaded yet, read its lower 8 bits."""
    ending = _raw_mode(image)[-3:]
    image.tile = [_with_raw_mode(tile, ending, _SWAPPED[ending]) for tile in image.tile]


def combine_bytes(path: Path, high: NDArray[np.uint8], low: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Both halves of 16-bit colours, as 8 bits."""
    values = high.astype(np.uint16) * 256 + low
    return to_8_bits(values, white_level(path, 0, int(values.max(initial=0))))


def _raw_mode(image: Any) -> str:
    args = image.tile[0].args
    return str(args if isinstance(args, str) else args[0])


def _with_raw_mode(tile: Any, old: str, new: str) -> Any:
    if isinstance(tile.args, str):
        return tile._replace(args=tile.args.replace(old, new))
    return tile._replace(args=(tile.args[0].replace(old, new), *tile.args[1:]))


# --- floating point -----------------------------------------------------------------------------


def float_page(path: Path) -> dict[str, Any] | None:
    """Size, tags and bytes of a TIFF of floating point; None for any other file."""
    from tifffile import TiffFile

    try:
        with TiffFile(path) as file:
            page: Any = file.pages[0]
            if page.dtype is None or page.dtype.kind != "f":
                return None
            tags = {tag.code: _number(tag.value) for tag in page.tags}
            size = page.imagewidth, page.imagelength
            return {"size": size, "tags": tags, "n_bytes": int(page.nbytes)}
    except MemoryError:
        raise  # says nothing of the file
    except Exception:  # no TIFF, or a damaged one, of which it raises all sorts
        return None


def _number(value: Any) -> Any:
    """A fraction, which is a pair, as a number."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and value[1]
    return value[0] / value[1] if is_pair else value


def read_floats(path: Path) -> NDArray[np.uint8]:
    """(height, width, 3) of the first page of a TIFF of floating point."""
    from tifffile import imread

    return floats_to_8_bits(path, np.asarray(imread(path, key=0)))


def floats_to_8_bits(path: Path, values: NDArray[Any]) -> NDArray[np.uint8]:
    """(height, width, 3), from grey or colours, also plane by plane."""
    if values.ndim == 3 and values.shape[0] == _N_BANDS != values.shape[2]:
        values = np.moveaxis(values, 0, -1)  # plane by plane
    if values.ndim == 2:
        values = np.repeat(values[..., None], 3, axis=2)
    if values.ndim != 3 or values.shape[2] != _N_BANDS:
        raise ImageError(
            f"{path}: floating point values of shape {values.shape} are no colours; save the image "
            "with 8 bits per colour (RGB)"
        )
    if not np.isfinite(values).all():
        raise ImageError(f"{path}: some of its values are no numbers (NaN); save it again as RGB")
    least, most = float(values.min()), float(values.max())
    return to_8_bits(values, white_level(path, least, most, is_float=True))
