"""`serve` as a process: the demonstration without data, and who can reach it."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from .conftest import MISSING

pytest.importorskip("starlette", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from tests.web.browser import Server


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("workspace"), [], demo=True).start()
    yield server
    server.stop()


def own_address() -> str | None:
    """This machine's address towards others, if it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found: str = probe.getsockname()[0]
        return None if found.startswith("127.") else found


def test_the_demonstration_needs_no_data(demo):
    session = json.load(urllib.request.urlopen(f"{demo.address}/api/session"))
    data = json.load(urllib.request.urlopen(f"{demo.address}/api/data/{session['demo']}"))
    assert data["classes"] == ["healthy", "inflamed"]
    assert len({image["patient"] for image in data["images"]}) == 8
    page = urllib.request.urlopen(demo.address).read().decode()
    assert "histodict" in page and "//" not in page.replace("http://www.w3.org", "")


def test_others_cannot_reach_it_by_default(demo):
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but its own")
    with pytest.raises(OSError), socket.create_connection((address, demo.port), timeout=2):
        pass


def test_on_another_address_a_token_is_asked_for(tissue, tmp_path):
    server = Server(tmp_path, [tissue], host="0.0.0.0").start()
    try:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{server.address}/api/session")
        token = (tmp_path / "users" / "local" / "token").read_text()
        jar = urllib.request.HTTPCookieProcessor()
        opener = urllib.request.build_opener(jar)
        opener.open(f"{server.address}/?token={token}").close()
        assert json.load(opener.open(f"{server.address}/api/session"))["user"] == "local"
    finally:
        server.stop()
