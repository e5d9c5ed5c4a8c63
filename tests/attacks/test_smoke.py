"""A few hundred damaged inputs of every kind with a fixed seed; `make fuzz` runs many more."""

from __future__ import annotations

import pytest

from attacks.fuzz import fuzz
from attacks.targets import TARGETS, load_target


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_invariant_is_violated(name):
    target = load_target(name)
    n_cases = target.smoke_attempts * target.per_attempt
    tally = fuzz(name, cases=n_cases, seed=9)
    assert {failure.signature: failure.message for failure in tally.failures} == {}
    assert tally.total == n_cases, tally.table()
