"""A Dask cluster of processes on this machine that no other user of it can reach.

Whoever reaches a port of a scheduler, worker or nanny can have it run code. So all of them speak
TLS, with a certificate made for this cluster that both sides must show; and the web pages of Dask,
which ask for none, are not served. The key is kept in the memory of the processes: to be loaded it
passes through a file, in a folder that nobody else can open and that goes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dask
import distributed
from distributed.security import Security
from distributed.system import MEMORY_LIMIT

from .child_process import ignore_sigint
from .parallel import ClusterError

_HOST = "127.0.0.1"
# A worker that was killed is started again by its nanny. Where that takes longer than this, 15 s by
# default, Dask closes the nanny, and the place of that worker stays empty.
_SLOW_STARTS_ARE_WAITED_FOR = {"distributed.deploy.lost-worker-timeout": "1h"}


class _NoPages:
    """Without `dashboard`, Dask still opens a port for other pages."""

    def start_http_server(self, *args: Any, **options: Any) -> None:
        pass


class _Scheduler(_NoPages, distributed.Scheduler):
    pass


class _Worker(_NoPages, distributed.Worker):
    pass


@contextmanager
def local_cluster(n_workers: int) -> Iterator[Any]:
    """So many workers of one thread, each with an equal part of the memory."""
    with ignore_sigint():
        starting = ThreadPoolExecutor(1).submit(_start, n_workers)
    # Dask cannot close what has started by half: whoever stops us waits until it has.
    try:
        with dask.config.set(_SLOW_STARTS_ARE_WAITED_FOR):
            yield _started(starting)
    finally:
        _started(starting).close()


def _started(starting: Future[Any]) -> Any:
    try:
        return starting.result()
    except RuntimeError as error:
        raise ClusterError(
            "a worker ended while it was starting: if memory ran out, take fewer, and run the "
            "command again"
        ) from error


def _start(n_workers: int) -> Any:
    security: Any = Security.temporary()  # type: ignore[no-untyped-call]
    own = {"host": _HOST, "protocol": "tls://", "security": security, "dashboard": False}
    there = {
        "worker_class": _Worker,
        "nthreads": 1,
        "memory_limit": MEMORY_LIMIT // n_workers,
        "silence_logs": logging.CRITICAL,  # Dask calls data lost that is sent again at once
    }
    worker = {"cls": distributed.Nanny, "options": own | there}
    return distributed.SpecCluster(  # type: ignore[no-untyped-call]
        workers=dict.fromkeys(range(n_workers), worker),
        worker=worker,
        scheduler={"cls": _Scheduler, "options": own},
        security=security,
        silence_logs=logging.CRITICAL,
    )
