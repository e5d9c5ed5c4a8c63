"""Which image, or which part of one, to label next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.routing import Route

from ..execution.files import file_key
from ..images.manifest import Record
from .api_look import shown_map
from .calls import DOWNLOADS, WHYS, Call, Later, endpoint
from .jobs import OPENED
from .maps import stored_answer
from .sheets import Sheet, images_with_sheets
from .suggestions import appearance, lead, suggest, suggest_fields

_MOST = 300  # images that are compared; of more, so many from all over the set
_N_IMAGES = 6
_N_FIELDS = 3
_N_NEXT = 8  # images whose answers are asked for next
_LOOK_BYTES = 14 * 8 + 300

Item = TypeVar("Item")


def images(call: Call) -> dict[str, Any]:
    """Images to label next, of those that the model has judged; and which it should judge next."""
    known = _known(call)
    found = {i: r for i, r in call.dataset.listing.by_id.items() if r.path not in known}
    asked = _spread(list(found), _MOST)
    seen = {i: look for i in asked if (look := _look(call, found[i])) is not None}
    ids, n_unread = list(seen), len(asked) - len(seen)
    told: dict[str, Any] = {"of": len(found), "compared": len(ids), "unread": n_unread, "judged": 0}
    if not ids:
        return told | {"next": [], "suggested": []}
    learnt = [_look(call, record) for record in _spread(list(known.values()), _MOST)]
    looks = np.stack(list(seen.values()))
    past = np.array([look for look in learnt if look is not None]).reshape(-1, looks.shape[1])
    leads = [_lead(call, found[i]) for i in ids]
    judged = [place for place, one in enumerate(leads) if one is not None]
    open_ = [place for place, one in enumerate(leads) if one is None]
    first = suggest(np.zeros(len(open_)), looks[open_], past, _N_NEXT) if open_ else []
    best = suggest(
        np.array([leads[place] for place in judged], float), looks[judged], past, _N_IMAGES
    )
    names = call.dataset.listing.names
    return told | {
        "judged": len(judged),
        "next": [ids[open_[one.place]] for one in first],
        "suggested": [
            {
                "image": (image := ids[judged[one.place]]),
                "name": names[image],
                "doubt": one.doubt,
                "novelty": one.novelty,
            }
            for one in best
        ],
    }


def _known(call: Call) -> dict[Any, Record]:
    """By path, the images that the model was taught or tested with, or on which the user has said
    what is what: by a label, a rectangle or a stroke.
    """
    records, folder = call.dataset.listing.by_id, call.dataset.folder
    said = [c["image"] for c in call.dataset.corrections()]
    said += [image for image in images_with_sheets(folder) if Sheet.read(folder, image).shapes]
    known = [records[image] for image in said if image in records]
    if call.job.summary["kind"] != OPENED and call.job.summary["data"] == call.dataset.id:
        learn, test = call.learn_and_test()
        inside = {record.path for record in records.values()}  # a cut-out is no image of the set
        known += [r for r in (*learn.records, *test.records) if r.path in inside]
    return {record.path: record for record in known}


def _spread(items: list[Item], most: int) -> list[Item]:
    """At most so many of them, from all over."""
    if len(items) <= most:
        return items
    return [items[place] for place in np.linspace(0, len(items) - 1, most).astype(int)]


def _look(call: Call, record: Record) -> NDArray[np.float64] | None:
    """None: the image cannot be read; the others can."""
    context = call.context

    def seen() -> tuple[NDArray[np.float64], int]:
        with Image.open(context.tiles.thumbnail(record)) as picture:
            return appearance(np.asarray(picture.convert("RGB"))), _LOOK_BYTES

    try:
        record = context.sources.check(record)
        return context.looks.get((repr(file_key(record.path)),), seen)
    except (ValueError, OSError, MemoryError):
        return None


def _lead(call: Call, record: Record) -> float | None:
    """None: the model has not judged it, or there is no tissue."""
    facts = stored_answer(call.job.folder / "maps", record, call.dataset.about.mpp)
    return None if facts is None else lead(facts)


def fields(call: Call) -> Later:
    """Parts of an image to label next."""
    dataset, image = call.dataset, str(call.parts["image"])
    marked: Sequence[Any] = [
        tuple(c["box"]) for c in dataset.corrections() if c["image"] == image and c["box"]
    ]

    def found() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        drawn = Sheet.read(dataset.folder, image).shapes
        best = suggest_fields(shown_map(call), source, list(marked), _N_FIELDS, drawn)
        return {
            "fields": [
                {"box": box, "doubt": one.doubt, "novelty": one.novelty} for box, one in best
            ]
        }

    return Later(WHYS, found, call.record.path)


ROUTES = [
    Route("/api/jobs/{job}/suggest/{data}", endpoint(images, DOWNLOADS)),
    Route("/api/jobs/{job}/look/{data}/{image}/fields", endpoint(fields)),
]
