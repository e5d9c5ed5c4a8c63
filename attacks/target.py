"""Base class of fuzz targets, which create damaged input and check invariants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.random import Generator


@dataclass(frozen=True)
class Case:
    """One invalid input.

    kind : category for the counts, such as "jpeg: bytes flipped"
    base : name of the valid input, such as "stripes.svs"
    edits : JSON values that describe the damage; minimising leaves some out
    """

    kind: str
    base: str
    edits: tuple[Any, ...]


class InvariantError(AssertionError):
    """A violated invariant, such as a silently wrong result; the message says which."""


class Target(ABC):
    """One kind of input.

    name : name on the command line
    per_attempt : number of cases in one attempt
    smoke_attempts : number of attempts in `make test`
    """

    name: str
    per_attempt: int = 1
    smoke_attempts: int = 200

    @abstractmethod
    def setup(self, folder: Path) -> None:
        """Create what the cases need, once per process and always the same; `folder` is private."""

    @abstractmethod
    def case(self, rng: Generator) -> Case: ...

    @abstractmethod
    def build(self, case: Case) -> bytes:
        """Return the input; it is stored if it violates an invariant."""

    @abstractmethod
    def attempt(self, data: bytes, base: str) -> str:
        """Process the input and return the outcome as one word; any exception is a failure."""
