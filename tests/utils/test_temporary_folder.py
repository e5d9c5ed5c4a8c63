"""What a killed process leaves in the temporary folder is removed by the next one."""

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
def place(tmp_path, monkeypatch):
    """The temporary folder, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def made_long_ago(folder):
    os.utime(folder, (0, 0))


def names(place):
    return {path.name for path in place.iterdir()}


def test_a_folder_is_there_and_then_gone(place):
    with temporary_folder("panel-") as folder:
        assert names(place) == {folder.name}
        (folder / "file").touch()
    assert names(place) == set()


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(place):
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE) as worker:
        left = place / worker.stdout.readline().decode().strip()
        made_long_ago(left)
        with temporary_folder("panel-"):
            assert (left / "large.npy").exists()
        worker.send_signal(signal.SIGKILL)
    made_long_ago(left)
    with temporary_folder("other-"):
        assert left.exists()
    with temporary_folder("panel-") as own:
        assert names(place) == {own.name}


def test_one_that_was_made_just_now_stays(place):
    """Its owner may not have locked it yet."""
    young = place / f"panel-{platform.node()}-young"
    young.mkdir()
    with temporary_folder("panel-"):
        assert young.exists()
    made_long_ago(young)
    with temporary_folder("panel-"):
        assert not young.exists()


def test_a_link_is_not_followed(place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").touch()
    link = place / "panel-link"
    link.symlink_to(elsewhere)
    os.utime(link, (0, 0), follow_symlinks=False)
    with temporary_folder("panel-"):
        assert (elsewhere / "mine").exists()


def test_another_machine_s_folder_is_left_alone(place, monkeypatch):
    """Whose lock may not be seen here."""
    with temporary_folder("panel-") as own:
        theirs = place / own.name.replace(platform.node(), "another")
    theirs.mkdir()
    made_long_ago(theirs)
    with temporary_folder("panel-"):
        assert theirs.exists()


def test_where_folders_cannot_be_locked_work_goes_on_and_nothing_is_swept(place, monkeypatch):
    def refuse(*given):
        raise OSError("not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with temporary_folder("panel-") as own:
        made_long_ago(own)
        with temporary_folder("panel-"):
            assert own.exists()
