"""Many trials: every method on every split with every seed, each held once.

They run side by side in processes of one thread each, which keeps all cores busy and makes a result
independent of what runs beside it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..datasets.manifest import Manifest
from ..images.memory_image import enable_worker_image_cache, image_cache_enabled
from ..model_selection.splits import Split
from ..models.cross_validation import RunCache, RunPredictions, TrainTestRun, UnfittedModel
from ..models.plan import Plan
from ..utils.parallel import ExecutionOptions, count_jobs, map_processes, single_blas_thread
from ..utils.progress import Progress
from ..utils.text_io import EXPECTED, failure_reason

UNLABELLED = "+unlabelled"


@dataclass(frozen=True)
class EvaluationTask:
    """One trial: `method` is the name it goes by in the tables.

    With a `region`, it is found in the images instead of telling their classes apart.
    Where the name ends in +unlabelled, the threshold is adapted to the test images, whose labels
    are not looked at.
    """

    method: str
    plan: Plan
    split: Split
    seed: int
    region: str | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.split.name} seed {self.seed}"

    def run(self, manifest: Manifest, work: ExecutionOptions) -> TrainTestRun:
        model: UnfittedModel = self.plan.build_model(
            region=self.region, random_state=self.seed, n_jobs=work.n_jobs, cache=work.cache
        )
        train, test = manifest.select(self.split.train), manifest.select(self.split.test)
        train = train.drop_split_column()  # this split is asked for, whatever the images' own
        return TrainTestRun(model, train, test, adapts=self.method.endswith(UNLABELLED))


@dataclass(frozen=True)
class EvaluationResult:
    """What came of a task: answers in the order of `split.test`, or why there are none."""

    task: EvaluationTask
    predictions: RunPredictions | None
    error: str | None = None

    @classmethod
    def of(cls, task: EvaluationTask, made: RunPredictions | str | None) -> EvaluationResult:
        """Answers, or the words of an error."""
        return cls(task, None, made) if isinstance(made, str) else cls(task, made)

    @property
    def predicted(self) -> RunPredictions:
        if self.predictions is None:
            raise ValueError(f"{self.task.name} has no answers: {self.error}")
        return self.predictions


def run_tasks(
    manifest: Manifest, tasks: Sequence[EvaluationTask], folder: Path, work: ExecutionOptions
) -> list[EvaluationResult]:
    """The results of all tasks, in order; those that `folder` has are read, not made.

    An executor takes a trial at a time, and what works there writes into `folder`; else there are
    `n_jobs` processes here.
    """
    trials = RunCache(folder.absolute())
    inside = ExecutionOptions(n_jobs=1, cache=work.cache.absolute() if work.cache else None)
    asked = [task.run(manifest, inside) for task in tasks]
    # A network that cannot be opened, or an image that cannot be read, concerns its tasks alone.
    found = [_tried(trials.load_cached, trial) for trial in asked]
    missing = [place for place, verdicts in enumerate(found) if verdicts is None]
    done = len(tasks) - len(missing)
    work.callback(Progress("evaluate", done, len(tasks)))
    jobs = [asked[place] for place in missing]
    run = partial(_run_one, trials)
    results = work.executor.map(run, jobs, lost=str) if work.executor else _run(run, jobs, work)
    with image_cache_enabled():
        for place, made in zip(missing, results, strict=True):
            found[place] = made
            done += 1
            work.callback(Progress("evaluate", done, len(tasks)))
    return [EvaluationResult.of(task, made) for task, made in zip(tasks, found, strict=True)]


def _run(
    run: Callable[[TrainTestRun], RunPredictions | str | None],
    jobs: list[TrainTestRun],
    work: ExecutionOptions,
) -> Iterator[RunPredictions | str | None]:
    n_processes = min(count_jobs(work.n_jobs), len(jobs))
    if n_processes < 2:
        yield from map(run, jobs)
        return
    from joblib import delayed

    there = delayed(partial(_run_in_worker, os.getpid(), secrets.token_hex(8), n_processes, run))
    yield from map_processes((there(job) for job in jobs), n_processes, one_thread=True)


def _run_in_worker(
    parent: int,
    name: str,
    n_processes: int,
    run: Callable[[TrainTestRun], RunPredictions | str | None],
    job: TrainTestRun,
) -> RunPredictions | str | None:
    """In another process, which keeps pictures for this run; or here where there can be none."""
    if os.getpid() != parent:
        enable_worker_image_cache(name, n_processes)
    return run(job)


def _run_one(trials: RunCache, trial: TrainTestRun) -> RunPredictions | str | None:
    with single_blas_thread():
        return _tried(trials.run, trial)


def _tried(
    step: Callable[[TrainTestRun], RunPredictions | None], trial: TrainTestRun
) -> RunPredictions | str | None:
    """What comes of it; an error's words instead, so that the other trials go on."""
    try:
        return step(trial)
    except EXPECTED as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return failure_reason(error)
