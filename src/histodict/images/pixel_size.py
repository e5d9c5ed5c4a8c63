"""How large an image's pixels are, and who says so: one policy for every command.

The first of these that says anything is taken:

    command     --override-mpp, given for all images
    table       the image's own cell in the column mpp
    file        a slide's property, or a TIFF's resolution
    command     --mpp, given for images of which nobody else says it
    assumed     nobody: where the model knows it, that of the images it was trained on
    unknown     nobody, nor does the model know

What is assumed is counted and said, once per run; see docs/pixel-size.md.
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

_SPREAD = 1.1  # sizes that differ by no more are taken for the same


@dataclass(frozen=True)
class PixelSize:
    """µm per pixel (None if unknown) and its source, see above.

    hint : note on a value in the file that may be the pixel size; else empty
    """

    mpp: float | None
    origin: str
    hint: str = ""

    @property
    def is_guessed(self) -> bool:
        return self.origin in ("assumed", "unknown")

    @property
    def is_user_given(self) -> float | None:
        """What a reader has to be told; None where the file itself says it, or nobody."""
        return self.mpp if self.origin in ("table", "command") else None

    def assuming(self, trained_mpp: float | None) -> PixelSize:
        """As a model takes it that was trained on images of this size."""
        if self.mpp is None and trained_mpp is not None:
            return replace(self, mpp=trained_mpp, origin="assumed")
        return self


@dataclass(frozen=True)
class PixelSizeOption:
    """What is said of an image's pixel size outside its file, in µm; None: nothing.

    fill : holds where neither a table nor the file says it
    table : of this one image; wins over the file
    override : wins over all
    """

    default: float | None = None
    table: float | None = None
    override: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("mpp", self.default), ("mpp", self.table), ("mpp", self.override)):
            if value is not None:
                check_number(name, value, above=True)

    @classmethod
    def of(cls, given: MppLike) -> PixelSizeOption:
        """A bare number fills."""
        return given if isinstance(given, PixelSizeOption) else cls(default=given)

    def with_table(self, mpp: float | None) -> PixelSizeOption:
        """For an image of which a table says this: only what may still decide."""
        if self.override is not None:
            return PixelSizeOption(override=self.override)
        given = replace(self, table=self.table if mpp is None else mpp)
        return given if given.table is None else PixelSizeOption(table=given.table)

    def at(self, path: ImageLike) -> PixelSize:
        """Of this image, whose header is read if need be. Raises ImageError."""
        if self.override is not None:
            return PixelSize(self.override, "command")
        if self.table is not None:
            return PixelSize(self.table, "table")
        own = file_pixel_size(path)
        if own is not None:
            return PixelSize(own, "file")
        if self.default is not None:
            return PixelSize(self.default, "command")
        return PixelSize(None, "unknown", size_hint(path))


MppLike = float | PixelSizeOption | None  # a bare number fills


def file_pixel_size(path: ImageLike) -> float | None:
    """The pixel size that the image gives; a file is read once as long as it stays as it is."""
    return path.mpp if isinstance(path, MemoryImage) else _read_size(path)[0]


def recorded_size(row: Mapping[str, Any]) -> PixelSize:
    """Return the pixel size of a row of a table of predictions."""
    size = PixelSize(row["mpp"], row["mpp_from"])
    try:
        return replace(size, hint=size_hint(Path(row["path"])) if size.is_guessed else "")
    except ImageError:  # it was moved or deleted
        return size


def size_hint(path: ImageLike) -> str:
    """Return a note on the scale of an OME-Zarr without units, which may be the pixel size."""
    if isinstance(path, MemoryImage) or not is_zarr(path):
        return ""
    scale = _read_size(path)[1]
    if scale is None:
        return ""
    return f"{path} has a scale of {float(scale):g} without a unit, which may be its size in µm"


def _read_size(path: Path) -> tuple[float | None, str | None]:
    state = repr(file_key(path)) if exists(path) else ""
    return _sizes_in(str(path), state)


@lru_cache(maxsize=100_000)
def _sizes_in(path: str, state: str) -> tuple[float | None, str | None]:
    with open_image(path) as source:
        return source.mpp, getattr(source, "scale_without_unit", None)


# --- many images --------------------------------------------------------------------------------


def how_to_set() -> str:
    """Return how to state a pixel size that is not known."""
    return hint(
        python="give it with mpp=… or in a column mpp",
        cli="give it with --mpp or in a column mpp",
        web="give it on the data page (µm per pixel), or in a column mpp",
    )


def first_hint(sizes: Sequence[PixelSize]) -> str:
    """Return the first of several hints, as the end of a message."""
    hints = list(dict.fromkeys(size.hint for size in sizes if size.hint))
    more = f" (and {len(hints) - 1} more)" if len(hints) > 1 else ""
    return f". {hints[0]}{more}" if hints else ""


def is_mixed(sizes: Sequence[float]) -> bool:
    """Whether images of these pixel sizes, one at least, show the same cell in different sizes."""
    return max(sizes) > _SPREAD * min(sizes)


def size_warnings(
    sizes: Sequence[PixelSize], trained_mpp: float | None, works_at: float | None
) -> list[str]:
    """What was taken for granted in a run over images; at most one line."""
    n_assumed = sum(size.origin == "assumed" for size in sizes)
    if n_assumed:
        return [
            f"the pixel size of {n_assumed} of {pluralize(len(sizes), 'image')} is not known; it "
            "is "
            f"assumed to be the {trained_mpp:g} µm that the model was trained on. If it is not, "
            f"the answers are wrong: {how_to_set()}{first_hint(sizes)}"
        ]
    known = [size.mpp for size in sizes if size.mpp is not None]
    if known and trained_mpp is None and works_at is None:
        least, most = min(known), max(known)
        span = f"{least:g} µm" if least == most else f"{least:g} to {most:g} µm"
        remedy = hint(
            python="Train with mpp=…, or with a column mpp",
            cli="Train with --mpp, or with a column mpp",
            web="Give it on the data page before you train",
        )
        return [
            f"the pixel size of {len(known)} of {pluralize(len(sizes), 'image')} is known "
            f"({span}), "
            "but the model does not know that of its training images: nothing tells whether they "
            f"fit. {remedy}"
        ]
    return []
