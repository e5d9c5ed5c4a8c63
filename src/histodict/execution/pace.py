"""How fast work goes and how long it will take, from what was told of it and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from .progress import Progress

_RECENT = 0.1  # of all the work: after so much at another rate, only that counts
_FEW = 4  # steps, which show a rate at least
_MOST = 100  # reports kept; of more every second one goes

# Stages of a training and what is done after it, in their order, and roughly what share of the time
# each takes: of the preset fast on the demonstration's images.
PATCH_STAGES = dict(look=2, patches=18, initialise=22, train=46, rule=11, gallery=8, answer=10)
PANEL_STAGES: dict[str, float] = {"unseen patients": 72, "views": 28}
IMAGE_STAGES = dict(look=2, features=60, train=45, answer=10)


@dataclass(frozen=True)
class _Report:
    at: float  # seconds
    share: float  # of the work
    done: int


@dataclass
class Pace:
    """Of one stage: `hear` what is told of it, by any clock in seconds.

    The rate is that of all work so far, or of the last tenth, if that goes clearly at another one:
    images differ, and a mean over many of them is truer, but another program may take a core away.
    The first step is left out once others are there, as libraries are loaded in it.
    """

    _heard: list[_Report] = field(default_factory=list)

    def hear(self, now: float, progress: Progress) -> None:
        if self._heard and progress.share < self._heard[-1].share:
            self._heard = []  # the stage of another model begins
        if self._heard and progress.share == self._heard[-1].share:
            # Steps that were done before: they are counted, and took no time.
            self._heard[-1] = replace(self._heard[-1], done=progress.done)
            return
        self._heard.append(_Report(now, progress.share, progress.done))
        if len(self._heard) > _MOST:
            self._heard = [self._heard[0], *self._heard[2:-1:2], self._heard[-1]]

    @property
    def began(self) -> float | None:
        return self._heard[0].at if self._heard else None

    @property
    def steps_per_second(self) -> float | None:
        """None: not known yet."""
        heard = self._telling()
        seconds = heard[-1].at - heard[0].at if heard else 0.0
        return (heard[-1].done - heard[0].done) / seconds if seconds > 0 else None

    def seconds_left(self, now: float) -> float | None:
        """Of this stage; None: not known yet."""
        heard = self._telling()
        if len(heard) < 2:
            return None
        last = heard[-1]
        return max(0.0, (1 - last.share) * _seconds_per_share(heard) - (now - last.at))

    def _telling(self) -> Sequence[_Report]:
        """The reports that the rate is taken from."""
        heard = self._heard[:]  # what shows it may ask on another thread
        heard = heard[1:] if len(heard) > _FEW else heard
        recent = [report for report in heard if report.share >= heard[-1].share - _RECENT - 1e-9]
        n_recent = max(_FEW + 1, len(recent))
        if len(heard) < n_recent + 2:
            return heard
        before, recent = heard[: 1 - n_recent], heard[-n_recent:]
        differ = abs(_seconds_per_share(recent) - _seconds_per_share(before))
        by_chance = (_squared_error(recent) + _squared_error(before)) ** 0.5
        return recent if differ > 2 * by_chance else heard


def _seconds_per_share(heard: Sequence[_Report]) -> float:
    return (heard[-1].at - heard[0].at) / (heard[-1].share - heard[0].share)


def _squared_error(heard: Sequence[_Report]) -> float:
    """Of `_seconds_per_share`, by how much the steps differ from one another."""
    slope, n = _seconds_per_share(heard), len(heard) - 1
    squares = sum((b.at - a.at - slope * (b.share - a.share)) ** 2 for a, b in pairwise(heard))
    return n * squares / max(1, n - 1) / (heard[-1].share - heard[0].share) ** 2


@dataclass
class Forecast:
    """Of work in stages that follow each other: `weights` says about how long each takes.

    What the stages so far really took, and the present one will take, tells how long a weight is.
    """

    weights: Mapping[str, float]
    _paces: dict[str, Pace] = field(default_factory=dict)
    _ended: dict[str, float] = field(default_factory=dict)  # a stage, and the seconds it took
    stage: str = field(default="", init=False)  # the present one

    def hear(self, now: float, progress: Progress) -> None:
        if progress.stage not in self.weights:
            return
        pace = self._paces.setdefault(progress.stage, Pace())
        if progress.stage != self.stage:
            began = self._paces[self.stage].began if self.stage else None
            if began is not None:
                self._ended[self.stage] = now - began
            self.stage = progress.stage
        pace.hear(now, progress)

    def seconds_left(self, now: float) -> float | None:
        """Of all stages; None: not known yet."""
        began = self._paces[self.stage].began if self.stage else None
        if began is None:
            return None
        so_far, weight = sum(self._ended.values()), self._weight(self._ended)
        left = self._paces[self.stage].seconds_left(now)
        if left is None:  # as long as the others, so far, for its weight
            if not self._ended:
                return None
            left = max(0.0, so_far / weight * self.weights[self.stage] - (now - began))
        known = {*self._ended, self.stage}
        each = (so_far + now - began + left) / self._weight(known)
        order = list(self.weights)
        later = order[order.index(self.stage) + 1 :]
        return left + each * self._weight(set(later) - known)

    def _weight(self, stages: Iterable[str]) -> float:
        return sum(self.weights[stage] for stage in stages)
