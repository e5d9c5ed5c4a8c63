"""A server that is stopped or killed leaves no worker process and loses no training."""

import json
import os
import signal
import sys
import time

import pytest

from .conftest import MISSING

pytest.importorskip("starlette.testclient", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.web.workspace import read_json
from tests.web.browser import Server
from tests.web.test_jobs import LONG, is_running, pid_of

SLOW = (
    "import time; from histodict.web.api import data as api_data; "
    "api_data.opened_sources = lambda *given: time.sleep(60)"
)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and ps are not Windows'")


def wait_until(is_true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_true():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def server(tissue, tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("workspace"), [tissue])
    yield server
    server.stop()


@pytest.fixture(scope="module")
def job(server):
    server.start()
    data = json.loads(server.post("/api/data", {"folder_index": 0, "relative_path": "tissue"}))[
        "id"
    ]
    requested = {"data": data, "preset": "quick", "settings": LONG, "test_folds": 0}
    return json.loads(server.post("/api/jobs", requested))["id"]


def assert_low_priority(worker: int, server: int) -> None:
    """The worker has a lower priority, in the session of the server, within which Linux applies
    it."""
    assert os.getsid(worker) == os.getsid(server)
    assert os.getpgid(worker) == worker  # Ctrl+C does not reach it
    urgent = os.getpriority(os.PRIO_PROCESS, server)
    assert wait_until(lambda: os.getpriority(os.PRIO_PROCESS, worker) >= min(19, urgent + 10), 30)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_workers_end_with_the_server_and_the_next_one_resumes(server, job, how):
    folder = server.workspace / "users" / "local" / "jobs" / job
    if server.process.poll() is not None:
        server.start()
    (folder / "worker.lock").unlink(missing_ok=True)
    assert wait_until((folder / "worker.lock").exists, 30)  # also after the previous end
    pid = wait_until(lambda: (folder / "worker.lock").read_text(), 30) and pid_of(folder)
    if how == "SIGTERM":
        assert_low_priority(pid, server.process.pid)
    os.kill(server.process.pid, signal.Signals[how])
    server.process.wait(30)
    assert wait_until(lambda: not is_running(pid), 30)
    assert read_json(folder / "state.json")["state"] == "waiting"


def test_running_request_does_not_delay_shutdown(tissue, tmp_path):
    """For example a request that takes a minute."""
    server = Server(tmp_path, [tissue], before=SLOW).start()
    with pytest.raises(OSError):
        server.opener.open(server.link, timeout=60).close()
        server.opener.open(f"{server.address}/api/session", timeout=2)
    started = time.monotonic()
    os.kill(server.process.pid, signal.SIGINT)
    assert server.process.wait(30) == 128 + signal.SIGINT
    assert time.monotonic() - started < 20
