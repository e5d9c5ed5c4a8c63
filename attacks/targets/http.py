"""Requests to the page's server: every route, every part of a request spoilt.

A server with a small data set and one trained model runs in a thread; its queue of trainings does
not. Whatever is sent, there must be an answer or a closed connection within seconds: never a status
of 500 or above, never a traceback, every refusal in one line of words. Nothing outside the folders
is told or written; strangers get nothing; a refused request changes nothing.
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

from ..requests import BARE, CLASS, DATA, IMAGE, JOB, PORT, ROUTES, TOKEN, edited, signed
from ..spoilt_requests import KINDS, REFUSED
from ..target import Case, Find, Target

_CANARY = "what nobody may read"
_SMALL = {"n_atoms": "12", "n_iter": "2", "patches_per_class": "150", "patch_px": "12"}


class HttpTarget(Target):
    name = "http"

    def setup(self, folder: Path) -> None:
        self._server = _Server(folder / "server")
        self._server.start()

    def case(self, rng: Generator) -> Case:
        kind = list(KINDS)[int(rng.integers(len(KINDS)))]
        routes = _ROUTES_OF.get(kind, list(ROUTES))
        route = routes[int(rng.integers(len(routes)))]
        # The base is part of a file's name where a find is kept.
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


# --- the server, and what must hold -------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    status: int
    head: bytes
    body: bytes


class _Server:
    """A server over folders of its own, whole again after every request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workspace = folder / "workspace"

    def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._make_data()
        from histodict.web import server
        from histodict.web.server import make_app

        server._MAX_SECONDS = 0.5
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
        """A data set that was opened, also to draw on it, and a training that is done."""
        from histodict.utils.progress import no_callback
        from histodict.web.annotation.edits import change_classes
        from histodict.web.api.trainings import _chosen_plan
        from histodict.web.datasets import open_dataset
        from histodict.web.jobs import DONE, new_job
        from histodict.web.training import TrainingRequest, training_request
        from histodict.web.worker import train

        sources = self._app.state.context.sources
        tissue = self._folder / "data" / "tissue"
        data = open_dataset(self._user, sources, tissue)
        bare = open_dataset(self._user, sources, tissue, is_bare=True)
        (own,) = change_classes(bare, {"name": "a"})
        wish = TrainingRequest(_chosen_plan("quick", "dfdl", False, _SMALL), None, 0, test_folds=2)
        job = new_job(self._user, training_request(data, wish) | {"parent": None})
        train(job, no_callback)
        job.set_state(DONE, 1)
        return {
            DATA: data.id,
            BARE: bare.id,
            CLASS: own.id,
            IMAGE: next(iter(data.listing.by_id)),
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
        """Send it, look at the answer and at the folders; what came of it."""
        response = self._ask(data)
        after = self._snapshot()
        has_changed = after != self._before
        if has_changed:
            self._restore()
        if response is None:
            if has_changed:
                raise Find("a connection was closed without an answer, but something has changed")
            return "closed"
        self._check_words(response, data.partition(b" ")[0] == b"HEAD")
        if is_stranger and response.status < 400:
            raise Find(f"a stranger was answered with {response.status}")
        if has_changed and response.status >= 400:
            raise Find(f"refused with {response.status}, but {_difference(self._before, after)}")
        if has_changed and any(
            not str(p).startswith("workspace") for p in _changed(self._before, after)
        ):
            raise Find(f"outside the workspace: {_difference(self._before, after)}")
        return "refused" if response.status >= 400 else "answered"

    def _check_words(self, answer: _Answer, is_head: bool) -> None:
        if answer.status >= 500:
            raise Find(f"status {answer.status}: {answer.body[:300]!r}")
        for secret in (_CANARY.encode(), b"Traceback", b"root:x:", self._ids[TOKEN].encode()):
            if secret in answer.body:
                raise Find(f"{secret!r} was told: {answer.body[:300]!r}")
        if answer.status < 400 or is_head:
            return
        text = answer.body.decode()
        if b"application/json" in answer.head.lower():
            text = json.loads(text)["error"]
        if not text.strip() or len(text.strip().splitlines()) != 1:
            raise Find(f"status {answer.status} without a reason in one line: {text[:300]!r}")

    def _ask(self, data: bytes) -> _Answer | None:
        for word, value in (self._ids | {PORT: str(self._port)}).items():
            data = data.replace(word.encode(), value.encode())
        with socket.create_connection(("127.0.0.1", self._port), timeout=9) as connection:
            received = b""
            try:
                connection.sendall(data)
                while not _is_whole(received) and (part := connection.recv(1 << 16)):
                    received += part
            except ConnectionError:  # it may be closed while we still send
                pass
        head, _, body = received.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head, _, body = body.partition(b"\r\n\r\n")
        # What follows is the answer to what the server took for another request.
        return _Answer(int(head.split(b" ")[1]), head, body[: _length(head)]) if head else None

    def _snapshot(self) -> dict[Path, Any]:
        """All files but those that any look may make."""
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
        shutil.copytree(self._folder / "kept" / "users", users)  # with the files' times


def _is_whole(received: bytes) -> bool:
    """Whether the answer has all the bytes that it promises."""
    head, end, body = received.partition(b"\r\n\r\n")
    length = None if head.startswith(b"HTTP/1.1 100") else _length(head)
    return bool(end) and length is not None and len(body) >= length


def _length(head: bytes) -> int | None:
    """Of the body, where the head says it; else it goes on until the connection is closed."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return None


def _changed(before: dict[Path, Any], after: dict[Path, Any]) -> list[Path]:
    return sorted(p for p in {*before, *after} if before.get(p) != after.get(p))


def _difference(before: dict[Path, Any], after: dict[Path, Any]) -> str:
    return f"changed are {', '.join(map(str, _changed(before, after)[:4]))}"


TARGET = HttpTarget()
