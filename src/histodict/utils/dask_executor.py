"""Executor on the Dask cluster that the option `--cluster` selects.

    local:4              four processes on this machine
    tcp://HOST:PORT      the scheduler of a running cluster
    FILE.yaml            jobs of a batch system, through dask-jobqueue (see `_start_jobs`)

Workers need the same package versions as this process, and the same paths of the files. If a
worker ends, its tasks run on another worker, and the data stored on it are sent again.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from .missing_chunks import allow_missing_chunks, missing_chunks_allowed
from .parallel import (
    ClusterError,
    Item,
    OnWorkerDeath,
    OpenItems,
    Result,
    can_share_locks,
    single_blas_thread,
)
from .text_io import shorten
from .validation import (
    UserInterface,
    check_whole_number,
    hint_interface,
    import_optional,
    set_hint_interface,
)

_PACKAGES = ("histodict", "numpy", "scipy", "numba")  # packages that affect results
_SETTINGS_SUFFIXES = (".yaml", ".yml")
_CONNECT_SECONDS = 30
_RETRIES = 2  # retries of a task after an error, such as a temporarily unreadable file
_MAX_ATTEMPTS = 10  # attempts to run a task or send data if workers end
_MAX_OPEN_PER_THREAD = 2  # unfinished tasks: one running, one waiting
_MAX_WITHOUT_WORKERS_S = 300.0  # seconds without any worker before an error
_WARN_WITHOUT_WORKERS_S = 10.0  # seconds without any worker before a warning
_COUNT_INTERVAL_S = 2.0  # seconds between two counts of the workers
_RESUME_NOTE = "finished work is not repeated"
_MAX_QUEUED_PER_THREAD = 8  # tasks with and without results, so that a slow one does not block
# Functions contain dictionaries, 5 MB at the paper's size. Dask warns from 10 MB on.
_LARGE_FUNCTION_SETTING = {"distributed.admin.large-graph-warning-threshold": "1GB"}


# --- connection ---------------------------------------------------------------------------------


@contextmanager
def open_cluster(text: str) -> Iterator[ClusterExecutor]:
    """Return a context that yields the executor of a cluster.

    Processes and jobs that are started for the cluster end when the context is left.

    Parameters
    ----------
    text : value of `--cluster`; see the module's docstring
    """
    distributed = import_optional("distributed", "cluster", "--cluster")
    with _quiet_logs("distributed", "distributed.client"), _start_cluster(text) as address:
        try:
            client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise ClusterError(f"cannot connect to a Dask scheduler at {text}: {error}") from error
        with client:
            _wait_for_worker(client, text)
            _check_versions(client)
            yield ClusterExecutor(client)


@contextmanager
def _quiet_logs(*names: str) -> Iterator[None]:
    """Return a context in which the loggers with these names are silent."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _wait_for_worker(client: Any, text: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:
        if Path(text).suffix not in _SETTINGS_SUFFIXES:
            raise ClusterError(
                f"the Dask scheduler at {text} has no workers; start at least one"
            ) from error
        # Jobs may be queued for hours; the user can interrupt.
        warnings.warn(f"{text}: no job has started yet; waiting for the first one", stacklevel=3)
        client.wait_for_workers(1)


def _start_cluster(text: str) -> AbstractContextManager[Any]:
    """Return a context that yields the address of a running scheduler, or a new cluster.

    A new cluster ends when the context is left. `text` is the value of `--cluster`.
    """
    kind, colon, rest = text.partition(":")
    if kind in ("tcp", "tls") and rest.startswith("//"):
        return nullcontext(text)
    if kind == "local" and colon:
        if not rest.isdecimal():
            raise ValueError(f"--cluster {text}: write local:N with N processes, such as local:4")
        n_workers = check_whole_number("the number of workers", int(rest), 1)
        import_optional("cryptography", "cluster", "--cluster")
        if not can_share_locks():
            raise ClusterError(
                f"--cluster {text}: processes cannot share locks on this machine (is /dev/shm "
                "missing, full or read-only?); run without --cluster"
            )
        from .local_cluster import local_cluster

        return local_cluster(n_workers)
    if Path(text).suffix in _SETTINGS_SUFFIXES:
        return _start_jobs(Path(text))
    raise ValueError(
        f"--cluster {text}: expected the address of a Dask scheduler (tcp://HOST:PORT), "
        "local:N for N local processes, or a .yaml file with settings of a batch system"
    )


@contextmanager
def _start_jobs(file: Path) -> Iterator[Any]:
    """Return a context that yields a cluster of batch system jobs, described in a YAML file.

    system: SLURM              # or PBS, SGE, LSF, …: the name before dask-jobqueue's "Cluster"
    jobs: 20
    options: {cores: 8, processes: 8, memory: 32GB, walltime: "04:00:00", queue: normal}
    """
    settings = _read_settings(file)
    jobqueue = import_optional("dask_jobqueue", "jobqueue", str(file))
    name = f"{settings.get('system', 'SLURM')}Cluster"
    if not hasattr(jobqueue, name):
        known = sorted(n.removesuffix("Cluster") for n in dir(jobqueue) if n.endswith("Cluster"))
        raise ValueError(
            f"{file}: 'system' must be one of {known}, not {name.removesuffix('Cluster')!r}"
        )
    n_jobs = check_whole_number(f"{file}: 'jobs'", settings.get("jobs", 1), 1)
    try:
        cluster = getattr(jobqueue, name)(**settings.get("options", {}))
    except TypeError as error:
        raise ValueError(f"{file}: invalid 'options' for {name}: {error}") from error
    with cluster:
        cluster.scale(jobs=n_jobs)
        yield cluster


