"""Edits of JSON values, which are JSON values themselves.

["set", path, value], ["drop", path, 0], or ["deep", path, n] for nested lists; a path is a list of
keys and indices.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from numpy.random import Generator

Edit = list[Any]
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 3.5, -0.0, 1e308, 1e-308, 1e999, 10**12, 2**63, 10**40),
    *(
        "",
        " ",
        "x",
        "none",
        "null",
        "1",
        "dfdl",
        "src",
        "nayak",
        "lbp-colour",
        "wndcharm",
        "pixels",
    ),
    *(
        "margin",
        "codes",
        "proportion",
        "ensemble",
        "region-detector",
        "tissue-classifier",
        "macenko",
    ),
    *("rgb", "centred", "timm:hf-hub:some/one", "timm:x@/etc/passwd", "\ud800", "\x00", "a" * 5000),
    *([], {}, [[]], [1, 2], ["a", "b"], ["a", "a"], {"a": 1}, {"n_atoms": []}, {"penalty": 1e-300}),
)


def paths(value: Any, start: tuple[Any, ...] = ()) -> list[list[Any]]:
    """Yield the paths of all nested values, beginning with the value itself."""
    found = [list(start)]
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, part in inner:
        found += paths(part, (*start, key))
    return found


def json_edit(rng: Generator, value: Any) -> Edit:
    """Return one random edit; values near the root are chosen more often than elements of long
    lists."""
    known = paths(value)
    weights = [1 / (1 + len(path)) ** 2 for path in known]
    total = sum(weights)
    path = known[int(rng.choice(len(known), p=[w / total for w in weights]))]
    what = rng.choice(["set", "set", "set", "add", "drop", "deep"])
    if what == "deep":
        return ["deep", path, int(rng.choice([30, 60, 500, 5000]))]
    if what == "drop":
        return ["drop", path, 0]
    new = _VALUES[int(rng.integers(len(_VALUES)))]
    return ["set", [*path, "new"] if what == "add" else path, new]


def apply_json(value: Any, edit: Edit) -> Any:
    """Return the value after one edit; unchanged if the path does not exist."""
    what, path, new = edit
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        try:
            place = place[key]
        except (KeyError, IndexError, TypeError):
            return value
    if what == "deep":
        new = _nested(new)
    if not path:
        return None if what == "drop" else new
    return _put(value, place, path[-1], what, new)


def _put(value: Any, place: Any, key: Any, what: str, new: Any) -> Any:
    in_list = isinstance(place, list) and isinstance(key, int) and key < len(place)
    if what == "drop" and (in_list or (isinstance(place, dict) and key in place)):
        del place[key]
    elif what != "drop" and (in_list or isinstance(place, dict)):
        place[key] = new
    elif what != "drop" and isinstance(place, list):
        place.append(new)
    return value


def _nested(n: int) -> Any:
    """Return a marker that `dumps` writes as nested lists: Python cannot nest that many."""
    return {"__deep__": n}


def dumps(value: Any) -> str:
    """Return JSON text; markers of `_nested` are written as nested lists."""
    text = json.dumps(value)
    return re.sub(r'\{"__deep__": (\d+)\}', lambda m: "[" * int(m[1]) + "]" * int(m[1]), text)
