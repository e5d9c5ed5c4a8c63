"""Parallel execution: threads, processes, executors and execution options.

Results are the same for any number of threads and for workers of a cluster. An executor may send
functions and items to other machines. Items should therefore contain file names and positions, not
pixels or open files, which cannot be sent efficiently.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from numbers import Integral
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, Protocol, TypeVar

import threadpoolctl
from threadpoolctl import ThreadpoolController

from .child_process import exit_with_parent, ignore_sigint
from .progress import Callback, no_callback
from .validation import UserInterface, hint, hint_interface, set_hint_interface

Block = TypeVar("Block")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def effective_n_jobs(n_jobs: int | None) -> int:
    """Return the number of threads for `n_jobs`: None and −1 for all cores, −2 for all but one."""
    cores = available_cores()
    if n_jobs is None:
        return cores
    requested: object = n_jobs
    if isinstance(requested, bool) or not isinstance(requested, Integral) or n_jobs == 0:
        name = hint(python="n_jobs", cli="--jobs")
        raise ValueError(
            f"{name} must be a whole number other than 0, not {n_jobs!r}; the default is all cores"
        )
    return int(n_jobs) if n_jobs > 0 else max(1, cores + 1 + int(n_jobs))


@lru_cache(maxsize=1)
def _find_blas_libraries(n_imported_modules: int) -> ThreadpoolController:
    """Return a controller of the loaded BLAS libraries; the argument is only a cache key."""
    return ThreadpoolController().select(user_api="blas")


def _permit_blas_limit() -> None:
    """Allow the current thread to set the limit of BLAS threads.

    From version 3.8 on, threadpoolctl lets only the first thread that has set a limit set others.
    `_SharedBlasLimit` sets limits under a lock, so that any thread may do so.
    """
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear:
        clear(force=True)


class _SharedBlasLimit:
    """Context manager that limits BLAS to one thread while any thread is in the context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._limits: list[Any] = []
        self._n_modules = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0 or len(sys.modules) != self._n_modules:
                self._n_modules = len(sys.modules)
                _permit_blas_limit()
                self._limits.append(_find_blas_libraries(self._n_modules).limit(limits=1))
            self._n_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                _permit_blas_limit()
                while self._limits:
                    self._limits.pop().restore_original_limits()


_SHARED_BLAS_LIMIT = _SharedBlasLimit()


def single_blas_thread() -> AbstractContextManager[None]:
    """Return a context in which BLAS uses one thread, so that rounding is reproducible."""
    return _SHARED_BLAS_LIMIT


def map_blocks(
    function: Callable[[Block], Result], blocks: Iterable[Block], n_jobs: int | None = None
) -> Iterator[Result]:
    """Yield function(block) for every block, in order.

    Each block is computed with one BLAS thread, so results are bitwise equal for any `n_jobs` (see
    `effective_n_jobs`). At most two blocks per thread are pending, so memory does not grow with the
    number of blocks.
    """
    n_threads = effective_n_jobs(n_jobs)
    if n_threads > 1:  # a single block is computed in the calling thread
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


Item = TypeVar("Item")
OnWorkerDeath = Callable[[Exception], Result] | None
OpenItems = Callable[[], Iterator[Any]]  # starts a new iteration over the items


class ClusterError(OSError):
    """Exception raised if a cluster is unavailable or fails."""


