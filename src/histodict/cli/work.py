"""Where the work of a command is done: threads here, or a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import progress_bars

if TYPE_CHECKING:
    from ..execution.executor import Executor
    from ..execution.work import ExecutionOptions

JobsOption = Annotated[int | None, typer.Option("--jobs", help="Threads; all cores if not given.")]


@dataclass(frozen=True)
class ExecutionCliOptions:
    """Where the work is done."""

    jobs: JobsOption = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Work on a Dask cluster: tcp://HOST:PORT of its scheduler, local:N for N "
            "processes here, or a .yaml file for a batch system. All must see the same files.",
        ),
    ] = None

    @contextmanager
    def begin(
        self, cache: Path | None = None, weights: Mapping[str, float] | None = None
    ) -> Iterator[ExecutionOptions]:
        """While it is open, the cluster is, and bars say how far the work has come.

        `weights`: of stages that follow each other, about how long they take.
        """
        from ..execution.work import ExecutionOptions

        with self._executor() as executor, progress_bars(weights) as callback:
            yield ExecutionOptions(self.jobs, cache, callback, executor)

    def _executor(self) -> AbstractContextManager[Executor | None]:
        """The cluster that was asked for; None stands for this machine's threads."""
        if self.cluster is None:
            return nullcontext()
        from ..execution.cluster import open_cluster

        return open_cluster(self.cluster)
