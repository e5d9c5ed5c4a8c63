"""Metadata of feature files: attributes by the names of TRIDENT and CLAM, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np

from ..execution.texts import parse_json
from ..parameters import check_kind
from .errors import ImageError
from .feature_formats import OWN

MAGNIFICATION_AT_1_UM = 10.0  # of an image of 1 µm per pixel, by convention
MAX_LENGTH = 2_000_000  # in pixels: no slide is wider or higher


@dataclass(frozen=True)
class Origin:
    """How vectors were made, as far as a file tells: what must be the same for all of a model's.

    length : of a vector
    patch_px, magnification : side of a patch in pixels, and at which magnification
    """

    length: int
    encoder: str | None = None
    patch_px: int | None = None
    magnification: float | None = None

    def differences(self, other: Origin) -> list[str]:
        """In words what sets this apart; what one of the two does not tell is no difference."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [
            f"{_WORDS[name]} {own}, not {known}"
            for name, own, known in pairs
            if own is not None and known is not None and not _alike(own, known)
        ]

    def filled_from(self, other: Origin) -> Origin:
        """With what the other tells and this does not."""
        known = asdict(other) | self.to_dict()
        return replace(self, **known)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Origin:
        """The reverse; a ValueError says what makes no sense."""
        check_kind("vectors", values, "dict[str, Any]")
        known = {own.name for own in fields(cls)}
        if "length" not in values or set(values) - known:
            raise ValueError(f"vectors are told of by {sorted(known)}, not {sorted(values)}")
        made = cls(**values)
        for own in fields(cls):
            check_kind(own.name, getattr(made, own.name), str(own.type))
        return made


_MAX_LETTERS = 300  # characters of a name
_MOST_OFF = 0.1  # by which magnifications may differ, as pixel sizes of images may


def _alike(own: Any, known: Any) -> bool:
    """Scanners do not agree to the last digit on the size of a pixel, and so on what it gives."""
    return abs(own / known - 1) <= _MOST_OFF if isinstance(own, float) else bool(own == known)


_WORDS = {
    "length": "vectors of length",
    "encoder": "the encoder",
    "patch_px": "patches of so many pixels across:",
    "magnification": "the magnification",
}


# --- the schema ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Range:
    """Numbers from `low` to `high`; `whole`: without a fraction."""

    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:,.12g} to {self.high:,.12g}"

    def __contains__(self, number: float) -> bool:
        is_inside = self.low <= number <= self.high  # False for NaN
        return is_inside and (not self.whole or number == round(number))


# Ranges of attributes, all optional.
_RANGES = {
    "patch_size": _Range(1, MAX_LENGTH, whole=True),
    "patch_size_level0": _Range(1, MAX_LENGTH),
    "overlap": _Range(-MAX_LENGTH, MAX_LENGTH, whole=True),
    "target_magnification": _Range(1e-3, 1e4),
    "level0_width": _Range(1, MAX_LENGTH, whole=True),
    "level0_height": _Range(1, MAX_LENGTH, whole=True),
    "level0_mpp": _Range(1e-4, 1e4),
    "patch_level": _Range(0, 100, whole=True),
    "downsample": _Range(1e-3, 1e6),
    "custom_downsample": _Range(1e-3, 1e6),
}


