"""Checks of a data set before training, and the list of unreadable images of a training.

Likely duplicates are found on 32 × 32 grey thumbnails y, centred and scaled to unit norm: images
are likely equal if the largest ⟨y, g(y')⟩ over the eight rotations and reflections g is near 1.

A training's folder holds
    bad-images.json   [{"name", "reason"}]
    skip-bad          present if the training excludes these images
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.survey import check_duplicates_by_content, check_readable
from ..images.pixel_size import PixelSize, have_mixed_pixel_sizes
from ..utils.files import stat_signature
from ..utils.progress import Callback
from ..utils.text_io import failure_reason, pluralize, write_checked_json
from .datasets import DatasetSettings
from .jobs import Job
from .schema import Json
from .workspace import damaged_file_error, read_json, short_id

_THUMBNAIL_PX = 32
_MIN_SIMILARITY = 0.97  # of likely duplicates
_MIN_CONTRAST = 2.0  # grey levels; below it, an image is blank and similar to all blank ones
_MAX_COMPARED = 5000  # images
_MAX_CLASS_RATIO = 3  # of the numbers of images of the largest and the smallest class
_MAX_NAMES = 4  # in a warning
_MAX_CHECKS = 32  # in the cache, of all users
_MAX_WAIT = 0.2  # seconds for which a check yields to requests
_POLL_INTERVAL = 0.01  # seconds
_UNKNOWN_PIXEL_SIZE = PixelSize(None, "unknown")


@dataclass(frozen=True)
class ImageCheck:
    """Result of the check of an image.

    Attributes
    ----------
    record : image
    grey : grey thumbnail (32, 32); None if unreadable, or after the comparison of all images
    size : pixel size
    reason : why the image or its mask cannot be read; empty if both can be read
    """

    record: ImageRecord
    grey: NDArray[np.float32] | None
    size: PixelSize = _UNKNOWN_PIXEL_SIZE
    reason: str = ""


def check_image(
    record: ImageRecord, thumbnail: Callable[[ImageRecord], Path], mpp: float | None = None
) -> ImageCheck:
    """Return a grey thumbnail and the pixel size of an image, or why it cannot be read.

    Parameters
    ----------
    record : image
    thumbnail : function that returns the path of the thumbnail, or raises an error
    mpp : µm per pixel if neither the record nor the file gives it
    """
    try:
        with Image.open(thumbnail(record)) as image_file:
            grey = np.asarray(
                image_file.convert("L").resize((_THUMBNAIL_PX, _THUMBNAIL_PX)), np.float32
            )
        size = DatasetSettings(mpp=mpp).pixel_size_option(record.mpp).resolve(record.path)
    except Exception as error:
        return ImageCheck(record, None, reason=failure_reason(error))
    # A thumbnail exists only if the image could be read; its mask is checked here.
    bad = check_readable([record], 1).unusable if record.has_regions else []
    return ImageCheck(record, None, reason=bad[0][1]) if bad else ImageCheck(record, grey, size)


def manifest_warnings(manifest: Manifest) -> list[str]:
    """Return the manifest's warnings, and those about class imbalance and single patients."""
    warnings = [_shorten_paths(manifest.root, text) for text in manifest.warnings]
    counts = Counter(record.label for record in manifest.records if record.label)
    if counts and max(counts.values()) > _MAX_CLASS_RATIO * min(counts.values()):
        (most, n_most), (least, n_least) = counts.most_common(1)[0], counts.most_common()[-1]
        warnings.append(
            f"Class imbalance: {n_most} images of {most}, but only {n_least} of {least}. Use the "
            "scores per class, not the overall accuracy."
        )
    for label in sorted(counts):
        patients = {r.patient for r in manifest.records if r.label == label}
        if len(patients) == 1 and counts[label] > 1:
            warnings.append(
                f"All images of {label} come from one patient: the model may learn features of "
                "the patient, and no other patient is available for the test."
            )
    return warnings


