"""Worker process that runs cases and may die from them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from .target import Case, Target
from .targets import load_target

_Build = Callable[[], bytes]


def work(name: str, folder: str, connection: Connection) -> None:
    """Handle ("seeds", seed, numbers), ("case", case) and ("kept", case, its input).

    Sends the case before each attempt, so that the parent knows the cause if the worker dies, and
    afterwards (outcome, signature of the failure or None, message, input).
    """
    try:
        target = load_target(name)
        target.setup(Path(folder))
        connection.send("ready")
        while True:
            order, *text = connection.recv()
            for case, build in _cases(target, order, text):
                connection.send(case)
                with _quiet():
                    outcome = _outcome(target, case, build)
                connection.send(outcome)
            connection.send("done")
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages that C libraries print about damaged files."""
    stored = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stored, 2)
        os.close(stored)
        os.close(nowhere)


def _cases(target: Target, order: str, arguments: list[Any]) -> Iterator[tuple[Case, _Build]]:
    """Yield cases and functions that build their input."""
    if order == "seeds":
        seed, numbers = arguments
        for number in numbers:
            case = target.case(np.random.default_rng([seed, number]))
            yield case, partial(target.build, case)
    elif order == "case":
        yield arguments[0], partial(target.build, arguments[0])
    else:
        case, data = arguments
        yield case, lambda: data


def _outcome(target: Target, case: Case, build: _Build) -> tuple[str, str | None, str, bytes]:
    data = b""
    try:
        data = build()
        return target.attempt(data, case.base), None, "", b""
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        signature = f"{type(error).__name__} at {Path(last.filename).name}:{last.name}"
        text = "".join(traceback.format_exception(error, limit=-6))
        return "failure", signature, text, data
