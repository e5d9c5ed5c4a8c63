"""A process that works for another one ends with it, however that one ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_PAUSE = 0.5
_last_words: list[Callable[[], None]] = []


def end_with(parent: int, last_words: Callable[[], None] | None = None) -> None:
    """From now on this process ends within a second of `parent`, the one that started it.

    `last_words`: to be called before that; also if an earlier call notices the end first.

    A killed parent tells nobody: we look for it. (Linux could send a signal, but takes the end of
    the thread that started us for the end of the process.)
    """

    if last_words is not None:
        _last_words.append(last_words)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PAUSE)
        try:
            for words in _last_words:
                words()
        finally:  # also where a full disk takes no last words
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


@contextmanager
def beyond_ctrl_c() -> Iterator[None]:
    """Processes and threads that are started inside do not hear Ctrl-C.

    A terminal sends it to every process; what it means is for the command to say.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
