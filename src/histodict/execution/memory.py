"""How much memory may still be taken, before it is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Bytes that this process may still take, by all limits it is under; None where nobody says.

    What the machine has free; what the process's control groups, as of a container or of a batch
    system, leave it; and what `ulimit -v` does.
    """
    found = [*_of_machine(), *_of_groups(), *_of_process()]
    return max(0, min(found)) if found else None


def _of_machine() -> Iterator[int]:
    kib = _table(_PROC / "meminfo").get("MemAvailable:")
    if kib is not None:
        yield kib * 1024
        return
    with suppress(AttributeError, ValueError, OSError):  # systems without these names
        yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups() -> Iterator[int]:
    """What each group above the process leaves; the files of both versions of control groups."""
    for folder, names in _groups():
        limit, used = (_number(folder / name) for name in names)
        if limit is not None and used is not None:
            # Pages of files that nobody uses count as used, and are given up on demand.
            stat = _table(folder / "memory.stat")
            yield limit - used + stat.get("inactive_file", stat.get("total_inactive_file", 0))


def _groups() -> Iterator[tuple[Path, tuple[str, str]]]:
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text("utf-8").splitlines():
            number, kinds, place = line.split(":", 2)
            if number == "0":
                root, names = _CGROUPS, ("memory.max", "memory.current")
            elif "memory" in kinds.split(","):
                root = _CGROUPS / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            group = root / place.strip("/")
            for folder in (group, *group.parents):
                yield folder, names
                if folder == root:
                    break


def _of_process() -> Iterator[int]:
    with suppress(ImportError, OSError, KeyError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            yield limit - _table(_PROC / "self" / "status")["VmSize:"] * 1024


def _table(path: Path) -> dict[str, int]:
    """The lines "name number …" of a file; none if it is not there."""
    try:
        lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number in a file; None if it is not there, or says "max"."""
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
