"""Trials: a model learns from some patients and answers for others; each is held once.

A finished trial is a file whose name changes with all that decides the answers, so that a run that
was stopped goes on where it was, and never takes up what was made otherwise. One that cannot be
read is held again.

FOLDER/KEY.json     the answers
FOLDER/KEY/N.npz    the patch map behind the wrong answer for the N-th image tested; of regions,
                    behind every answer, as they are measured patch by patch
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from ..execution.executor import Executor
from ..execution.files import content_digest
from ..execution.progress import Callback
from ..execution.sealed import read_checked_json, write_checked_json
from ..images.manifest import Manifest
from ..images.pixel_size import PixelSizeOption
from ..images.record_order import training_content
from ..patches.patch_map import PatchMap
from ..recipes import Recipe
from .answers import NO_TISSUE_LABEL, ImagePrediction, RegionPrediction

# What decides the bits of a result beside the settings; reports name these versions, too.
PACKAGES = ("histodict", "numpy", "scipy", "scikit-learn", "numba", "pillow")

_FORM = 3  # increased when the same settings and images give another model


class UnfittedModel(Protocol):
    """A model that has not learnt yet."""

    @property
    def recipe(self) -> Recipe: ...

    def fingerprint(self) -> list[Any]: ...

    def fit(
        self,
        images: Manifest,
        *,
        callback: Callback | None = None,
        executor: Executor | None = None,
    ) -> Any: ...


@dataclass(frozen=True)
class TrainTestRun:
    """`model` learns from `train` and answers for `test`.

    adapts : its threshold is then adapted to the test images, whose labels are not looked at
    """

    model: UnfittedModel
    train: Manifest
    test: Manifest
    adapts: bool = False

    @cached_property
    def key(self) -> str:
        """The same for the same work; other images, settings, weights or versions: another.

        Asked for once: it reads all images.
        """
        train, test = (
            list(map(training_content, side.records)) for side in (self.train, self.test)
        )
        train.sort(key=json.dumps)  # `fit` sorts its images
        versions = [version(name) for name in PACKAGES]
        learning = [self.model.fingerprint(), _FORM, train, self.train.classes]
        decided_by = [*learning, test, self.adapts, versions]
        text = json.dumps(decided_by, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RunPredictions:
    """The answers of a trial, in the order of the test images.

    scores : per image one number for two classes, positive for the second; else one per class; of
        regions, the patches of the largest
    min_patches : of regions, the connected patches from which one counts; else None
    probabilities : per image one per class; none where the model is not calibrated
    prediction_sets : per image the classes that cannot be excluded at an error rate of 0.1
    maps : folder with the patch maps of the images it got wrong, or of all; map_digests : of its
        files
    """

    labels: list[str]
    scores: list[list[float]]
    probabilities: list[list[float]]
    prediction_sets: list[list[str]]
    seconds: dict[str, float]
    peak_mib: float | None = None
    min_patches: int | None = None
    map_digests: dict[str, str] = field(default_factory=dict)
    maps: Path | None = field(default=None, compare=False)

    def map_of(self, place: int) -> PatchMap | None:
        """The map of an image; whole-image methods have none, nor have right answers of classes."""
        file = self.maps / f"{place}.npz" if self.maps else None
        if file is None or not file.is_file():
            return None
        try:
            return PatchMap.load(file)
        except ValueError as error:
            warnings.warn(f"{error}: a map that is damaged is not shown", stacklevel=2)
            return None


class RunCache:
    """Holds trials, and keeps what came of them in a folder; None keeps nothing.

    inner : they are held inside another trial, of which alone a report tells: no maps are kept, and
        the peak of memory is left to the other
    """

    def __init__(self, folder: Path | None, *, inner: bool = False) -> None:
        self.folder = folder
        self.inner = inner

    def load_cached(self, trial: TrainTestRun) -> RunPredictions | None:
        """What is kept of this trial; nothing if that is damaged."""
        if self.folder is None:
            return None
        file = self.folder / f"{trial.key}.json"
        try:
            found = RunPredictions(**read_checked_json(file), maps=file.with_suffix(""))
            if len(found.labels) != len(trial.test.records):
                raise ValueError("it has answers for other images")
            for name, digest in found.map_digests.items():
                if content_digest(file.with_suffix("") / name) != digest:
                    raise ValueError(f"{file.with_suffix('') / name} is another file")
        except (OSError, TypeError, ValueError, AttributeError) as error:
            if not file.exists():
                return None
            warnings.warn(f"{file}: is damaged and made anew ({error})", stacklevel=2)
            return None
        return found

    def run(self, trial: TrainTestRun, executor: Executor | None = None) -> RunPredictions:
        """The answers, found or made."""
        found = self.load_cached(trial)
        if found is not None:
            return found
        if not self.inner:
            _forget_peak_memory()
        made, kept_maps = _run(trial, executor)
        if not self.inner:
            made = replace(made, peak_mib=_peak_memory())
        if self.folder is None:
            return made
        maps = self.folder / trial.key
        for place, patch_map in ({} if self.inner else kept_maps).items():
            patch_map.save(maps / f"{place}.npz")
            made.map_digests[f"{place}.npz"] = content_digest(maps / f"{place}.npz")
        content = {k: v for k, v in asdict(made).items() if k != "maps"}
        write_checked_json(maps.with_suffix(".json"), content)  # last: with it, it is finished
        return replace(made, maps=maps)


def _run(
    trial: TrainTestRun, executor: Executor | None
) -> tuple[RunPredictions, dict[int, PatchMap]]:
    """The answers, and the maps that are kept."""
    started = time.perf_counter()
    # A method of the whole image trains here, whatever works elsewhere.
    model = trial.model.fit(
        trial.train, executor=executor if trial.model.recipe.is_patch_level else None
    )
    trained = time.perf_counter()
    answers = _predictions(model, trial.test)
    if trial.adapts:
        # Whether there are two groups is not asked: a split has images of both classes.
        model = model.adapt_threshold([answer.score for answer in answers], force=True)
        answers = _predictions(model, trial.test)
    seconds = {"train": trained - started, "test": time.perf_counter() - trained}
    kept_maps = {
        place: answer.patch_map
        for place, (answer, record) in enumerate(zip(answers, trial.test.records, strict=True))
        if (model.finds_regions or answer.label != record.label) and answer.patch_map is not None
    }
    said = _of_regions(model, answers) if model.finds_regions else _of_classes(answers)
    labels = [answer.label or NO_TISSUE_LABEL for answer in answers]
    return RunPredictions(labels=labels, seconds=seconds, **said), kept_maps


def _of_classes(answers: list[ImagePrediction]) -> dict[str, Any]:
    return {
        "scores": [list(answer.scores) for answer in answers],
        "probabilities": [list(answer.probabilities.values()) for answer in answers],
        "prediction_sets": [answer.prediction_set for answer in answers],
    }


def _of_regions(model: Any, answers: list[RegionPrediction]) -> dict[str, Any]:
    """How sure the model is, is not known of regions."""
    nothing: list[list[Any]] = [[] for _ in answers]
    return {
        "scores": [[float(answer.score)] for answer in answers],
        "probabilities": nothing,
        "prediction_sets": nothing,
        "min_patches": model.min_patches_,
    }


def _predictions(model: Any, test: Manifest) -> list[Any]:
    return [
        model.predict_one(r.path, mpp=PixelSizeOption(table=r.mpp), within=r.region_of_interest)
        for r in test.records
    ]


# --- memory of this process, where the system tells ---------------------------------------------


def _forget_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "utf-8")


def _peak_memory() -> float | None:
    try:
        status = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else None
