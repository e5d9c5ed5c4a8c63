"""Where work goes: to threads here, or to the workers of a cluster; the results are the same bits.

What is sent is a function and items. An item that names files and places in them travels well;
pixels and open files do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .local import map_blocks

Item = TypeVar("Item")
Result = TypeVar("Result")
OnWorkerDeath = Callable[[Exception], Result] | None
OpenItems = Callable[[], Iterator[Any]]


class ClusterError(OSError):
    """The cluster cannot be had, or could not do the work."""


class Executor(Protocol):
    """Runs functions on items, in parallel."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        lost: OnWorkerDeath[Result] = None,
    ) -> Iterator[Result]:
        """function(item) for every item, in order; a bounded number of them is under way.

        lost : gives the result of an item that took its worker down each time it was tried;
            without it that is an error
        """

    def broadcast(self, open_items: OpenItems) -> OpenItems:
        """The same items for several maps, sent to where the work is done once."""


@dataclass(frozen=True)
class Threads:
    """Threads of this process; `n_jobs` of them, None for all cores."""

    n_jobs: int | None = None

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        lost: OnWorkerDeath[Result] = None,
    ) -> Iterator[Result]:
        return map_blocks(function, items, self.n_jobs)

    def broadcast(self, open_items: OpenItems) -> OpenItems:
        return open_items