def _shorten_paths(root: Path, text: str) -> str:
    """Return a warning "PATH: MESSAGE" with PATH relative to `root`; drop other paths."""
    source, _, message = text.partition(": ")
    folder = Path(source)
    if folder.is_relative_to(root) and folder != root and not folder.is_file():
        return f"in {folder.relative_to(root).as_posix()}: {message}"
    return message or text


def image_warnings(manifest: Manifest, image_checks: list[ImageCheck]) -> list[str]:
    """Return warnings about pixel sizes and likely duplicates among the checked images."""
    return [*_pixel_size_warnings(image_checks), *_duplicate_warnings(manifest, image_checks)]


def _pixel_size_warnings(image_checks: list[ImageCheck]) -> list[str]:
    sizes = [image_check.size.mpp for image_check in image_checks if not image_check.reason]
    known = [mpp for mpp in sizes if mpp is not None]
    n_unknown = len(sizes) - len(known)
    unknown = f"The pixel size of {n_unknown} of {pluralize(len(sizes), 'image')} is unknown"
    if known and n_unknown:
        return [
            f"{unknown}. Images with and without pixel size cannot be trained together: set the "
            "pixel size above (µm per pixel), or in a column mpp."
        ]
    if known and have_mixed_pixel_sizes(known):
        return [
            f"Mixed pixel sizes, from {min(known):g} to {max(known):g} µm: set a common pixel "
            "size (mpp) in the training settings; otherwise the same cell has different sizes."
        ]
    if n_unknown:
        return [
            f"{unknown}: lengths are shown in pixels instead of µm, and a model trained on these "
            "images cannot check the pixel size of other images. If you know the pixel size, "
            "set it above (µm per pixel)."
        ]
    return []


def count_pixel_sizes(image_checks: list[ImageCheck]) -> list[Json]:
    """Return the number of images per pixel size and its origin, the most common first."""
    counts = Counter(image_check.size for image_check in image_checks if not image_check.reason)
    return [{"mpp": s.mpp, "from": s.origin, "n_images": n} for s, n in counts.most_common()]


def _duplicate_warnings(manifest: Manifest, image_checks: list[ImageCheck]) -> list[str]:
    compared = [image_check for image_check in image_checks if image_check.grey is not None][
        :_MAX_COMPARED
    ]
    pairs = find_likely_duplicates(
        [image_check.grey for image_check in compared if image_check.grey is not None]
    )
    if not pairs:
        return []
    names = [
        f"{manifest.name(compared[i].record)} and {manifest.name(compared[j].record)}"
        for i, j in pairs
    ]
    n_other_patient = sum(
        compared[i].record.patient != compared[j].record.patient for i, j in pairs
    )
    n_other_label = sum(compared[i].record.label != compared[j].record.label for i, j in pairs)
    warning = f"Likely duplicates, possibly rotated or mirrored: {_join_first(names)}."
    if n_other_patient and manifest.classes:
        warning += f" Pairs with different patients: {n_other_patient}; check these first."
    if n_other_label:
        warning += f" Pairs with different labels: {n_other_label}."
    return [warning]


def find_likely_duplicates(thumbnails: list[NDArray[np.float32]]) -> list[tuple[int, int]]:
    """Return index pairs of grey thumbnails (32, 32) that are nearly equal after rotation or flip.

    The first index of a pair is smaller than the second.
    """
    if len(thumbnails) < 2:
        return []
    stacked = np.stack(thumbnails)
    centred = stacked - stacked.mean(axis=(1, 2), keepdims=True, dtype=np.float32)
    flat = centred.reshape(len(stacked), -1)
    norms = np.linalg.norm(flat, axis=1)
    blank = norms < _MIN_CONTRAST * _THUMBNAIL_PX
    Y = flat / np.maximum(norms, 1e-6)[:, None]
    similarity = np.zeros((len(Y), len(Y)), np.float32)
    for n_turns in range(4):
        rotated = np.rot90(Y.reshape(-1, _THUMBNAIL_PX, _THUMBNAIL_PX), n_turns, axes=(1, 2))
        for image in (rotated, rotated[:, :, ::-1]):
            np.maximum(similarity, Y @ image.reshape(len(Y), -1).T, out=similarity)
    similarity[blank] = 0
    similarity[:, blank] = 0
    rows, columns = np.nonzero(np.triu(similarity > _MIN_SIMILARITY, 1))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def _join_first(names: list[str]) -> str:
    """Join the first names, and append the number of further names."""
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return "; ".join(names[:_MAX_NAMES]) + rest


