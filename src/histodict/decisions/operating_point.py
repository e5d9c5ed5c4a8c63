"""Where a model of two classes draws the line between them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class OperatingPoint:
    """An answer is positive, the second class, beyond `value`.

    kind : what is compared with it: "patches" (connected ones), a rule's name, or "score"
    rises : whether larger values speak for the positive class
    reached : whether the value itself is positive already
    """

    kind: str
    value: float
    rises: bool = True
    reached: bool = False

    def is_positive(self, value: float) -> bool:
        if self.reached:
            return value >= self.value
        return value > self.value if self.rises else value < self.value

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
