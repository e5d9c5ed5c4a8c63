"""A map over the processes of a Dask cluster that gives results in order and survives its workers.

A worker that ends costs what it was working on, which goes to another, and what it kept, which is
sent again.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any

from ..parameters import Surface, hint_surface, set_hint_surface
from .executor import Item, Lost, OpenItems, Result
from .local import one_blas_thread
from .missing_chunks import allow_missing_chunks, missing_chunks_allowed

_RETRIES = 2  # of an item that raised an error, such as a file that could not be read just now
_SENDINGS = 10  # of what was lost with a worker, each time
_PER_THREAD = 2  # items under way: one in work, one waiting beside it
_MOST_ALONE = 300.0  # seconds without any worker until waiting for one is given up
_SAID_ALONE = 10.0  # seconds after which it says that it waits
_KEPT = "what is done is not done again"
_FINISHED_PER_THREAD = 8  # items not taken yet: a slow one in front does not stop the others
# Dictionaries travel with the function: 5 MB for the paper's size. Dask warns from 10 MB on.
_FUNCTIONS_MAY_BE_LARGE = {"distributed.admin.large-graph-warning-threshold": "1GB"}


class ClusterError(OSError):
    """The cluster cannot be had, or could not do the work."""


class Cluster:
    """An `Executor` over the workers of a Dask client."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._killed = import_module("distributed.scheduler").KilledWorker
        self._closed = import_module("distributed.comm").CommClosedError
        self._n_threads = 1
        self._counted = -float("inf")
        self._manned = time.monotonic()  # when a worker was last seen

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        lost: Lost[Result] = None,
    ) -> Iterator[Result]:
        self._manned = time.monotonic()
        waiting: deque[_Task] = deque()
        try:
            as_here = partial(_as_here, missing_chunks_allowed(), hint_surface(), function)
            sent = _Function(self.client, as_here)
            for item in items:
                while self._is_full(waiting):
                    if waiting[0].future.done():
                        yield self._result(waiting.popleft(), waiting, lost)
                    else:
                        time.sleep(0.005)
                waiting.append(_Task(self.client, sent, item))
            while waiting:
                yield self._result(waiting.popleft(), waiting, lost)
        except Exception as error:
            self._check_scheduler(error)
            raise
        finally:
            if self.client.status == "running":
                with suppress(OSError):  # with the scheduler, what it was told is lost as well
                    self.client.cancel([task.future for task in waiting])

    def keep(self, open_items: OpenItems) -> OpenItems:
        try:
            sent = [
                _Kept(self.client, partial(_item_at, open_items, place), item)
                for place, item in enumerate(open_items())
            ]
        except Exception as error:
            self._check_scheduler(error)
            raise
        return lambda: iter(sent)

    def _check_scheduler(self, error: Exception) -> None:
        """Once it has gone, all else fails too, in words of Dask's own."""
        has_gone = self.client.status != "running" or isinstance(error, self._closed)
        if has_gone and not isinstance(error, ClusterError):
            raise ClusterError(
                f"the Dask scheduler has gone: start it, and run the command again; {_KEPT}"
            ) from error

    def _is_full(self, waiting: deque[_Task]) -> bool:
        self._count_workers()
        n_open = sum(not task.future.done() for task in waiting)
        return (
            n_open >= _PER_THREAD * self._n_threads
            or len(waiting) >= _FINISHED_PER_THREAD * self._n_threads
        )

    def _count_workers(self) -> None:
        """They come and go; a ClusterError if all have been gone for long."""
        now = time.monotonic()
        if now <= self._counted + 2:
            return
        self._counted = now
        n_threads = sum(self.client.nthreads().values())
        self._n_threads = max(1, n_threads)
        self._manned = now if n_threads else self._manned
        if now > self._manned + _MOST_ALONE:
            raise _nobody_left()
        if now > self._manned + _SAID_ALONE:
            warnings.warn(
                f"no worker is left; waiting for one, for {_MOST_ALONE:.0f} seconds", stacklevel=2
            )

    def _wait(self, future: Any) -> Any:
        """The result of a future, as long as there is somebody to work on it."""
        while True:
            with suppress(TimeoutError):
                return future.result(timeout=2)
            if future.done():  # and large, or the error is its own
                return future.result()
            self._count_workers()

    def _result(self, task: _Task, others: Iterable[_Task], lost: Lost[Result]) -> Result:
        alone = False
        for attempt in range(_SENDINGS):
            try:
                result: Result = self._wait(task.future)
                return result
            except CancelledError:  # the item was kept by a worker that ended
                time.sleep(0.1 * attempt)
            except self._killed as error:
                if alone:
                    return _give_up(error, lost)
                # It may only have stood beside the one that took the workers down.
                while not all(other.future.done() for other in others):
                    self._count_workers()
                    time.sleep(0.01)
                alone = True
            task = _Task(self.client, task.function, task.item)
        raise _too_many_ends()


