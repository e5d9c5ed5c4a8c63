"""Edits that damage a request, by the damaged part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from .requests import BARE, CLASS, DATA, IMAGE, JOB, PORT

Edits = tuple[list[Any], ...]

# The essential edit of a kind, because of which the request must be refused.
REFUSED: dict[str, Edits] = {
    "no token": (["no header", "Cookie"],),
    "a foreign host": (["header", "Host", "evil.example"],),
    "a foreign origin": (["method", "POST"], ["no header", "X-Histodict"]),
}
_DEEP = "[" * 60_000
_NUMBERS = [
    "-1",
    "0",
    "1",
    "7",
    "1e400",
    "NaN",
    "-inf",
    "٣",
    "0x10",
    "1_0",
    "1.5",
    "null",
    "true",
    "2147483648",
    "-9223372036854775809",
]
_NUMBERS += ["", " 1", "1" + "0" * 30, "9" * 400, "9" * 5000]
# Text that starts with a tilde is sent unchanged, the rest percent-encoded.
_PLACES = [
    "..",
    ".",
    "~..",
    "~%2e%2e",
    "~..%2f..%2fcanary.txt",
    "~%2fetc%2fpasswd",
    "~%00",
    "~%ff%fe",
    "~%ed%a0%80",
    "~%",
]
_PLACES += [
    "~//",
    "~%5c..%5c",
    "~*",
    "canary.txt",
    "../canary.txt",
    "outside/canary.csv",
    "link.csv",
    "/etc/passwd",
]
_PLACES += ["tissue/../..", "other", "", "\0", "\ud800", "a" * 300, "~" + "a/" * 3000, "open.html"]
_VALUES: list[Any] = [None, True, False, 0, -1, 1.5, 2**32, 10**30, -(10**30), [], {}, [[[]]]]
_VALUES += [{"a": 1}, [0, 0, 10**30, 10**30], [True, 0, 99, 99], ["healthy"], "\ud800", "a" * 5000]
_VALUES += ["", "abc", "NaN", "0", "healthy", "inflamed", "dfdl", "wndcharm", "pixels"]
_VALUES += [DATA, IMAGE, JOB, BARE, CLASS]
_FIELDS = [
    "folder_index",
    "relative_path",
    "data",
    "image",
    "label",
    "box",
    "id",
    "preset",
    "method",
    "settings",
    "test_folds",
    "seed",
]
_FIELDS += ["regions", "parent", "unknown"]
_SETTINGS = [
    "n_atoms",
    "penalty",
    "rho",
    "n_iter",
    "patch_px",
    "stride_px",
    "downsample",
    "mpp",
    "stain",
    "features",
    "aggregation",
]
_SETTINGS += [
    "n_components",
    "context_scale",
    "ensemble",
    "calibration_folds",
    "smoothing_radius",
    "min_tissue_fraction",
    "backend",
    "step",
]
_SETTINGS += ["augment_patches", "whiten", "unknown"]
_NAMES = [
    "folder_index",
    "relative_path",
    "preset",
    "method",
    "point",
    "only",
    "class",
    "least",
    "row",
    "column",
]
_BODIES = [
    "",
    _DEEP,
    '{"folder_index":' * 4000,
    "null",
    "[1]",
    "{",
    '{"folder_index": NaN}',
    '{"a": 1e999}',
]
_BODIES += ["\ufeff{}", "x" * 70_000, '{"seed": ' + "9" * 5000 + "}", '"\\ud800"', "{}{}", "\0"]
_METHODS = [
    "HEAD",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "POST",
    "GET",
    "X",
]
_HEADERS = [
    ("Content-Length", "-1"),
    ("Content-Length", "99999999999999999999"),
    ("Content-Length", "5"),
    ("Content-Length", "abc"),
    ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "gzip, chunked"),
    ("Expect", "100-continue"),
    ("Upgrade", "websocket"),
    ("Connection", "upgrade"),
    ("Range", "bytes=0-99999999999999999999"),
    ("Range", "bytes=-5"),
    ("Range", "bytes=5-1,0-0,0-0"),
    ("If-Modified-Since", "never"),
    ("If-None-Match", '"x"'),
    ("Content-Type", "multipart/form-data; boundary=x"),
    ("Cookie", "a=b; ; =; histodict-80"),
    ("Origin", "http://127.0.0.1:" + PORT),
    ("X-Long", "a" * 20_000),
    ("X-Odd", "\x7f\u00ff"),
    ("Host", "localhost"),
]
_HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "[::1",
    "127.0.0.1@evil.example",
    "127.1",
    "0.0.0.0",
]
_HOSTS += ["", f"evil.example:{PORT}", "localhost.", "[::2]", "2130706433"]
_ORIGINS = [
    "null",
    "http://evil.example",
    "http://[::1",
    "https://localhost",
    "file://",
    "http://127.0.0.1",
    "x",
]
_ORIGINS += ["", "http://127.0.0.1:80", f"http://127.0.0.1:{PORT}.evil"]
_STRANGERS = [
    "",
    f"histodict-{PORT}=",
    f"histodict-{PORT}=wrong",
    "histodict-80=" + "A" * 32,
    "=;=;=",
]


def _some(rng: Generator, values: list[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _times(rng: Generator) -> range:
    return range(int(rng.integers(1, 4)))


def _paths(rng: Generator) -> Edits:
    edits = []
    for _ in _times(rng):
        text = _some(rng, _PLACES + _NUMBERS)
        ending = _some(rng, ["", "", ".jpg", ".png"])
        part = ["part", int(rng.integers(9)), text + ending]
        edits.append(_some(rng, [part, ["further part", text]]))
    return tuple(edits)


def _queries(rng: Generator) -> Edits:
    contents = _NUMBERS + _PLACES + ["dfdl", "pixels", "paper.json", _DEEP[:5000]]
    return tuple(["query", _some(rng, _NAMES), _some(rng, contents)] for _ in _times(rng))


def _fields(rng: Generator) -> Edits:
    values = _VALUES + _PLACES
    return tuple(["field", _some(rng, _FIELDS), _some(rng, values)] for _ in _times(rng))


def _settings(rng: Generator) -> Edits:
    values = [*_NUMBERS, *_VALUES, _DEEP[:5000], "hf-hub:x", "timm:x@/etc/passwd", "cuda", "none"]
    return tuple(["setting", _some(rng, _SETTINGS), _some(rng, values)] for _ in _times(rng))


def _bodies(rng: Generator) -> Edits:
    return ["method", "POST"], ["body", _some(rng, _BODIES + _VALUES)]


def _headers(rng: Generator) -> Edits:
    ways = ["header", "further header", "further header"]
    return tuple([_some(rng, ways), *_some(rng, _HEADERS)] for _ in _times(rng))


def _methods(rng: Generator) -> Edits:
    return (["method", _some(rng, _METHODS)],)


def _bytes(rng: Generator) -> Edits:
    contents = [
        "\r\n",
        "\n",
        "\0",
        " ",
        "%",
        "\x80\xff",
        "Host: a\r\n",
        "\r\n\r\n",
        "0\r\n\r\n",
        "/../",
    ]
    edits: list[list[Any]] = []
    for _ in range(int(rng.integers(1, 12))):
        place = int(rng.integers(1 << 20))
        flip, insert = (
            ["flip", place, int(rng.integers(8))],
            ["insert", place, _some(rng, contents)],
        )
        edits.append(_some(rng, [flip, flip, insert]))
    if rng.random() < 0.1:
        edits.append(["cut", int(rng.integers(1 << 20))])
    return tuple(edits)


def _strangers(rng: Generator) -> Edits:
    further = _some(rng, [_paths, _queries, _methods])(rng) if rng.random() < 0.5 else ()
    return ["header", "Cookie", _some(rng, _STRANGERS)], *further


def _foreign_hosts(rng: Generator) -> Edits:
    return (["header", "Host", _some(rng, _HOSTS)],)


def _foreign_origins(rng: Generator) -> Edits:
    return ["header", "X-Histodict", "1"], ["header", "Origin", _some(rng, _ORIGINS)]


KINDS: dict[str, Callable[[Generator], Edits]] = {
    "path": _paths,
    "query": _queries,
    "fields": _fields,
    "settings": _settings,
    "body": _bodies,
    "headers": _headers,
    "method": _methods,
    "bytes": _bytes,
    "no token": _strangers,
    "a foreign host": _foreign_hosts,
    "a foreign origin": _foreign_origins,
}
