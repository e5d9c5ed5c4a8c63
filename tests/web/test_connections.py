"""Connections that never finish a request are closed after a while and block nobody."""

import contextlib
import socket
import time

import pytest

from .conftest import MISSING

pytest.importorskip("starlette", reason=MISSING)
pytest.importorskip("uvicorn", reason=MISSING)

from tests.web.thread_server import serve_in_thread

HEAD = b"POST /api/data HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Histodict: 1\r\n"


@pytest.fixture(scope="module")
def server(tissue, tmp_path_factory):
    limits = {"keep_alive": 1, "_MAX_REQUEST_SECONDS": 1.0, "_MAX_INCOMPLETE_REQUESTS": 8}
    with serve_in_thread(tmp_path_factory.mktemp("workspace"), [tissue], **limits) as server:
        yield server


@pytest.fixture
def connect(server):
    with contextlib.ExitStack() as stack:

        def opened(data: bytes) -> socket.socket:
            found = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            found.sendall(data)
            return found

        yield opened


def is_closed(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_incomplete_requests_are_closed(connect):
    incomplete = (
        b"",
        b"GET / HT",
        HEAD + b"Content-Length: 1000\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /static/app.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HT",
    )
    for data, connection in [(data, connect(data)) for data in incomplete]:
        assert is_closed(connection, 8), data


def test_slowly_sent_request_is_closed(connect):
    connection = connect(HEAD)
    started = time.monotonic()
    with pytest.raises(OSError):
        while time.monotonic() - started < 8:
            connection.sendall(b"X-A: b\r\n")
            time.sleep(0.1)


def test_many_idle_connections_do_not_block_others(connect, server):
    abstaining = [connect(b"GET / HTTP/1.1\r\nHost: ") for _ in range(40)]
    assert b"histodict" in server.get("/")
    assert is_closed(abstaining[0], 0.5)  # the oldest was closed


def test_complete_request_gets_a_response_after_a_pause(connect):
    connection = connect(b"GET /static/app.js HTTP/1.1\r\n")
    connection.sendall(b"Host: 127.0.0.1\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 401")
