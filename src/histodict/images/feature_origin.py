"""How vectors that were computed before were made, as far as a file tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

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
            if own is not None and known is not None and own != known
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


_WORDS = {
    "length": "vectors of length",
    "encoder": "the encoder",
    "patch_px": "patches of so many pixels across:",
    "magnification": "the magnification",
}
