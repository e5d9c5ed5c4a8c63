"""Where a model of two classes draws the line between them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isclose
from typing import Any

_ROUNDING = 1e-9  # a model keeps its line as a score, which does not give the same number back


@dataclass(frozen=True)
class DecisionThreshold:
    """An answer is positive, the second class, beyond `value`.

    kind : what is compared with it: "patches" (connected ones), a rule's name, or "score"
    rises : whether larger values speak for the positive class
    reached : whether the value itself is positive already
    """

    kind: str
    value: float
    higher_is_positive: bool = True
    is_inclusive: bool = False

    def is_positive(self, value: float) -> bool:
        """Whether a value is beyond the line; on it, up to rounding, it is if `reached`."""
        if isclose(value, self.value, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            return self.is_inclusive
        return value > self.value if self.higher_is_positive else value < self.value

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
