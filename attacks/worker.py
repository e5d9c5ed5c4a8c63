"""A process that tries cases, and may die of them."""

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
from .targets import target_named

_Build = Callable[[], bytes]


def work(name: str, folder: str, connection: Connection) -> None:
    """Answers ("seeds", seed, numbers), ("case", case) and ("kept", case, its input).

    Before each attempt the case is told, so that the parent knows what a dead worker died of;
    after it (outcome, signature of the find or None, its words).
    """
    try:
        target = target_named(name)
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
    """Without what libraries written in C have to say of damaged files."""
    stored = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stored, 2)
        os.close(stored)
        os.close(nowhere)


def _cases(target: Target, order: str, words: list[Any]) -> Iterator[tuple[Case, _Build]]:
    """Cases, and what makes their input."""
    if order == "seeds":
        seed, numbers = words
        for number in numbers:
            case = target.case(np.random.default_rng([seed, number]))
            yield case, partial(target.build, case)
    elif order == "case":
        yield words[0], partial(target.build, words[0])
    else:
        case, data = words
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
        return "find", signature, text, data