class Executor(Protocol):
    """Interface of objects that run functions on items in parallel."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        on_worker_death: OnWorkerDeath[Result] = None,
    ) -> Iterator[Result]:
        """Yield function(item) for every item, in order.

        Parameters
        ----------
        function : function to call
        items : items, of which a bounded number is read ahead
        on_worker_death : function that converts the error to the result of an item whose worker
            ended at each attempt; None to raise the error
        """

    def broadcast(self, open_items: OpenItems) -> OpenItems:
        """Store items on the workers, so that several calls of `map` send them only once.

        Parameters
        ----------
        open_items : function that returns a new iterator over the items

        Returns
        -------
        callable
            Function that returns a new iterator over the stored items, for the argument `items` of
            `map`.
        """


@dataclass(frozen=True)
class ThreadExecutor:
    """Executor with threads of this process; for `n_jobs` see `effective_n_jobs`."""

    n_jobs: int | None = None

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        on_worker_death: OnWorkerDeath[Result] = None,
    ) -> Iterator[Result]:
        """Yield function(item) for every item, in order."""
        return map_blocks(function, items, self.n_jobs)

    def broadcast(self, open_items: OpenItems) -> OpenItems:
        """Return `open_items` unchanged, as threads need no copies."""
        return open_items


# Number of locks that a pool of processes needs, with some in reserve.
_N_LOCKS = 24


def map_processes(
    calls: Iterable[Any], n_processes: int, *, one_thread: bool = False
) -> Generator[Any, None, None]:
    """Start calls in processes and return a generator of their results, in order.

    joblib is used as its processes need no `if __name__ == "__main__":` in the user's script.

    Parameters
    ----------
    calls : calls (function, args, kwargs), as made with `joblib.delayed`
    n_processes : number of processes
    one_thread : whether to limit BLAS and OpenMP to one thread per process
    """
    from joblib import Parallel, parallel_config

    if not can_share_locks():
        warnings.warn(
            "processes cannot share locks on this machine (is /dev/shm missing, full or "
            "read-only?); running in a single process",
            RuntimeWarning,
            stacklevel=2,
        )
        return (function(*args, **kwargs) for function, args, kwargs in calls)
    folder, interface = os.getcwd(), hint_interface()
    _start_resource_tracker()
    with parallel_config("loky", inner_max_num_threads=1 if one_thread else None), ignore_sigint():
        results: Generator[Any, None, None] = Parallel(
            n_processes,
            return_as="generator",
            batch_size=1,
            initializer=exit_with_parent,
            initargs=(os.getpid(),),
        )((_with_local_settings, (folder, interface, *call), {}) for call in calls)
    return results


def _start_resource_tracker() -> None:
    """Start joblib's resource tracker; in joblib before 1.6, a later start unblocks Ctrl-C."""
    from joblib.externals.loky.backend import resource_tracker

    resource_tracker.ensure_running()


def _with_local_settings(
    folder: str, interface: UserInterface, function: Any, args: Any, kwargs: Any
) -> Any:
    """Return function(*args, **kwargs), computed with the settings of the submitting process.

    These are the working directory `folder` and the user interface `interface` of hints. They are
    set at each call because joblib reuses its worker processes.
    """
    os.chdir(folder)
    set_hint_interface(interface)
    return function(*args, **kwargs)


def can_share_locks() -> bool:
    """Return whether processes can share locks, which Linux stores in /dev/shm."""
    fork = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork else None)
    try:
        return len([context.Lock() for _ in range(_N_LOCKS)]) == _N_LOCKS
    except (ImportError, OSError):
        return False


StepCallback = Callable[[], None]  # called after each step of a task


class _TaskCancelledError(Exception):
    """Exception raised in a task to cancel it after another task has failed."""


def run_concurrently(
    tasks: Sequence[Callable[[StepCallback], Result]], on_step: StepCallback, n_threads: int
) -> list[Result]:
    """Run tasks in threads and return their results in order.

    If a task fails, `on_step` raises an error or this thread is interrupted, the remaining tasks
    end at their next step.

    Parameters
    ----------
    tasks : functions with one argument, a callback that they call after each step
    on_step : function that is called in this thread after each step of any task
    n_threads : number of threads
    """
    if n_threads == 1:
        return [task(on_step) for task in tasks]
    steps: SimpleQueue[bool] = SimpleQueue()  # True: a step is done; False: a task has ended
    ended = Event()

    def step() -> None:
        if ended.is_set():
            raise _TaskCancelledError
        steps.put(True)

    with ThreadPoolExecutor(n_threads) as pool:
        futures = [pool.submit(task, step) for task in tasks]
        try:
            for future in futures:
                future.add_done_callback(lambda _: steps.put(False))
            n_running = len(futures)
            while n_running:
                if steps.get():
                    on_step()
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


@dataclass(frozen=True)
class ExecutionOptions:
    """Options of execution, which do not change results.

    Attributes
    ----------
    n_jobs : number of threads or processes, see `effective_n_jobs`
    cache : folder that caches costly intermediate results; None to disable the cache
    callback : function that is called with a `Progress` after every step
    executor : executor, such as a cluster; None for threads or processes of this machine
    """

    n_jobs: int | None = None
    cache: Path | None = None
    callback: Callback = no_callback
    executor: Executor | None = None
