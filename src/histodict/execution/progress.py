"""What long work tells whoever watches it."""

from __future__ import annotations

import sys
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
    "evaluate": "Training and testing",
    "unseen patients": "Checking on unseen patients",
    "gallery": "Looking at patches",
    "cut-outs": "Cutting them out",
}
_BAR = 30


def show_line(progress: Progress) -> None:
    """A callback that draws a bar on stderr, over and over in one line per stage.

    A carriage return is all it takes, in a terminal as in a notebook.
    """
    n = _BAR * progress.done // max(1, progress.total)
    name = STAGES.get(progress.stage, progress.stage)
    end = "\n" if progress.done >= progress.total else ""
    count = f"{progress.done}/{progress.total}"
    sys.stderr.write(f"\r{name:28s}[{'#' * n}{'.' * (_BAR - n)}] {count}{end}")
    sys.stderr.flush()


def ignore(progress: Progress) -> None:
    """The callback of those who do not watch."""
