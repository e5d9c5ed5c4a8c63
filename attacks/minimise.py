"""The fewest edits that still give a find."""

from __future__ import annotations

from dataclasses import replace

from .trials import Trial, Worker

_MOST_TRIES = 80


def minimised(worker: Worker, found: Trial) -> Trial | None:
    """The find with edits left out as long as it stays the same; None if it does not come again.

    First halves are left out, then quarters, and so on (Zeller, Hildebrandt, 2002).
    """
    best = worker.try_case(found.case)
    if best.signature != found.signature:
        return None
    pieces, tries = 2, 0
    while len(best.case.edits) > 1 and tries < _MOST_TRIES:
        edits = best.case.edits
        size = -(-len(edits) // pieces)
        for start in range(0, len(edits), size):
            fewer = edits[:start] + edits[start + size :]
            train_test = worker.try_case(replace(best.case, edits=fewer))
            tries += 1
            if train_test.signature == found.signature:
                best, pieces = train_test, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(edits))
    return best
