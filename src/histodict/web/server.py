"""The app put together, and `serve`, which the command line calls."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ..demo.sets import drawn_set
from . import api_data, api_jobs, api_look, api_model
from .calls import Context
from .datasets import open_dataset
from .folders import DataFolders
from .security import OWN_NAMES, Gate
from .workspace import User

_DEMO_PATIENTS = 8
_DEMO_IMAGES = 4
_STATIC = Path(str(files(__package__) / "static"))


def make_app(
    folders: Sequence[Path],
    workspace: Path,
    *,
    users: Sequence[str] = (),
    needs_token: bool = False,
    demo: bool = False,
) -> Starlette:
    """The app over these data folders. Named users, or `needs_token`, make tokens necessary."""
    workspace = workspace.resolve()
    workspace.mkdir(parents=True, exist_ok=True)
    drawn = _demo_folder(workspace) if demo else None
    hidden = [workspace / "users", workspace / "thumbnails"]
    readable = DataFolders([*folders, *([drawn] if drawn else [])], hidden)
    context = Context(readable, workspace)
    people = [User.of(workspace, name) for name in users or ("local",)]
    if drawn:
        for user in people:
            context.demo = open_dataset(user, context.sources, drawn).id
    tokens = {user.token(): user for user in people} if users or needs_token else {}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.queue.start(people)
        yield
        context.queue.close()

    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(Gate, users=tokens, alone=None if tokens else people[0])],
        lifespan=lifespan,
    )
    app.state.context = context
    app.state.tokens = {user.name: token for token, user in tokens.items()}
    return app


def _routes() -> list[BaseRoute]:
    return [
        Route("/", _front_page),
        *api_data.ROUTES,
        *api_jobs.ROUTES,
        *api_model.ROUTES,
        *api_look.ROUTES,
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]


async def _front_page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


def _demo_folder(workspace: Path) -> Path:
    return drawn_set(workspace / "demo" / "tissue", _DEMO_PATIENTS, _DEMO_IMAGES)


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
    """Serve the app until it is interrupted; prints the links to open.

    An address other than this machine's own makes a token necessary, one per user.
    """
    folders = folders or ([] if demo else [Path()])
    is_open = host not in OWN_NAMES
    app = make_app(folders, workspace, users=users, needs_token=is_open, demo=demo)
    base = f"http://{'[::1]' if host == '::1' else host}:{port}/"
    links = {name: f"{base}?token={token}" for name, token in app.state.tokens.items()}
    for name, link in (links or {"you": base}).items():
        print(f"For {name}: {link}", flush=True)
    if browser:
        threading.Timer(1.0, webbrowser.open, [next(iter(links.values()), base)]).start()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=1,  # then whoever still reads is left alone
    )
    server = uvicorn.Server(config)
    server.run()  # unlike `uvicorn.run` it tells which signal ended it
    if not server.started:
        raise OSError(f"the server could not start at {base}")
