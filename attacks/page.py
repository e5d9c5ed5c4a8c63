"""Start `histodict serve` in its own process, and send it requests like a browser."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import Running

_PATIENCE = 30.0  # seconds to wait for a response


@dataclass(frozen=True)
class Address:
    """Port and access token of a server."""

    port: int
    token: str


class Client:
    """One connection, kept open as long as the server allows."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None
        self._last = 0.0

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and body of the response; raise OSError or HTTPException without one."""
        # The server closes connections that are idle for 5 seconds.
        if time.monotonic() - self._last > 3.0:
            self.close()
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                "127.0.0.1", self._address.port, timeout=_PATIENCE
            )
        headers = {"Cookie": f"histodict-{self._address.port}={self._address.token}"}
        if method == "POST":
            headers |= {"X-Histodict": "1", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        self._last = time.monotonic()
        return response.status, content

    def get(self, path: str) -> Any:
        return self._json("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        return self._json("POST", path, body or {})

    def _json(self, method: str, path: str, body: Any) -> Any:
        status, content = self.request(method, path, body)
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {content[:300]!r}")
        return json.loads(content)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def running_server(folder: Path, workspace: Path) -> Iterator[tuple[Address, Running]]:
    """Yield address and process of a server, which is terminated afterwards."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    specified = [str(folder), "--workspace", str(workspace), "--port", str(port), "--no-browser"]
    text = workspace.with_name(f"{workspace.name}-said.txt")
    server = Running(["serve", *specified], text, workspace.parent)
    try:
        _wait_for(port, server)
        token = (workspace / "users" / "local" / "token").read_text()
        yield Address(port, token), server
        server.send(signal.SIGTERM)
        status = server.end(10)
        if status != 128 + signal.SIGTERM or "Traceback" in server.output():
            raise RuntimeError(f"the server ended with status {status}: {server.output()[-600:]}")
    finally:
        if not server.has_ended:
            server.remove()


def _wait_for(port: int, server: Running) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if server.has_ended:
                raise RuntimeError(f"the server ended at once: {server.output()}") from None
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


def process_status(pid: int, name: str) -> int:
    """Return a number of /proc/PID/status, such as VmRSS (kB); 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def memory_mb(pid: int, name: str = "VmRSS") -> float:
    return process_status(pid, name) / 1024


def n_open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
