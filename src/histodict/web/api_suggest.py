"""Which image, or which part of one, to label next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.routing import Route

from ..execution.files import file_key
from ..images.manifest import ImageRecord
from .api_look import displayed_map
from .calls import DOWNLOADS, EXPLANATIONS, ApiRequest, DeferredWork, endpoint
from .jobs import IMPORTED
from .maps import load_prediction
from .sheets import AnnotationStore, annotated_images
from .suggestions import colour_descriptor, normalized_margin, suggest, suggest_regions

_MAX = 300  # images that are compared; of more, so many from all over the set
_N_IMAGES = 6
_N_FIELDS = 3
_N_NEXT = 8  # images whose answers are asked for next
_CACHE_BYTES = 14 * 8 + 300

Item = TypeVar("Item")


def images(call: ApiRequest) -> dict[str, Any]:
    """Images to label next, of those that the model has judged; and which it should judge next."""
    known = _labelled(call)
    found = {i: r for i, r in call.dataset.listing.by_id.items() if r.path not in known}
    asked = _spread(list(found), _MAX)
    seen = {i: look for i in asked if (look := _cached_predictions(call, found[i])) is not None}
    ids, n_unread = list(seen), len(asked) - len(seen)
    told: dict[str, Any] = {"of": len(found), "compared": len(ids), "unread": n_unread, "judged": 0}
    if not ids:
        return told | {"next": [], "suggested": []}
    learnt = [_cached_predictions(call, record) for record in _spread(list(known.values()), _MAX)]
    looks = np.stack(list(seen.values()))
    past = np.array([look for look in learnt if look is not None]).reshape(-1, looks.shape[1])
    leads = [_margin(call, found[i]) for i in ids]
    judged = [place for place, one in enumerate(leads) if one is not None]
    open_ = [place for place, one in enumerate(leads) if one is None]
    first = suggest(np.zeros(len(open_)), looks[open_], past, _N_NEXT) if open_ else []
    best = suggest(
        np.array([leads[place] for place in judged], float), looks[judged], past, _N_IMAGES
    )
    names = call.dataset.listing.names
    return told | {
        "judged": len(judged),
        "next": [ids[open_[one.position]] for one in first],
        "suggested": [
            {
                "image": (image := ids[judged[one.position]]),
                "name": names[image],
                "doubt": one.uncertainty,
                "novelty": one.novelty,
            }
            for one in best
        ],
    }


def _labelled(call: ApiRequest) -> dict[Any, ImageRecord]:
    """By path, the images that the model was taught or tested with, or on which the user has said
    what is what: by a label, a rectangle or a stroke.
    """
    records, folder = call.dataset.listing.by_id, call.dataset.folder
    said = [c["image"] for c in call.dataset.corrections()]
    said += [
        image for image in annotated_images(folder) if AnnotationStore.read(folder, image).shapes
    ]
    known = [records[image] for image in said if image in records]
    if call.job.summary["kind"] != IMPORTED and call.job.summary["data"] == call.dataset.id:
        learn, test = call.learn_and_test()
        inside = {record.path for record in records.values()}  # a cut-out is no image of the set
        known += [r for r in (*learn.records, *test.records) if r.path in inside]
    return {record.path: record for record in known}


def _spread(items: list[Item], most: int) -> list[Item]:
    """At most so many of them, from all over."""
    if len(items) <= most:
        return items
    return [items[place] for place in np.linspace(0, len(items) - 1, most).astype(int)]


def _cached_predictions(call: ApiRequest, record: ImageRecord) -> NDArray[np.float64] | None:
    """None: the image cannot be read; the others can."""
    context = call.context

    def seen() -> tuple[NDArray[np.float64], int]:
        with Image.open(context.tiles.thumbnail(record)) as picture:
            return colour_descriptor(np.asarray(picture.convert("RGB"))), _CACHE_BYTES

    try:
        record = context.sources.check(record)
        return context.suggestion_cache.get((repr(file_key(record.path)),), seen)
    except (ValueError, OSError, MemoryError):
        return None


def _margin(call: ApiRequest, record: ImageRecord) -> float | None:
    """None: the model has not judged it, or there is no tissue."""
    facts = load_prediction(call.job.folder / "maps", record, call.dataset.about.mpp)
    return None if facts is None else normalized_margin(facts)


def fields(call: ApiRequest) -> DeferredWork:
    """Parts of an image to label next."""
    dataset, image = call.dataset, str(call.parts["image"])
    marked: Sequence[Any] = [
        tuple(c["box"]) for c in dataset.corrections() if c["image"] == image and c["box"]
    ]

    def found() -> dict[str, Any]:
        source = call.context.tiles.open(call.record)
        drawn = AnnotationStore.read(dataset.folder, image).shapes
        best = suggest_regions(displayed_map(call), source, list(marked), _N_FIELDS, drawn)
        return {
            "fields": [
                {"box": box, "doubt": one.uncertainty, "novelty": one.novelty} for box, one in best
            ]
        }

    return DeferredWork(EXPLANATIONS, found, call.record.path)


ROUTES = [
    Route("/api/jobs/{job}/suggest/{data}", endpoint(images, DOWNLOADS)),
    Route("/api/jobs/{job}/look/{data}/{image}/fields", endpoint(fields)),
]
