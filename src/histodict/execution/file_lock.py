"""Exclusive file locks, released by the operating system when the process ends."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 2**30  # Windows makes locked bytes unreadable to others: lock one beyond the content


def lock_descriptor(descriptor: int) -> None:
    """Lock an open file without waiting.

    Raises
    ------
    BlockingIOError
        Another process, or another descriptor of this one, holds the lock.
    OSError
        The file system has no locks.
    """
    if sys.platform == "win32":
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
