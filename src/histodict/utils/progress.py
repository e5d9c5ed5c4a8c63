"""Progress of long work: reports to a callback, remaining time, and progress bars.

Rates and remaining times are computed by `rich.progress`, which is imported on first use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import Task

_BAR_WIDTH = 20  # characters


@dataclass(frozen=True)
class Progress:
    """Progress of a stage.

    Attributes
    ----------
    stage : key of `STAGE_LABELS`
    done : number of finished steps
    total : number of all steps
    objective : latest value of the objective function of each class; empty outside training
    work : finished fraction of the work, from 0 to 1; None if all steps take equally long
    """

    stage: str
    done: int
    total: int
    objective: tuple[float, ...] = ()
    work: float | None = None

    @property
    def fraction(self) -> float:
        """Finished fraction of the work of the stage, from 0 to 1."""
        return self.done / max(1, self.total) if self.work is None else self.work


Callback = Callable[[Progress], None]


# Displayed names of the stages.
STAGE_LABELS = {
    "read": "Reading images",
    "patches": "Sampling patches",
    "features": "Computing image features",
    "initialise": "Initialising dictionaries",
    "train": "Training",
    "decision": "Fitting the decision rule",
    "draw": "Generating images",
    "predict": "Predicting",
    "vectors": "Computing patch vectors",
    "slide": "Detecting tissue",
    "evaluate": "Training and testing",
    "cross-validation": "Cross-validating",
    "members": "Training on all patients",
    "models": "Training models",
    "gallery": "Selecting example patches",
    "crop": "Cropping patches",
    "measure": "Measuring run times",
    "stability": "Measuring the stability of atoms",
}
# Units of the steps of each stage; "steps" for other stages.
STAGE_UNITS = {
    **dict.fromkeys(
        ("read", "patches", "features", "decision", "predict", "vectors", "gallery"), "images"
    ),
    "slide": "windows",
    **dict.fromkeys(("evaluate", "cross-validation", "members", "models"), "trainings"),
}

# Stages of training and of the computations after it, in order, with relative durations (measured
# with the preset fast on the demonstration's images), for patch-level models, ensembles and
# image-level models.
PATCH_STAGES = dict(read=2, patches=18, initialise=22, train=46, decision=11, gallery=8, predict=10)
ENSEMBLE_STAGES: dict[str, float] = {"cross-validation": 72, "members": 28}
IMAGE_STAGES = dict(read=2, features=60, train=45, predict=10)


def cumulative_shares(weights: Sequence[float]) -> list[float]:
    """Return the finished fraction of the work before each step, and 1 after the last step.

    `weights` are the relative durations of the steps; if all are 0, the steps count equally.
    """
    total = sum(weights)
    if not total:
        return [done / max(1, len(weights)) for done in range(len(weights) + 1)]
    return [done / total for done in accumulate(weights, initial=0.0)]


def no_callback(progress: Progress) -> None:
    """Do nothing: the default callback."""


class TimeEstimator:
    """Estimate of the remaining time of work in stages, and its display.

    Parameters
    ----------
    weights : mapping of str to float, optional
        Relative durations of the stages, in order; the remaining time of later stages is estimated
        from them. By default, no remaining time is estimated.
    bars : rich.progress.Progress, optional
        Display that gets one task per stage; by default nothing is displayed.
    clock : callable
        Function that returns the time in seconds.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        bars: Bars | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.progress import Progress as Bars

        # Rates are means over all (at most the last 1000) steps, as one step may take minutes.
        self._bars = bars or Bars(disable=True, get_time=clock, speed_estimate_period=math.inf)
        self._weights = weights or {}
        self._tasks: dict[str, Task] = {}
        self._stage = ""  # the latest stage with a weight

    def update(self, progress: Progress) -> None:
        """Update the display and the estimate with the progress of a stage."""
        name = progress.stage
        if name not in self._tasks:
            label = STAGE_LABELS.get(name, name)
            task_id = self._bars.add_task(label, total=progress.total, count="", rate="", later="")
            self._tasks[name] = next(task for task in self._bars.tasks if task.id == task_id)
        if name in self._weights:
            self._stage = name
        task, completed = self._tasks[name], progress.fraction * progress.total
        if completed < task.completed:  # the same stage of another model
            self._bars.reset(task.id)
        self._bars.update(task.id, total=progress.total, completed=completed)
        task.fields["count"] = f"{progress.done}/{progress.total}"
        task.fields["rate"] = _format_rate(task.speed, STAGE_UNITS.get(name, "steps"))
        stage_left, total_left = task.time_remaining, self.seconds_left()
        is_followed = (
            name == self._stage and stage_left and total_left and total_left > stage_left + 1
        )
        later = f"{timedelta(seconds=round(total_left or 0))} in total" if is_followed else ""
        task.fields["later"] = later

    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds of all weighted stages; None if unknown."""
        if not self._stage:
            return None
        task, names = self._tasks[self._stage], list(self._weights)
        left = task.time_remaining
        if left is None:
            return None
        begun = [name for name in names if name in self._tasks]
        started = min(self._tasks[name].start_time or 0.0 for name in begun)
        seconds = task.get_time() - started + left
        later = set(names[names.index(self._stage) + 1 :]) - set(begun)
        return left + seconds * self._sum_weights(later) / self._sum_weights(begun)

    def _sum_weights(self, names: Iterable[str]) -> float:
        return sum(self._weights[name] for name in names)


def _format_rate(steps_per_second: float | None, unit: str) -> str:
    """Format a rate per second, or per minute or hour if the number would be below 1.

    Return "" if the rate is 0 or None (unknown).
    """
    if not steps_per_second:
        return ""
    rates = {"s": steps_per_second, "min": steps_per_second * 60, "h": steps_per_second * 3600}
    per = next((per for per, rate in rates.items() if rate >= 1), "h")
    return f"{rates[per]:.{0 if rates[per] >= 10 else 1}f} {unit}/{per}"


@contextmanager
def progress_bar(
    weights: Mapping[str, float] | None = None,
    *,
    console: Console | None = None,
    transient: bool = False,
) -> Iterator[Callback]:
    """Return a context that shows one progress bar per stage and yields the callback for updates.

    Parameters
    ----------
    weights : mapping of str to float, optional
        Relative durations of the stages, see `TimeEstimator`.
    console : rich.console.Console, optional
        Console that shows the bars; stderr by default.
    transient : bool
        Whether to remove the bars at the end, and to show no bars if the output is not a terminal.
        If False, the final state of the bars is written to such an output.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = console or Console(stderr=True)
    with Bars(
        "{task.description}",
        BarColumn(_BAR_WIDTH),
        *("{task.fields[count]}", "{task.fields[rate]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[later]}", style="progress.remaining"),
        console=console,
        transient=transient,
        disable=transient and not console.is_terminal,
        speed_estimate_period=math.inf,
    ) as bars:
        yield TimeEstimator(weights, bars).update