def _read_settings(file: Path) -> dict[str, Any]:
    yaml = import_optional("yaml", "cluster", str(file))
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file}: file not found") from None
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: invalid YAML: {shorten(error)}") from error
    if not isinstance(settings, dict) or not set(settings) <= {"system", "jobs", "options"}:
        raise ValueError(f"{file}: unknown entries; allowed are 'system', 'jobs' and 'options'")
    return settings


def _check_versions(client: Any) -> None:
    """Raise ClusterError unless all workers have the package versions of this process."""
    local = _package_versions()
    for worker, remote in client.run(_package_versions).items():
        differing = [name for name in local if remote[name] != local[name]]
        if differing:
            theirs, ours = (
                ", ".join(f"{name} {v[name]}" for name in differing) for v in (remote, local)
            )
            raise ClusterError(
                f"the worker {worker} has {theirs}, but this machine has {ours}; install the "
                "same versions"
            )


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


# --- executor -----------------------------------------------------------------------------------


class ClusterExecutor:
    """Executor that runs functions on the workers of a Dask client."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._killed_worker_error = import_module("distributed.scheduler").KilledWorker
        self._comm_closed_error = import_module("distributed.comm").CommClosedError
        self._n_threads = 1
        self._last_count_time = -float("inf")
        self._last_worker_seen = time.monotonic()  # when a worker was last seen

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        on_worker_death: OnWorkerDeath[Result] = None,
    ) -> Iterator[Result]:
        """Yield function(item) for every item, in order.

        Parameters
        ----------
        function : function that is sent to the workers
        items : items, of which a bounded number is submitted at a time
        on_worker_death : function that converts the error to the result of an item whose worker
            ended at each attempt; None to raise the error
        """
        self._last_worker_seen = time.monotonic()
        waiting: deque[_Task] = deque()
        try:
            with_settings = partial(
                _with_local_settings, missing_chunks_allowed(), hint_interface(), function
            )
            sent = _StoredFunction(self.client, with_settings)
            for item in items:
                while self._is_queue_full(waiting):
                    if waiting[0].future.done():
                        yield self._get_result(waiting.popleft(), waiting, on_worker_death)
                    else:
                        time.sleep(0.005)
                waiting.append(_Task(self.client, sent, item))
            while waiting:
                yield self._get_result(waiting.popleft(), waiting, on_worker_death)
        except Exception as error:
            self._check_scheduler(error)
            raise
        finally:
            if self.client.status == "running":
                with suppress(OSError):  # if the scheduler has gone, its tasks have too
                    self.client.cancel([task.future for task in waiting])

    def broadcast(self, open_items: OpenItems) -> OpenItems:
        """Store items on the workers for several calls of `map`; see `Executor.broadcast`."""
        try:
            broadcast_items = [
                _StoredItem(self.client, partial(_read_item, open_items, index), item)
                for index, item in enumerate(open_items())
            ]
        except Exception as error:
            self._check_scheduler(error)
            raise
        return lambda: iter(broadcast_items)

    def _check_scheduler(self, error: Exception) -> None:
        """Raise ClusterError from `error` if the connection to the scheduler is lost."""
        has_gone = self.client.status != "running" or isinstance(error, self._comm_closed_error)
        if has_gone and not isinstance(error, ClusterError):
            raise ClusterError(
                "lost the connection to the Dask scheduler; start it and run the command "
                f"again ({_RESUME_NOTE})"
            ) from error

    def _is_queue_full(self, waiting: deque[_Task]) -> bool:
        self._count_workers()
        n_open = sum(not task.future.done() for task in waiting)
        return (
            n_open >= _MAX_OPEN_PER_THREAD * self._n_threads
            or len(waiting) >= _MAX_QUEUED_PER_THREAD * self._n_threads
        )

    def _count_workers(self) -> None:
        """Update the total number of threads of the workers.

        Raise ClusterError after five minutes without workers.
        """
        now = time.monotonic()
        if now <= self._last_count_time + _COUNT_INTERVAL_S:
            return
        self._last_count_time = now
        n_threads = sum(self.client.nthreads().values())
        self._n_threads = max(1, n_threads)
        self._last_worker_seen = now if n_threads else self._last_worker_seen
        if now > self._last_worker_seen + _MAX_WITHOUT_WORKERS_S:
            raise _no_workers_error()
        if now > self._last_worker_seen + _WARN_WITHOUT_WORKERS_S:
            warnings.warn(
                f"no worker is connected; waiting up to {_MAX_WITHOUT_WORKERS_S:.0f} seconds "
                "for one",
                stacklevel=2,
            )

    def _wait_for_result(self, future: Any) -> Any:
        """Return the result of a future; raise ClusterError after five minutes without workers."""
        while True:
            with suppress(TimeoutError):
                return future.result(timeout=_COUNT_INTERVAL_S)
            if future.done():  # the result is large, or the task raised TimeoutError
                return future.result()
            self._count_workers()

    def _get_result(
        self, task: _Task, others: Iterable[_Task], on_worker_death: OnWorkerDeath[Result]
    ) -> Result:
        """Return the result of a task.

        If its worker ends at each attempt, run the task alone, after `others`. If the worker ends
        again, return the result of `on_worker_death` (see `map`).
        """
        is_alone = False
        for attempt in range(_MAX_ATTEMPTS):
            try:
                result: Result = self._wait_for_result(task.future)
                return result
            except CancelledError:  # the item was stored on a worker that ended
                time.sleep(0.1 * attempt)
            except self._killed_worker_error as error:
                if is_alone:
                    return _result_after_worker_death(error, on_worker_death)
                # Another item may have ended the workers, so this one is tried alone.
                while not all(other.future.done() for other in others):
                    self._count_workers()
                    time.sleep(0.01)
                is_alone = True
            task = _Task(self.client, task.function, task.item)
        raise _too_many_failures_error()


class _StoredFunction:
    """Function stored on the cluster, sent once per call of `map` instead of once per item."""

    def __init__(self, client: Any, function: Callable[..., Any]) -> None:
        self._client = client
        self._function = function
        self._future = self._send()

    def get_future(self) -> Any:
        """Return the future of the function; send the function again if it was lost."""
        if self._future.status == "error":  # workers ended when they received it
            self._future = self._send()
        return self._future

    def _send(self) -> Any:
        # The scheduler stores what is submitted; scattered data would be lost with a worker.
        with import_module("dask.config").set(_LARGE_FUNCTION_SETTING):
            return self._client.submit(_return_function, self._function, pure=False)


class _StoredItem:
    """Item that is stored on a worker, and is read and sent again if that worker ends."""

    def __init__(self, client: Any, read: Callable[[], Any], item: Any) -> None:
        self._client = client
        self._read = read
        self._future = self._send(item)

    def get_future(self) -> Any:
        """Return the future of the item; read and send the item again if it was lost."""
        if self._future.status != "finished":
            self._future = self._send(self._read())
        return self._future

    def _send(self, item: Any) -> Any:
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._client.wait_for_workers(1, timeout=_MAX_WITHOUT_WORKERS_S)
            except TimeoutError:
                raise _no_workers_error() from None
            try:
                (future,) = self._client.scatter([item], hash=False)
                return future
            except OSError:  # the worker ended in the meantime
                time.sleep(0.1)
        raise _too_many_failures_error()


class _Task:
    """Submitted call of a function on an item, which may already be stored on a worker."""

    def __init__(self, client: Any, function: _StoredFunction, item: Any) -> None:
        self.function = function
        self.item = item
        argument = item.get_future() if isinstance(item, _StoredItem) else item
        self.future = client.submit(
            _call_single_threaded, function.get_future(), argument, pure=False, retries=_RETRIES
        )


def _with_local_settings(
    allow_missing: bool, interface: UserInterface, function: Callable[[Item], Result], item: Item
) -> Result:
    """Return function(item), computed with the settings of the submitting process.

    Parameters
    ----------
    allow_missing : whether missing chunks are allowed
    interface : user interface for which hints are worded
    function, item : function and its argument
    """
    set_hint_interface(interface)  # permanently, as tasks of the same client run concurrently
    with allow_missing_chunks(allow_missing):
        return function(item)


def _call_single_threaded(function: Callable[[Item], Result], item: Item) -> Result:
    """Return function(item), computed on a worker with one BLAS thread as in `map_blocks`."""
    with single_blas_thread():
        return function(item)


def _return_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` unchanged; run as a task, this stores the function on the cluster."""
    return function


def _result_after_worker_death(error: Exception, on_worker_death: OnWorkerDeath[Result]) -> Result:
    """Return `on_worker_death` of a ClusterError; raise this error if the function is None."""
    reason = ClusterError(
        "the worker process ended each time, even without other tasks; it may need more memory"
    )
    if on_worker_death is None:
        raise reason from error
    return on_worker_death(reason)


def _no_workers_error() -> ClusterError:
    return ClusterError(
        f"no worker was connected for {_MAX_WITHOUT_WORKERS_S:.0f} seconds; read the logs of "
        f"the workers, start new ones and run the command again ({_RESUME_NOTE})"
    )


def _too_many_failures_error() -> ClusterError:
    return ClusterError(
        f"the same task ended {_MAX_ATTEMPTS} workers in a row; give the workers more memory"
    )


def _read_item(open_items: OpenItems, index: int) -> Any:
    return next(islice(open_items(), index, None))
