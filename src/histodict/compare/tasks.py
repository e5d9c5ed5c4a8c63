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

from ..evaluation.splits import Split
from ..execution.failures import EXPECTED, failure_reason
from ..execution.local import count_jobs, one_blas_thread
from ..execution.processes import in_processes
from ..execution.progress import Progress
from ..execution.work import Work
from ..images.kept_pictures import keep_pictures, pictures_kept
from ..images.manifest import Manifest
from ..pipeline.plan import Plan
from ..pipeline.trials import Learner, Trial, Trials, Verdicts

UNLABELLED = "+unlabelled"


@dataclass(frozen=True)
class Task:
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

    def trial(self, manifest: Manifest, work: Work) -> Trial:
        model: Learner = self.plan.model(
            region=self.region, random_state=self.seed, n_jobs=work.n_jobs, cache=work.cache
        )
        train, test = manifest.select(self.split.train), manifest.select(self.split.test)
        train = train.without_splits()  # this split is asked for, whatever the images' own
        return Trial(model, train, test, adapts=self.method.endswith(UNLABELLED))


@dataclass(frozen=True)
class Result:
    """What came of a task: answers in the order of `split.test`, or why there are none."""

    task: Task
    verdicts: Verdicts | None
    error: str | None = None

    @classmethod
    def of(cls, task: Task, made: Verdicts | str | None) -> Result:
        """Answers, or the words of an error."""
        return cls(task, None, made) if isinstance(made, str) else cls(task, made)

    @property
    def answered(self) -> Verdicts:
        if self.verdicts is None:
            raise ValueError(f"{self.task.name} has no answers: {self.error}")
        return self.verdicts


def run_tasks(manifest: Manifest, tasks: Sequence[Task], folder: Path, work: Work) -> list[Result]:
    """The results of all tasks, in order; those that `folder` has are read, not made.

    An executor takes a trial at a time, and what works there writes into `folder`; else there are
    `n_jobs` processes here.
    """
    trials = Trials(folder.absolute())
    inside = Work(n_jobs=1, cache=work.cache.absolute() if work.cache else None)
    asked = [task.trial(manifest, inside) for task in tasks]
    # A network that cannot be opened, or an image that cannot be read, concerns its tasks alone.
    found = [_tried(trials.find, trial) for trial in asked]
    missing = [place for place, verdicts in enumerate(found) if verdicts is None]
    done = len(tasks) - len(missing)
    work.callback(Progress("evaluate", done, len(tasks)))
    jobs = [asked[place] for place in missing]
    run = partial(_run_one, trials)
    results = work.executor.map(run, jobs, lost=str) if work.executor else _run(run, jobs, work)
    with pictures_kept():
        for place, made in zip(missing, results, strict=True):
            found[place] = made
            done += 1
            work.callback(Progress("evaluate", done, len(tasks)))
    return [Result.of(task, made) for task, made in zip(tasks, found, strict=True)]


def _run(
    run: Callable[[Trial], Verdicts | str | None], jobs: list[Trial], work: Work
) -> Iterator[Verdicts | str | None]:
    n_processes = min(count_jobs(work.n_jobs), len(jobs))
    if n_processes < 2:
        yield from map(run, jobs)
        return
    from joblib import delayed

    there = delayed(partial(_run_there, os.getpid(), secrets.token_hex(8), n_processes, run))
    yield from in_processes((there(job) for job in jobs), n_processes, one_thread=True)


def _run_there(
    parent: int,
    name: str,
    n_processes: int,
    run: Callable[[Trial], Verdicts | str | None],
    job: Trial,
) -> Verdicts | str | None:
    """In another process, which keeps pictures for this run; or here where there can be none."""
    if os.getpid() != parent:
        keep_pictures(name, n_processes)
    return run(job)


def _run_one(trials: Trials, trial: Trial) -> Verdicts | str | None:
    with one_blas_thread():
        return _tried(trials.hold, trial)


def _tried(step: Callable[[Trial], Verdicts | None], trial: Trial) -> Verdicts | str | None:
    """What comes of it; an error's words instead, so that the other trials go on."""
    try:
        return step(trial)
    except EXPECTED as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return failure_reason(error)
