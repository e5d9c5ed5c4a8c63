"""Run stored failures of the fuzzer again, in a worker process that may die from them."""

from __future__ import annotations

from itertools import groupby

import pytest

from attacks.case_runner import Worker
from attacks.fuzz import FAILURES

STORED = sorted(path for path in FAILURES.glob("*/*") if path.is_file())


@pytest.mark.parametrize(
    "name, paths", [(name, list(same)) for name, same in groupby(STORED, lambda p: p.parent.name)]
)
def test_stored_failures_do_not_recur(name, paths):
    worker = Worker(name)
    try:
        results = {path.name: worker.run_stored(path) for path in paths}
    finally:
        worker.close()
    assert {file: result.message for file, result in results.items() if result.signature} == {}
