"""Requests in lanes: what takes long is in nobody's way."""

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
    DeferredWork,
)


def most_at_once(lane: str, n: int) -> int:
    """How many of so many pieces of work in a lane were under way together."""
    lock, under_way, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.02)
        with lock:
            under_way[0] -= 1

    async def all_of_them() -> None:
        lanes = ConcurrencyLimits()
        await asyncio.gather(*(lanes.run(lane, work) for _ in range(n)))

    asyncio.run(all_of_them())
    return most[0]


def test_lanes_are_as_wide_as_they_should_be(monkeypatch):
    monkeypatch.setattr("histodict.web.request.available_cores", lambda: 3)
    assert most_at_once(IMAGES, 9) == most_at_once(EXPLANATIONS, 9) == 4  # of one image, see below
    assert most_at_once(PREDICTIONS, 4) == most_at_once(DOWNLOADS, 4) == 1
    assert most_at_once(QUICK, 40) > 3


def test_a_quick_answer_does_not_wait_for_the_others():
    stored = threading.Event()

    async def ask() -> str:
        lanes = ConcurrencyLimits()
        slow = (PREDICTIONS, DOWNLOADS, *[IMAGES] * 50)
        behind = [asyncio.create_task(lanes.run(limit, stored.wait, 5)) for limit in slow]
        await asyncio.sleep(0.05)
        response = await asyncio.wait_for(lanes.run(QUICK, lambda: "here"), 4)
        stored.set()
        await asyncio.gather(*behind)
        return response

    assert asyncio.run(ask()) == "here"


def test_work_that_turns_out_to_be_long_changes_lanes():
    async def ask() -> str:
        return await ConcurrencyLimits().run(QUICK, lambda: DeferredWork(IMAGES, lambda: "drawn"))

    assert asyncio.run(ask()) == "drawn"


def test_a_slide_that_hangs_holds_up_only_itself(monkeypatch):
    """All that may be done of it at a time waits; of another image there is still a turn."""
    monkeypatch.setattr("histodict.web.request.available_cores", lambda: 2)
    stored = threading.Event()

    async def ask() -> str:
        lanes = ConcurrencyLimits()
        slow = DeferredWork(IMAGES, lambda: stored.wait(5), Path("hung.svs"))
        behind = [asyncio.create_task(lanes.run(QUICK, lambda: slow)) for _ in range(6)]
        await asyncio.sleep(0.05)
        other = DeferredWork(IMAGES, lambda: "here", Path("other.svs"))
        response = await asyncio.wait_for(lanes.run(QUICK, lambda: other), 4)
        stored.set()
        await asyncio.gather(*behind)
        return response

    assert asyncio.run(ask()) == "here"
