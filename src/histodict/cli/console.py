"""Console output of the commands: progress, messages, results and signal handling.

Progress, warnings and errors go to standard error, results to standard output. A command that
is stopped by a signal prints one line and exits with status 128 plus the number of the signal.
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

from ..utils.progress import STAGE_LABELS, Callback, Progress
from ..utils.text_io import limit_lines, printable

if TYPE_CHECKING:
    from rich.console import Console

FAILURES_FILE = "failures.csv"  # table in the results folder: files that failed in the last run
received_signals: list[int] = []  # numbers; errors after a signal are attributed to it


@contextmanager
def report_errors() -> Iterator[None]:
    """Context manager that prints warnings and errors on one line each.

    After an error, it exits with status 2; if a signal caused the error, it raises it again.
    """
    from concurrent.futures import BrokenExecutor

    previous_format, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        message = str(error)
        cause: Exception = error
    except BrokenExecutor as error:
        message = f"the system ended a worker process. {_memory_hint()}"
        cause = error
    except MemoryError as error:
        message = f"not enough memory: {str(error) or _memory_hint()}"
        cause = error
    else:
        return
    finally:
        warnings.formatwarning = previous_format
    if received_signals:
        raise cause
    print_error(message)
    raise typer.Exit(2) from cause


_latest_progress: dict[str, Progress] = {}  # latest progress of each stage
_resume_hint: list[str] = []  # empty, or the hint of `set_resume_hint`


def reset_state() -> None:
    """Clear progress and hint of an earlier command; escape what stdout cannot encode."""
    _latest_progress.clear()
    _resume_hint.clear()
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error by default
        sys.stdout.reconfigure(errors="backslashreplace")


def set_resume_hint(reused_work: str = "finished images or runs") -> None:
    """Set the hint after an interruption: the same command, run again, reuses `reused_work`."""
    _resume_hint[:] = [f"it reuses {reused_work}"]


def _memory_hint() -> str:
    text = "If memory is exhausted, run the same command with fewer --jobs"
    return "; ".join([text, *_resume_hint])


@contextmanager
def progress_bars(weights: Mapping[str, float] | None = None) -> Iterator[Callback]:
    """Yield a callback that shows a progress bar per stage in a terminal.

    Parameters
    ----------
    weights : relative duration of each stage by its name, in order of execution; None if unknown
    """
    from ..utils.progress import progress_bar

    with progress_bar(weights, console=_error_console(), transient=True) as show:

        def show_progress(progress: Progress) -> None:
            _latest_progress[progress.stage] = progress
            show(progress)

        yield show_progress


def report_interruption(signal_name: str) -> None:
    """Print the signal, the progress so far and how to resume."""
    position = "; ".join(
        f"{STAGE_LABELS.get(stage, stage)}: {progress.done} of {progress.total}"
        for stage, progress in _latest_progress.items()
    )
    text = f"by {signal_name}{f' ({position})' if position else ''}"
    hint = (
        f"To resume, run the same command; {_resume_hint[0]}"
        if _resume_hint
        else "The same command starts again from the beginning"
    )
    _write_line("[yellow]Stopped:[/]", f"{text}. {hint}")


def warn(text: str, prefix: str = "Warning") -> None:
    """Print a warning on one line; `prefix` replaces the word "Warning"."""
    _write_line(f"[yellow]{prefix}:[/]", text)


def print_error(text: str) -> None:
    """Print an error on one line."""
    _write_line("[red]Error:[/]", text)


def note_overwrite(output: Path) -> None:
    """Print a note if the output file exists and will be replaced."""
    if output.exists():
        warn(f"{output} exists and will be replaced if the command succeeds", "Note")


def check_html_file(output: Path) -> None:
    """Raise ValueError unless the name of the file ends in .html or .htm."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output {output}: the page is HTML; choose a name that ends in .html")


def _format_warning(message: Warning | str, *location: Any, **options: Any) -> str:
    """Replace `warnings.formatwarning`: one line, without the source location."""
    return f"Warning: {printable(' '.join(str(message).split()))}\n"


def print_failures_and_exit(failures: Iterable[str]) -> None:
    """Print the failures; exit with status 1 if there are any."""
    failures = list(failures)
    for failure in failures:
        _write_line("[red]Failed:[/]", failure)
    if failures:
        raise typer.Exit(1)


def failure_rows(failures: Iterable[tuple[Path, str]]) -> list[dict[str, str]]:
    """Return a row {"path", "reason"} per failed file, for JSON and tables."""
    return [
        {"path": printable(str(path)), "reason": printable(reason)} for path, reason in failures
    ]


