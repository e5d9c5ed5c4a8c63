"""Child processes that end with their parent.

    python -m histodict.utils.child_process PARENT MODULE [ARGUMENT …]

runs MODULE in a process that ends when the process with the id PARENT ends. Polling of the parent
begins before MODULE is imported, as the import may take seconds.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_POLL_INTERVAL_S = 0.5
_exit_callbacks: list[Callable[[], None]] = []


def exit_with_parent(parent_pid: int, on_exit: Callable[[], None] | None = None) -> None:
    """Start a thread that ends this process within a second after its parent ends.

    The process id of the parent is polled, as a killed parent sends no signal. (Linux could send
    one, but would also send it when the thread that started this process ends.)

    Parameters
    ----------
    parent_pid : process id of the parent
    on_exit : function to call before the process ends; functions of earlier calls are called too
    """
    if on_exit is not None:
        _exit_callbacks.append(on_exit)

    def poll_parent() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_POLL_INTERVAL_S)
        try:
            for callback in _exit_callbacks:
                callback()
        finally:  # also if a callback fails, such as on a full disk
            os._exit(1)

    threading.Thread(target=poll_parent, daemon=True, name="parent").start()


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Return a context in which new processes and threads ignore Ctrl-C (SIGINT).

    A terminal sends the signal to all processes; only the main process handles it and ends the
    others.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # if started later, it would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Run the module named on the command line; see the docstring of this file."""
    parent_pid, module = sys.argv[1:3]
    exit_with_parent(int(parent_pid))
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # The module that runs shares the callbacks of the imported module, not those of `__main__`.
    from histodict.utils.child_process import main as run

    run()
