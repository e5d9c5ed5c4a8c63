"""Reasons why one item of a batch has no result, as text: the other items go on."""

from __future__ import annotations

import traceback
from concurrent.futures import BrokenExecutor
from pathlib import Path

from .texts import one_line

# Errors whose message is written for the user.
EXPECTED = (ValueError, OSError, ImportError)
_PACKAGE = Path(__file__).parents[1]


def failure_reason(error: Exception) -> str:
    """Describe an error that was raised for one item, in a line.

    Errors that no code expects are defects, or come from files damaged in a new way: their type and
    the places in the source follow, so that they can be diagnosed without a traceback.

    Raises
    ------
    BrokenExecutor : the processes of the run have ended, which is no error of an item
    """
    if isinstance(error, BrokenExecutor):
        raise error
    if isinstance(error, MemoryError):
        what = one_line(error) or "an allocation failed"
        return f"there is not enough memory for it ({what}): end other programs, and run it again"
    if isinstance(error, EXPECTED):
        return str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    last = [f"{_short(at.filename)}:{at.lineno} ({at.name})" for at in (*own[-1:], *frames[-1:])]
    places = ", ".join(dict.fromkeys(last))
    return (
        f"unexpected {type(error).__name__}: {one_line(error)} [at {places}]: the file may be "
        "damaged; if it is not, this is a defect of histodict: report it with this line"
    )


def _short(filename: str) -> str:
    """The end of a path, without the place of an installation."""
    return "/".join(Path(filename).parts[-2:])
