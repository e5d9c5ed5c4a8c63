"""Time two alternating cases by CPU time of this process and of its finished child processes."""

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
    """A case and its limit; the first call of each, which compiles and loads, is not timed."""

    ours: Case
    limit: Case
    clock: Callable[[], float] = cpu_seconds

    def best_within(self, seconds: float) -> tuple[float, float]:
        """Return the minimum seconds of each; other load can only add to them.

        The number of turns depends on the time, within fixed limits.
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
