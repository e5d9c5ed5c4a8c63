"""Web application, authentication, connection limits and the `serve` function.

Authentication:

- Every request needs a token, from the cookie that the user's link sets, because other users of
  the machine can reach its ports.
- A server for the local machine answers only to local host names, so that a page elsewhere cannot
  reach it through DNS rebinding.
- Requests that change something must carry a header that pages of other origins cannot send.

Connections: uvicorn has no time limit for an incomplete request and answers 503 beyond
`limit_concurrency`, even if the other connections are idle. Here, a request must be complete a
fixed time after its first byte or, for the first request, after the connection is made. The number
of incomplete requests is limited; a new one replaces the oldest, so that stalled connections do not
block other users.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import http.client
import os
import re
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
import webbrowser
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import ClassVar

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..synthetic.dataset import cached_synthetic_dataset
from ..utils.text_io import shorten
from ..utils.validation import hints_for
from .api import annotate as api_annotate
from .api import data as api_data
from .api import model as api_model
from .api import trainings as api_jobs
from .api import viewer as api_viewer
from .datasets import open_dataset
from .request import AppState
from .workspace import DataFolders, UserWorkspace, lock_workspace

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/\\?#\s]+))(?::([0-9]{1,5}))?")
CSRF_HEADER = "x-histodict"
TOKEN_NEEDED = "a token is needed: open the link that `histodict serve` printed for you"
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AuthMiddleware:
    """ASGI middleware that authenticates users and adds security headers to responses."""

    def __init__(
        self, app: ASGIApp, users: Mapping[str, UserWorkspace], accepts_remote_hosts: bool
    ) -> None:
        """Create the middleware.

        Parameters
        ----------
        app : application that handles authenticated requests
        users : workspace of each user, by token
        accepts_remote_hosts : whether other machines may connect, under any host name
        """
        self._app = app
        self._users = users
        self._accepts_remote_hosts = accepts_remote_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass authenticated HTTP requests to the application; respond to others with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        rejection = self._authenticate(Request(scope))
        await (self._app if rejection is None else rejection)(scope, receive, send_secured)

    def _authenticate(self, request: Request) -> Response | None:
        """Set the user of the request; return None, or the response if it is not authenticated."""
        host = _HOST.fullmatch(request.headers.get("host", ""))
        if host is None:
            return PlainTextResponse("the request has no Host header", 400)
        name = str(host[1] or host[2]).lower()
        if not self._accepts_remote_hosts and name not in LOCAL_NAMES:
            return PlainTextResponse(
                "this server accepts requests to 127.0.0.1 and localhost only", 403
            )
        if request.method not in ("GET", "HEAD") and not _is_same_origin(request.headers):
            return PlainTextResponse("changes are accepted from the pages of histodict only", 403)
        # Cookies are shared between ports: servers on one machine must not overwrite each other's.
        cookie = f"histodict-{int(host[3] or 80)}"
        request.state.user = self._user_with_token(request.cookies.get(cookie, ""))
        return None if request.state.user is not None else self._sign_in(request, cookie)

    def _user_with_token(self, candidate: str) -> UserWorkspace | None:
        match = None
        for token, user in self._users.items():  # no early exit: timing reveals nothing
            if hmac.compare_digest(token.encode(), candidate.encode()):
                match = user
        return match

    def _sign_in(self, request: Request, cookie: str) -> Response:
        """Return a response that sets the cookie to the token of the link, or an error response."""
        token = request.query_params.get("token", "")
        if request.scope["path"] != "/" or self._user_with_token(token) is None:
            return PlainTextResponse(TOKEN_NEEDED, 401)
        # Strict cookies are not sent after a redirect that began at a link elsewhere.
        response = HTMLResponse('<meta http-equiv="refresh" content="0;url=/">')
        response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response


def _is_same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    same = origin is None or origin.partition("://")[2] == headers.get("host")
    return same and CSRF_HEADER in headers


_DEMO_PATIENTS = 8
_DEMO_IMAGES = 4
# Seconds for which a thread may hold the interpreter lock; about the time of most requests.
_SWITCH_INTERVAL = 0.001
_GC_THRESHOLD = 20_000, 20, 20  # allocations and collections, see gc.set_threshold
_GRACE_PERIOD = 1.0  # seconds for unfinished requests after a signal
_MAX_SHUTDOWN = 4.0  # seconds after a signal until the process is ended
_STATIC_FOLDER = Path(str(files(__package__) / "static"))


def make_app(
    folders: Sequence[Path],
    workspace: Path,
    *,
    users: Sequence[str] = (),
    accepts_remote_hosts: bool = False,
    demo: bool = False,
) -> Starlette:
    """Return the web application.

    Parameters
    ----------
    folders : data folders that users may read
    workspace : folder for the users' data sets and trainings
    users : names of the users; if empty, there is a single user
    accepts_remote_hosts : whether other machines may connect, under any host name
    demo : whether to offer a synthetic data set
    """
    workspace = workspace.resolve()
    # Thumbnails, labels and models are private to the user of this machine.
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    demo_folder = _demo_folder(workspace) if demo else None
    hidden = [workspace / "users", workspace / "thumbnails"]
    readable = DataFolders([*folders, *([demo_folder] if demo_folder else [])], hidden)
    context = AppState(readable, workspace)
    workspaces = [UserWorkspace.open(workspace, name) for name in users or ("local",)]
    if demo_folder:
        for user in workspaces:
            context.demo_id = open_dataset(user, context.indexes, demo_folder).id
    tokens = {user.token(): user for user in workspaces}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.queue.start(workspaces)
        with hints_for("web"):
            yield
        context.close()

    app = Starlette(
        routes=_routes(),
        middleware=[
            Middleware(AuthMiddleware, users=tokens, accepts_remote_hosts=accepts_remote_hosts)
        ],
        lifespan=lifespan,
    )
    app.state.context = context
    app.state.users = workspaces
    return app


def _routes() -> list[BaseRoute]:
    return [
        Route("/", _front_page),
        *api_data.ROUTES,
        *api_jobs.ROUTES,
        *api_model.ROUTES,
        *api_viewer.ROUTES,
        *api_annotate.ROUTES,
        *api_viewer.COMPARE_ROUTES,
        *api_annotate.SUGGEST_ROUTES,
        Mount("/static", StaticFiles(directory=_STATIC_FOLDER)),
    ]


async def _front_page(request: Request) -> Response:
    return FileResponse(_STATIC_FOLDER / "index.html")


def _demo_folder(workspace: Path) -> Path:
    return cached_synthetic_dataset(workspace / "demo" / "tissue", _DEMO_PATIENTS, _DEMO_IMAGES)


def serve(
    folders: Sequence[Path],
    *,
    workspace: Path = Path("histodict-web"),
    host: str = "127.0.0.1",
    port: int = 8642,
    users: Sequence[str] = (),
    demo: bool = False,
    browser: bool = True,
) -> None:
    """Serve the web application until it is interrupted, and print one link per user.

    Parameters
    ----------
    folders : data folders that users may read; if empty and `demo` is False, the current folder
    workspace : folder for the users' data sets and trainings
    host : host name or IP address to listen at
    port : port to listen at
    users : names of the users; if empty, there is a single user
    demo : whether to offer a synthetic data set
    browser : whether to open the first user's link in a browser

    Raises
    ------
    OSError
        If another server uses the workspace, or the server cannot start at this address.
    """
    folders = folders or ([] if demo else [Path()])
    base_url = f"http://{'[::1]' if host == '::1' else host}:{port}/"
    with lock_workspace(workspace.resolve(), base_url):
        _configure_process()
        app = make_app(
            folders, workspace, users=users, accepts_remote_hosts=host not in LOCAL_NAMES, demo=demo
        )
        # Bind before printing a token: another user's server may listen at this address.
        listener = _listen(host, port, base_url)
        workspaces: list[UserWorkspace] = app.state.users
        for user in workspaces:
            link = f"{base_url}?token={user.token()}"
            file = user.write_link(link)
            print(f"For {user.name if users else 'you'}: {link}", flush=True)
            if browser and user is workspaces[0]:
                threading.Timer(1.0, webbrowser.open, [file.as_uri()]).start()
        server = _Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=LimitedH11Protocol,
                ws="none",
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=int(_GRACE_PERIOD),
            )
        )
        server.run([listener])  # unlike `uvicorn.run`, it records the signal
        if not server.started:
            raise OSError(f"the server could not start at {base_url}")


def _listen(host: str, port: int, base_url: str) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without, small responses take 40 ms.
    listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # allows a port that was just closed; on Windows, also one in use
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        message = f"the server could not start at {base_url}: {shorten(error).rstrip('.')}. "
        if _is_same_server(base_url):
            message += "A histodict server with another workspace uses this address: open the link "
            message += "that it printed, or give another --port"
        else:
            message += "If another program listens there, give another --port"
        raise OSError(message) from error


def _is_same_server(base_url: str) -> bool:
    """Return whether a histodict server runs at this URL."""
    try:
        with urllib.request.urlopen(base_url, timeout=2):
            return False  # a histodict server requires a token
    except urllib.error.HTTPError as error:
        return error.code == 401 and error.read(len(TOKEN_NEEDED)) == TOKEN_NEEDED.encode()
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _configure_process() -> None:
    """Limit numerical libraries to one thread; change thread switching and garbage collection.

    Requests run concurrently, so one request does not need more than one core. Loaded modules are
    never collected, and image lists have thousands of objects: garbage collection at the default
    thresholds took a fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
    threadpool_limits(limits=1)
    sys.setswitchinterval(_SWITCH_INTERVAL)


