"""What whoever watches long work is shown: how fast it goes, the time left, a bar in a line."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping

from .pace import Forecast, Pace
from .progress import COUNTED, STAGES, Callback, Progress

_BAR, _LINE = 30, 110  # characters


class Paces:
    """Of all stages of some work, in words, by this machine's clock.

    `weights`: of stages that follow each other, about how long they take; see `Forecast`.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._whole = Forecast(weights or {})

    def hear(self, progress: Progress) -> None:
        now = self._clock()
        self._paces.setdefault(progress.stage, Pace()).hear(now, progress)
        self._whole.hear(now, progress)

    def words(self, stage: str) -> str:
        """Such as "3.2 images/s, 0:12 left, 2:30 with all that follows"; as much as is known."""
        now, pace = self._clock(), self._paces[stage]
        rate, left = pace.steps_per_second, pace.seconds_left(now)
        said = [_rate_words(rate, COUNTED.get(stage, "steps"))] if rate else []
        said += [f"{_time_words(left)} left"] if left else []
        whole = self._whole.seconds_left(now) if stage == self._whole.stage else None
        if left and whole and whole > left + 1:
            said.append(f"{_time_words(whole)} with all that follows")
        return ", ".join(said)


def _rate_words(steps_per_second: float, steps: str) -> str:
    """By the second, or by the minute or the hour where it is slow."""
    rates = {"s": steps_per_second, "min": steps_per_second * 60, "h": steps_per_second * 3600}
    unit = next((unit for unit, rate in rates.items() if rate >= 1), "h")
    return f"{rates[unit]:.{0 if rates[unit] >= 10 else 1}f} {steps}/{unit}"


def _time_words(seconds: float) -> str:
    """Such as 0:05, 12:30 or 1:02:03."""
    minutes, s = divmod(math.ceil(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def bar_in_a_line() -> Callback:
    """A callback that draws a bar on stderr, over and over in one line per stage.

    A carriage return is all it takes, in a terminal as in a notebook.
    """
    paces = Paces()

    def show(progress: Progress) -> None:
        paces.hear(progress)
        n = _BAR * progress.done // max(1, progress.total)
        name = STAGES.get(progress.stage, progress.stage)
        bar = f"[{'#' * n}{'.' * (_BAR - n)}] {progress.done}/{progress.total}"
        if progress.done < progress.total:
            line = f"\r{name:28s}{bar}  {paces.words(progress.stage)}"
            sys.stderr.write(f"{line:{_LINE}s}")
        else:
            sys.stderr.write(f"\r{'':{_LINE}s}\r{name:28s}{bar}\n")
        sys.stderr.flush()

    return show
