"""Progress within one large image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ..execution.progress import Callback, Progress, cumulative_shares

Result = TypeVar("Result")

_LARGE = 16_000_000  # pixels; smaller images are done in one step


def report_windows(
    results: Iterable[Result],
    windows: Sequence[tuple[slice, slice]],
    size: tuple[int, int],
    callback: Callback,
) -> Iterator[Result]:
    """Yield the results of windows in order, and report those done of a large image.

    Parameters
    ----------
    results : iterable
        One result per window.
    windows : sequence of (rows, columns)
        Windows of the patch grid that may show tissue. A window counts by its number of patches.
    size : (int, int)
        Size of the image in pixels.
    callback : callable
        Called before the first window and after each one.
    """
    if math.prod(size) <= _LARGE or not windows:
        yield from results
        return
    work = cumulative_shares([float((r.stop - r.start) * (c.stop - c.start)) for r, c in windows])
    callback(Progress("slide", 0, len(windows), work=0.0))
    for done, result in enumerate(results, 1):
        yield result
        callback(Progress("slide", done, len(windows), work=work[done]))