class _Server(uvicorn.Server):
    """Uvicorn server that ends a few seconds after a signal, even during long requests."""

    _signal = int(signal.SIGTERM)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Store the signal for the exit status, and start the shutdown."""
        self._signal = sig
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down; terminate the process if that takes longer than `_MAX_SHUTDOWN` seconds."""
        # Threads of requests cannot be stopped; files are written atomically.
        timer = threading.Timer(_MAX_SHUTDOWN, os._exit, [128 + self._signal])
        timer.daemon = True
        timer.start()
        await super().shutdown(sockets)


# --- connections ----------------------------------------------------------------------------------


_MAX_REQUEST_SECONDS = 20.0  # until a request is complete
_MAX_INCOMPLETE_REQUESTS = 100


class LimitedH11Protocol(H11Protocol):
    """HTTP connection with a time limit for each request and a limit on incomplete requests."""

    # Timers of connections with an incomplete request, the oldest first.
    _timers: ClassVar[dict[LimitedH11Protocol, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the request timer for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Start the request timer when a request begins; stop it when the request is complete."""
        super().data_received(data)
        has_begun = bool(self.conn.trailing_data[0]) or self.conn.their_state is not h11.IDLE
        is_complete = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)
        if is_complete or not has_begun:
            self._stop_timer()
        elif self not in self._timers:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the request timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if len(self._timers) >= _MAX_INCOMPLETE_REQUESTS:
            next(iter(self._timers))._close_timed_out()
        self._timers[self] = self.loop.call_later(_MAX_REQUEST_SECONDS, self._close_timed_out)

    def _stop_timer(self) -> None:
        timer = self._timers.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _close_timed_out(self) -> None:
        self._stop_timer()
        self.transport.abort()
