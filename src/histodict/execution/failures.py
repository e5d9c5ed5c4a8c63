"""Text of an error of one item of a batch; the other items continue."""

from __future__ import annotations

import traceback
from concurrent.futures import BrokenExecutor
from pathlib import Path

from .texts import shorten

# Errors whose message is written for the user.
EXPECTED = (ValueError, OSError, ImportError)
_PACKAGE = Path(__file__).parents[1]


def failure_reason(error: Exception) -> str:
    """Describe an error of one item in one line.

    The line of an unexpected error includes its type and its places in the source, so that it can
    be diagnosed without a traceback.

    Raises
    ------
    BrokenExecutor : the worker processes have ended; the whole run fails
    """
    if isinstance(error, BrokenExecutor):
        raise error
    if isinstance(error, MemoryError):
        what = shorten(error) or "an allocation failed"
        return f"not enough memory ({what}): close other programs and run the command again"
    if isinstance(error, EXPECTED):
        return str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    last = [f"{_short(at.filename)}:{at.lineno} ({at.name})" for at in (*own[-1:], *frames[-1:])]
    places = ", ".join(dict.fromkeys(last))
    return (
        f"unexpected {type(error).__name__}: {shorten(error)} [at {places}]: the file may be "
        "damaged; if it is not, this is a defect of histodict: report it with this line"
    )


def _short(filename: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(Path(filename).parts[-2:])
