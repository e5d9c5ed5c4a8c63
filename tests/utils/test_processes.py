from __future__ import annotations

import errno
import multiprocessing.synchronize
import os

import pytest
from joblib import delayed

from histodict.utils import dask_executor as cluster
from histodict.utils.parallel import ClusterError, can_share_locks, map_processes
from histodict.utils.validation import hint_surface, hints_for


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.ENOSYS])
def test_without_room_for_locks_the_work_is_done_here(monkeypatch, room, error):
    """As where /dev/shm is missing, read-only or a few kilobytes small."""
    made = 0
    lock = multiprocessing.synchronize.SemLock.__init__

    def make(self, *given, **named):
        nonlocal made
        made += 1
        if made > room:
            raise OSError(error, os.strerror(error))
        lock(self, *given, **named)

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", make)
    with pytest.warns(RuntimeWarning, match="/dev/shm"):
        results = map_processes((delayed(os.getpid)() for _ in range(3)), 2)
    assert set(results) == {os.getpid()}


def test_a_cluster_here_needs_room_for_locks(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "can_share_locks", lambda: False)
    with pytest.raises(ClusterError, match="/dev/shm"), cluster.open_cluster("local:2"):
        pass


def test_with_room_it_is_done_in_processes():
    assert can_share_locks()
    assert os.getpid() not in set(map_processes((delayed(os.getpid)() for _ in range(3)), 2))


def test_relative_paths_are_those_of_whoever_asks(tmp_path, monkeypatch):
    """The processes stay, and their user may have gone to another folder since."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found += map_processes([delayed(os.getcwd)() for _ in range(4)], 2)
    assert found == [str(tmp_path.resolve() / "one")] * 4 + [str(tmp_path.resolve() / "two")] * 4


def test_hints_are_for_the_surface_of_whoever_asks():
    found = []
    for surface in ("cli", "web"):
        with hints_for(surface):
            found += map_processes([delayed(hint_surface)() for _ in range(4)], 2)
    assert found == ["cli"] * 4 + ["web"] * 4
