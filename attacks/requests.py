"""Requests to the web server as values, edits that damage them, and their encoding.

Ids, port and token differ between servers: a request contains placeholders of the same length,
which `Server` of `targets/http.py` replaces when the request is sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

PORT, TOKEN = "55555", "T" * 32
DATA, IMAGE, JOB = "DATADATADATA", "IMAGEIMAGEIM", "JOBJOBJOBJOB"
# The same images as a data set to annotate, and a class of it.
BARE, CLASS = "BAREBAREBARE", "CLASSCLASSCL"
_SURROGATE = "surrogatepass"


@dataclass
class Request:
    """One request; path parts and query names are encoded when it is sent."""

    method: str
    path: list[str]
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    headers: list[tuple[str, str]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        head = f"{self.method} {self._target()} HTTP/1.1\r\n"
        body = b""
        if self.body is not None:
            # Text is sent unchanged, anything else as JSON.
            text = self.body if isinstance(self.body, str) else json.dumps(self.body)
            body = text.encode("utf-8", _SURROGATE)
        headers = list(self.headers)
        if body and not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(body))))
        head += "".join(f"{name}: {value}\r\n" for name, value in headers)
        return head.encode("utf-8", _SURROGATE) + b"\r\n" + body

    def _target(self) -> str:
        """Return the encoded path; parts that start with a tilde are sent unchanged."""
        path = "/" + "/".join(_encoded(part) for part in self.path)
        pairs = "&".join(f"{quote(name)}={_encoded(text)}" for name, text in self.query.items())
        return f"{path}?{pairs}" if pairs else path


def _encoded(text: str) -> str:
    return text[1:] if text.startswith("~") else quote(text.encode("utf-8", _SURROGATE), safe="")


def signed(
    method: str, path: str, query: dict[str, str] | None = None, body: Any = None
) -> Request:
    """Return a request with the headers that our own page sends."""
    headers = [
        ("Host", f"127.0.0.1:{PORT}"),
        ("Cookie", f"histodict-{PORT}={TOKEN}"),
        ("Connection", "close"),
    ]
    if method == "POST":
        headers += [("X-Histodict", "1"), ("Origin", f"http://127.0.0.1:{PORT}")]
    return Request(method, path.strip("/").split("/"), dict(query or {}), body, headers)


_VIEWER_URL = f"/api/jobs/{JOB}/look/{DATA}/{IMAGE}"
_PICTURE = f"/api/data/{DATA}/images/{IMAGE}"
_IMAGE_URL = f"/api/data/{BARE}/images/{IMAGE}"
_TRAINING = {"data": DATA, "preset": "quick", "method": "dfdl", "settings": {}, "test_folds": 2}

_OUTLINE = (
    '{"type":"Feature","properties":{"classification":{"name":"fat"}},"geometry":{"type":"Polygon",'
    '"coordinates":[[[0,0],[60,0],[60,60],[0,60],[0,0]]]}}'
)

# By route: the arguments of `signed` for a valid request.
ROUTES: dict[str, tuple[Any, ...]] = {
    "/": ("GET", "/"),
    "/static": ("GET", "/static/app.js"),
    "/api/session": ("GET", "/api/session"),
    "/api/folders": ("GET", "/api/folders", {"folder_index": "0", "relative_path": "tissue"}),
    "POST /api/data": (
        "POST",
        "/api/data",
        {},
        {"folder_index": 0, "relative_path": "tissue", "bare": False},
    ),
    "/api/data/{data}": ("GET", f"/api/data/{DATA}"),
    "/api/data/{data}/checks": ("GET", f"/api/data/{DATA}/checks"),
    "POST /api/data/{data}/about": (
        "POST",
        f"/api/data/{DATA}/about",
        {},
        {"positive": "healthy", "mpp": 0.5, "learn_from": ["patient01"]},
    ),
    "POST /api/data/{data}/correct": (
        "POST",
        f"/api/data/{DATA}/correct",
        {},
        {"image": IMAGE, "label": "healthy", "box": [0, 0, 60, 60]},
    ),
    "POST /api/data/{data}/undo": ("POST", f"/api/data/{DATA}/undo", {}, {"id": "0123456789ab"}),
    "/api/data/{data}/images/{image}": ("GET", _PICTURE),
    "/api/data/{data}/images/{image}/thumbnail.jpg": ("GET", f"{_PICTURE}/thumbnail.jpg"),
    "/api/data/{data}/images/{image}/truth": ("GET", f"{_PICTURE}/truth"),
    "/api/data/{data}/images/{image}/tiles/{level}/{column}/{row}.jpg": (
        "GET",
        f"{_PICTURE}/tiles/0/0/0.jpg",
    ),
    "/api/data/{data}/drawn": ("GET", f"/api/data/{BARE}/drawn"),
    "POST /api/data/{data}/classes": (
        "POST",
        f"/api/data/{BARE}/classes",
        {},
        {"name": "fat", "colour": "#1a6fb0"},
    ),
    "/api/data/{data}/images/{image}/drawn": ("GET", f"{_IMAGE_URL}/drawn"),
    "POST /api/data/{data}/images/{image}/drawn": (
        "POST",
        f"{_IMAGE_URL}/drawn",
        {},
        {"act": "draw", "tool": "brush", "points": [[9, 9], [40, 40]], "radius": 9, "label": CLASS},
    ),
    "/api/data/{data}/images/{image}/drawn.geojson": ("GET", f"{_IMAGE_URL}/drawn.geojson"),
    "POST /api/data/{data}/images/{image}/drawn/file": (
        "POST",
        f"{_IMAGE_URL}/drawn/file",
        {"name": "outlines.geojson"},
        _OUTLINE,
    ),
    "POST /api/data/{data}/images/{image}/quick": (
        "POST",
        f"{_IMAGE_URL}/quick",
        {},
        {"box": [0, 0, 100, 100]},
    ),
    "/api/choices": ("GET", "/api/choices", {"preset": "default", "method": "dfdl"}),
    "/api/jobs": ("GET", "/api/jobs"),
    "POST /api/jobs": ("POST", "/api/jobs", {}, _TRAINING),
    "/api/jobs/{job}": ("GET", f"/api/jobs/{JOB}"),
    "POST /api/jobs/{job}/cancel": ("POST", f"/api/jobs/{JOB}/cancel", {}, {}),
    "POST /api/jobs/{job}/resume": ("POST", f"/api/jobs/{JOB}/resume", {}, {}),
    "POST /api/jobs/{job}/rename": ("POST", f"/api/jobs/{JOB}/rename", {}, {"name": "colon"}),
    "POST /api/jobs/{job}/delete": ("POST", f"/api/jobs/{JOB}/delete", {}, {}),
    "/api/jobs/{job}/model": ("GET", f"/api/jobs/{JOB}/model"),
    "/api/jobs/{job}/figures": ("GET", f"/api/jobs/{JOB}/figures", {"point": "0"}),
    "/api/jobs/{job}/atoms/{atom}.png": ("GET", f"/api/jobs/{JOB}/atoms/0.png"),
    "/api/jobs/{job}/atoms/{atom}": ("GET", f"/api/jobs/{JOB}/atoms/0"),
    "/api/jobs/{job}/patches/{patch}.jpg": ("GET", f"/api/jobs/{JOB}/patches/0.jpg"),
    "/api/jobs/{job}/model.histodict": ("GET", f"/api/jobs/{JOB}/model.histodict", {"point": "0"}),
    "/api/jobs/{job}/report.html": ("GET", f"/api/jobs/{JOB}/report.html", {"point": "0"}),
    "/api/jobs/{job}/look/{data}/{image}": ("GET", _VIEWER_URL, {"point": "0"}),
    "POST /api/jobs/{job}/look/{data}/{image}": ("POST", _VIEWER_URL, {}, {}),
    "/api/jobs/{job}/look/{data}/{image}/map.png": ("GET", f"{_VIEWER_URL}/map.png", {"only": "0"}),
    "/api/jobs/{job}/look/{data}/{image}/outlines": (
        "GET",
        f"{_VIEWER_URL}/outlines",
        {"class": "1", "least": "1"},
    ),
    "POST /api/models": (
        "POST",
        "/api/models",
        {},
        {"folder_index": 0, "relative_path": "tissue/m.histodict"},
    ),
    "/api/jobs/{job}/fits/{data}": ("GET", f"/api/jobs/{JOB}/fits/{DATA}"),
    "/api/jobs/{job}/look/{data}/{image}/difference": (
        "GET",
        f"{_VIEWER_URL}/difference",
        {"with": JOB, "with_point": "0"},
    ),
    "/api/jobs/{job}/look/{data}/{image}/difference.png": (
        "GET",
        f"{_VIEWER_URL}/difference.png",
        {"with": JOB},
    ),
    "/api/jobs/{job}/look/{data}/{image}/map.geojson": ("GET", f"{_VIEWER_URL}/map.geojson"),
    "/api/jobs/{job}/look/{data}/{image}/map.csv": ("GET", f"{_VIEWER_URL}/map.csv", {"only": "1"}),
    "/api/jobs/{job}/suggest/{data}": ("GET", f"/api/jobs/{JOB}/suggest/{DATA}"),
    "/api/jobs/{job}/look/{data}/{image}/fields": ("GET", f"{_VIEWER_URL}/fields"),
    "/api/jobs/{job}/look/{data}/{image}/why": (
        "GET",
        f"{_VIEWER_URL}/why",
        {"row": "0", "column": "0"},
    ),
}


def edited(request: Request, edits: tuple[Any, ...]) -> bytes:
    """Return the request with all edits; edits of bytes come last."""
    for edit in edits:
        if edit[0] in _EDITS:
            _EDITS[edit[0]](request, *edit[1:])
    data = request.to_bytes()
    for edit in edits:
        if edit[0] in _BYTE_EDITS:
            data = _BYTE_EDITS[edit[0]](data, *edit[1:])
    return data


def _set_part(request: Request, place: int, text: str) -> None:
    if request.path:
        request.path[place % len(request.path)] = text


def _add_part(request: Request, text: str) -> None:
    request.path.append(text)


def _set_query(request: Request, name: str, text: str) -> None:
    request.query[name] = text


def _set_body(request: Request, content: Any) -> None:
    request.body = content


def _set_field(request: Request, name: str, value: Any) -> None:
    if not isinstance(request.body, dict):
        request.body = {}
    request.body = request.body | {name: value}


def _set_setting(request: Request, name: str, value: Any) -> None:
    settings = request.body.get("settings") if isinstance(request.body, dict) else None
    _set_field(
        request, "settings", (settings if isinstance(settings, dict) else {}) | {name: value}
    )


def _set_header(request: Request, name: str, value: str) -> None:
    request.headers = [pair for pair in request.headers if pair[0].lower() != name.lower()]
    request.headers.append((name, value))


def _add_header(request: Request, name: str, value: str) -> None:
    request.headers.append((name, value))


def _drop_header(request: Request, name: str) -> None:
    request.headers = [pair for pair in request.headers if pair[0].lower() != name.lower()]


def _set_method(request: Request, method: str) -> None:
    request.method = method


_EDITS = {
    "part": _set_part,
    "further part": _add_part,
    "query": _set_query,
    "body": _set_body,
    "field": _set_field,
    "setting": _set_setting,
    "header": _set_header,
    "further header": _add_header,
    "no header": _drop_header,
    "method": _set_method,
}


def _flip(data: bytes, place: int, bit: int) -> bytes:
    at = place % max(1, len(data))
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] if data else data


def _insert(data: bytes, place: int, text: str) -> bytes:
    at = place % (len(data) + 1)
    return data[:at] + text.encode("latin-1") + data[at:]


def _cut(data: bytes, place: int) -> bytes:
    return data[: place % (len(data) + 1)]


_BYTE_EDITS = {"flip": _flip, "insert": _insert, "cut": _cut}
