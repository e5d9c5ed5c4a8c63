"""Setting to allow images and feature files with missing chunks.

A missing chunk of an array reads as the fill value. An incomplete copy cannot be distinguished from
a chunk that was never written. Arrays with missing chunks therefore raise an error unless missing
chunks are allowed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from .validation import hint

_LOCK = threading.Lock()
_N_ACTIVE_CONTEXTS = [0]  # number of active contexts that allow missing chunks
_WARNED_MESSAGES: set[str] = set()


@contextmanager
def allow_missing_chunks(allow: bool = True) -> Iterator[None]:
    """Return a context in which this process accepts images and feature files with missing chunks.

    Missing chunks count as the fill value of their array, usually 0: black pixels, vectors of
    zeros. A warning is issued for each file.

    Parameters
    ----------
    allow : whether to allow missing chunks; if False, the context has no effect

    Examples
    --------
    >>> with histodict.allow_missing_chunks():
    ...     prediction = model.predict("incomplete.ome.zarr")
    """
    with _LOCK:
        _N_ACTIVE_CONTEXTS[0] += bool(allow)
    try:
        yield
    finally:
        with _LOCK:
            _N_ACTIVE_CONTEXTS[0] -= bool(allow)
            if not _N_ACTIVE_CONTEXTS[0]:
                _WARNED_MESSAGES.clear()


def missing_chunks_allowed() -> bool:
    """Return whether missing chunks are allowed."""
    return _N_ACTIVE_CONTEXTS[0] > 0


def check_missing_chunks(name: object, n_missing: int, n_chunks: int) -> str:
    """Return the error message for missing chunks of the array or file `name`; "" if none.

    If missing chunks are allowed, warn and return "".
    """
    if not n_missing:
        return ""
    message = f"{name}: {n_missing} of {n_chunks} chunks are missing"
    if not missing_chunks_allowed():
        remedy = hint(
            python=", or use histodict.allow_missing_chunks to read them as the fill value",
            cli=", or use --allow-missing-chunks to read them as the fill value",
            web="",
        )
        return (
            f"{message}. The copy is incomplete, or these chunks contain only the fill value "
            f"and were never written. Copy the data again{remedy}"
        )
    with _LOCK:
        is_new = message not in _WARNED_MESSAGES
        _WARNED_MESSAGES.add(message)
    if is_new:
        warnings.warn(f"{message}; they are read as the fill value", stacklevel=2)
    return ""
