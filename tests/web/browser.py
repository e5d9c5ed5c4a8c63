"""A server in its own process and a real Chromium, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


class Server:
    """`histodict serve` in a process that can be stopped, killed and restarted."""

    def __init__(
        self, workspace: Path, folders: list[Path], before: str = "", **options: Any
    ) -> None:
        """`before`: a line of Python that the process runs first."""
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.workspace = workspace
        specified = {"workspace": str(workspace), "port": self.port, "browser": False} | options
        self._source = (
            f"{before}\n"
            "from pathlib import Path\n"
            "from histodict.web.server import serve\n"
            f"given = {specified!r}\n"
            "given['workspace'] = Path(given['workspace'])\n"
            f"serve([Path(p) for p in {[str(folder) for folder in folders]!r}], **given)\n"
        )
        self.process: Any = None
        self._is_signed_in = False

    @property
    def link(self) -> str:
        """Return the output of the server."""
        token = (self.workspace / "users" / "local" / "token").read_text()
        return f"{self.address}/?token={token}"

    def get(self, path: str) -> bytes:
        """Send a request like a browser that has followed the link."""
        return self._send(urllib.request.Request(f"{self.address}{path}"))

    def post(self, path: str, body: Any = None) -> bytes:
        data, headers = json.dumps(body or {}).encode(), {"X-Histodict": "1"}
        return self._send(urllib.request.Request(f"{self.address}{path}", data, headers))

    def _send(self, request: urllib.request.Request) -> bytes:
        if not self._is_signed_in:
            self.opener.open(self.link, timeout=60).close()
            self._is_signed_in = True
        with self.opener.open(request, timeout=60) as response:
            data: bytes = response.read()
        return data

    def start(self) -> Server:
        self.process = self._start_process(self._source)
        for _ in range(1200):
            if self.process.poll() is not None:
                raise RuntimeError("the server ended at once")
            try:
                urllib.request.urlopen(self.address, timeout=60).close()
                return self
            except urllib.error.HTTPError:  # the server requires a token: it is running
                return self
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the server did not start")

    def _start_process(self, source: str) -> Any:
        return subprocess.Popen([sys.executable, "-c", source], env=dict(os.environ))

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class ForkedServer(Server):
    """Server that starts at once, as do the workers of its trainings; see `fork_server`."""

    def _start_process(self, source: str) -> Any:
        from tests.web.fork_server import ForkedProcess, run_source

        return ForkedProcess(run_source, source)


def wait_until(is_true: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "the condition was not reached"
        time.sleep(0.1)


def sign_in(page: Any, server: Server) -> None:
    """Follow the link and wait for the page."""
    page.goto(server.link)
    page.locator("#nav a").first.wait_for()


@contextmanager
def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def event_loop_of(browser: Any) -> Iterator[None]:
    """Return a context in which the browser can be used.

    Playwright marks its event loop as the running one of this thread. Outside of the context, other
    tests can run their own.
    """
    asyncio._set_running_loop(browser._loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)
