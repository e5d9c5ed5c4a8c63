"""Tests of the command `serve`: the demonstration without data, and who can access it."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from functools import partial
from types import SimpleNamespace

import pytest

from .conftest import MISSING

pytest.importorskip("starlette", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from histodict.web import server, workspace
from histodict.web.workspace import WorkspaceInUseError, lock_workspace
from tests.web.browser import free_port
from tests.web.thread_server import serve_in_thread


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("workspace")
    small = partial(server.cached_synthetic_dataset, size=(160, 120))
    with serve_in_thread(workspace, [], demo=True, cached_synthetic_dataset=small) as started:
        yield started


def own_address() -> str | None:
    """Return this machine's external address, if it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found: str = probe.getsockname()[0]
        return None if found.startswith("127.") else found


def test_demonstration_needs_no_data(demo):
    session = json.loads(demo.get("/api/session"))
    data = json.loads(demo.get(f"/api/data/{session['demo']}"))
    assert data["classes"] == ["healthy", "inflamed"]
    assert len({image["patient"] for image in data["images"]}) == 8
    page = demo.get("/").decode()
    assert "histodict" in page and "//" not in page.replace("http://www.w3.org", "")


def test_other_machines_have_no_access_by_default(demo):
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but its own")
    with pytest.raises(OSError), socket.create_connection((address, demo.port), timeout=2):
        pass


def test_other_users_of_this_machine_need_the_token(demo):
    for path in ("/", "/api/session", "/static/app.js"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{demo.address}{path}")
    for name in ("token", "open.html"):
        assert (demo.workspace / "users" / "local" / name).stat().st_mode & 0o077 == 0


def test_token_is_not_sent_to_a_port_of_another_program(tmp_path, monkeypatch, capsys):
    started = []
    timers = SimpleNamespace(Timer=lambda *args: started.append(args))
    monkeypatch.setattr(server, "threading", timers)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        with pytest.raises(OSError, match=r"could not start .* give another --port"):
            server.serve([tmp_path], workspace=tmp_path / "w", port=port)
    assert started == [] and "token" not in capsys.readouterr().out


def test_small_responses_are_sent_at_once():
    """Without an explicit protocol, asyncio leaves Nagle's algorithm on: 40 ms per response."""
    with server._listen("127.0.0.1", 0, "") as listener:
        assert listener.proto == socket.IPPROTO_TCP


# --- one server per workspace -------------------------------------------------------------------


@pytest.fixture
def no_second_server(monkeypatch):
    """Fail at once if a second server starts, which would otherwise run without end."""
    monkeypatch.setattr(server, "make_app", lambda *args, **options: pytest.fail("it started"))


@pytest.mark.usefixtures("no_second_server")
def test_second_server_on_a_workspace_is_refused_with_the_address_of_the_first(demo):
    for port in (free_port(), demo.port):
        with pytest.raises(OSError, match="another server uses this workspace") as caught:
            server.serve([], workspace=demo.workspace, port=port, browser=False, demo=True)
        assert f"{demo.address}/ (process {os.getpid()})" in str(caught.value)
        assert "needs another --workspace" in str(caught.value)


@pytest.mark.usefixtures("no_second_server")
def test_workspace_is_locked_also_by_another_path(demo, tmp_path):
    (tmp_path / "link").symlink_to(demo.workspace)
    with pytest.raises(OSError, match="another server uses"):
        server.serve([], workspace=tmp_path / "link", port=free_port(), browser=False)


def test_port_of_an_own_server_is_named_as_such(demo, tmp_path):
    with pytest.raises(OSError, match="A histodict server with another workspace") as caught:
        server.serve([tmp_path], workspace=tmp_path / "w", port=demo.port, browser=False)
    assert "give another --port" in str(caught.value)


def test_lock_ends_with_its_process(tmp_path):
    source = (
        "import sys; from pathlib import Path; from histodict.web import workspace as w\n"
        "with w.lock_workspace(Path(sys.argv[1]), 'http://first/'):\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    specified = [sys.executable, "-c", source, str(tmp_path)]
    with subprocess.Popen(specified, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"locked\n"
        lock = lock_workspace(tmp_path, "http://second/")
        with pytest.raises(WorkspaceInUseError, match=rf"http://first/ \(process {first.pid}\)"):
            lock.__enter__()
        first.kill()
        first.wait()
        with lock_workspace(tmp_path, "http://second/"):
            description = (tmp_path / "server.lock").read_text()
    assert "second" in description and "first" not in description


def test_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, capsys):
    def refuse(descriptor):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(workspace, "lock_descriptor", refuse)
    with lock_workspace(tmp_path, "http://first/"):
        assert "cannot lock files" in capsys.readouterr().err
