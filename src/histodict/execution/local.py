"""Blocks on the threads of this machine, with results that do not depend on how many there are."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Block = TypeVar("Block")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_jobs(n_jobs: int | None) -> int:
    """Number of threads: None or −1 for all cores, −2 for all but one, and so on."""
    cores = available_cores()
    if n_jobs is None:
        return cores
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0: give a number of threads, or None for all cores")
    return n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def one_blas_thread() -> AbstractContextManager[Any]:
    """Matrix products on the calling thread alone: they round the same on every machine load."""
    limit: AbstractContextManager[Any] = _blas().limit(limits=1)
    return limit


def map_blocks(
    function: Callable[[Block], Result], blocks: Iterable[Block], n_jobs: int | None = None
) -> Iterator[Result]:
    """function(block) for every block, in the order of the blocks.

    A fixed block is the unit of work and runs with one BLAS thread, so the results are the same
    bits for any n_jobs. At most two blocks per thread are under way: memory does not grow with the
    number of blocks.
    """
    n_threads = count_jobs(n_jobs)
    with one_blas_thread():
        if n_threads == 1:
            yield from map(function, blocks)
            return
        with ThreadPoolExecutor(n_threads) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for block in blocks:
                    if len(waiting) == 2 * n_threads:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(function, block))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
