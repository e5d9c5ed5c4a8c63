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
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-m", "histodict.utils.child_process", str(os.getpid())]
child = subprocess.Popen([*command, "http.server", "0", "--bind", "127.0.0.1"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_child_ends_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        time.sleep(1)
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
    wait_until_ended(child)


SPEECHLESS = """
import os, subprocess, sys, time
from histodict.utils.child_process import exit_with_parent

def words():
    raise OSError(28, "No space left on device")

if len(sys.argv) > 1:
    exit_with_parent(int(sys.argv[1]), words)
    time.sleep(60)
child = subprocess.Popen([sys.executable, __file__, str(os.getpid())], stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_child_that_cannot_write_its_output_ends(tmp_path):
    (tmp_path / "speechless.py").write_text(SPEECHLESS)
    command = [sys.executable, str(tmp_path / "speechless.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        time.sleep(1)
        assert is_alive(child)  # ensures that there is a child to end
        parent.send_signal(signal.SIGKILL)
    wait_until_ended(child)


def wait_until_ended(pid):
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