class _Function:
    """A function on the workers: sent once per map, not once per item."""

    def __init__(self, client: Any, function: Callable[..., Any]) -> None:
        self._client = client
        self._function = function
        self._future = self._send()

    def future(self) -> Any:
        if self._future.status == "error":  # workers ended as they got it
            self._future = self._send()
        return self._future

    def _send(self) -> Any:
        # The scheduler keeps what is submitted: it is not lost with a worker, as scattered data is.
        with import_module("dask.config").set(_FUNCTIONS_MAY_BE_LARGE):
            return self._client.submit(_same, self._function, pure=False)


class _Kept:
    """An item that lies on a worker; read and sent again when that worker has ended."""

    def __init__(self, client: Any, read: Callable[[], Any], item: Any) -> None:
        self._client = client
        self._read = read
        self._future = self._send(item)

    def future(self) -> Any:
        if self._future.status != "finished":
            self._future = self._send(self._read())
        return self._future

    def _send(self, item: Any) -> Any:
        for _ in range(_SENDINGS):
            try:
                self._client.wait_for_workers(1, timeout=_MOST_ALONE)
            except TimeoutError:
                raise _nobody_left() from None
            try:
                (future,) = self._client.scatter([item], hash=False)
                return future
            except OSError:  # to a worker that ended just then
                time.sleep(0.1)
        raise _too_many_ends()


class _Task:
    """A function at work on an item; the item may lie on a worker already."""

    def __init__(self, client: Any, function: _Function, item: Any) -> None:
        self.function = function
        self.item = item
        argument = item.future() if isinstance(item, _Kept) else item
        self.future = client.submit(
            _work, function.future(), argument, pure=False, retries=_RETRIES
        )


def _as_here(
    allow: bool, surface: Surface, function: Callable[[Item], Result], item: Item
) -> Result:
    """Call the function with the settings of the submitting process."""
    set_hint_surface(surface)  # for good: tasks of the same client run side by side
    with allow_missing_chunks(allow):
        return function(item)


def _work(function: Callable[[Item], Result], item: Item) -> Result:
    """What a worker does; one BLAS thread, as in `map_blocks`."""
    with one_blas_thread():
        return function(item)


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _give_up(error: Exception, lost: Lost[Result]) -> Result:
    reason = ClusterError(
        "its worker ended each time it was tried, also when nothing else was under way: it may "
        "need more memory than a worker has"
    )
    if lost is None:
        raise reason from error
    return lost(reason)


def _nobody_left() -> ClusterError:
    return ClusterError(
        f"no worker has been left for {_MOST_ALONE:.0f} seconds: see why they ended, start some, "
        f"and run the command again; {_KEPT}"
    )


def _too_many_ends() -> ClusterError:
    return ClusterError(
        f"workers ended {_SENDINGS} times in a row while they had the same piece of work: they may "
        "have too little memory"
    )


def _item_at(open_items: OpenItems, place: int) -> Any:
    return next(islice(open_items(), place, None))