def write_failures_and_exit(failures: Sequence[tuple[Path, str]], folder: Path) -> None:
    """Print at most ten failed files with their reasons, and exit with status 1 if there are any.

    All failures are written to failures.csv in the folder of the results; without failures, the
    table of an earlier run is removed. Paths are printed as the user gave them.
    """
    from ..utils.text_io import write_csv

    table = folder / FAILURES_FILE
    with report_errors():
        if failures:
            write_csv(table, failure_rows(failures))
        else:
            table.unlink(missing_ok=True)
    printed = [
        (str(path), reason.replace(str(path.absolute()), str(path))) for path, reason in failures
    ]
    lines = [reason if reason.startswith(path) else f"{path}: {reason}" for path, reason in printed]
    print_failures_and_exit(limit_lines(lines, f": see {table}"))


def exit_after_output_error(error: OSError) -> NoReturn:
    """Exit after an error in printing the output (full disk, closed pipe)."""
    reason = error.strerror or str(error)
    message = f"the output cannot be written ({reason}) and is incomplete"
    print_error(message if error.filename is None else str(error))
    with suppress(OSError, ValueError, AttributeError):
        # Flushing the rest of the buffer at exit would fail again.
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)
    raise SystemExit(1) from error


def print_json(content: Any) -> None:
    """Print an object as JSON on one line."""
    typer.echo(json.dumps(content, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*header, box=None)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


@cache
def _error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _write_line(prefix: str, text: str) -> None:
    from rich.markup import escape

    with suppress(OSError):  # stderr may be closed, too
        _error_console().print(f"{prefix} {escape(printable(text))}", soft_wrap=True)


_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNALS = [getattr(signal, name) for name in _SIGNAL_NAMES if hasattr(signal, name)]
_GRACE_SECONDS = 3.0  # time for an orderly exit
# Silences the resource tracker of Python, which warns about what it removes.
_WARNING_FILTER = "ignore:resource_tracker:UserWarning"


class CommandInterrupted(KeyboardInterrupt):
    """Exception that a signal raises in the main thread, so that open resources are closed."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


@contextmanager
def handle_signals() -> Iterator[None]:
    """Context manager in which a signal ends the command, after one line of message.

    The exit status is 128 plus the number of the signal.
    """
    reset_state()
    # Only the main thread can handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Signals ignored by the parent stay ignored: `nohup`, or Ctrl-C in the background.
    handled = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, _raise_interrupted) for number in handled}
    reader, writer = socket.socketpair()  # a pipe would block on Windows
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    reported = threading.Event()
    threading.Thread(
        target=_force_exit, args=(reader, reported), daemon=True, name="forced exit"
    ).start()
    os.environ.setdefault("PYTHONWARNINGS", _WARNING_FILTER)
    hook, sys.unraisablehook = sys.unraisablehook, partial(_skip_interruption, sys.unraisablehook)
    try:
        yield
    except BaseException as error:
        # A signal may surface as another error, for example from an interrupted import.
        if not received_signals and not isinstance(error, KeyboardInterrupt):
            raise
        number = received_signals[0] if received_signals else signal.SIGINT
        reported.set()
        report_interruption(signal.Signals(number).name)
        raise typer.Exit(128 + number) from error
    finally:
        received_signals.clear()
        sys.unraisablehook = hook
        signal.set_wakeup_fd(-1)
        writer.close()
        for number, action in previous_handlers.items():
            signal.signal(number, action)


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    received_signals.append(number)
    raise CommandInterrupted(number)


def _skip_interruption(hook: Callable[[Any], Any], unraisable: Any) -> None:
    """Pass an unraisable error to `hook`, except interruptions, which are reported elsewhere."""
    if not isinstance(unraisable.exc_value, CommandInterrupted):
        hook(unraisable)


def _force_exit(reader: socket.socket, reported: threading.Event) -> None:
    """Terminate the process if it is still running some seconds after a signal.

    The main thread receives a signal only between two steps of Python, which may be minutes apart,
    and may wait for threads on exit. Child processes end with this process. `reader` receives the
    number of each signal as a byte; `reported` is set once the main thread has printed its message.
    """
    for number in iter(lambda: reader.recv(1), b""):
        if number[0] in _SIGNALS:
            time.sleep(_GRACE_SECONDS)
            if not reported.is_set():
                report_interruption(signal.Signals(number[0]).name)
            os._exit(128 + number[0])
    reader.close()