@dataclass
class CheckReport:
    """State and findings of the check of a data set.

    Attributes
    ----------
    manifest : checked images
    image_checks : results of the images checked so far
    warnings : findings about the whole set
    errors : errors that prevent training on these images
    is_complete : whether the check is complete
    is_obsolete : whether the check was removed from the cache, and should stop
    """

    manifest: Manifest
    image_checks: list[ImageCheck] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_complete: bool = False
    is_obsolete: bool = False

    def unreadable_images(self, manifest: Manifest) -> list[dict[str, str]]:
        """Return a dictionary with "name" and "reason" for each unreadable image."""
        bad = (image_check for image_check in list(self.image_checks) if image_check.reason)
        return [unreadable_image_to_json(manifest, s.record, s.reason) for s in bad]


class BackgroundChecks:
    """Queue of slow checks of data sets, run by a background thread.

    A check is cached until the images, or their metadata, change.
    """

    def __init__(self, is_server_busy: Callable[[], bool] = lambda: False) -> None:
        """Start the thread, which pauses between images while `is_server_busy` returns True."""
        self._is_server_busy = is_server_busy
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checks")
        self._reports: OrderedDict[str, CheckReport] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Stop the thread after the current image."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def complete_report(self, manifest: Manifest, mpp: float | None) -> CheckReport | None:
        """Return the report of the check of these images; None if there is no complete check."""
        with self._lock:
            report = self._reports.get(_fingerprint(manifest, mpp))
        return report if report and report.is_complete else None

    def request_check(
        self, manifest: Manifest, thumbnail: Callable[[ImageRecord], Path], mpp: float | None = None
    ) -> Json:
        """Return the state and findings of a check as JSON; start the check if it is new.

        Parameters
        ----------
        manifest : images to check
        thumbnail : function that returns the path of an image's thumbnail
        mpp : µm per pixel if neither a table nor the file gives it
        """
        key = _fingerprint(manifest, mpp)
        with self._lock:
            if key not in self._reports:
                self._reports[key] = CheckReport(manifest)
                self._pool.submit(self._check, self._reports[key], manifest, thumbnail, mpp)
            self._reports.move_to_end(key)
            report = self._reports[key]
            while len(self._reports) > _MAX_CHECKS:
                self._reports.popitem(last=False)[1].is_obsolete = True
        return self._to_json(key, report)

    def running_state(self, key: str, source: Path) -> Json | None:
        """Return the state and findings of a running check as JSON; None if unknown or complete.

        Unlike `request_check`, this method does not access the image files.

        Parameters
        ----------
        key : key of the check, "check" in the result of `request_check`
        source : folder or table of the data set
        """
        with self._lock:
            report = self._reports.get(key)
        root = source if source.is_dir() else source.parent
        if report is None or report.is_complete or report.manifest.root != root:
            return None
        return self._to_json(key, report)

    def _to_json(self, key: str, report: CheckReport) -> Json:
        is_complete = report.is_complete  # read first: a complete check has all its findings
        return {
            "check": key,
            "ready": is_complete,
            "seen": len(report.image_checks),
            "of": len(report.manifest.records),
            "warnings": report.warnings,
            "refused": report.errors,
            "bad": report.unreadable_images(report.manifest),
            "sizes": count_pixel_sizes(list(report.image_checks)) if is_complete else [],
        }

    def _check(
        self,
        report: CheckReport,
        manifest: Manifest,
        thumbnail: Callable[[ImageRecord], Path],
        mpp: float | None,
    ) -> None:
        for record in manifest.records:
            if self._is_closed or report.is_obsolete:
                return
            self._yield_to_requests()
            report.image_checks.append(check_image(record, thumbnail, mpp))
        report.warnings = image_warnings(manifest, report.image_checks)
        # Dropping the thumbnails frees megabytes.
        report.image_checks = [
            replace(image_check, grey=None) for image_check in report.image_checks
        ]
        try:
            readable = [
                i for i, image_check in enumerate(report.image_checks) if not image_check.reason
            ]
            check_duplicates_by_content(manifest.select(readable))
        except (ValueError, OSError) as error:
            report.errors = [str(error)]
        report.is_complete = True

    def _yield_to_requests(self) -> None:
        """Wait while requests are processed, but not longer than `_MAX_WAIT` seconds."""
        end = time.monotonic() + _MAX_WAIT
        while self._is_server_busy() and time.monotonic() < end and not self._is_closed:
            time.sleep(_POLL_INTERVAL)


