"""Lock on a workspace, so that one server at a time writes to it.

WORKSPACE/server.lock holds the address, process id and machine of the server that has the lock. The
file stays when the server ends; the lock does not.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..execution.file_lock import lock_descriptor
from ..execution.texts import one_line

_NAME = "server.lock"
_MAX_BYTES = 10_000


class WorkspaceInUseError(OSError):
    """Another server uses the workspace; the message names its address."""


@contextmanager
def locked_workspace(workspace: Path, address: str) -> Iterator[None]:
    """Hold the lock of a workspace for a server at `address`.

    Raises
    ------
    WorkspaceInUseError
        Another server holds the lock.
    """
    # Thumbnails, labels and models are private to the user of this machine.
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(workspace / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, workspace)
        owner = {"address": address, "process": os.getpid(), "machine": platform.node()}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, workspace: Path) -> None:
    try:
        lock_descriptor(descriptor)
    except BlockingIOError as error:
        raise WorkspaceInUseError(
            f"{workspace}: another server uses this workspace{_describe_owner(descriptor)}. Use "
            "that one, or stop it first. For a second server give another --workspace: two on one "
            "workspace would overwrite each other's work"
        ) from error
    except OSError as error:
        words = (
            f"{workspace}: this file system cannot lock files ({one_line(error)}): make sure that "
            "no other server uses this workspace, as they would overwrite each other's work"
        )
        print(f"Warning: {words}", file=sys.stderr, flush=True)


def _describe_owner(descriptor: int) -> str:
    """Describe the server that holds the lock; empty if it is not known yet."""
    try:
        owner = json.loads(os.read(descriptor, _MAX_BYTES))
        where = f", {owner['address']} (process {owner['process']})"
        is_here = owner["machine"] == platform.node()
        return where if is_here else f"{where} on the machine {owner['machine']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ", which is just starting"
