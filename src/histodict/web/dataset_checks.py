"""Problems of a data set that are reported before training, and unreadable images of a training.

Likely duplicates are found on 32 × 32 grey thumbnails y, centred and of unit norm: two images are
likely the same if the largest ⟨y, g(y')⟩ over the eight turns and mirror images g is near 1.

A training's folder holds
    bad-images.json   [{"name", "reason"}]
    skip-bad          present if the training leaves these images out
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.survey import check_duplicates_by_content, check_readable
from ..images.pixel_size import PixelSize, is_mixed
from ..utils.files import stat_signature
from ..utils.progress import Callback
from ..utils.text_io import failure_reason, pluralize, write_checked_json
from .datasets import DatasetSettings
from .jobs import Job
from .workspace import damaged_file_error, read_json, short_id

_SIDE = 32
_SAME = 0.97
_MIN_CONTRAST = 2.0  # grey levels; below it an image is blank and like every other blank one
_MAX_COMPARED = 5000
_IMBALANCE = 3
_N_NAMED = 4
_MAX_CHECKS = 32  # kept, of all users
_PATIENCE, _PAUSE = 0.2, 0.01  # seconds that a check stands back for the page, and looks again
_UNKNOWN = PixelSize(None, "unknown")


@dataclass(frozen=True)
class ImageSummary:
    """One image at a glance: its grey thumbnail until it was compared, or why it cannot be read."""

    record: ImageRecord
    grey: NDArray[np.float32] | None
    size: PixelSize = _UNKNOWN
    reason: str = ""


def summarize_image(
    record: ImageRecord, thumbnail: Callable[[ImageRecord], Path], mpp: float | None = None
) -> ImageSummary:
    """Through the image's stored thumbnail, which also knows whether the image may be read.

    `mpp`: µm per pixel where neither the record nor the file says it.
    """
    try:
        with Image.open(thumbnail(record)) as picture:
            grey = np.asarray(picture.convert("L").resize((_SIDE, _SIDE)), np.float32)
        size = DatasetSettings(mpp=mpp).is_set(record.mpp).at(record.path)
    except Exception as error:
        return ImageSummary(record, None, reason=failure_reason(error))
    # A thumbnail is there only if the image could be read; its mask is another matter.
    bad = check_readable([record], 1).bad if record.is_mapped else []
    return ImageSummary(record, None, reason=bad[0][1]) if bad else ImageSummary(record, grey, size)


def quick_warnings(manifest: Manifest) -> list[str]:
    """What the table alone tells."""
    warnings = [_within(manifest.root, text) for text in manifest.warnings]
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


def _within(root: Path, text: str) -> str:
    """A warning without the set's own place; a folder in it is named."""
    source, _, words = text.partition(": ")
    folder = Path(source)
    if folder.is_relative_to(root) and folder != root and not folder.is_file():
        return f"in {folder.relative_to(root).as_posix()}: {words}"
    return words or text


def slow_warnings(manifest: Manifest, looks: list[ImageSummary]) -> list[str]:
    """What only the images tell: pixel sizes, likely duplicates."""
    return [*_pixel_sizes(looks), *_duplicates(manifest, looks)]


def _pixel_sizes(looks: list[ImageSummary]) -> list[str]:
    seen = [look.size.mpp for look in looks if not look.reason]
    known = [mpp for mpp in seen if mpp is not None]
    n_unknown = len(seen) - len(known)
    unknown = f"The pixel size of {n_unknown} of {pluralize(len(seen), 'image')} is not known"
    if known and n_unknown:
        return [
            f"{unknown}; that of the others is. They are not learnt from together: give it above, "
            "as µm per pixel, or in a column mpp."
        ]
    if known and is_mixed(known):
        return [
            f"Mixed pixel sizes, from {min(known):g} to {max(known):g} µm: set a working pixel "
            "size (mpp) in the training settings, or the same cell has different sizes."
        ]
    if n_unknown:
        return [
            f"{unknown}: lengths are shown in pixels, not µm, and a model trained on them cannot "
            "tell whether other images fit. If you know it, give it above, as µm per pixel."
        ]
    return []


def size_counts(looks: list[ImageSummary]) -> list[dict[str, Any]]:
    """How many images have which pixel size, and who says so; the most common first."""
    counts = Counter(look.size for look in looks if not look.reason)
    return [
        {"mpp": size.mpp, "from": size.origin, "n_images": n} for size, n in counts.most_common()
    ]


def _duplicates(manifest: Manifest, looks: list[ImageSummary]) -> list[str]:
    seen = [look for look in looks if look.grey is not None][:_MAX_COMPARED]
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
    blank = norms < _MIN_CONTRAST * _SIDE
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


@dataclass
class CheckReport:
    """What a check of these images has found so far, and in the end."""

    manifest: Manifest
    summaries: list[ImageSummary] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # why these images cannot be learnt from
    is_ready: bool = False
    is_forgotten: bool = False  # nobody will ask for it any more

    def bad(self, manifest: Manifest) -> list[dict[str, str]]:
        """The images that cannot be read, by name, and why."""
        bad = (look for look in list(self.summaries) if look.reason)
        return [describe_findings(manifest, look.record, look.reason) for look in bad]


