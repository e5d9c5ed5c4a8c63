"""Tests of temporary folders: those of killed processes are removed by later ones."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest

from histodict.utils.files import temporary_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks of folders")

WORKER = """
import time
from histodict.utils.files import temporary_folder

with temporary_folder("panel-") as folder:
    (folder / "large.npy").touch()
    print(folder.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temp_root(tmp_path, monkeypatch):
    """The system's folder for temporary files, also for child processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def set_old_time(folder):
    os.utime(folder, (0, 0))


def names(temp_root):
    return {path.name for path in temp_root.iterdir()}


def test_folder_is_removed_at_the_end(temp_root):
    with temporary_folder("panel-") as folder:
        assert names(temp_root) == {folder.name}
        (folder / "file").touch()
    assert names(temp_root) == set()


def test_folder_of_a_killed_process_is_removed_and_a_used_one_remains(temp_root):
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE) as worker:
        left = temp_root / worker.stdout.readline().decode().strip()
        set_old_time(left)
        with temporary_folder("panel-"):
            assert (left / "large.npy").exists()
        worker.send_signal(signal.SIGKILL)
    set_old_time(left)
    with temporary_folder("other-"):
        assert left.exists()
    with temporary_folder("panel-") as own:
        assert names(temp_root) == {own.name}


def test_recently_created_folder_remains(temp_root):
    """The process may not have locked it yet."""
    young = temp_root / f"panel-{platform.node()}-young"
    young.mkdir()
    with temporary_folder("panel-"):
        assert young.exists()
    set_old_time(young)
    with temporary_folder("panel-"):
        assert not young.exists()


def test_link_is_not_followed(temp_root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").touch()
    link = temp_root / "panel-link"
    link.symlink_to(elsewhere)
    os.utime(link, (0, 0), follow_symlinks=False)
    with temporary_folder("panel-"):
        assert (elsewhere / "mine").exists()


def test_folder_of_another_machine_remains(temp_root, monkeypatch):
    """Locks of other machines may not be visible here."""
    with temporary_folder("panel-") as own:
        theirs = temp_root / own.name.replace(platform.node(), "another")
    theirs.mkdir()
    set_old_time(theirs)
    with temporary_folder("panel-"):
        assert theirs.exists()


def test_nothing_is_removed_without_file_locks(temp_root, monkeypatch):
    def refuse(*args):
        raise OSError("not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with temporary_folder("panel-") as own:
        set_old_time(own)
        with temporary_folder("panel-"):
            assert own.exists()
