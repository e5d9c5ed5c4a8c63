"""What a fuzzing target gives: damaged inputs, and the promises that must hold on each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.random import Generator


@dataclass(frozen=True)
class Case:
    """An input on purpose wrong.

    kind : what is counted, such as "jpeg: bytes flipped"
    base : name of the undamaged input, such as "stripes.svs"
    edits : JSON values that say what was done to it; to minimise is to leave some out
    """

    kind: str
    base: str
    edits: tuple[Any, ...]


class Find(AssertionError):  # noqa: N818 - what it is called throughout
    """Wrong in silence, or another broken promise; the message says which."""


class Target(ABC):
    """One kind of input.

    name : as on the command line
    per_attempt : how many cases one attempt stands for
    smoke_attempts : number of attempts in the tests; fewer where one takes long
    """

    name: str
    per_attempt: int = 1
    smoke_attempts: int = 200

    @abstractmethod
    def setup(self, folder: Path) -> None:
        """Make what is needed, once per process, the same each time; `folder` is its own."""

    @abstractmethod
    def case(self, rng: Generator) -> Case: ...

    @abstractmethod
    def build(self, case: Case) -> bytes:
        """The input that is tried, and what is kept of it where it breaks a promise."""

    @abstractmethod
    def attempt(self, data: bytes, base: str) -> str:
        """Try it and say what came of it in a word; whatever is raised is a find."""
