"""A server that is stopped or killed leaves no worker process and loses no training."""

import os
import signal
import subprocess
import sys
import time

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.web.workspace import read_json
from tests.web.app import open_client, open_data, start
from tests.web.browser import Server
from tests.web.test_jobs import is_running, pid_of

LONG = {"n_atoms": "40", "n_iter": "5000", "tol": "0", "patches_per_class": "400", "patch_px": "12"}
SLOW = (
    "import time; from histodict.web.api import data as api_data; "
    "api_data.opened_sources = lambda *given: time.sleep(60)"
)
# The queue of a server without its web application, which starts in a tenth of the time.
QUEUE = (
    "import sys, time; from pathlib import Path; from histodict.web.jobs import JobQueue\n"
    "from histodict.web.workspace import UserWorkspace\n"
    "JobQueue().start([UserWorkspace.open(Path(sys.argv[1]), 'local')]); time.sleep(600)\n"
)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and ps are not Windows'")


def wait_until(is_true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_true():
            return True
        time.sleep(0.05)
    return False


def wait_for_worker(folder) -> int:
    """Return the worker of the job once there is one."""
    lock = folder / "worker.lock"
    assert wait_until(lambda: lock.exists() and lock.read_text(), 60)
    return pid_of(folder)


def assert_low_priority(worker: int, server: int) -> None:
    """The worker has a lower priority, in the session of the server, within which Linux applies
    it."""
    assert os.getsid(worker) == os.getsid(server)
    assert os.getpgid(worker) == worker  # Ctrl+C does not reach it
    urgent = os.getpriority(os.PRIO_PROCESS, server)
    assert wait_until(lambda: os.getpriority(os.PRIO_PROCESS, worker) >= min(19, urgent + 10), 30)


def test_workers_end_with_the_server_and_the_next_one_resumes(tissue, tmp_path):
    """The queue of the first is killed with its process; the second server is interrupted during a
    request of a minute, which does not delay the shutdown."""
    client = open_client([tissue], tmp_path)
    job = start(client, open_data(client), settings=LONG, test_folds=0)
    folder = tmp_path / "users" / "local" / "jobs" / job
    with subprocess.Popen([sys.executable, "-c", QUEUE, str(tmp_path)]) as first:
        try:
            worker = wait_for_worker(folder)
        finally:
            first.kill()
    assert wait_until(lambda: not is_running(worker), 30)
    assert read_json(folder / "state.json")["state"] == "waiting"

    (folder / "worker.lock").unlink()
    second = Server(tmp_path, [tissue], before=SLOW)
    try:
        second.start()
        worker = wait_for_worker(folder)
        assert_low_priority(worker, second.process.pid)
        with pytest.raises(OSError):
            second.opener.open(second.link, timeout=60).close()
            second.opener.open(f"{second.address}/api/session", timeout=0.5)
        started = time.monotonic()
        second.process.send_signal(signal.SIGINT)
        assert second.process.wait(30) == 128 + signal.SIGINT
        assert time.monotonic() - started < 20
        assert wait_until(lambda: not is_running(worker), 30)
        assert read_json(folder / "state.json")["state"] == "waiting"
    finally:
        second.stop()
