"""Two things that are timed in turns, by the CPU time of this process and those it has ended."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_FEWEST, _MOST = 3, 30
Case = Callable[[], Any]


def cpu_seconds() -> float:
    spent = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


@dataclass(frozen=True)
class Turns:
    """Of ours and its limit; the first call of each, which compiles and loads, does not count."""

    ours: Case
    limit: Case
    clock: Callable[[], float] = cpu_seconds

    def best_within(self, seconds: float) -> tuple[float, float]:
        """The least seconds of each, as what other work adds is never negative.

        As many turns as fit into that time, but a few at least, and no more than tell anything new.
        """
        cases = self.ours, self.limit
        for case in cases:
            case()
        least, spent = [float("inf")] * 2, 0.0
        for turn in range(_MOST):
            if spent > seconds and turn >= _FEWEST:
                break
            times = [self._seconds(case) for case in cases]
            least = list(map(min, least, times))
            spent += sum(times)
        return least[0], least[1]

    def _seconds(self, case: Case) -> float:
        start = self.clock()
        case()
        return self.clock() - start
