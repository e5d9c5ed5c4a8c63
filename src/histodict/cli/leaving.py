"""How a command ends that is told to stop: in a line, with the status of the signal, and soon."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from .console import begin, say_stopped

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_GRACE = 3.0  # seconds to leave in order
# What is left to Python's own helper process it removes, and would say so at length.
_QUIET = "ignore:resource_tracker:UserWarning"


class Stopped(KeyboardInterrupt):
    """A signal, as an error in the main thread: what is open is closed on its way."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def leaving() -> Iterator[None]:
    """A command inside it that gets a signal has the exit status 128 and the signal's number."""
    begin()
    if threading.current_thread() is not threading.main_thread():  # no place for signals
        yield
        return
    # What whoever started us has it ignore stays so: `nohup`, or Ctrl-C in the background.
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _stop) for number in heard}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    said = threading.Event()
    threading.Thread(target=_insist, args=(reader, said), daemon=True, name="leaving").start()
    os.environ.setdefault("PYTHONWARNINGS", _QUIET)
    try:
        yield
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        said.set()
        say_stopped(signal.Signals(number).name)
        raise typer.Exit(128 + number) from error
    finally:
        signal.set_wakeup_fd(-1)
        os.close(writer)
        for number, action in before.items():
            signal.signal(number, action)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _insist(reader: int, said: threading.Event) -> None:
    """End the process if it has not ended by itself a while after a signal.

    The main thread hears of a signal between two steps of Python, which may be minutes apart; and
    on its way out it may wait for threads. What this process started ends with it.
    """
    for number in iter(lambda: os.read(reader, 1), b""):
        if number[0] in _SIGNALS:
            time.sleep(_GRACE)
            if not said.is_set():
                say_stopped(signal.Signals(number[0]).name)
            os._exit(128 + number[0])
    os.close(reader)
