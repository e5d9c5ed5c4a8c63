"""Some hundred damaged inputs of every kind, always the same; `make fuzz` tries many more."""

from __future__ import annotations

import pytest

from attacks.fuzz import fuzz
from attacks.targets import TARGETS, target_named


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_promise_is_broken(name):
    target = target_named(name)
    n_cases = target.smoke_attempts * target.per_attempt
    tally = fuzz(name, cases=n_cases, seed=9)
    assert {found.signature: found.words for found in tally.finds} == {}
    assert tally.total == n_cases, tally.table()
