"""What the viewer shows, to take away: outlines for QuPath, and patches as a table.

The picture itself the page makes: it alone knows what is on the screen.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from starlette.responses import Response
from starlette.routing import Route

from ..patches.patch_map import PatchMap
from ..reports.geojson import features
from .api_look import shown_answer, shown_map
from .api_model import download
from .calls import Call, endpoint
from .lanes import DOWNLOADS


def _class_at(place: int, classes: tuple[str, ...]) -> str | None:
    """The class that alone is shown, if one is."""
    if place >= len(classes):
        raise KeyError("there is no such class")
    return classes[place] if place >= 0 else None


def outlines(call: Call, *, only: int = -1) -> Response:
    """Areas of neighbouring patches, or the regions that were found, as QuPath reads them."""
    answer, model = shown_answer(call), call.trained.model
    shown = _class_at(only, tuple(model.classes_))
    found = [json.loads(text) for text in features(answer, of_regions=model.finds_regions)]
    wanted = [one for one in found if shown in (None, one["properties"]["classification"]["name"])]
    data = json.dumps({"type": "FeatureCollection", "features": wanted}).encode()
    return download(_name(call, ".geojson"), "application/geo+json", data)


def patches(call: Call, *, only: int = -1) -> Response:
    """A line for each patch on tissue."""
    patch_map = shown_map(call)
    shown = _class_at(only, patch_map.classes)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", "column", "x", "y", "side", "class", *_margins(patch_map.classes)])
    table.writerows(_rows(patch_map, shown))
    return download(_name(call, ".csv"), "text/csv; charset=utf-8", text.getvalue().encode())


def _margins(classes: tuple[str, ...]) -> list[str]:
    return [f"margin_{name}" for name in classes]


def _rows(patch_map: PatchMap, only: str | None) -> list[list[Any]]:
    x, y = patch_map.corners()
    winners, side = patch_map.winners, patch_map.grid.patch_side
    wanted = patch_map.tissue if only is None else winners == patch_map.classes.index(only)
    return [
        [
            *(row, column, x[row, column], y[row, column], side),
            patch_map.classes[winners[row, column]],
            *(f"{margin:.5g}" for margin in patch_map.margins[row, column]),
        ]
        for row, column in np.argwhere(wanted).tolist()
    ]


def _name(call: Call, ending: str) -> str:
    return f"{Path(call.record.path).stem}-{call.job.name}{ending}"


_PLACE = "/api/jobs/{job}/look/{data}/{image}"
ROUTES = [
    Route(f"{_PLACE}/map.geojson", endpoint(outlines, DOWNLOADS)),
    Route(f"{_PLACE}/map.csv", endpoint(patches, DOWNLOADS)),
]
