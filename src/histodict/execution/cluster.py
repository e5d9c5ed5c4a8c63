"""The processes of a Dask cluster, by the words that name it.

    local:4              four processes on this machine
    tcp://HOST:PORT      the scheduler of a cluster that runs
    FILE.yaml            jobs of a batch system, through dask-jobqueue (see `_start_jobs`)

Workers need the same versions of the packages, and files under the same names.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..parameters import check_whole_number
from .cluster_map import Cluster, ClusterError
from .processes import can_share_locks
from .texts import one_line

_PACKAGES = ("histodict", "numpy", "scipy", "numba")  # what decides the bits of a result
_SETTINGS = (".yaml", ".yml")
_CONNECT_SECONDS = 30


@contextmanager
def open_cluster(text: str) -> Iterator[Cluster]:
    """The cluster that `text` names, as above; what was started for it is ended with it."""
    distributed = _load("distributed", "'histodict[cluster]'")
    with _silent("distributed", "distributed.client"), _start(text) as place:
        try:
            client = distributed.Client(place, timeout=_CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise ClusterError(f"no Dask scheduler answers at {text}: {error}") from error
        with client:
            _wait_for_a_worker(client, text)
            _check_versions(client)
            yield Cluster(client)


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Of these loggers: what matters we say ourselves."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _wait_for_a_worker(client: Any, text: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:
        if Path(text).suffix not in _SETTINGS:
            raise ClusterError(
                f"the Dask scheduler at {text} has no workers: start some"
            ) from error
        # Jobs may stand in a queue for hours; whoever asked for them can stop waiting.
        warnings.warn(
            f"{text}: none of its jobs has begun; waiting for the first one", stacklevel=3
        )
        client.wait_for_workers(1)


def _start(text: str) -> AbstractContextManager[Any]:
    """What a client connects to."""
    kind, colon, rest = text.partition(":")
    if kind in ("tcp", "tls") and rest.startswith("//"):
        return nullcontext(text)
    if kind == "local" and colon:
        if not rest.isdecimal():
            raise ValueError(f"--cluster {text}: write local:N with N processes, such as local:4")
        n_workers = check_whole_number("the number of workers", int(rest), 1)
        _load("cryptography", "'histodict[cluster]'")
        if not can_share_locks():
            raise ClusterError(
                f"--cluster {text}: processes cannot share locks on this machine (is /dev/shm "
                "missing, full or read-only?): leave --cluster out"
            )
        from .local_cluster import local_cluster

        return local_cluster(n_workers)
    if Path(text).suffix in _SETTINGS:
        return _start_jobs(Path(text))
    raise ValueError(
        f"--cluster {text}: give tcp://HOST:PORT of a Dask scheduler, local:N for N processes "
        "here, or a .yaml file with the settings of a batch system"
    )


@contextmanager
def _start_jobs(file: Path) -> Iterator[Any]:
    """Jobs of a batch system; the file says which, how many, and with what options.

    system: SLURM              # or PBS, SGE, LSF, …: the name before dask-jobqueue's "Cluster"
    jobs: 20
    options: {cores: 8, processes: 8, memory: 32GB, walltime: "04:00:00", queue: normal}
    """
    settings = _read_settings(file)
    jobqueue = _load("dask_jobqueue", "dask-jobqueue")
    name = f"{settings.get('system', 'SLURM')}Cluster"
    if not hasattr(jobqueue, name):
        known = sorted(n.removesuffix("Cluster") for n in dir(jobqueue) if n.endswith("Cluster"))
        raise ValueError(
            f"{file}: system must be one of {known}, not {name.removesuffix('Cluster')!r}"
        )
    n_jobs = check_whole_number(f"{file}: jobs", settings.get("jobs", 1), 1)
    try:
        cluster = getattr(jobqueue, name)(**settings.get("options", {}))
    except TypeError as error:
        raise ValueError(f"{file}: {name} does not take these options: {error}") from error
    with cluster:
        cluster.scale(jobs=n_jobs)
        yield cluster


def _read_settings(file: Path) -> dict[str, Any]:
    yaml = _load("yaml", "'histodict[cluster]'")
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not a YAML file: {one_line(error)}") from error
    if not isinstance(settings, dict) or not set(settings) <= {"system", "jobs", "options"}:
        raise ValueError(f"{file}: must have the entries system, jobs and options, and no others")
    return settings


def _load(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a cluster needs {error.name}, which is not installed: pip install {package}"
        ) from error


def _check_versions(client: Any) -> None:
    """Other versions on a worker would give other bits, or fail halfway."""
    own = _versions()
    for worker, found in client.run(_versions).items():
        differ = [name for name in own if found[name] != own[name]]
        if differ:
            theirs, ours = (", ".join(f"{name} {v[name]}" for name in differ) for v in (found, own))
            raise ClusterError(
                f"the worker {worker} has {theirs}, but here it is {ours}: install the same "
                "versions"
            )


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions
