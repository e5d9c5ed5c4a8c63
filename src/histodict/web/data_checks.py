"""What may be wrong with a data set, said before anybody trains on it.

Likely duplicates are found on 32 × 32 grey thumbnails y, centred and of unit norm: two images are
likely the same if the largest ⟨y, g(y')⟩ over the eight turns and mirror images g is near 1.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..images.manifest import Manifest, Record
from ..images.readers import open_image

_SIDE = 32
_SAME = 0.97
_LEAST_CONTRAST = 2.0  # grey levels; below it an image is blank and like every other blank one
_MOST_COMPARED = 5000
_IMBALANCE = 3
_MPP_SPREAD = 1.1
_N_NAMED = 4


@dataclass(frozen=True)
class Look:
    """One image at a glance: its grey thumbnail, or why it cannot be read."""

    record: Record
    grey: NDArray[np.float32] | None
    mpp: float | None = None
    reason: str = ""


def look_at(record: Record, thumbnail: Callable[[Record], Path]) -> Look:
    """Through the image's stored thumbnail, which also knows whether the image may be read."""
    try:
        with Image.open(thumbnail(record)) as picture:
            grey = np.asarray(picture.convert("L").resize((_SIDE, _SIDE)), np.float32)
        with open_image(record.path, record.mpp) as source:
            mpp = source.mpp
    except (ValueError, OSError) as error:
        return Look(record, None, reason=str(error))
    return Look(record, grey, mpp)


def quick_warnings(manifest: Manifest) -> list[str]:
    """What the table alone tells."""
    warnings = [text.split(": ", 1)[-1] for text in manifest.warnings]
    counts = Counter(record.label for record in manifest.records if record.label)
    if counts and max(counts.values()) > _IMBALANCE * min(counts.values()):
        (most, n_most), (least, n_least) = counts.most_common(1)[0], counts.most_common()[-1]
        warnings.append(
            f"Class imbalance: {n_most} images of {most}, but only {n_least} of {least}. Read the "
            "result per class, not the overall share that is right."
        )
    for label in sorted(counts):
        patients = {r.patient for r in manifest.records if r.label == label}
        if len(patients) == 1 and counts[label] > 1:
            warnings.append(
                f"All images of {label} come from one patient: what is learnt may be the patient, "
                "and no other patient is left to test on."
            )
    return warnings


def slow_warnings(manifest: Manifest, looks: list[Look]) -> list[str]:
    """What only the images tell: unreadable ones, pixel sizes, likely duplicates."""
    warnings = []
    bad = [manifest.name(look.record) for look in looks if look.grey is None]
    if bad:
        warnings.append(f"{len(bad)} images cannot be read: {_some(bad)}")
    return [*warnings, *_pixel_sizes(looks), *_duplicates(manifest, looks)]


def _pixel_sizes(looks: list[Look]) -> list[str]:
    known = [look.mpp for look in looks if look.mpp is not None]
    n_unknown = sum(look.grey is not None and look.mpp is None for look in looks)
    if known and max(known) > _MPP_SPREAD * min(known):
        return [
            f"Mixed pixel sizes, from {min(known):g} to {max(known):g} µm: set a working pixel "
            "size (mpp) in the training settings, or the same cell has different sizes."
        ]
    if known and n_unknown:
        return [f"The pixel size of {n_unknown} images is not known; that of the others is."]
    if n_unknown:
        return ["The pixel size is not known: lengths are shown in pixels, not µm."]
    return []


def _duplicates(manifest: Manifest, looks: list[Look]) -> list[str]:
    seen = [look for look in looks if look.grey is not None][:_MOST_COMPARED]
    pairs = likely_duplicates([look.grey for look in seen if look.grey is not None])
    if not pairs:
        return []
    names = [
        f"{manifest.name(seen[i].record)} and {manifest.name(seen[j].record)}" for i, j in pairs
    ]
    apart = sum(seen[i].record.patient != seen[j].record.patient for i, j in pairs)
    clash = sum(seen[i].record.label != seen[j].record.label for i, j in pairs)
    words = f"Likely duplicates, maybe turned or mirrored: {_some(names)}."
    if apart and manifest.classes:
        words += f" Pairs listed under different patients: {apart}; check them first."
    if clash:
        words += f" Pairs with different labels: {clash}."
    return [words]


def likely_duplicates(greys: list[NDArray[np.float32]]) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, of thumbnails (side, side) that show the same."""
    if len(greys) < 2:
        return []
    centred = np.stack(greys) - np.mean(greys, axis=(1, 2), keepdims=True, dtype=np.float32)
    flat = centred.reshape(len(greys), -1)
    norms = np.linalg.norm(flat, axis=1)
    blank = norms < _LEAST_CONTRAST * _SIDE
    Y = flat / np.maximum(norms, 1e-6)[:, None]
    best = np.zeros((len(Y), len(Y)), np.float32)
    for n_turns in range(4):
        turned = np.rot90(Y.reshape(-1, _SIDE, _SIDE), n_turns, axes=(1, 2))
        for image in (turned, turned[:, :, ::-1]):
            np.maximum(best, Y @ image.reshape(len(Y), -1).T, out=best)
    best[blank] = 0
    best[:, blank] = 0
    rows, columns = np.nonzero(np.triu(best > _SAME, 1))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
    return "; ".join(names[:_N_NAMED]) + rest


class Checks:
    """Slow checks of data sets, one after another in the background; each set once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checks")
        self._asked: dict[str, tuple[list[Look], Future[list[str]]]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """End with the image that is being looked at."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, manifest: Manifest, thumbnail: Callable[[Record], Path]) -> dict[str, Any]:
        """How far the check is, and what it found; the first question starts it."""
        looks: list[Look] = []

        def check() -> list[str]:
            for record in manifest.records:
                if self._is_closed:
                    return []
                looks.append(look_at(record, thumbnail))
            return slow_warnings(manifest, looks)

        key = manifest.digest()
        with self._lock:
            if key not in self._asked:
                self._asked[key] = looks, self._pool.submit(check)
            looks, found = self._asked[key]
        return {
            "ready": found.done(),
            "seen": len(looks),
            "of": len(manifest.records),
            "warnings": found.result() if found.done() else [],
        }
