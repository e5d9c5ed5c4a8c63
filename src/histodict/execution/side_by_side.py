"""A few long tasks at the same time, whose steps are told where they were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

Result = TypeVar("Result")
Step = Callable[[], None]


class _EndedError(Exception):
    """Ends a task whose result nobody waits for any more."""


def run_concurrently(
    tasks: Sequence[Callable[[Step], Result]], tell: Step, n_threads: int
) -> list[Result]:
    """The results of all tasks; each calls what it is given after every step of its own.

    `tell` is called on this thread, once per step of any task. If it raises, or this thread is
    interrupted, or a task fails, the others end at their next step.
    """
    if n_threads == 1:
        return [task(tell) for task in tasks]
    steps: SimpleQueue[bool] = SimpleQueue()  # True: a step was done; False: a task has ended
    ended = Event()

    def step() -> None:
        if ended.is_set():
            raise _EndedError
        steps.put(True)

    with ThreadPoolExecutor(n_threads) as pool:
        futures = [pool.submit(task, step) for task in tasks]
        try:
            for future in futures:
                future.add_done_callback(lambda _: steps.put(False))
            n_running = len(futures)
            while n_running:
                if steps.get():
                    tell()
                else:
                    n_running -= 1
                    for future in futures:
                        if future.done():
                            future.result()
        except BaseException:
            ended.set()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]