class BackgroundChecks:
    """Slow checks of data sets, one after another in the background; each once, as long as its
    images, and what is known of them, stay as they are.
    """

    def __init__(self, is_page_busy: Callable[[], bool] = lambda: False) -> None:
        """`is_page_busy`: whether somebody waits for the page, for whom a check stands back."""
        self._is_page_busy = is_page_busy
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checks")
        self._requested: OrderedDict[str, CheckReport] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """End with the image that is being looked at."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def done(self, manifest: Manifest, mpp: float | None) -> CheckReport | None:
        """What a check has found that came to its end; None if there was none."""
        with self._lock:
            found = self._requested.get(_state(manifest, mpp))
        return found if found and found.is_ready else None

    def request(
        self, manifest: Manifest, thumbnail: Callable[[ImageRecord], Path], mpp: float | None = None
    ) -> dict[str, Any]:
        """How far the check is, and what it found; the first question starts it.

        `mpp`: µm per pixel where neither a table nor the file says it.
        """
        key = _state(manifest, mpp)
        with self._lock:
            if key not in self._requested:
                self._requested[key] = CheckReport(manifest)
                self._pool.submit(self._check, self._requested[key], manifest, thumbnail, mpp)
            self._requested.move_to_end(key)
            found = self._requested[key]
            while len(self._requested) > _MAX_CHECKS:
                self._requested.popitem(last=False)[1].is_forgotten = True
        return self._reported(key, found)

    def follow(self, check: str, source: Path) -> dict[str, Any] | None:
        """How far a check of this folder or table is that is under way, by what `ask` called it;
        None: ask.

        To ask takes a look at every image file; to follow, none.
        """
        with self._lock:
            found = self._requested.get(check)
        root = source if source.is_dir() else source.parent
        if found is None or found.is_ready or found.manifest.root != root:
            return None
        return self._reported(check, found)

    def _reported(self, key: str, found: CheckReport) -> dict[str, Any]:
        is_ready = found.is_ready  # first: what is found before is all there then
        return {
            "check": key,
            "ready": is_ready,
            "seen": len(found.summaries),
            "of": len(found.manifest.records),
            "warnings": found.warnings,
            "refused": found.refused,
            "bad": found.bad(found.manifest),
            "sizes": size_counts(list(found.summaries)) if is_ready else [],
        }

    def _check(
        self,
        found: CheckReport,
        manifest: Manifest,
        thumbnail: Callable[[ImageRecord], Path],
        mpp: float | None,
    ) -> None:
        for record in manifest.records:
            if self._is_closed or found.is_forgotten:
                return
            self._yield_to_requests()
            found.summaries.append(summarize_image(record, thumbnail, mpp))
        found.warnings = slow_warnings(manifest, found.summaries)
        found.summaries = [
            replace(look, grey=None) for look in found.summaries
        ]  # they take megabytes
        try:
            readable = [place for place, look in enumerate(found.summaries) if not look.reason]
            check_duplicates_by_content(manifest.select(readable))
        except (ValueError, OSError) as error:
            found.refused = [str(error)]
        found.is_ready = True

    def _yield_to_requests(self) -> None:
        """Until the page is served, or so long: a check shall end, too."""
        end = time.monotonic() + _PATIENCE
        while self._is_page_busy() and time.monotonic() < end and not self._is_closed:
            time.sleep(_PAUSE)


def _state(manifest: Manifest, mpp: float | None) -> str:
    """Another one when an image was changed under its name, or what is known of it."""
    known = [(record, [_file_state(file) for file in record.files]) for record in manifest.records]
    return short_id(repr((manifest.root, mpp, known)))


def _file_state(path: Path) -> tuple[int, ...]:
    try:
        return stat_signature(path)
    except OSError:  # it has gone
        return ()


# --- unreadable images of a training --------------------------------------------------------------


Bad = list[dict[str, Any]]


def describe_findings(manifest: Manifest, record: ImageRecord, reason: str) -> dict[str, str]:
    """An image by its name in the set, and why it, or its mask, cannot be read."""
    reason = reason.removeprefix(f"{record.path}: ")
    if record.mask is not None:
        reason = reason.replace(str(record.mask), f"mask {record.mask.name}")
    return {"name": manifest.name(record), "reason": reason}


def find_bad_images(job: Job, manifest: Manifest, callback: Callback) -> None:
    """Reads every image once; refuses bad ones unless the user goes on without them."""
    found = check_readable(manifest.records, None, callback).bad
    bad = [describe_findings(manifest, record, reason) for record, reason in found]
    write_checked_json(job.folder / "bad-images.json", bad)
    if bad and not excludes_images(job):
        raise ValueError(refusal(len(bad), len(manifest.records)))


def refusal(n_bad: int, n_images: int) -> str:
    return f"{n_bad} of {pluralize(n_images, 'image')} cannot be read: mend them, or go on without"


def exclude_images(job: Job) -> None:
    (job.folder / "skip-bad").touch()


def excludes_images(job: Job) -> bool:
    return (job.folder / "skip-bad").exists()


def bad_images(job: Job) -> Bad:
    """As far as they are known."""
    path = job.folder / "bad-images.json"
    found: Bad = list(read_json(path, list)) if path.exists() else []
    if not all(isinstance(bad, dict) and {*bad} >= {"name", "reason"} for bad in found):
        raise damaged_file_error(path, "an image has no name or no reason")
    return found


def excluded_image_names(job: Job) -> frozenset[str]:
    """Names of the images that the training does without."""
    found = bad_images(job) if excludes_images(job) else []
    return frozenset(bad["name"] for bad in found)
