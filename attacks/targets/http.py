"""Requests to the web server: every route, with every part of a request damaged.

A server with a small data set and one trained model runs in a thread; its job queue does not run.
Every request must get a response or a closed connection within seconds: no status of 500 or above,
no traceback, and a refusal in one line. No file outside the folders may be disclosed or written,
requests without the token get nothing, and a refused request changes nothing.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.random import Generator

from ..damaged_requests import KINDS, REFUSED
from ..requests import BARE, CLASS, DATA, IMAGE, JOB, PORT, ROUTES, TOKEN, edited, signed
from ..target import Case, InvariantError, Target

_CANARY = "what nobody may read"
_SMALL = {"n_atoms": "12", "n_iter": "2", "patches_per_class": "150", "patch_px": "12"}


class HttpTarget(Target):
    name = "http"
    smoke_attempts = 100

    def setup(self, folder: Path) -> None:
        self._server = _Server(folder / "server")
        self._server.start()

    def case(self, rng: Generator) -> Case:
        kind = list(KINDS)[int(rng.integers(len(KINDS)))]
        routes = _ROUTES_OF.get(kind, list(ROUTES))
        route = routes[int(rng.integers(len(routes)))]
        # The base is part of the file name of a stored failure.
        return Case(kind, _plain(f"{route}+{kind}"), KINDS[kind](rng))

    def build(self, case: Case) -> bytes:
        route, kind = _ROUTES_AND_KINDS[case.base]
        return edited(signed(*ROUTES[route]), (*REFUSED.get(kind, ()), *case.edits))

    def attempt(self, data: bytes, base: str) -> str:
        return self._server.check(data, is_stranger=_ROUTES_AND_KINDS[base][1] in REFUSED)


_POSTED = [route for route in ROUTES if route.startswith("POST")]
_ROUTES_OF = {
    "query": [route for route, parts in ROUTES.items() if len(parts) > 2 and parts[2]],
    "fields": _POSTED,
    "body": _POSTED,
    "settings": ["POST /api/jobs"],
}


def _plain(text: str) -> str:
    return text.translate({ord(sign): "." for sign in "/{} "})


_ROUTES_AND_KINDS = {_plain(f"{route}+{kind}"): (route, kind) for route in ROUTES for kind in KINDS}


# --- server and invariants ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Response:
    status: int
    head: bytes
    body: bytes


class _Server:
    """A server on its own folders, which are restored after every request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workspace = folder / "workspace"

    def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._make_data()
        from histodict.web import server
        from histodict.web.server import make_app

        server._MAX_REQUEST_SECONDS = 0.5
        self._app = make_app([self._folder / "data"], self._workspace)
        covered = {name.partition(" ")[2] or name for name in ROUTES}
        assert covered == {route.path or "/" for route in self._app.routes}, "a route is not tried"
        self._user = self._app.state.users[0]
        self._ids = self._make_work()
        shutil.copytree(self._workspace, self._folder / "kept")
        self._before = self._snapshot()
        self._serve()

    def _make_data(self) -> None:
        from histodict.synthetic.dataset import write_synthetic_dataset

        write_synthetic_dataset(self._folder / "data" / "tissue", 4, 1, size=(160, 120))
        other = self._folder / "data" / "other"
        other.mkdir()
        (other / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
        outside = self._folder / "outside"
        outside.mkdir()
        for path in (self._folder / "canary.txt", outside / "canary.csv"):
            path.write_text(_CANARY)
        (self._folder / "data" / "link.csv").symlink_to(outside / "canary.csv")

    def _make_work(self) -> dict[str, str]:
        """Create an opened data set, one to annotate, and a finished training."""
        from histodict.utils.progress import no_callback
        from histodict.web.annotation.edits import change_classes
        from histodict.web.api.trainings import _chosen_plan
        from histodict.web.datasets import open_dataset
        from histodict.web.jobs import DONE, new_job
        from histodict.web.training import TrainingSettings, make_training_request
        from histodict.web.worker import train

        sources = self._app.state.context.indexes
        tissue = self._folder / "data" / "tissue"
        data = open_dataset(self._user, sources, tissue)
        bare = open_dataset(self._user, sources, tissue, ignores_labels=True)
        (own,) = change_classes(bare, {"name": "a"})
        wish = TrainingSettings(_chosen_plan("quick", "dfdl", False, _SMALL), None, 0, test_folds=2)
        job = new_job(self._user, make_training_request(data, wish) | {"parent": None})
        train(job, no_callback)
        job.set_state(DONE, 1)
        return {
            DATA: data.id,
            BARE: bare.id,
            CLASS: own.id,
            IMAGE: next(iter(data.index.by_id)),
            JOB: job.id,
            TOKEN: self._user.token(),
        }

    def _serve(self) -> None:
        import uvicorn

        from histodict.web.server import LimitedH11Protocol

        while True:
            listener = socket.create_server(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
            if len(str(self._port)) == len(PORT):
                break
            listener.close()
        config = uvicorn.Config(
            self._app, http=LimitedH11Protocol, ws="none", lifespan="off", log_level="critical"
        )
        threading.Thread(target=uvicorn.Server(config).run, args=([listener],), daemon=True).start()

    def check(self, data: bytes, is_stranger: bool) -> str:
        """Send the request, check the response and the folders; return the outcome."""
        response = self._exchange(data)
        after = self._snapshot()
        has_changed = after != self._before
        if has_changed:
            self._restore()
        if response is None:
            if has_changed:
                raise InvariantError(
                    "a connection was closed without a response, but something has changed"
                )
            return "closed"
        self._check_message(response, data.partition(b" ")[0] == b"HEAD")
        if is_stranger and response.status < 400:
            raise InvariantError(f"a request without the token got status {response.status}")
        if has_changed and response.status >= 400:
            raise InvariantError(
                f"refused with {response.status}, but {_difference(self._before, after)}"
            )
        if has_changed and any(
            not str(p).startswith("workspace") for p in _changed(self._before, after)
        ):
            raise InvariantError(f"outside the workspace: {_difference(self._before, after)}")
        return "refused" if response.status >= 400 else "answered"

    def _check_message(self, response: _Response, is_head: bool) -> None:
        if response.status >= 500:
            raise InvariantError(f"status {response.status}: {response.body[:300]!r}")
        for secret in (_CANARY.encode(), b"Traceback", b"root:x:", self._ids[TOKEN].encode()):
            if secret in response.body:
                raise InvariantError(f"{secret!r} was disclosed: {response.body[:300]!r}")
        if response.status < 400 or is_head:
            return
        text = response.body.decode()
        if b"application/json" in response.head.lower():
            text = json.loads(text)["error"]
        if not text.strip() or len(text.strip().splitlines()) != 1:
            raise InvariantError(
                f"status {response.status} without a reason in one line: {text[:300]!r}"
            )

    def _exchange(self, data: bytes) -> _Response | None:
        for word, value in (self._ids | {PORT: str(self._port)}).items():
            data = data.replace(word.encode(), value.encode())
        with socket.create_connection(("127.0.0.1", self._port), timeout=9) as connection:
            received = b""
            try:
                connection.sendall(data)
                while not _is_complete(received) and (part := connection.recv(1 << 16)):
                    received += part
            except ConnectionError:  # the server may close the connection while we still send
                pass
        head, _, body = received.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head, _, body = body.partition(b"\r\n\r\n")
        # The rest is the response to bytes that the server took for another request.
        return _Response(int(head.split(b" ")[1]), head, body[: _length(head)]) if head else None

    def _snapshot(self) -> dict[Path, Any]:
        """Return all files except those that any read request may create."""
        found = {}
        for path in sorted(self._folder.rglob("*")):
            inside = path.relative_to(self._folder)
            is_cache = inside.parts[:2] == ("workspace", "thumbnails") or "maps" in inside.parts
            if path.is_file() and not is_cache and inside.parts[0] != "kept":
                state = path.stat()
                found[inside] = state.st_size, state.st_mtime_ns
        return found

    def _restore(self) -> None:
        context = self._app.state.context
        with context.queue._lock:
            context.queue._active.clear()
        users = self._workspace / "users"
        shutil.rmtree(users)
        shutil.copytree(self._folder / "kept" / "users", users)  # including file times


def _is_complete(received: bytes) -> bool:
    """Whether the response has as many bytes as it announces."""
    head, end, body = received.partition(b"\r\n\r\n")
    length = None if head.startswith(b"HTTP/1.1 100") else _length(head)
    return bool(end) and length is not None and len(body) >= length


def _length(head: bytes) -> int | None:
    """Return the length of the body; None if it ends with the connection."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return None


def _changed(before: dict[Path, Any], after: dict[Path, Any]) -> list[Path]:
    return sorted(p for p in {*before, *after} if before.get(p) != after.get(p))


def _difference(before: dict[Path, Any], after: dict[Path, Any]) -> str:
    return f"changed are {', '.join(map(str, _changed(before, after)[:4]))}"


TARGET = HttpTarget()
