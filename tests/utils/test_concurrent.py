from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from histodict.utils.parallel import run_concurrently


def count_to(n: int, step: Callable[[], None]) -> int:
    for _ in range(n):
        step()
    return n


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_results_are_ordered_and_callbacks_run_in_the_calling_thread(n_threads):
    reported: list[threading.Thread] = []
    tasks = [partial(count_to, n) for n in (5, 1, 7)]
    results = run_concurrently(
        tasks, lambda: reported.append(threading.current_thread()), n_threads=n_threads
    )
    assert results == [5, 1, 7]
    assert reported == [threading.current_thread()] * 13


def test_tasks_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=10)
    tasks = [lambda step: meeting.wait() >= 0] * 2
    assert run_concurrently(tasks, lambda: None, n_threads=2) == [True, True]


def test_error_of_the_callback_ends_all_tasks():
    def forever(step: Callable[[], None]) -> None:
        while True:
            step()

    def callback() -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        run_concurrently([forever, forever], callback, n_threads=2)


def test_failing_task_ends_the_others():
    def forever(step: Callable[[], None]) -> None:
        while True:
            step()

    def fails(step: Callable[[], None]) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_concurrently([forever, fails], lambda: None, n_threads=2)