def _fingerprint(manifest: Manifest, mpp: float | None) -> str:
    """Return a hash of records, size and time stamps of their files, and the user's pixel size."""
    files = [(r, [_file_signature(file) for file in r.files]) for r in manifest.records]
    return short_id(repr((manifest.root, mpp, files)))


def _file_signature(path: Path) -> tuple[int, ...]:
    try:
        return stat_signature(path)
    except OSError:  # it is missing now
        return ()


# --- unreadable images of a training --------------------------------------------------------------


UnreadableImages = list[Json]


def unreadable_image_to_json(
    manifest: Manifest, record: ImageRecord, reason: str
) -> dict[str, str]:
    """Return name and reason, as JSON, of an image that is unreadable or has an unreadable mask."""
    reason = reason.removeprefix(f"{record.path}: ")
    if record.mask is not None:
        reason = reason.replace(str(record.mask), f"mask {record.mask.name}")
    return {"name": manifest.name(record), "reason": reason}


def check_training_images(job: Job, manifest: Manifest, callback: Callback) -> None:
    """Read every image; raise ValueError if any is unreadable, unless the user excludes them."""
    unreadable = check_readable(manifest.records, None, callback).unusable
    bad = [unreadable_image_to_json(manifest, record, reason) for record, reason in unreadable]
    write_checked_json(job.folder / "bad-images.json", bad)
    if bad and not excludes_unreadable_images(job):
        raise ValueError(unreadable_images_message(len(bad), len(manifest.records)))


def unreadable_images_message(n_bad: int, n_images: int) -> str:
    """Return the error message about unreadable images."""
    return (
        f"{n_bad} of {pluralize(n_images, 'image')} cannot be read: repair them, or continue "
        "without them"
    )


def exclude_unreadable_images(job: Job) -> None:
    """Store that the user chose to exclude unreadable images from a training."""
    (job.folder / "skip-bad").touch()


def excludes_unreadable_images(job: Job) -> bool:
    """Return whether the user chose to exclude unreadable images from a training."""
    return (job.folder / "skip-bad").exists()


def read_unreadable_images(job: Job) -> UnreadableImages:
    """Read "name" and "reason" of the unreadable images of a training; empty before its check."""
    path = job.folder / "bad-images.json"
    found: UnreadableImages = list(read_json(path, list)) if path.exists() else []
    if not all(isinstance(bad, dict) and {*bad} >= {"name", "reason"} for bad in found):
        raise damaged_file_error(path, "an image has no name or no reason")
    return found


def excluded_image_names(job: Job) -> frozenset[str]:
    """Return the names of the unreadable images that the user excluded from a training."""
    found = read_unreadable_images(job) if excludes_unreadable_images(job) else []
    return frozenset(bad["name"] for bad in found)
