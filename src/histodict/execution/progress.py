"""What long work tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps of a stage; `objective`: the latest value per class, if any.

    `work`: how much of all the work of the stage is done, from 0 to 1, where steps are not alike.
    """

    stage: str
    done: int
    total: int
    objective: tuple[float, ...] = ()
    work: float | None = None

    @property
    def share(self) -> float:
        """Of the work of the stage."""
        return self.done / max(1, self.total) if self.work is None else self.work


Callback = Callable[[Progress], None]


# What a user is told of the stages.
STAGES = {
    "look": "Looking at images",
    "patches": "Cutting patches",
    "features": "Measuring images",
    "initialise": "First dictionaries",
    "train": "Training",
    "rule": "Fitting the rule",
    "draw": "Drawing tissue",
    "answer": "Answering",
    "vectors": "Computing vectors",
    "slide": "Looking at tissue",
    "evaluate": "Training and testing",
    "unseen patients": "Checking on unseen patients",
    "gallery": "Looking at patches",
    "cut-outs": "Cutting them out",
}
# What is counted in them, where it is not steps.
COUNTED = {
    **dict.fromkeys(
        ("look", "patches", "features", "rule", "answer", "vectors", "gallery"), "images"
    ),
    "slide": "megapixels",
    **dict.fromkeys(("evaluate", "unseen patients", "models"), "trainings"),
}


def shares(weights: Sequence[float]) -> list[float]:
    """How much of the work is done after 0, 1, 2, … steps that take about so long each."""
    total = sum(weights)
    if not total:
        return [done / max(1, len(weights)) for done in range(len(weights) + 1)]
    return [done / total for done in accumulate(weights, initial=0.0)]


def ignore(progress: Progress) -> None:
    """The callback of those who do not watch."""
