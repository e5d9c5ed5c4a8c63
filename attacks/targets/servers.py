"""Two servers on one workspace: either one is refused, or every acknowledged stroke is kept.

Each case forks servers from a process with the imported package, sends strokes to every server that
responds, and reads the stored strokes from disk. The servers start at once or one after the other,
with different paths of the workspace or the same port, and the first may be killed or terminated
while the second starts. A third server must be able to start afterwards.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.random import Generator

from histodict.utils.child_process import exit_with_parent
from histodict.web.server import serve

from ..page import Address, Client
from ..scenarios import free_port
from ..target import Case, InvariantError, Target

_PATIENCE = 60.0  # seconds for a server to respond or to end; a hang is detected earlier
_REFUSED = "another server uses this workspace"
_SIDE = 12  # side of a stroke's box in pixels; the boxes of a case do not touch
_COLUMNS = 12
_ENDS = {"killed": signal.SIGKILL, "told to end": signal.SIGTERM}
_PATHS = ("plain", "link", "relative")
_KINDS = ("at once", "one after the other", "same port", *(f"first {how}" for how in _ENDS))


class ServersTarget(Target):
    name = "servers"
    smoke_attempts = 15

    def setup(self, folder: Path) -> None:
        from PIL import Image

        shutil.rmtree(folder / "servers", ignore_errors=True)
        self._folder = folder / "servers"
        (self._folder / "data" / "bare").mkdir(parents=True)
        pixels = np.random.default_rng(0).integers(60, 220, (320, 240, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(self._folder / "data" / "bare" / "image.png")
        self._template = self._folder / "template"
        self._prepare()
        self._n_cases = 0

    def _prepare(self) -> None:
        """Create a workspace with an opened data set and a class to annotate."""
        from histodict.web.annotation.edits import change_classes
        from histodict.web.datasets import DatasetIndexCache, open_dataset
        from histodict.web.workspace import DataFolders, UserWorkspace

        user = UserWorkspace.open(self._template, "local")
        sources = DatasetIndexCache(DataFolders([self._folder / "data"]))
        data = open_dataset(user, sources, self._folder / "data" / "bare", ignores_labels=True)
        (own,) = change_classes(data, {"name": "a"})
        (self._image,) = data.index.by_id
        self._data, self._label, self._token = data.id, own.id, user.token()

    def case(self, rng: Generator) -> Case:
        kind = _KINDS[int(rng.integers(len(_KINDS)))]
        edits = [
            ["path", _PATHS[int(rng.integers(len(_PATHS)))]],
            ["strokes", int(rng.integers(1, 7))],
        ]
        if kind != "one after the other":
            edits.append(["delay", round(float(rng.uniform(0, 0.3)), 3)])
        if kind.startswith("first"):
            edits.append(["end after", round(float(rng.uniform(0, 0.5)), 3)])
        return Case(kind, kind.replace(" ", "-"), tuple(edits))

    def build(self, case: Case) -> bytes:
        return json.dumps(dict(case.edits)).encode()

    def attempt(self, data: bytes, base: str) -> str:
        self._n_cases += 1
        place = self._folder / f"case-{os.getpid()}-{self._n_cases}"
        place.mkdir()
        case = _ServerCase(self, place, base, json.loads(data))
        try:
            return case.run()
        finally:
            for one in case.begun:
                one.kill()
            shutil.rmtree(place, ignore_errors=True)

    # --- used by a case -------------------------------------------------------------------------

    def new_workspace(self, place: Path) -> Path:
        shutil.copytree(self._template, place / "workspace")
        return place / "workspace"

    def start(self, place: Path, workspace: Path, port: int) -> _Server:
        """Fork a server; it ends with status 0, or with 1 and its error in its file."""
        text, parent = place / f"words-{port}-{time.monotonic_ns()}.txt", os.getpid()
        pid = os.fork()
        if pid:
            return _Server(pid, port, text)
        status = 1
        try:
            with text.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(place)
            exit_with_parent(parent)  # so that it ends even if the target is killed
            serve([self._folder / "data"], workspace=workspace, port=port, browser=False)
            status = 0
        except BaseException as error:
            with suppress(OSError), text.open("a") as file:
                file.write(f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)

    def draw(self, client: Client, box: int) -> int:
        """Send the stroke of a number; return the response status."""
        x, y = self._corner(box)
        body = {"act": "draw", "tool": "rectangle", "label": self._label}
        path = f"/api/data/{self._data}/images/{self._image}/drawn"
        points = [[x, y], [x + _SIDE, y + _SIDE]]
        return client.request("POST", path, body | {"points": points})[0]

    def address(self, port: int) -> Address:
        return Address(port, self._token)

    def stored_strokes(self, workspace: Path) -> set[int]:
        """Return the numbers of the strokes stored in the workspace."""
        from histodict.web.annotation.store import AnnotationStore

        annotations = AnnotationStore.read(
            workspace / "users" / "local" / "data" / self._data, self._image
        )
        corners = [np.min(shape["polygons"][0][0], axis=0) for shape in annotations.shapes]
        by_corner = {self._corner(box): box for box in range(200)}
        return {by_corner[round(float(x)), round(float(y))] for x, y in corners}

    def _corner(self, box: int) -> tuple[int, int]:
        return 2 + (box % _COLUMNS) * (_SIDE + 6), 2 + (box // _COLUMNS) * (_SIDE + 6)


@dataclass
class _Server:
    pid: int
    port: int
    log: Path
    status: int | None = None
    is_ending: bool = False  # it may drop running requests

    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def responds(self) -> bool:
        """Return whether it listens; waits until it does or has ended."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if self.has_ended():
                return False
            if b"token=" in self._output().encode():
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                    return True
            time.sleep(0.005)
        raise InvariantError(f"a server neither responds nor ends: {self._output()}")

    def _output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def check_refusal(self) -> None:
        if self.status == 1 and _REFUSED not in self._output():
            raise InvariantError(f"it ended with another message: {self._output()[-600:]}")

    def end(self, how: int) -> None:
        self.is_ending = True
        if not self.has_ended():
            os.kill(self.pid, how)

    def kill(self) -> None:
        self.end(signal.SIGKILL)
        end = time.monotonic() + _PATIENCE
        while not self.has_ended() and time.monotonic() < end:
            time.sleep(0.002)


