"""What a feature file says of itself, by the names that TRIDENT and CLAM have for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from ..parameters import check_kind


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


def plain_of(value: Any) -> Any:
    """As Python has it; TRIDENT writes None as a text."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return None if isinstance(value, str) and value == "None" else value


def number_of(value: Any) -> float | None:
    """A positive number; of several, as CLAM has for x and y, the first."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    try:
        number = float(first)
    except (TypeError, ValueError):
        return None
    return number if 0 < number < float("inf") else None


def whole_of(value: Any) -> int | None:
    number = number_of(value)
    return round(number) if number is not None and round(number) > 0 else None


def side_of(told: Mapping[str, Any], patch_px: int | None) -> float | None:
    """Of a patch in level-0 pixels; CLAM gives it in pixels of a level, and how many these are."""
    side = number_of(told.get("patch_size_level0"))
    if side is None and patch_px is not None and "patch_level" in told:
        reduced = number_of(told.get("downsample")) or (1.0 if told["patch_level"] == 0 else None)
        reduced = reduced and reduced * (number_of(told.get("custom_downsample")) or 1.0)
        side = patch_px * reduced if reduced else None
    return side


def overlap_of(told: Mapping[str, Any], patch_px: int | None, side: float) -> float:
    """In level-0 pixels; TRIDENT gives it in pixels of a patch."""
    overlap = number_of(told.get("overlap"))
    return overlap * side / patch_px if overlap and patch_px else 0.0


def step_of(told: Mapping[str, Any], patch_px: int | None) -> float | None:
    """How far apart patches lie in level-0 pixels; None unless a file says both, as CLAM's do not,
    which begin a grid in every piece of tissue.
    """
    side = side_of(told, patch_px)
    return side - overlap_of(told, patch_px, side) if side and "overlap" in told else None


def size_of(told: Mapping[str, Any]) -> tuple[int, int] | None:
    width, height = whole_of(told.get("level0_width")), whole_of(told.get("level0_height"))
    return (width, height) if width and height else None
