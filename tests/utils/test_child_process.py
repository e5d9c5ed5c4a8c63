"""Tests of child processes and their exit with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "getppid"), reason="asks for the parent's number")

# A child that does not watch its parent and never ends.
IDLE = """
import time
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-m", "histodict.utils.child_process", str(os.getpid()), "idle_child"]
print(subprocess.Popen(command).pid, flush=True)
time.sleep(60)
"""


def test_child_ends_when_its_parent_is_killed(tmp_path):
    (tmp_path / "idle_child.py").write_text(IDLE)
    kill_parent_of_ready_child([sys.executable, "-c", PARENT], tmp_path)


SPEECHLESS = """
import os, subprocess, sys, time
from histodict.utils.child_process import exit_with_parent

def words():
    raise OSError(28, "No space left on device")

if len(sys.argv) > 1:
    exit_with_parent(int(sys.argv[1]), words)
    print("ready", flush=True)
    time.sleep(60)
child = subprocess.Popen([sys.executable, __file__, str(os.getpid())], stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_child_that_cannot_write_its_output_ends(tmp_path):
    (tmp_path / "speechless.py").write_text(SPEECHLESS)
    kill_parent_of_ready_child([sys.executable, str(tmp_path / "speechless.py")], tmp_path)


def kill_parent_of_ready_child(command, folder):
    """Start a parent, kill it once its child has printed "ready", and wait until the child ends."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        lines = {parent.stdout.readline().strip() for _ in range(2)}
        assert b"ready" in lines
        (child,) = map(int, lines - {b"ready"})
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
    wait_until_ended(child)


def wait_until_ended(pid):
    deadline = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
