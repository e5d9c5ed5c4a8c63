from __future__ import annotations

import errno
import multiprocessing.synchronize
import os

import pytest
from joblib import delayed

from histodict.utils import dask_executor as cluster
from histodict.utils.parallel import ClusterError, can_share_locks, map_processes
from histodict.utils.validation import hint_interface, hints_for


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.ENOSYS])
def test_work_runs_in_this_process_without_shared_locks(monkeypatch, room, error):
    """Simulates a missing, read-only or very small /dev/shm."""
    made = 0
    lock = multiprocessing.synchronize.SemLock.__init__

    def make(self, *args, **named):
        nonlocal made
        made += 1
        if made > room:
            raise OSError(error, os.strerror(error))
        lock(self, *args, **named)

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", make)
    with pytest.warns(RuntimeWarning, match="/dev/shm"):
        results = map_processes((delayed(os.getpid)() for _ in range(3)), 2)
    assert set(results) == {os.getpid()}


def test_local_cluster_without_shared_locks_is_refused(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "can_share_locks", lambda: False)
    with pytest.raises(ClusterError, match="/dev/shm"), cluster.open_cluster("local:2"):
        pass


def test_work_runs_in_other_processes_with_shared_locks():
    assert can_share_locks()
    assert os.getpid() not in set(map_processes((delayed(os.getpid)() for _ in range(3)), 2))


def test_relative_paths_follow_the_folder_of_the_caller(tmp_path, monkeypatch):
    """The worker processes persist while the caller changes its folder."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found += map_processes([delayed(os.getcwd)() for _ in range(4)], 2)
    assert found == [str(tmp_path.resolve() / "one")] * 4 + [str(tmp_path.resolve() / "two")] * 4


def test_hints_follow_the_surface_of_the_caller():
    found = []
    for surface in ("cli", "web"):
        with hints_for(surface):
            found += map_processes([delayed(hint_interface)() for _ in range(4)], 2)
    assert found == ["cli"] * 4 + ["web"] * 4
