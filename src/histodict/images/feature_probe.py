"""HDF5 files are looked at in another process first, which a damaged file may kill or hang.

What that one has survived, head, attributes and positions, is then read in this process. Where one
cannot wait for a pipe (Windows), nobody looks first.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ..execution.files import file_key
from .errors import ImageError

ANSWER_S = 60.0
_LOCK = threading.Lock()
_CHILDREN: dict[int, subprocess.Popen[str]] = {}  # by process: a forked one has none


def look_first(path: Path) -> None:
    """Raises ImageError if that does not end well; once, as long as the file stays as it is."""
    if os.name == "posix":
        _look(path, path.absolute(), repr(file_key(path)))


@lru_cache(maxsize=100_000)
def _look(path: Path, place: Path, state: str) -> None:
    with _LOCK:
        child = _CHILDREN.get(os.getpid()) or _start()
        assert child.stdin and child.stdout
        try:
            child.stdin.write(json.dumps(str(place)) + "\n")
            child.stdin.flush()
            if select.select([child.stdout], [], [], ANSWER_S)[0] and child.stdout.readline():
                return
        except OSError:
            pass
        _end()
    raise ImageError(
        f"{path}: is damaged: the library for HDF5 hangs or ends on it. Compute its features again"
    )


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "histodict.execution.child", str(os.getpid())]
    child = subprocess.Popen(
        [*command, "histodict.images.feature_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # It must find what we have found, however we came by it.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    _CHILDREN[os.getpid()] = child
    return child


@atexit.register
def _end() -> None:
    child = _CHILDREN.pop(os.getpid(), None)
    if child is not None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # of what was still to be written
                    pipe.close()
