"""Where a request's work is done: beside others of its kind, and in nobody's way.

All requests share the cores, and Python's one lock. Were they all begun at once, a list would take
as long as the pictures and reports that others wait for. So they stand in lanes: what takes a
moment goes at once; of pictures from image files as many are made at a time as there are cores;
answers of models, and what is downloaded, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter, to_thread

from ..execution.local import available_cores

QUICK, PICTURES, ANSWERS, DOWNLOADS = "quick", "pictures", "answers", "downloads"
_N_QUICK = 16


@dataclass(frozen=True)
class Later:
    """What a quick answer has found to take longer, and the lane for that."""

    lane: str
    work: Callable[[], Any]


class Lanes:
    """The lanes of one server."""

    def __init__(self) -> None:
        widths = {QUICK: _N_QUICK, PICTURES: available_cores(), ANSWERS: 1, DOWNLOADS: 1}
        self._limits = {name: CapacityLimiter(width) for name, width in widths.items()}

    async def run(self, lane: str, work: Callable[..., Any], *given: Any) -> Any:
        """What the work gives, done by a thread when its turn has come."""
        result = await to_thread.run_sync(work, *given, limiter=self._limits[lane])
        return await self.run(result.lane, result.work) if isinstance(result, Later) else result
