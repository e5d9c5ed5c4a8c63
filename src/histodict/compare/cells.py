"""Many trainings: every method on every split with every seed, each done once.

A cell is one training and its answers for the split's test images. A finished cell is a file, so
that a run that was stopped goes on where it was. Cells run side by side in processes of one thread
each, which keeps all cores busy and makes a cell's result independent of what runs beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.splits import Split
from ..execution.executor import Executor
from ..execution.files import written_whole
from ..execution.local import count_jobs, one_blas_thread
from ..execution.progress import Callback, Progress, ignore
from ..images.manifest import Manifest
from ..pipeline import PatchMap, TissueClassifier
from ..recipes import Recipe
from .cell_maps import save_maps

NO_TISSUE = "no tissue"
UNLABELLED = "+unlabelled"


@dataclass(frozen=True)
class Cell:
    """One training: `method` is the name it goes by in the tables.

    Where the name ends in +unlabelled, the threshold is adapted to the test images, whose labels
    are not looked at.
    """

    method: str
    recipe: Recipe
    split: Split
    seed: int

    @property
    def adapts(self) -> bool:
        return self.method.endswith(UNLABELLED)

    def file_name(self, manifest: Manifest) -> str:
        """The same for the same work, whenever it is asked for."""
        # Images by name, in order: their places change when rows of the manifest change places.
        sides = [
            [(manifest.name(record), record.mpp) for record in manifest.select(places).records]
            for places in (self.split.train, self.split.test)
        ]
        decided_by = [manifest.digest(), self.recipe.to_dict(), sides, self.seed, self.adapts]
        digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.method} {self.split.name} seed {self.seed}")
        return f"{words}-{digest[:10]}.json"


@dataclass(frozen=True)
class Result:
    """A cell's answers, in the order of `split.test`, or why there are none.

    scores : per image one number for two classes, positive for the second; else one per class
    probabilities : per image one per class; none where the model is not calibrated
    candidates : per image the classes that it could not rule out, at an error rate of 0.1
    maps : file with the patch maps of the images it got wrong, for `load_map`
    """

    cell: Cell
    labels: list[str]
    scores: list[list[float]]
    seconds: dict[str, float]
    peak_mib: float | None
    error: str | None = None
    probabilities: list[list[float]] = field(default_factory=list)
    candidates: list[list[str]] = field(default_factory=list)
    maps: Path | None = None


def run_cells(
    manifest: Manifest,
    cells: Sequence[Cell],
    folder: Path,
    *,
    n_jobs: int | None = None,
    cache: Path | None = None,
    callback: Callback = ignore,
    executor: Executor | None = None,
) -> list[Result]:
    """The results of all cells, in order; those whose file is in `folder` are read, not run.

    `executor` takes a cell at a time, and what works there writes into `folder`; None: `n_jobs`
    processes here.
    """
    folder = folder.absolute()
    files = [folder / cell.file_name(manifest) for cell in cells]
    missing = [i for i, file in enumerate(files) if not file.is_file()]
    done = len(cells) - len(missing)
    callback(Progress("evaluate", done, len(cells)))
    failures: dict[int, str] = {}
    run = partial(_run_one, manifest, cache.absolute() if cache else None)
    jobs = [(cells[i], files[i]) for i in missing]
    results = executor.map(run, jobs, lost=str) if executor else _run(run, jobs, n_jobs)
    for i, error in zip(missing, results, strict=True):
        if error:
            failures[i] = error
        done += 1
        callback(Progress("evaluate", done, len(cells)))
    return [
        Result(cell, [], [], {}, None, failures[i]) if i in failures else _read(cell, file)
        for i, (cell, file) in enumerate(zip(cells, files, strict=True))
    ]


_Job = tuple[Cell, Path]


def _run(
    run: Callable[[_Job], str | None], jobs: list[_Job], n_jobs: int | None
) -> Iterator[str | None]:
    n_processes = min(count_jobs(n_jobs), len(jobs))
    if n_processes < 2:
        yield from map(run, jobs)
        return
    # Of the ways to start processes, joblib's alone needs no `if __name__ == "__main__":` in the
    # user's script.
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        parallel = Parallel(n_processes, return_as="generator", batch_size=1)
        yield from parallel(delayed(run)(job) for job in jobs)


def _run_one(manifest: Manifest, cache: Path | None, job: _Job) -> str | None:
    """Train, answer, write; an error's words instead, so that the other cells go on."""
    cell, file = job
    try:
        with one_blas_thread():
            content, wrong_maps = _work(manifest, cell, cache)
    except (ValueError, OSError, MemoryError, np.linalg.LinAlgError) as error:
        return f"{type(error).__name__}: {error}"
    save_maps(file.with_suffix(".npz"), wrong_maps)  # first: a cell with its .json is finished
    with written_whole(file) as partial_file:
        partial_file.write_text(json.dumps(content), encoding="utf-8")
    return None


def _work(
    manifest: Manifest, cell: Cell, cache: Path | None
) -> tuple[dict[str, Any], dict[int, PatchMap]]:
    """What the cell's file holds, and the maps of the images that it got wrong."""
    _forget_peak_memory()
    model = TissueClassifier(cell.recipe, random_state=cell.seed, n_jobs=1, cache=cache)
    started = time.perf_counter()
    model.fit(manifest.select(cell.split.train))
    trained = time.perf_counter()
    test = manifest.select(cell.split.test)
    answers = [model.predict(record.path, mpp=record.mpp) for record in test.records]
    if cell.adapts:
        model = model.adapted_to([answer.score for answer in answers])
        answers = [model.predict(record.path, mpp=record.mpp) for record in test.records]
    seconds = {"train": trained - started, "test": time.perf_counter() - trained}
    wrong_maps = {
        place: answer.patch_map
        for place, (answer, record) in enumerate(zip(answers, test.records, strict=True))
        if answer.label != record.label and answer.patch_map is not None
    }
    content = {
        "labels": [answer.label or NO_TISSUE for answer in answers],
        "scores": [list(answer.scores) for answer in answers],
        "probabilities": [list(answer.probabilities.values()) for answer in answers],
        "candidates": [answer.candidates for answer in answers],
        "seconds": seconds,
        "peak_mib": _peak_memory(),
    }
    return content, wrong_maps


def _read(cell: Cell, file: Path) -> Result:
    content = json.loads(file.read_text(encoding="utf-8"))
    return Result(
        cell,
        content["labels"],
        content["scores"],
        content["seconds"],
        content["peak_mib"],
        probabilities=content["probabilities"],
        candidates=content["candidates"],
        maps=file.with_suffix(".npz"),
    )


# --- memory of this process, where the system tells ---------------------------------------------


def _forget_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> float | None:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else None
