"""Pixel size of images, and its origin.

The first of these sources that gives a value is used:

    command     option --override-mpp, for all images
    table       value of the image in the column mpp
    file        property of the slide, or resolution of a TIFF
    command     option --mpp, for images without a value in the table and the file
    assumed     pixel size of the model's training images
    unknown     none of these

Each run reports once how many pixel sizes are assumed; see docs/pixel-size.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..utils.files import exists, file_key
from ..utils.text_io import pluralize
from ..utils.validation import check_number, hint
from .file_types import ImageError, is_zarr
from .memory_image import ImageLike, MemoryImage
from .source import open_image

_MAX_EQUAL_RATIO = 1.1  # maximum ratio of pixel sizes that are regarded as equal


@dataclass(frozen=True)
class PixelSize:
    """Pixel size of an image.

    Attributes
    ----------
    mpp : µm per pixel; None if unknown
    origin : source of the value, as listed in the module's docstring
    hint : note on a value in the file that may be the pixel size; "" if there is none
    """

    mpp: float | None
    origin: str
    hint: str = ""

    @property
    def is_guessed(self) -> bool:
        """Whether the pixel size is assumed or unknown."""
        return self.origin in ("assumed", "unknown")

    @property
    def user_mpp(self) -> float | None:
        """Pixel size specified in a table or an option; None if it has another origin."""
        return self.mpp if self.origin in ("table", "command") else None

    def with_assumed_mpp(self, trained_mpp: float | None) -> PixelSize:
        """Return this pixel size or, if it is unknown, `trained_mpp` with origin "assumed"."""
        if self.mpp is None and trained_mpp is not None:
            return replace(self, mpp=trained_mpp, origin="assumed")
        return self


@dataclass(frozen=True)
class PixelSizeOption:
    """Pixel sizes specified by the user, in µm per level-0 pixel; None if not specified.

    Attributes
    ----------
    default : pixel size of images for which neither a table nor the file states one
    table : pixel size of this image in a table; takes precedence over the file
    override : pixel size that takes precedence over the table and the file
    """

    default: float | None = None
    table: float | None = None
    override: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("mpp", self.default), ("mpp", self.table), ("mpp", self.override)):
            if value is not None:
                check_number(name, value, exclusive=True)

    @classmethod
    def from_mpp(cls, mpp: MppLike) -> PixelSizeOption:
        """Convert the argument `mpp` of a public function to an option.

        Parameters
        ----------
        mpp : number, used as `default`; PixelSizeOption, returned unchanged; or None

        Returns
        -------
        PixelSizeOption
        """
        return mpp if isinstance(mpp, PixelSizeOption) else cls(default=mpp)

    def with_table_mpp(self, mpp: float | None) -> PixelSizeOption:
        """Return the option for one image of a table, with only the value that takes precedence.

        This value is `override` if it is set, else the value of the table, else `default`.

        Parameters
        ----------
        mpp : pixel size of the image in the table, in µm; None if the table states none

        Returns
        -------
        PixelSizeOption
        """
        if self.override is not None:
            return PixelSizeOption(override=self.override)
        option = replace(self, table=self.table if mpp is None else mpp)
        return option if option.table is None else PixelSizeOption(table=option.table)

    def resolve(self, path: ImageLike) -> PixelSize:
        """Return the pixel size of an image, reading its header if necessary.

        Parameters
        ----------
        path : path of the image, or an in-memory image

        Returns
        -------
        PixelSize

        Raises
        ------
        ImageError
            If the header is needed and cannot be read.
        """
        if self.override is not None:
            return PixelSize(self.override, "command")
        if self.table is not None:
            return PixelSize(self.table, "table")
        stated = file_pixel_size(path)
        if stated is not None:
            return PixelSize(stated, "file")
        if self.default is not None:
            return PixelSize(self.default, "command")
        return PixelSize(None, "unknown", pixel_size_hint(path))


MppLike = float | PixelSizeOption | None  # a number is the default of an option


def file_pixel_size(path: ImageLike) -> float | None:
    """Return µm per pixel as stated by an image; None if unknown. Cached until the file changes."""
    return path.mpp if isinstance(path, MemoryImage) else _read_mpp_and_scale(path)[0]


def recorded_pixel_size(row: Mapping[str, Any]) -> PixelSize:
    """Return the pixel size of an image from its row in a table of predictions.

    `row` contains the columns mpp, mpp_from and path.
    """
    size = PixelSize(row["mpp"], row["mpp_from"])
    try:
        return replace(size, hint=pixel_size_hint(Path(row["path"])) if size.is_guessed else "")
    except ImageError:  # the file was moved or deleted
        return size


def pixel_size_hint(path: ImageLike) -> str:
    """Return a note on a scale that may be the pixel size of an image; "" if there is none.

    Only an OME-Zarr whose axes have no unit has such a scale.
    """
    if isinstance(path, MemoryImage) or not is_zarr(path):
        return ""
    scale = _read_mpp_and_scale(path)[1]
    if scale is None:
        return ""
    return (
        f"{path} has a scale of {float(scale):g} without a unit, which may be its pixel size in µm"
    )


def _read_mpp_and_scale(path: Path) -> tuple[float | None, str | None]:
    """Return µm per pixel, and the scale of an OME-Zarr without a unit; each is None if unknown."""
    state = repr(file_key(path)) if exists(path) else ""
    return _read_cached(str(path), state)


@lru_cache(maxsize=100_000)
def _read_cached(path: str, state: str) -> tuple[float | None, str | None]:
    with open_image(path) as source:
        return source.mpp, getattr(source, "scale_without_unit", None)


# --- many images --------------------------------------------------------------------------------


def pixel_size_advice() -> str:
    """Return advice on how to specify an unknown pixel size, for messages."""
    return hint(
        python="set it with mpp=… or in a column 'mpp'",
        cli="set it with --mpp or in a column 'mpp'",
        web="set it on the data page (µm per pixel) or in a column 'mpp'",
    )


def first_hint(sizes: Sequence[PixelSize]) -> str:
    """Return the first hint and the number of other hints, as text to append to a message.

    The text is "" if no pixel size has a hint.
    """
    hints = list(dict.fromkeys(size.hint for size in sizes if size.hint))
    more = f" (and {len(hints) - 1} more)" if len(hints) > 1 else ""
    return f". {hints[0]}{more}" if hints else ""


def have_mixed_pixel_sizes(sizes: Sequence[float]) -> bool:
    """Return whether the pixel sizes (at least one) differ by more than 10 %."""
    return max(sizes) > _MAX_EQUAL_RATIO * min(sizes)


def size_warnings(
    sizes: Sequence[PixelSize], trained_mpp: float | None, model_mpp: float | None
) -> list[str]:
    """Return at most one warning about unknown pixel sizes of images or of the model.

    Parameters
    ----------
    sizes : pixel sizes of the images
    trained_mpp : pixel size of the model's training images; None if unknown
    model_mpp : pixel size to which the model resamples images; None if it does not resample
    """
    n_assumed = sum(size.origin == "assumed" for size in sizes)
    if n_assumed:
        which = f"{n_assumed} of {len(sizes)} images" if len(sizes) > 1 else "the image"
        return [
            f"the pixel size of {which} is not known. The "
            f"model assumes {trained_mpp:g} µm, the pixel size of its training images. If that is "
            f"not true, predictions are wrong: {pixel_size_advice()}{first_hint(sizes)}"
        ]
    known = [size.mpp for size in sizes if size.mpp is not None]
    if known and trained_mpp is None and model_mpp is None:
        min_mpp, max_mpp = min(known), max(known)
        span = f"{min_mpp:g} µm" if min_mpp == max_mpp else f"{min_mpp:g} to {max_mpp:g} µm"
        remedy = hint(
            python="Train with mpp=… or a column 'mpp'",
            cli="Train with --mpp or a column 'mpp'",
            web="Set it on the data page before training",
        )
        return [
            "the pixel size of the training images is unknown, so the model cannot check whether "
            f"it agrees with that of {pluralize(len(known), 'image')} ({span}). {remedy}"
        ]
    return []
