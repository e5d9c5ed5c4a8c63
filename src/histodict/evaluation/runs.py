"""Runs of an evaluation: every method on every split with every seed, each cached.

Runs are executed in parallel processes of one thread each. This uses all cores and makes results
independent of what else is running.
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
from ..utils.parallel import ExecutionOptions, effective_n_jobs, map_processes, single_blas_thread
from ..utils.progress import Progress
from ..utils.text_io import EXPECTED_ERRORS, failure_reason

UNLABELLED_SUFFIX = "+unlabelled"


@dataclass(frozen=True)
class EvaluationTask:
    """One run of an evaluation.

    Attributes
    ----------
    method : name in the tables; if it ends in +unlabelled, the threshold is adapted to the test
        images without using their labels
    plan : training plan
    split : training and test images
    seed : random seed
    region : class of the regions to detect; None to classify images
    """

    method: str
    plan: Plan
    split: Split
    seed: int
    region: str | None = None

    @property
    def name(self) -> str:
        """Name of the run for messages: method, split and seed."""
        return f"{self.method} {self.split.name} seed {self.seed}"

    def create_run(self, manifest: Manifest, execution: ExecutionOptions) -> TrainTestRun:
        """Return the train-test run of this task, which is not executed yet."""
        model: UnfittedModel = self.plan.build_model(
            region=self.region,
            random_state=self.seed,
            n_jobs=execution.n_jobs,
            cache=execution.cache,
        )
        train, test = manifest.select(self.split.train), manifest.select(self.split.test)
        train = train.without_splits()  # the split of the task overrides the images' own
        return TrainTestRun(
            model, train, test, adapts_threshold=self.method.endswith(UNLABELLED_SUFFIX)
        )


@dataclass(frozen=True)
class EvaluationResult:
    """Result of one task.

    Attributes
    ----------
    task : task that was run
    predictions_or_none : predictions in the order of `split.test`; None if the run failed
    error : error message of a failed run; None if it succeeded
    """

    task: EvaluationTask
    predictions_or_none: RunPredictions | None
    error: str | None = None

    @classmethod
    def from_outcome(
        cls, task: EvaluationTask, outcome: RunPredictions | str | None
    ) -> EvaluationResult:
        """Return the result of a task from its outcome: predictions, or an error message."""
        return cls(task, None, outcome) if isinstance(outcome, str) else cls(task, outcome)

    @property
    def predictions(self) -> RunPredictions:
        """Predictions in the order of `split.test`; raises ValueError if the run failed."""
        if self.predictions_or_none is None:
            raise ValueError(f"{self.task.name} has no predictions:  {self.error}")
        return self.predictions_or_none


def run_tasks(
    manifest: Manifest, tasks: Sequence[EvaluationTask], folder: Path, execution: ExecutionOptions
) -> list[EvaluationResult]:
    """Run all tasks and return their results in the same order; cached results are loaded.

    Runs are sent one by one to the executor, whose workers write into `folder`. Without an
    executor, `n_jobs` local processes are used.

    Parameters
    ----------
    manifest : labelled images
    tasks : runs of the evaluation
    folder : output folder
    execution : number of threads, cache folder, progress callback and executor
    """
    cache = RunCache(folder.absolute())
    feature_cache = execution.cache.absolute() if execution.cache else None
    sequential = ExecutionOptions(n_jobs=1, cache=feature_cache)
    runs = [task.create_run(manifest, sequential) for task in tasks]
    # An encoder or image that cannot be read makes only its own runs fail.
    results = [_result_or_error(cache.load_cached, each) for each in runs]
    missing = [index for index, predictions in enumerate(results) if predictions is None]
    done = len(tasks) - len(missing)
    execution.callback(Progress("evaluate", done, len(tasks)))
    jobs = [runs[index] for index in missing]
    run = partial(_run_single_threaded, cache)
    new_results = (
        execution.executor.map(run, jobs, on_worker_death=str)
        if execution.executor
        else _run_parallel(run, jobs, execution)
    )
    with image_cache_enabled():
        for index, result in zip(missing, new_results, strict=True):
            results[index] = result
            done += 1
            execution.callback(Progress("evaluate", done, len(tasks)))
    return [
        EvaluationResult.from_outcome(task, result)
        for task, result in zip(tasks, results, strict=True)
    ]


def _run_parallel(
    run: Callable[[TrainTestRun], RunPredictions | str | None],
    jobs: list[TrainTestRun],
    execution: ExecutionOptions,
) -> Iterator[RunPredictions | str | None]:
    n_processes = min(effective_n_jobs(execution.n_jobs), len(jobs))
    if n_processes < 2:
        yield from map(run, jobs)
        return
    from joblib import delayed

    delayed_run = delayed(
        partial(_run_in_worker, os.getpid(), secrets.token_hex(8), n_processes, run)
    )
    yield from map_processes((delayed_run(job) for job in jobs), n_processes, one_thread=True)


def _run_in_worker(
    parent_pid: int,
    cache_name: str,
    n_processes: int,
    run: Callable[[TrainTestRun], RunPredictions | str | None],
    job: TrainTestRun,
) -> RunPredictions | str | None:
    """Return run(job); in a worker process, enable the image cache first.

    Parameters
    ----------
    parent_pid : id of the submitting process; another process is a worker
    cache_name : name of the image cache
    n_processes : number of processes that share the image cache
    run : function to call
    job : argument of `run`
    """
    if os.getpid() != parent_pid:
        enable_worker_image_cache(cache_name, n_processes)
    return run(job)


def _run_single_threaded(cache: RunCache, run: TrainTestRun) -> RunPredictions | str | None:
    with single_blas_thread():
        return _result_or_error(cache.run, run)


def _result_or_error(
    function: Callable[[TrainTestRun], RunPredictions | None], run: TrainTestRun
) -> RunPredictions | str | None:
    """Return `function(run)`, or the error message if it fails, so that other runs continue."""
    try:
        return function(run)
    except EXPECTED_ERRORS as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return failure_reason(error)
