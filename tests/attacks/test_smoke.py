"""Some hundred damaged inputs of every kind; `make fuzz` tries many more."""

from __future__ import annotations

import pytest

from attacks.fuzz import fuzz
from attacks.targets import TARGETS

SECONDS = 5


@pytest.mark.parametrize("name", TARGETS)
def test_no_promise_is_broken(name):
    tally = fuzz(name, seconds=SECONDS, seed=9)
    assert {found.signature: found.words for found in tally.finds} == {}
    assert tally.total >= 50, tally.table()
