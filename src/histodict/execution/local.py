"""Blocks on the threads of this machine, with results that do not depend on how many there are."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import chain, islice
from numbers import Integral
from typing import Any, TypeVar

import threadpoolctl
from threadpoolctl import ThreadpoolController

from ..parameters import hint

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
    given: object = n_jobs
    if isinstance(given, bool) or not isinstance(given, Integral) or n_jobs == 0:
        name = hint(python="n_jobs", cli="--jobs")
        raise ValueError(
            f"{name} must be a whole number of threads, not {n_jobs!r}; left out, it is all cores"
        )
    return int(n_jobs) if n_jobs > 0 else max(1, cores + 1 + int(n_jobs))


@lru_cache(maxsize=1)
def _blas(n_modules: int) -> ThreadpoolController:
    """The BLAS libraries in this process; a module imported since may have brought another."""
    return ThreadpoolController().select(user_api="blas")


def _limit_threads() -> None:
    """Let this thread limit BLAS.

    threadpoolctl from 3.8 on leaves that to the thread that did so first, and ignores all others.
    Here whoever comes in first does it and who leaves last undoes it, under a lock.
    """
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear:
        clear(force=True)


class _SharedLimit:
    """BLAS's number of threads is one for the whole process: first in limits, last out restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._limits: list[Any] = []
        self._n_modules = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0 or len(sys.modules) != self._n_modules:
                self._n_modules = len(sys.modules)
                _limit_threads()
                self._limits.append(_blas(self._n_modules).limit(limits=1))
            self._n_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                _limit_threads()
                while self._limits:
                    self._limits.pop().restore_original_limits()


_LIMIT = _SharedLimit()


def single_blas_thread() -> AbstractContextManager[None]:
    """Matrix products on the calling thread alone, so that they round the same everywhere."""
    return _LIMIT


def map_blocks(
    function: Callable[[Block], Result], blocks: Iterable[Block], n_jobs: int | None = None
) -> Iterator[Result]:
    """function(block) for every block, in the order of the blocks.

    A fixed block is the unit of work and runs with one BLAS thread, so the results are the same
    bits for any n_jobs. At most two blocks per thread are under way: memory does not grow with the
    number of blocks.
    """
    n_threads = count_jobs(n_jobs)
    if n_threads > 1:  # a single block needs none but the thread that asks
        rest = iter(blocks)
        first = list(islice(rest, 2))
        blocks = chain(first, rest)
        n_threads = n_threads if len(first) == 2 else 1
    with single_blas_thread():
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
