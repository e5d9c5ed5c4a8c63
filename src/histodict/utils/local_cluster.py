"""Local Dask cluster that other users of the machine cannot access.

Anyone who can connect to a port of a scheduler, worker or nanny can run code in it. All of them
therefore use TLS with a certificate made for this cluster, which both ends must present. Dask's
web pages need no certificate and are disabled. The key is only stored in the memory of the
processes; to load it, it is written to a file in a private folder that is removed immediately.
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
# A killed worker is restarted by its nanny. If that takes longer than this, 15 s by default, Dask
# closes the nanny, and the worker is not replaced.
_START_TIMEOUT = {"distributed.deploy.lost-worker-timeout": "1h"}


class _NoWebPages:
    """Mix-in that disables Dask's web pages; `dashboard=False` alone still opens a port."""

    def start_http_server(self, *args: Any, **options: Any) -> None:
        """Do nothing."""
        pass


class _Scheduler(_NoWebPages, distributed.Scheduler):
    pass


class _Worker(_NoWebPages, distributed.Worker):
    pass


@contextmanager
def local_cluster(n_workers: int) -> Iterator[Any]:
    """Return a context that yields a cluster of workers with one thread and equal memory each."""
    with ignore_sigint():
        future = ThreadPoolExecutor(1).submit(_create_cluster, n_workers)
    # Dask cannot close a cluster that is starting, so interrupts wait until it has started.
    try:
        with dask.config.set(_START_TIMEOUT):
            yield _wait_for_cluster(future)
    finally:
        _wait_for_cluster(future).close()


def _wait_for_cluster(future: Future[Any]) -> Any:
    """Return the cluster; raise ClusterError if a worker ended during startup."""
    try:
        return future.result()
    except RuntimeError as error:
        raise ClusterError(
            "a worker ended during startup; if memory ran out, use fewer workers and run the "
            "command again"
        ) from error


def _create_cluster(n_workers: int) -> Any:
    security: Any = Security.temporary()  # type: ignore[no-untyped-call]
    common = {"host": _HOST, "protocol": "tls://", "security": security, "dashboard": False}
    nanny_options = {
        "worker_class": _Worker,
        "nthreads": 1,
        "memory_limit": MEMORY_LIMIT // n_workers,
        "silence_logs": logging.CRITICAL,  # hides warnings about lost data, which are sent again
    }
    worker = {"cls": distributed.Nanny, "options": common | nanny_options}
    return distributed.SpecCluster(  # type: ignore[no-untyped-call]
        workers=dict.fromkeys(range(n_workers), worker),
        worker=worker,
        scheduler={"cls": _Scheduler, "options": common},
        security=security,
        silence_logs=logging.CRITICAL,
    )
