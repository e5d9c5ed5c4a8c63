"""A few hundred damaged inputs of every kind with a fixed seed, and the stored failures of the
fuzzer, in worker processes that may die from them; `make fuzz` runs many more inputs."""

from __future__ import annotations

import multiprocessing

import pytest

from attacks.case_runner import Worker
from attacks.fuzz import FAILURES, Tally
from attacks.targets import TARGETS, load_target

# Imported once, in the process that all workers except that of the kernels are forked from.
PRELOADED = [
    *(f"attacks.targets.{name}" for name in TARGETS if name != "kernels"),
    "histodict.web.server",
    "histodict.web.worker",
]


@pytest.fixture(scope="module", params=sorted(TARGETS))
def worker(request):
    """A worker process of a target; the kernels are imported anew, with bounds checking."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    worker = Worker(request.param, "spawn" if request.param == "kernels" else "forkserver")
    yield worker
    worker.close()


def test_stored_failures_do_not_recur(worker):
    paths = sorted((FAILURES / worker.name).glob("*"))
    results = {path.name: worker.run_stored(path) for path in paths}
    assert {file: result.message for file, result in results.items() if result.signature} == {}


def test_no_invariant_is_violated(worker):
    target = load_target(worker.name)
    tally = Tally(worker.name, target.per_attempt)
    for result in worker.run_seeds(9, list(range(target.smoke_attempts))):
        tally.add(result)
    assert {failure.signature: failure.message for failure in tally.failures} == {}
    assert tally.total == target.smoke_attempts * target.per_attempt, tally.table()


def test_every_stored_failure_belongs_to_a_target():
    assert {path.name for path in FAILURES.iterdir()} <= set(TARGETS)
