"""What the fuzzing bench once found is tried again, each in a process that may die of it."""

from __future__ import annotations

from itertools import groupby

import pytest

from attacks.fuzz import FINDS
from attacks.trials import Worker

KEPT = sorted(path for path in FINDS.glob("*/*") if path.is_file())


@pytest.mark.parametrize(
    "name, paths", [(name, list(same)) for name, same in groupby(KEPT, lambda p: p.parent.name)]
)
def test_nothing_that_was_found_is_found_again(name, paths):
    worker = Worker(name)
    try:
        found = {path.name: worker.try_kept(path) for path in paths}
    finally:
        worker.close()
    assert {
        file: train_test.words for file, train_test in found.items() if train_test.signature
    } == {}
