"""Whether images and feature files of which chunks are missing may be read.

An array that is stored in chunks reads as its fill value where a chunk is missing, as after an
incomplete copy. Nobody can tell that from chunks that were never written, so it is refused unless
it is allowed here.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_N_ALLOWING = [0]
_WARNED: set[str] = set()
ALLOW = "--allow-missing-chunks (in Python histodict.allow_missing_chunks)"


@contextmanager
def allow_missing_chunks(allow: bool = True) -> Iterator[None]:
    """Read images and feature files of which chunks are missing, in this process.

    Missing chunks count as their array's fill value, mostly 0: black pixels, vectors of zeros.
    There is a warning for each file.

    Parameters
    ----------
    allow : if False, nothing changes

    Examples
    --------
    >>> with histodict.allow_missing_chunks():
    ...     answer = model.predict("incomplete.ome.zarr")
    """
    with _LOCK:
        _N_ALLOWING[0] += bool(allow)
    try:
        yield
    finally:
        with _LOCK:
            _N_ALLOWING[0] -= bool(allow)
            if not _N_ALLOWING[0]:
                _WARNED.clear()


def missing_chunks_allowed() -> bool:
    return _N_ALLOWING[0] > 0


def check_missing_chunks(name: object, n_missing: int, n_chunks: int) -> str:
    """Return why a file is refused of which chunks are missing; warn if that is allowed."""
    if not n_missing:
        return ""
    words = f"{name}: {n_missing} of its {n_chunks} chunks are missing"
    if not missing_chunks_allowed():
        return (
            f"{words}: the copy is incomplete, or they hold nothing but the fill value and were "
            "never written, which cannot be told apart. Copy it again, or go on as if they held "
            f"the fill value: {ALLOW}"
        )
    with _LOCK:
        is_new = words not in _WARNED
        _WARNED.add(words)
    if is_new:
        warnings.warn(f"{words} and count as their fill value", stacklevel=2)
    return ""
