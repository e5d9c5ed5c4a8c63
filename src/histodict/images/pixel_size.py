"""Pixel size of images and where it comes from: one policy for all commands.

The first of these sources that gives a value is used:

    command     --override-mpp, given for all images
    table       the value of the image in the column mpp
    file        a property of the slide, or the resolution of a TIFF
    command     --mpp, given for images whose file and table give none
    assumed     the pixel size of the model's training images
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

_MAX_RATIO = 1.1  # of pixel sizes that are regarded as equal


@dataclass(frozen=True)
class PixelSize:
    """Pixel size of an image.

    Attributes
    ----------
    mpp : µm per pixel; None if unknown
    origin : source of the value, as listed in the module's docstring
    hint : note on a value in the file that may be the pixel size; else empty
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
        """Pixel size given by the user; None if it is the file's own or unknown."""
        return self.mpp if self.origin in ("table", "command") else None

    def assuming(self, trained_mpp: float | None) -> PixelSize:
        """Return this pixel size or, if it is unknown, that of the model's training images."""
        if self.mpp is None and trained_mpp is not None:
            return replace(self, mpp=trained_mpp, origin="assumed")
        return self


@dataclass(frozen=True)
class PixelSizeOption:
    """Pixel size given by the user, in µm; None if not given.

    Attributes
    ----------
    default : used if neither a table nor the file gives a value
    table : value of the table for this image; takes precedence over the file
    override : takes precedence over all others
    """

    default: float | None = None
    table: float | None = None
    override: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("mpp", self.default), ("mpp", self.table), ("mpp", self.override)):
            if value is not None:
                check_number(name, value, above=True)

    @classmethod
    def from_mpp(cls, mpp: MppLike) -> PixelSizeOption:
        """Convert the argument `mpp` of a public function to an option.

        Parameters
        ----------
        mpp : number, which becomes the default; option, which is returned unchanged; or None

        Returns
        -------
        PixelSizeOption
        """
        return mpp if isinstance(mpp, PixelSizeOption) else cls(default=mpp)

    def with_table(self, mpp: float | None) -> PixelSizeOption:
        """Return the option for an image of a table, without values that have no effect on it.

        Parameters
        ----------
        mpp : pixel size of the image in the table; None if the table gives none

        Returns
        -------
        PixelSizeOption
        """
        if self.override is not None:
            return PixelSizeOption(override=self.override)
        option = replace(self, table=self.table if mpp is None else mpp)
        return option if option.table is None else PixelSizeOption(table=option.table)

    def at(self, path: ImageLike) -> PixelSize:
        """Return the pixel size of an image, reading its header if necessary.

        Parameters
        ----------
        path : image

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
        return PixelSize(None, "unknown", size_hint(path))


MppLike = float | PixelSizeOption | None  # a bare number is the default


def file_pixel_size(path: ImageLike) -> float | None:
    """Return the pixel size stated by an image; results are cached until the file changes."""
    return path.mpp if isinstance(path, MemoryImage) else _read_size(path)[0]


def recorded_size(row: Mapping[str, Any]) -> PixelSize:
    """Return the pixel size recorded in a row of a table of predictions."""
    size = PixelSize(row["mpp"], row["mpp_from"])
    try:
        return replace(size, hint=size_hint(Path(row["path"])) if size.is_guessed else "")
    except ImageError:  # the file was moved or deleted
        return size


def size_hint(path: ImageLike) -> str:
    """Return a note on the scale of an OME-Zarr without units, which may be the pixel size."""
    if isinstance(path, MemoryImage) or not is_zarr(path):
        return ""
    scale = _read_size(path)[1]
    if scale is None:
        return ""
    return (
        f"{path} has a scale of {float(scale):g} without a unit, which may be its pixel size in µm"
    )


def _read_size(path: Path) -> tuple[float | None, str | None]:
    state = repr(file_key(path)) if exists(path) else ""
    return _sizes_in(str(path), state)


@lru_cache(maxsize=100_000)
def _sizes_in(path: str, state: str) -> tuple[float | None, str | None]:
    with open_image(path) as source:
        return source.mpp, getattr(source, "scale_without_unit", None)


# --- many images --------------------------------------------------------------------------------


def how_to_set() -> str:
    """Return advice on how to give a pixel size that is not known."""
    return hint(
        python="set it with mpp=… or in a column 'mpp'",
        cli="set it with --mpp or in a column 'mpp'",
        web="set it on the data page (µm per pixel) or in a column 'mpp'",
    )


def first_hint(sizes: Sequence[PixelSize]) -> str:
    """Return the first hint of these pixel sizes, and the number of others, as text to append."""
    hints = list(dict.fromkeys(size.hint for size in sizes if size.hint))
    more = f" (and {len(hints) - 1} more)" if len(hints) > 1 else ""
    return f". {hints[0]}{more}" if hints else ""


def is_mixed(sizes: Sequence[float]) -> bool:
    """Return whether pixel sizes differ so much that images cannot be used without rescaling.

    `sizes` has at least one value.
    """
    return max(sizes) > _MAX_RATIO * min(sizes)


def size_warnings(
    sizes: Sequence[PixelSize], trained_mpp: float | None, works_at: float | None
) -> list[str]:
    """Return at most one warning about unknown pixel sizes in a run over images.

    Parameters
    ----------
    sizes : pixel sizes of the images
    trained_mpp : pixel size of the model's training images; None if unknown
    works_at : pixel size that the model resamples images to; None if it does not resample
    """
    n_assumed = sum(size.origin == "assumed" for size in sizes)
    if n_assumed:
        return [
            f"the pixel size of {n_assumed} of {pluralize(len(sizes), 'image')} is not known. The "
            f"model assumes {trained_mpp:g} µm, the pixel size of its training images. If that is "
            f"not true, predictions are wrong: {how_to_set()}{first_hint(sizes)}"
        ]
    known = [size.mpp for size in sizes if size.mpp is not None]
    if known and trained_mpp is None and works_at is None:
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
