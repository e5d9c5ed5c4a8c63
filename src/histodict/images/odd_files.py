"""Directory entries that are not regular files: dangling links, pipes, sockets, devices."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

NO_SUCH_FILE = "no such file"
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_ERRORS = {
    errno.ELOOP: "a cycle of links",
    errno.EACCES: "not readable",
    errno.ENAMETOOLONG: "a name that is too long",
}


def odd_kind(path: Path) -> str:
    """Return what a path is if it is neither a file nor a folder; else an empty string.

    The path is not opened, as opening a pipe blocks until another process writes to it.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a dangling link" if path.is_symlink() else NO_SUCH_FILE
    except OSError as error:
        return _ERRORS.get(error.errno or 0, error.strerror or str(error))
    return _KINDS.get(stat.S_IFMT(mode), "")


def is_closed(folder: Path) -> bool:
    """Return whether it is a folder without read permission."""
    return os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)


def in_brackets(kind: str) -> str:
    return f" ({kind})" if kind else ""
