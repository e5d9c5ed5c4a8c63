"""Tests of the fuzzer: planted defects are found, minimised and counted."""

from __future__ import annotations

import pytest

from attacks import case_runner, fuzz

NAME = "tests.attacks.planted"


@pytest.fixture(scope="module")
def tally():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_runner, "MOST_SECONDS", 0.5)
        yield fuzz.fuzz(NAME, cases=90, seed=4)


def test_every_case_is_counted_under_its_kind(tally):
    assert tally.total == 90
    assert set(tally.counts) == {"even", "odd"}
    outcomes = sum(tally.counts.values(), start=type(tally.counts["odd"])())
    assert outcomes["failure"] == 3 * len(tally.failures)
    assert outcomes["answered"] > 0


def test_crashes_hangs_and_violated_invariants_are_reported(tally):
    assert {failure.signature for failure in tally.failures} == {
        "crash: SIGABRT",
        "hang",
        "InvariantError at planted.py:attempt",
    }


def test_failures_are_minimised(tally):
    planted = {"crash: SIGABRT": (7,), "hang": (11,), "InvariantError at planted.py:attempt": (13,)}
    failure = fuzz.minimised_failures(tally)
    assert {result.signature for result in failure} == set(planted)
    assert all(result.case.edits == planted[result.signature] for result in failure)


def test_failure_is_stored_under_its_digest(tally, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "FAILURES", tmp_path)
    crash = next(failure for failure in tally.failures if failure.signature == "crash: SIGABRT")
    path = fuzz.store_case(NAME, crash)
    assert path.parent == tmp_path / NAME
    assert path.name.endswith("-numbers.json")
    assert path.read_bytes() == fuzz._built(NAME, crash.case)


def test_same_seed_gives_same_cases():
    first, second = (fuzz.fuzz(NAME, cases=24, seed=8) for _ in range(2))
    assert first.counts == second.counts


def test_stored_failure_is_run_again(tmp_path):
    crash, fine = tmp_path / "0a1b-numbers.json", tmp_path / "2c3d-numbers.json"
    crash.write_text("[7]")
    fine.write_text("[17]")
    worker = case_runner.Worker(NAME)
    try:
        assert worker.run_stored(crash).signature == "crash: SIGABRT"
        assert worker.run_stored(fine).outcome == "refused"
    finally:
        worker.close()
