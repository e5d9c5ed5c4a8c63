"""Tests of concurrency limits: slow requests do not block others."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from .conftest import MISSING

pytest.importorskip("anyio", reason=MISSING)

from histodict.web.request import (
    DOWNLOADS,
    EXPLANATIONS,
    IMAGES,
    PREDICTIONS,
    QUICK,
    ConcurrencyLimits,
    SlowResponse,
)


def max_concurrent(kind: str, n: int) -> int:
    """Return how many of n pieces of work with this limit ran at the same time."""
    lock, under_way, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.02)
        with lock:
            under_way[0] -= 1

    async def all_of_them() -> None:
        limits = ConcurrencyLimits()
        await asyncio.gather(*(limits.run(kind, work) for _ in range(n)))

    asyncio.run(all_of_them())
    return most[0]


def test_limits_are_as_configured(monkeypatch):
    monkeypatch.setattr("histodict.web.request.available_cores", lambda: 3)
    # In total; the limit of one image is tested below.
    assert max_concurrent(IMAGES, 9) == max_concurrent(EXPLANATIONS, 9) == 4
    assert max_concurrent(PREDICTIONS, 4) == max_concurrent(DOWNLOADS, 4) == 1
    assert max_concurrent(QUICK, 40) > 3


def test_quick_response_does_not_wait_for_slow_ones():
    stored = threading.Event()

    async def respond() -> str:
        limits = ConcurrencyLimits()
        slow = (PREDICTIONS, DOWNLOADS, *[IMAGES] * 50)
        behind = [asyncio.create_task(limits.run(limit, stored.wait, 5)) for limit in slow]
        await asyncio.sleep(0.05)
        response = await asyncio.wait_for(limits.run(QUICK, lambda: "here"), 4)
        stored.set()
        await asyncio.gather(*behind)
        return response

    assert asyncio.run(respond()) == "here"


def test_deferred_work_changes_its_limit():
    async def respond() -> str:
        return await ConcurrencyLimits().run(QUICK, lambda: SlowResponse(IMAGES, lambda: "drawn"))

    assert asyncio.run(respond()) == "drawn"


def test_hanging_slide_blocks_only_itself(monkeypatch):
    """All workers of its image wait; another image still gets one."""
    monkeypatch.setattr("histodict.web.request.available_cores", lambda: 2)
    stored = threading.Event()

    async def respond() -> str:
        limits = ConcurrencyLimits()
        slow = SlowResponse(IMAGES, lambda: stored.wait(5), Path("hung.svs"))
        behind = [asyncio.create_task(limits.run(QUICK, lambda: slow)) for _ in range(6)]
        await asyncio.sleep(0.05)
        other = SlowResponse(IMAGES, lambda: "here", Path("other.svs"))
        response = await asyncio.wait_for(limits.run(QUICK, lambda: other), 4)
        stored.set()
        await asyncio.gather(*behind)
        return response

    assert asyncio.run(respond()) == "here"
