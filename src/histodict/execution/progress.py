"""What long work tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps of a stage; `objective`: the latest value per class, if any."""

    stage: str
    done: int
    total: int
    objective: tuple[float, ...] = ()


Callback = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """The callback of those who do not watch."""
