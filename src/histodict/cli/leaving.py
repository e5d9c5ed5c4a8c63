"""How a command ends that is told to stop: in a line, with the status of the signal, and soon."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import typer

from .console import report_interruption, reset_state, signals

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_GRACE = 3.0  # seconds to leave in order
# What is left to Python's own helper process it removes, and would say so at length.
_QUIET = "ignore:resource_tracker:UserWarning"


class CommandInterrupted(KeyboardInterrupt):
    """A signal, as an error in the main thread: what is open is closed on its way."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


@contextmanager
def handle_signals() -> Iterator[None]:
    """A command inside it that gets a signal has the exit status 128 and the signal's number."""
    reset_state()
    if threading.current_thread() is not threading.main_thread():  # no place for signals
        yield
        return
    # What whoever started us has it ignore stays so: `nohup`, or Ctrl-C in the background.
    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _stop) for number in heard}
    reader, writer = socket.socketpair()  # not a pipe, which waits on Windows
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    said = threading.Event()
    threading.Thread(target=_insist, args=(reader, said), daemon=True, name="leaving").start()
    os.environ.setdefault("PYTHONWARNINGS", _QUIET)
    hook, sys.unraisablehook = sys.unraisablehook, partial(_unless_stopped, sys.unraisablehook)
    try:
        yield
    except BaseException as error:
        # Not only `CommandInterrupted`: an import that it breaks off, for one, fails in words of
        # its own.
        if not signals and not isinstance(error, KeyboardInterrupt):
            raise
        number = signals[0] if signals else signal.SIGINT
        said.set()
        report_interruption(signal.Signals(number).name)
        raise typer.Exit(128 + number) from error
    finally:
        signals.clear()
        sys.unraisablehook = hook
        signal.set_wakeup_fd(-1)
        writer.close()
        for number, action in before.items():
            signal.signal(number, action)


def _stop(number: int, frame: FrameType | None) -> None:
    signals.append(number)
    raise CommandInterrupted(number)


def _unless_stopped(say: Callable[[Any], Any], what: Any) -> None:
    """Where Python cannot pass an error on, it says so; of a signal we speak ourselves."""
    if not isinstance(what.exc_value, CommandInterrupted):
        say(what)


def _insist(reader: socket.socket, said: threading.Event) -> None:
    """End the process if it has not ended by itself a while after a signal.

    The main thread hears of a signal between two steps of Python, which may be minutes apart; and
    on its way out it may wait for threads. What this process started ends with it.
    """
    for number in iter(lambda: reader.recv(1), b""):
        if number[0] in _SIGNALS:
            time.sleep(_GRACE)
            if not said.is_set():
                report_interruption(signal.Signals(number[0]).name)
            os._exit(128 + number[0])
    reader.close()
