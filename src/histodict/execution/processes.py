"""Work in processes of this machine, which end with this one."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from typing import Any

from .leaving import beyond_ctrl_c, end_with


def in_processes(
    calls: Iterable[Any], n_processes: int, *, one_thread: bool = False
) -> Generator[Any, None, None]:
    """What joblib's `delayed` calls give, in order; they are under way when this returns.

    Of the ways to start processes, joblib's alone needs no `if __name__ == "__main__":` in the
    user's script.
    """
    from joblib import Parallel, parallel_config

    with parallel_config("loky", inner_max_num_threads=1 if one_thread else None), beyond_ctrl_c():
        results: Generator[Any, None, None] = Parallel(
            n_processes,
            return_as="generator",
            batch_size=1,
            initializer=end_with,
            initargs=(os.getpid(),),
        )(calls)
    return results
