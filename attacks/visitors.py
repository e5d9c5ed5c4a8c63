"""Simulated visitors of the web page: typical users, and one who pans without a pause.

A visitor runs in its own process with as many connections as a browser opens, and records for each
request its kind, start time, duration in milliseconds and status.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np

from .page import Address, Client

_N_CONNECTIONS = 6
SCREEN = 1366, 700
_SECONDS_PER_SCREEN = 0.4  # seconds per screen for a fast user
_PAN = 0.5  # seconds from screen to screen: several times as fast as a held arrow key


@dataclass(frozen=True)
class Note:
    """One request; `status` is 0 without a response."""

    kind: str
    at: float
    ms: float
    status: int
    text: str = ""


@dataclass(frozen=True)
class Site:
    """Ids of the small images, of the slide and of a model."""

    data: str
    images: tuple[str, ...]
    slides: str
    slide: str
    job: str


class Visitor:
    """A simulated browser."""

    def __init__(self, address: Address, site: Site, seed: int) -> None:
        self.site = site
        self.rng = np.random.default_rng(seed)
        self.notes: list[Note] = []
        self.n_models = 0  # visited model pages
        self._address = address
        self._mine = local()
        self._pool = ThreadPoolExecutor(_N_CONNECTIONS)

    def request(self, kind: str, path: str, method: str = "GET", body: Any = None) -> bytes:
        if not hasattr(self._mine, "client"):
            self._mine.client = Client(self._address)
        at = time.time()
        started = time.perf_counter()
        try:
            status, content = self._mine.client.request(method, path, body)
            text = content[:200].decode(errors="replace") if status >= 400 else ""
        except (OSError, http.client.HTTPException) as error:
            status, content, text = 0, b"", f"{type(error).__name__}: {error}"
        ms = 1000 * (time.perf_counter() - started)
        self.notes.append(Note(kind, at, ms, status, f"{path}: {text}" if text else ""))
        return content

    def request_all(self, kind: str, paths: list[str]) -> None:
        """Send requests with limited concurrency, as a page loads its images."""
        list(self._pool.map(lambda path: self.request(kind, path), paths))

    def any_image(self) -> str:
        return self.site.images[int(self.rng.integers(len(self.site.images)))]

    def pause(self, seconds: float) -> None:
        time.sleep(seconds * float(self.rng.uniform(0.7, 1.3)))

    def close(self) -> None:
        self._pool.shutdown()


# --- tiles --------------------------------------------------------------------------------------


def screens(info: dict[str, int], rng: np.random.Generator, n: int) -> Iterator[list[str]]:
    """Yield the tiles of each screen: mostly one step aside, sometimes another place or zoom."""
    level, x, y = 0, 0.5, 0.5
    for screen in range(n):
        if screen % 6 == 0:
            level = int(rng.integers(0, info["levels"]))
            x, y = rng.random(2)
        scale = 2 ** (info["levels"] - 1 - level)
        x, y = (
            float(np.clip(at + rng.normal(0, 0.5) * s * scale / info["width"], 0, 1))
            for at, s in zip((x, y), SCREEN, strict=True)
        )
        yield _visible(info, level, scale, x * info["width"], y * info["height"])


def _visible(info: dict[str, int], level: int, scale: int, x: float, y: float) -> list[str]:
    size = info["tile"] * scale
    ranges = []
    for at, screen, side in ((x, SCREEN[0], info["width"]), (y, SCREEN[1], info["height"])):
        first = max(0, int((at - screen * scale / 2) // size))
        last = min((side - 1) // size, int((at + screen * scale / 2) // size))
        ranges.append(range(first, last + 1))
    return [f"{level}/{c}/{r}" for c in ranges[0] for r in ranges[1]]


def sweep(info: dict[str, int]) -> Iterator[list[str]]:
    """Yield screens of the finest level row by row without end: more tiles than a server caches."""
    level, side = info["levels"] - 1, info["tile"]
    n_columns, n_rows = (-(-info[name] // side) for name in ("width", "height"))
    while True:
        for row in range(0, n_rows - 1, 2):
            for column in range(0, n_columns - 2, 3):
                places = [(column + i, row + j) for i in range(3) for j in range(2)]
                yield [f"{level}/{c}/{r}" for c, r in places]


# --- complete visits ----------------------------------------------------------------------------


def person(visitor: Visitor, is_over: Callable[[], bool]) -> None:
    """Go from page to page quickly."""
    pages = (data_page, image_page, slide_page, train_page, model_page)
    while not is_over():
        for page in pages:
            if not is_over():
                page(visitor)
                visitor.pause(_SECONDS_PER_SCREEN)


def panner(visitor: Visitor, is_over: Callable[[], bool]) -> None:
    """Pan over the slide at its finest level."""
    site = visitor.site
    base = f"/api/data/{site.slides}/images/{site.slide}"
    for tiles in sweep(_json(visitor.request("image", base))):
        if is_over():
            return
        started = time.monotonic()
        visitor.request_all("tile, new", [f"{base}/tiles/{tile}.jpg" for tile in tiles])
        time.sleep(max(0.0, _PAN - (time.monotonic() - started)))


def starter(visitor: Visitor, is_over: Callable[[], bool]) -> None:
    """Start trainings one after the other, and with each the map of the slide, soon cancelled."""
    site = visitor.site
    while not is_over():
        training = _json(start_training(visitor)).get("id")
        while not is_over():
            state = _json(visitor.request("job", f"/api/jobs/{training}")).get("state")
            if state not in ("waiting", "running"):
                break
            visitor.pause(1.0)
        if is_over():
            return
        response = f"/api/jobs/{training}/look/{site.slides}/{site.slide}"
        job = _json(visitor.request("start a map", response, "POST", {})).get("job")
        visitor.pause(4.0)  # the map is being computed now
        visitor.request("cancel", f"/api/jobs/{job}/cancel", "POST", {})
        visitor.request("resume", f"/api/jobs/{job}/resume", "POST", {})
        visitor.pause(2.0)
        visitor.request("cancel", f"/api/jobs/{job}/cancel", "POST", {})


def start_training(visitor: Visitor) -> bytes:
    body = {"data": visitor.site.data, "preset": "quick", "test_folds": 4}
    return visitor.request("start a training", "/api/jobs", "POST", body)


def begin_and_give_up(visitor: Visitor, n: int) -> None:
    """Measure starting and cancelling on an idle server."""
    for _ in range(n):
        job = _json(start_training(visitor))["id"]
        while _json(visitor.request("job", f"/api/jobs/{job}")).get("state") == "waiting":
            visitor.pause(0.2)
        visitor.pause(1.0)  # the job is running now
        visitor.request("cancel", f"/api/jobs/{job}/cancel", "POST", {})


def data_page(visitor: Visitor) -> None:
    base = f"/api/data/{visitor.site.data}"
    visitor.request("session", "/api/session")
    visitor.request("data", base)
    visitor.request("checks", f"{base}/checks")
    paths = [f"{base}/images/{image}/thumbnail.jpg" for image in visitor.site.images]
    visitor.request_all("thumbnail", paths)


def image_page(visitor: Visitor) -> None:
    """Open an image with its map, and explain some patches."""
    site, image = visitor.site, visitor.any_image()
    _walk(visitor, f"/api/data/{site.data}/images/{image}", 2)
    place = f"/api/jobs/{site.job}/look/{site.data}/{image}"
    grid = (_json(visitor.request("look", place)) or {}).get("grid")
    visitor.request("model", f"/api/jobs/{site.job}/model")
    visitor.request("map", f"{place}/map.png?only=-1")
    visitor.request("outlines", f"{place}/outlines?class=1&least=4")
    for _ in range(3 if grid else 0):
        row, column = (int(visitor.rng.integers(grid[side])) for side in ("n_rows", "n_columns"))
        found = _json(visitor.request("why", f"{place}/why?row={row}&column={column}")) or {}
        similar = [entry["patch"] for entry in found.get("similar", [])]
        visitor.request_all("patch", [f"/api/jobs/{site.job}/patches/{n}.jpg" for n in similar])
        visitor.pause(_SECONDS_PER_SCREEN)


def slide_page(visitor: Visitor) -> None:
    _walk(visitor, f"/api/data/{visitor.site.slides}/images/{visitor.site.slide}", 6)


def train_page(visitor: Visitor) -> None:
    visitor.request("choices", "/api/choices?preset=quick&method=dfdl")
    for _ in range(3):
        visitor.request("jobs", "/api/jobs")
        visitor.request("job", f"/api/jobs/{visitor.site.job}")
        visitor.pause(1.0)


def model_page(visitor: Visitor) -> None:
    job = f"/api/jobs/{visitor.site.job}"
    model = _json(visitor.request("model", job + "/model")) or {}
    shown = [atom for entry in model.get("atoms", []) for atom in entry["shown"][:12]]
    visitor.request_all("atom", [f"{job}/atoms/{atom}.png" for atom in shown])
    for atom in shown[:2]:
        found = _json(visitor.request("users of an atom", f"{job}/atoms/{atom}")) or {}
        paths = [f"{job}/patches/{entry['patch']}.jpg" for entry in found.get("patches", [])]
        visitor.request_all("patch", paths)
        visitor.pause(_SECONDS_PER_SCREEN)
    visitor.n_models += 1
    if visitor.n_models % 3 == 1:
        visitor.request("report", job + "/report.html")


def _walk(visitor: Visitor, base: str, n: int) -> None:
    info = _json(visitor.request("image", base))
    for tiles in screens(info, visitor.rng, n) if info else ():
        visitor.request_all("tile", [f"{base}/tiles/{tile}.jpg" for tile in tiles])
        visitor.pause(_SECONDS_PER_SCREEN)


def _json(content: bytes) -> Any:
    """Return the JSON body, or {} without a response; the missing response is recorded by the
    caller."""
    return json.loads(content) if content[:1] == b"{" else {}


VISITS: dict[str, Callable[[Visitor, Callable[[], bool]], None]] = {
    "person": person,
    "panner": panner,
    "starter": starter,
}


def visit(name: str, address: Address, site: Site, seed: int, end: float) -> list[Note]:
    """Run one visitor until a `time.time()`; runs in its own process."""
    visitor = Visitor(address, site, seed)
    VISITS[name](visitor, lambda: time.time() > end)
    visitor.close()
    return visitor.notes
