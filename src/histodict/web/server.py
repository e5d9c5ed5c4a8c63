"""The application, `serve` for the command line, and limits for connections.

uvicorn has no time limit for a request that never becomes complete, and answers 503 beyond
`limit_concurrency`, even if the other connections are silent. Here a request must be complete a
fixed time after its first byte or, for the first one, after the connection is made. The number of
connections that wait for a request is limited, too: a new one replaces the one that has waited
longest. Many silent connections therefore shut nobody out.

Who may ask: users with a token, from our own pages.

- Every request needs a token, from the cookie that the user's link sets: other users of this
  machine can reach its ports, too.
- A server for this machine alone answers only to this machine's names, so that a page elsewhere
  cannot reach it through a name of its own that leads here.
- What changes something must come from our own page: a header that other pages cannot send.
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
from .api import viewer as api_look
from .datasets import open_dataset
from .request import AppState
from .workspace import DataFolders, UserWorkspace, locked_workspace

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/\\?#\s]+))(?::([0-9]{1,5}))?")
CSRF_HEADER = "x-histodict"
TOKEN_NEEDED = "a token is needed: open the link that `histodict serve` printed for you"
_HEADERS = {
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
    """Stands before the app: refuses strangers, says which user asks, adds protective headers."""

    def __init__(self, app: ASGIApp, users: Mapping[str, UserWorkspace], is_open: bool) -> None:
        """`users` by token; `is_open`: to other machines, by whatever name."""
        self._app = app
        self._users = users
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._enter(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _enter(self, request: Request) -> Response | None:
        """None lets the request in, with its user; else what is said instead."""
        host = _HOST.fullmatch(request.headers.get("host", ""))
        if host is None:
            return PlainTextResponse("the request does not say which server it is for", 400)
        name = str(host[1] or host[2]).lower()
        if not self._is_open and name not in LOCAL_NAMES:
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost only", 403)
        if request.method not in ("GET", "HEAD") and not _is_same_origin(request.headers):
            return PlainTextResponse("changes are made from histodict's own pages", 403)
        # Cookies know no ports: two servers on one machine must not overwrite each other's.
        cookie = f"histodict-{int(host[3] or 80)}"
        request.state.user = self._find(request.cookies.get(cookie, ""))
        return None if request.state.user is not None else self._welcome(request, cookie)

    def _find(self, given: str) -> UserWorkspace | None:
        found = None
        for token, user in self._users.items():  # all of them: time tells nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                found = user
        return found

    def _welcome(self, request: Request, cookie: str) -> Response:
        """A link with a right token sets the cookie; anything else is told what is missing."""
        token = request.query_params.get("token", "")
        if request.scope["path"] != "/" or self._find(token) is None:
            return PlainTextResponse(TOKEN_NEEDED, 401)
        # Not by a redirect: to one that begins at a link elsewhere, strict cookies are not sent.
        response = HTMLResponse('<meta http-equiv="refresh" content="0;url=/">')
        response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response


def _is_same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    same = origin is None or origin.partition("://")[2] == headers.get("host")
    return same and CSRF_HEADER in headers


_DEMO_PATIENTS = 8
_DEMO_IMAGES = 4
# Seconds that a thread may keep the others from Python; most requests take about as long.
_TURN = 0.001
_GC_THRESHOLD = 20_000, 20, 20  # after which Python looks for circles among them
_GRACE = 1.0  # seconds for requests under way when the server is told to end
_LAST = 4.0  # seconds after which it ends whatever still holds it
_STATIC = Path(str(files(__package__) / "static"))


def make_app(
    folders: Sequence[Path],
    workspace: Path,
    *,
    users: Sequence[str] = (),
    is_open: bool = False,
    demo: bool = False,
) -> Starlette:
    """The app over these data folders, for these users; `is_open`: to other machines."""
    workspace = workspace.resolve()
    # Thumbnails, labels and models are no business of this machine's other users.
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    drawn = _demo_folder(workspace) if demo else None
    hidden = [workspace / "users", workspace / "thumbnails"]
    readable = DataFolders([*folders, *([drawn] if drawn else [])], hidden)
    context = AppState(readable, workspace)
    people = [UserWorkspace.of(workspace, name) for name in users or ("local",)]
    if drawn:
        for user in people:
            context.demo = open_dataset(user, context.sources, drawn).id
    tokens = {user.token(): user for user in people}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.queue.start(people)
        with hints_for("web"):
            yield
        context.close()

    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(AuthMiddleware, users=tokens, is_open=is_open)],
        lifespan=lifespan,
    )
    app.state.context = context
    app.state.users = people
    return app


def _routes() -> list[BaseRoute]:
    return [
        Route("/", _front_page),
        *api_data.ROUTES,
        *api_jobs.ROUTES,
        *api_model.ROUTES,
        *api_look.ROUTES,
        *api_annotate.ROUTES,
        *api_look.COMPARE_ROUTES,
        *api_annotate.SUGGEST_ROUTES,
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]


async def _front_page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


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
    """Serve the app until it is interrupted, and print one link per user.

    Raises an error if another server uses the workspace.
    """
    folders = folders or ([] if demo else [Path()])
    base = f"http://{'[::1]' if host == '::1' else host}:{port}/"
    with locked_workspace(workspace.resolve(), base):
        _limit_threads()
        app = make_app(folders, workspace, users=users, is_open=host not in LOCAL_NAMES, demo=demo)
        # Before a token is printed: another user's server may listen at this address.
        listener = _listen(host, port, base)
        people: list[UserWorkspace] = app.state.users
        for user in people:
            link = f"{base}?token={user.token()}"
            file = user.write_link(link)
            print(f"For {user.name if users else 'you'}: {link}", flush=True)
            if browser and user is people[0]:
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
                timeout_graceful_shutdown=int(_GRACE),
            )
        )
        server.run([listener])  # unlike `uvicorn.run` it tells which signal ended it
        if not server.started:
            raise OSError(f"the server could not start at {base}")


def _listen(host: str, port: int, base: str) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only where the protocol is named does asyncio send small answers at once, not 40 ms later.
    listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # a port that was just left; on Windows, one that is in use
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        words = f"the server could not start at {base}: {shorten(error)}. "
        if _is_same_server(base):
            words += "A histodict server with another workspace uses this address: open the link "
            words += "that it printed, or give another --port"
        else:
            words += "If another program listens there, give another --port"
        raise OSError(words) from error


def _is_same_server(base: str) -> bool:
    """Return whether a histodict server answers at an address."""
    try:
        with urllib.request.urlopen(base, timeout=2):
            return False  # it would ask for a token
    except urllib.error.HTTPError as error:
        return error.code == 401 and error.read(len(TOKEN_NEEDED)) == TOKEN_NEEDED.encode()
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _limit_threads() -> None:
    """Requests are what runs side by side here, so that none needs more than one core.

    What is loaded by now stays to the end, and lists of images grow by thousands of things at a
    time: to look for circles among all that after every few hundred took a fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
    threadpool_limits(limits=1)
    sys.setswitchinterval(_TURN)


class _Server(uvicorn.Server):
    """Ends soon after it was told to, even where a request computes for minutes."""

    _announced = int(signal.SIGTERM)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._announced = sig
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The threads of such requests cannot be stopped; files are whole whenever they end.
        last = threading.Timer(_LAST, os._exit, [128 + self._announced])
        last.daemon = True
        last.start()
        await super().shutdown(sockets)


# --- connections ----------------------------------------------------------------------------------


_MAX_SECONDS = 20.0
_MAX_WAITING = 100


class LimitedH11Protocol(H11Protocol):
    """One connection."""

    _waiting: ClassVar[dict[LimitedH11Protocol, asyncio.TimerHandle]] = {}  # longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        has_begun = bool(self.conn.trailing_data[0]) or self.conn.their_state is not h11.IDLE
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)
        if is_whole or not has_begun:
            self._wait_no_more()
        elif self not in self._waiting:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            next(iter(self._waiting))._close_timed_out()
        self._waiting[self] = self.loop.call_later(_MAX_SECONDS, self._close_timed_out)

    def _wait_no_more(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _close_timed_out(self) -> None:
        self._wait_no_more()
        self.transport.abort()
