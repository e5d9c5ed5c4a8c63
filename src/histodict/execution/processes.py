"""Work in processes of this machine, which end with this one."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Generator, Iterable
from typing import Any

from ..parameters import Surface, hint_surface, set_hint_surface
from .child_process import exit_with_parent, ignore_sigint

# Locks that a pool of processes needs, and some to spare.
_LOCKS = 24


def map_processes(
    calls: Iterable[Any], n_processes: int, *, one_thread: bool = False
) -> Generator[Any, None, None]:
    """What joblib's `delayed` calls give, in order; they are under way when this returns.

    Of the ways to start processes, joblib's alone needs no `if __name__ == "__main__":` in the
    user's script.
    """
    from joblib import Parallel, parallel_config

    if not can_share_locks():
        warnings.warn(
            "processes cannot share locks on this machine (is /dev/shm missing, full or "
            "read-only?): the work is done in this one, one piece after the other",
            RuntimeWarning,
            stacklevel=2,
        )
        return (function(*given, **named) for function, given, named in calls)
    folder, surface = os.getcwd(), hint_surface()
    _start_tracker()
    with parallel_config("loky", inner_max_num_threads=1 if one_thread else None), ignore_sigint():
        results: Generator[Any, None, None] = Parallel(
            n_processes,
            return_as="generator",
            batch_size=1,
            initializer=exit_with_parent,
            initargs=(os.getpid(),),
        )((_with_local_settings, (folder, surface, *call), {}) for call in calls)
    return results


def _start_tracker() -> None:
    """joblib's own helper: started later, it would let the processes hear Ctrl-C before 1.6."""
    from joblib.externals.loky.backend import resource_tracker

    resource_tracker.ensure_running()


def _with_local_settings(
    folder: str, surface: Surface, function: Any, given: Any, named: Any
) -> Any:
    """Make the call in the folder, and with the hints, of the process that asks for it.

    The processes outlive a call, and both may be different for the next one.
    """
    os.chdir(folder)
    set_hint_surface(surface)
    return function(*given, **named)


def can_share_locks() -> bool:
    """Whether there is room for locks between processes: on Linux they are files in /dev/shm."""
    fork = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork else None)
    try:
        return len([context.Lock() for _ in range(_LOCKS)]) == _LOCKS
    except (ImportError, OSError):
        return False
