"""Where a request's work is done: beside others of its kind, and in nobody's way.

All requests share the cores, and Python's one lock. Were they all begun at once, a list would take
as long as the pictures and reports that others wait for. So they stand in lanes: what takes a
moment goes at once; of pictures from one image file as many are made at a time as there are cores,
and one more of others, so that a slide on a drive that has hung holds up none but itself; likewise
the whys of patches, which need not wait until a slide's tiles are decoded; what follows a stroke of
the brush, two at a time; answers of models, and
what is downloaded, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from ..execution.local import available_cores

QUICK, PICTURES, WHYS, LIVE = "quick", "pictures", "whys", "live"
ANSWERS, DOWNLOADS = "answers", "downloads"
_N_QUICK = 16
_N_LIVE = 2


@dataclass(frozen=True)
class Later:
    """What a quick answer has found to take longer, and the lane for that.

    image : the file that it reads, of which no more is done at a time than there are cores
    """

    lane: str
    work: Callable[[], Any]
    image: Path | None = None


class Lanes:
    """The lanes of one server."""

    def __init__(self) -> None:
        self._n_cores = available_cores()
        widths = {QUICK: _N_QUICK, ANSWERS: 1, DOWNLOADS: 1}
        widths |= dict.fromkeys((PICTURES, WHYS), self._n_cores + 1) | {LIVE: _N_LIVE}
        self._limits = {name: CapacityLimiter(width) for name, width in widths.items()}
        self._images: WeakValueDictionary[Path, CapacityLimiter] = WeakValueDictionary()

    @property
    def are_busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(limit.borrowed_tokens for limit in self._limits.values())

    async def run(self, lane: str, work: Callable[..., Any], *given: Any) -> Any:
        """What the work gives, done by a thread when its turn has come."""
        result = await to_thread.run_sync(work, *given, limiter=self._limits[lane])
        while isinstance(result, Later):
            result = await self._run_later(result)
        return result

    async def _run_later(self, later: Later) -> Any:
        limit = self._limits[later.lane]
        if later.image is None:
            return await to_thread.run_sync(later.work, limiter=limit)
        own = self._images.get(later.image) or CapacityLimiter(self._n_cores)
        self._images[later.image] = own
        async with own:
            return await to_thread.run_sync(later.work, limiter=limit)