@dataclass
class _ServerCase:
    """One case; `options` has the values of its edits."""

    target: ServersTarget
    place: Path
    base: str
    options: dict[str, Any]
    begun: list[_Server] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    wrong: list[BaseException] = field(default_factory=list)

    def run(self) -> str:
        self.workspace = self.target.new_workspace(self.place)
        first = self._start(self.workspace, free_port())
        if self.base == "one-after-the-other" and not first.responds():
            raise InvariantError(f"the first server does not start: {first._output()[-600:]}")
        time.sleep(float(self.options.get("delay", 0)))
        port = first.port if self.base == "same-port" else free_port()
        second = self._start(self._other_path(), port)
        how = _ENDS.get(self.base.removeprefix("first-").replace("-", " "))
        serving = self._use([first, second], first if how else None, how)
        if not serving and how is None:
            raise InvariantError("both servers were refused")
        for one in (first, second):
            one.check_refusal()
        if how is not None:
            first.kill()
            second.kill()
            third = self._start(self.workspace, free_port())
            if not third.responds():
                raise InvariantError(
                    f"no server can start after the first ended: {third._output()[-600:]}"
                )
            self._strokes(third, 150)
        if not self.acknowledged:
            raise InvariantError("no stroke was acknowledged")
        for one in self.begun:
            one.kill()
        lost = self.acknowledged - self.target.stored_strokes(self.workspace)
        if lost:
            raise InvariantError(
                f"{len(lost)} of {len(self.acknowledged)} acknowledged strokes are lost"
            )
        return f"{serving} of 2 served, all kept"

    def _start(self, workspace: Path, port: int) -> _Server:
        self.begun.append(self.target.start(self.place, workspace, port))
        return self.begun[-1]

    def _other_path(self) -> Path:
        kind = self.options.get("path", "plain")
        if kind == "link":
            (self.place / "link").symlink_to(self.workspace)
            return self.place / "link"
        return Path("workspace") if kind == "relative" else self.workspace

    def _use(self, servers: list[_Server], ended: _Server | None, how: int | None) -> int:
        """Send strokes to both servers at the same time; return the number of servers that
        responded."""
        predicted = [False, False]

        def use(place: int) -> None:
            try:
                if self.base == "same-port" and place and servers[0].responds():
                    # Both use one address, so the responding server is unknown.
                    end = time.monotonic() + _PATIENCE
                    while not servers[1].has_ended() and time.monotonic() < end:
                        time.sleep(0.005)
                    if not servers[1].has_ended():
                        raise InvariantError("two servers listen at one port")
                    return
                predicted[place] = servers[place].responds()
                if predicted[place]:
                    self._strokes(servers[place], 50 * place)
            except BaseException as error:
                self.wrong.append(error)

        threads = [Thread(target=use, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        if ended is not None and how is not None:
            time.sleep(float(self.options.get("end after", 0)))
            ended.end(how)
        for thread in threads:
            thread.join()
        if self.wrong:
            raise self.wrong[0]
        return sum(predicted)

    def _strokes(self, server: _Server, first: int) -> None:
        """Send strokes until the server ends, and record the acknowledged ones."""
        client = Client(self.target.address(server.port))
        try:
            for box in range(first, first + int(self.options.get("strokes", 3))):
                status = self.target.draw(client, box)
                if status == 200:
                    self.acknowledged.add(box)
                elif not server.is_ending:
                    raise InvariantError(f"stroke {box} is refused with status {status}")
        except (OSError, http.client.HTTPException):
            pass
        finally:
            client.close()


TARGET = ServersTarget()
