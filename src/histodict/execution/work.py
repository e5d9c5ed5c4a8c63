"""How work is done and who hears of it, in one object that travels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .executor import Executor
from .progress import Callback, no_callback


@dataclass(frozen=True)
class ExecutionOptions:
    """Nothing in it changes a result.

    n_jobs : threads or processes; None for all cores
    cache : folder for what is costly to compute; None keeps nothing
    callback : gets a `Progress` after every step
    executor : where work goes; None: threads or processes here
    """

    n_jobs: int | None = None
    cache: Path | None = None
    callback: Callback = no_callback
    executor: Executor | None = None