class Metadata:
    """Validated attributes of a feature file.

    Parameters
    ----------
    path : the file, for messages
    attributes : by the names above; unknown names and missing values (None, or the text 'None' that
        TRIDENT writes for it) are ignored
    names : names of attributes in this file, for messages, if they differ from those above

    Attributes
    ----------
    patch_px : side of a patch in pixels, at the magnification it was cut at
    side : side of a patch in level-0 pixels
    size : (width, height) of the slide in level-0 pixels
    settings : settings of a file that `histodict features` wrote; else empty

    Raises
    ------
    ImageError : an attribute violates the schema; the message names the file and the attribute
    """

    def __init__(
        self, path: Path, attributes: Mapping[str, Any], names: Mapping[str, str] | None = None
    ) -> None:
        self._path, self._names = path, names or {}
        plain = {name: to_python(value) for name, value in attributes.items()}
        found = {
            name: self._number(name, plain[name], allowed)
            for name, allowed in _RANGES.items()
            if plain.get(name) is not None
        }
        self._found = found
        self.encoder = self._name("encoder", plain.get("encoder"))
        self.settings = self._settings(plain.get(OWN))
        self.mpp = found.get("level0_mpp")
        self.magnification = found.get("target_magnification")
        self.patch_px = round(found["patch_size"]) if "patch_size" in found else None
        self.side = self._side()
        self.size = self._size()
        overlap = found.get("overlap", 0.0)
        if self.patch_px is not None and overlap >= self.patch_px:
            raise self._error("overlap", overlap, f"less than patch_size, which is {self.patch_px}")

    @property
    def offset(self) -> tuple[int, int]:
        """Position of the image's (0, 0) in the coords."""
        x, y = self.settings.get("offset", (0, 0))
        return x, y

    def overlap(self, side: float) -> float:
        """Return the overlap of patches in level-0 pixels; attributes give it in patch pixels."""
        overlap = self._found.get("overlap", 0.0)
        return overlap * side / self.patch_px if self.patch_px else 0.0

    @property
    def step(self) -> float | None:
        """Distance of neighbouring patches in level-0 pixels.

        None unless the file states side and overlap; files of CLAM, with one grid per piece of
        tissue, state no overlap.
        """
        if self.side is None or "overlap" not in self._found:
            return None
        return self.side - self.overlap(self.side)

    def _side(self) -> float | None:
        """Return the side of a patch; CLAM gives it in pixels of a level, with the downsample."""
        side = self._found.get("patch_size_level0")
        if side is None and self.patch_px is not None and "patch_level" in self._found:
            reduced = self._found.get("downsample")
            if reduced is None and self._found["patch_level"] == 0:
                reduced = 1.0
            if reduced is not None:
                side = self.patch_px * reduced * self._found.get("custom_downsample", 1.0)
                if side not in _RANGES["patch_size_level0"]:
                    words = f"such that patches have a side of {_RANGES['patch_size_level0']}"
                    raise self._error("downsample", reduced, f"{words} level-0 pixels")
        return side

    def _size(self) -> tuple[int, int] | None:
        lengths = [self._found.get(name) for name in ("level0_width", "level0_height")]
        if lengths[0] is None or lengths[1] is None:
            return None
        size = round(lengths[0]), round(lengths[1])
        if self.offset[0] >= size[0] or self.offset[1] >= size[1]:
            raise self._error(f"{OWN} (offset)", list(self.offset), f"inside of the slide, {size}")
        return size

    def _number(self, name: str, value: Any, allowed: _Range) -> float:
        """Return a number in its range; CLAM gives one for x and one for y, which must agree."""
        parts = value if isinstance(value, list) and len(value) in (1, 2) else [value]
        numbers = [_as_number(part) for part in parts]
        if any(number is None or number not in allowed for number in numbers):
            raise self._error(name, value, str(allowed))
        first, last = numbers[0], numbers[-1]
        assert first is not None and last is not None
        if abs(last - first) > _MOST_OFF * abs(first):
            raise self._error(name, value, "the same for x and y")
        return first

    def _text(self, name: str, value: Any) -> str | None:
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is not None and not isinstance(value, str):
            raise self._error(name, value, "text")
        return value or None

    def _name(self, name: str, value: Any) -> str | None:
        """Return a short text of one line."""
        text = self._text(name, value)
        if text is not None and not (text.isprintable() and len(text) <= _MAX_LETTERS):
            raise self._error(name, text, f"one line of at most {_MAX_LETTERS} characters")
        return text

    def _settings(self, value: Any) -> dict[str, Any]:
        text = self._text(OWN, value)
        if text is None:
            return {}
        try:
            settings = parse_json(text)
        except ValueError as error:
            raise self._error(OWN, text, f"JSON ({error})") from error
        if not isinstance(settings, dict):
            raise self._error(OWN, text, "a JSON object")
        for name, (fits, words) in _SETTINGS.items():
            if name in settings and not fits(settings[name]):
                raise self._error(f"{OWN} ({name})", settings[name], words)
        return settings

    def _error(self, name: str, value: Any, words: str) -> ImageError:
        shown = self._names.get(name, name)
        return ImageError(
            f"{self._path}: its attribute {shown} must be {words}, not {short(value)}: correct the "
            "attribute, or compute the features again"
        )


def to_python(value: Any) -> Any:
    """Convert a value of HDF5, NumPy or Zarr to Python; missing values become None."""
    if getattr(value, "shape", ()) is None:  # h5py.Empty, which anndata writes for None
        return None
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, tuple):
        value = list(value)
    return None if isinstance(value, str) and value == "None" else value


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_offset(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_pixel, value))


def _is_pixel(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_LENGTH


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


# Checks of settings, all optional.
_SETTINGS = {
    "offset": (_is_offset, f"two whole numbers from 0 to {MAX_LENGTH:,}"),
    "recipe": (_is_object, "a JSON object"),
    "grid": (_is_object, "a JSON object"),
}
