"""A Dask cluster of processes on this machine that no other user of it can reach.

Whoever reaches a port of a scheduler, worker or nanny can have it run code. So all of them speak
TLS, with a certificate made for this cluster that both sides must show and that never leaves the
memory of its processes; and the web pages of Dask, which ask for none, are not served.
"""

from __future__ import annotations

import logging
from multiprocessing import resource_tracker
from typing import Any

import distributed
from distributed.security import Security
from distributed.system import MEMORY_LIMIT

from .leaving import beyond_ctrl_c

_HOST = "127.0.0.1"


class _NoPages:
    """Without `dashboard`, Dask still opens a port for other pages."""

    def start_http_server(self, *args: Any, **options: Any) -> None:
        pass


class _Scheduler(_NoPages, distributed.Scheduler):
    pass


class _Worker(_NoPages, distributed.Worker):
    pass


def start_local_cluster(n_workers: int) -> Any:
    """So many workers of one thread, each with an equal part of the memory."""
    security: Any = Security.temporary()  # type: ignore[no-untyped-call]
    own = {
        "host": _HOST,
        "protocol": "tls://",
        "security": security,
        "dashboard": False,
    }
    there = {
        "worker_class": _Worker,
        "nthreads": 1,
        "memory_limit": MEMORY_LIMIT // n_workers,
        "silence_logs": logging.CRITICAL,  # Dask calls data lost that is sent again at once
    }
    worker = {"cls": distributed.Nanny, "options": own | there}
    resource_tracker.ensure_running()  # by itself it would let processes hear Ctrl-C
    with beyond_ctrl_c():
        return distributed.SpecCluster(  # type: ignore[no-untyped-call]
            workers=dict.fromkeys(range(n_workers), worker),
            worker=worker,
            scheduler={"cls": _Scheduler, "options": own},
            security=security,
            silence_logs=logging.CRITICAL,
        )
