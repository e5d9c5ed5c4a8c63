"""What the commands say: progress, warnings and errors on one stream, results on the other.

How a command ends that is told to stop: in a line, with the status of the signal, and soon.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from ..utils.progress import STAGES, Callback, Progress
from ..utils.text_io import MAX_LINES, first_of, printable

if TYPE_CHECKING:
    from rich.console import Console

FAILURES = "failures.csv"  # in a folder of results: failed files of the last run
signals: list[int] = []  # that this process got: whatever fails then fails for that reason


@contextmanager
def report_errors() -> Iterator[None]:
    """What the user can mend is a line and exit status 2, not a traceback; a warning is a line."""
    from concurrent.futures import BrokenExecutor

    kept, warnings.formatwarning = warnings.formatwarning, _single_line
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        words = str(error)
        cause: Exception = error
    except BrokenExecutor as error:
        words = f"a process that did a part of the work was ended by the system; {_with_less()}"
        cause = error
    except MemoryError as error:
        words = f"there is not enough memory: {str(error) or _with_less()}"
        cause = error
    else:
        return
    finally:
        warnings.formatwarning = kept
    if signals:
        raise cause
    _write_line("[red]Error:[/]", words)
    raise typer.Exit(2) from cause


_messages: dict[str, Progress] = {}  # the latest of each stage
_resume_hint: list[str] = []  # what the same command, run again, finds done


def reset_state() -> None:
    """A command has done nothing yet, and keeps nothing; it can print every name there is."""
    _messages.clear()
    _resume_hint.clear()
    if isinstance(sys.stdout, io.TextIOWrapper):  # as the stream of errors does by itself
        sys.stdout.reconfigure(errors="backslashreplace")


def set_resume_hint(what: str = "what is finished") -> None:
    """From here on the same command goes on where this one was stopped."""
    _resume_hint[:] = [f"{what} is not done again"]


def _with_less() -> str:
    words = "if memory ran out, give fewer --jobs, and run the same command again"
    return ": ".join([words, *_resume_hint])


@contextmanager
def progress_bars(weights: Mapping[str, float] | None = None) -> Iterator[Callback]:
    """Yield a callback that shows a bar per stage in a terminal, until the work is done.

    `weights`: relative durations of stages that follow each other.
    """
    from ..utils.progress import progress_bar

    with progress_bar(weights, console=_errors(), transient=True) as show:

        def tell(progress: Progress) -> None:
            _messages[progress.stage] = progress
            show(progress)

        yield tell


def report_interruption(by: str) -> None:
    """What a signal ended, how far it was, and how to go on."""
    far = "; ".join(
        f"{STAGES.get(stage, stage)}: {told.done} of {told.total}"
        for stage, told in _messages.items()
    )
    words = f"by {by}{f' ({far})' if far else ''}"
    then = (
        f"The same command goes on: {_resume_hint[0]}"
        if _resume_hint
        else "The same command starts anew"
    )
    _write_line("[yellow]Stopped:[/]", f"{words}. {then}")


def warn(words: str, head: str = "Warning") -> None:
    _write_line(f"[yellow]{head}:[/]", words)


def _single_line(message: Warning | str, *place: Any, **more: Any) -> str:
    """A warning of ours or of a library, without the line of source that gave it."""
    return f"Warning: {printable(' '.join(str(message).split()))}\n"


def exit_with_failures(failures: Iterable[str]) -> None:
    """Say what was not done; if there is any, the exit status is 1."""
    failures = list(failures)
    for words in failures:
        _write_line("[red]Not done:[/]", words)
    if failures:
        raise typer.Exit(1)


def failure_rows(failures: Iterable[tuple[Path, str]]) -> list[dict[str, str]]:
    """Of files and why each has no answer, for JSON."""
    return [{"path": printable(str(path)), "reason": printable(why)} for path, why in failures]


def end_with_files(failures: Sequence[tuple[Path, str]], folder: Path) -> None:
    """Print the first ten failed files with their reasons, and exit with status 1.

    All failures are written to failures.csv in the folder of the results. File names are printed
    as the user gave them.
    """
    from ..utils.text_io import write_csv

    table = folder / FAILURES
    with report_errors():
        # A short list is printed in full and needs no folder.
        if failures and (folder.is_dir() or len(failures) > MAX_LINES):
            write_csv(table, failure_rows(failures))
        elif not failures:
            table.unlink(missing_ok=True)
    told = [(str(path), why.replace(str(path.absolute()), str(path))) for path, why in failures]
    lines = [why if why.startswith(path) else f"{path}: {why}" for path, why in told]
    exit_with_failures(first_of(lines, f": see {table}"))


def end_unprinted(error: OSError) -> NoReturn:
    """End a command whose output cannot be printed (full disk, closed pipe)."""
    why = error.strerror or str(error)
    words = f"the output cannot be written ({why}) and is incomplete"
    _write_line("[red]Error:[/]", words if error.filename is None else str(error))
    with suppress(OSError, ValueError, AttributeError):
        # Flushing the rest of the buffer at exit would fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    raise SystemExit(1) from error


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*header, box=None)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


@cache
def _errors() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _write_line(head: str, words: str) -> None:
    from rich.markup import escape

    with suppress(OSError):  # stderr may be closed, too
        _errors().print(f"{head} {escape(printable(words))}", soft_wrap=True)


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
