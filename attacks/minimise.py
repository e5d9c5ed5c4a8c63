"""Minimise the edits of a failing case."""

from __future__ import annotations

from dataclasses import replace

from .case_runner import CaseResult, Worker

_MOST_TRIES = 80


def minimise(worker: Worker, failure: CaseResult) -> CaseResult | None:
    """Return the failure with as few edits as possible; None if it is not reproduced.

    Halves are left out first, then quarters, and so on (Zeller, Hildebrandt, 2002).
    """
    best = worker.run_case(failure.case)
    if best.signature != failure.signature:
        return None
    pieces, tries = 2, 0
    while len(best.case.edits) > 1 and tries < _MOST_TRIES:
        edits = best.case.edits
        size = -(-len(edits) // pieces)
        for start in range(0, len(edits), size):
            fewer = edits[:start] + edits[start + size :]
            result = worker.run_case(replace(best.case, edits=fewer))
            tries += 1
            if result.signature == failure.signature:
                best, pieces = result, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(edits))
    return best
