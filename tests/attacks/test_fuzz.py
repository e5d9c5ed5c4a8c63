"""The fuzzing bench finds what was planted, makes it small, and counts all that it tried."""

from __future__ import annotations

import pytest

from attacks import fuzz, trials

NAME = "tests.attacks.planted"


@pytest.fixture(scope="module")
def tally():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "MOST_SECONDS", 0.5)
        yield fuzz.fuzz(NAME, cases=90, seed=4)


def test_every_case_is_counted_under_its_kind(tally):
    assert tally.total == 90
    assert set(tally.counts) == {"even", "odd"}
    outcomes = sum(tally.counts.values(), start=type(tally.counts["odd"])())
    assert outcomes["find"] == 3 * len(tally.finds)
    assert outcomes["answered"] > 0


def test_crashes_hangs_and_broken_promises_are_found(tally):
    assert {found.signature for found in tally.finds} == {
        "crash: SIGABRT",
        "hang",
        "Find at planted.py:attempt",
    }


def test_finds_are_made_as_small_as_they_get(tally):
    planted = {"crash: SIGABRT": (7,), "hang": (11,), "Find at planted.py:attempt": (13,)}
    found = fuzz.distinct(tally)
    assert {train_test.signature for train_test in found} == set(planted)
    assert all(train_test.case.edits == planted[train_test.signature] for train_test in found)


def test_a_find_is_kept_by_its_content(tally, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "FINDS", tmp_path)
    crash = next(found for found in tally.finds if found.signature == "crash: SIGABRT")
    path = fuzz.keep(NAME, crash)
    assert path.parent == tmp_path / NAME
    assert path.name.endswith("-numbers.json")
    assert path.read_bytes() == fuzz._built(NAME, crash.case)


def test_the_same_seed_gives_the_same_cases():
    first, second = (fuzz.fuzz(NAME, cases=24, seed=8) for _ in range(2))
    assert first.counts == second.counts


def test_a_kept_find_is_tried_again(tmp_path):
    crash, fine = tmp_path / "0a1b-numbers.json", tmp_path / "2c3d-numbers.json"
    crash.write_text("[7]")
    fine.write_text("[17]")
    worker = trials.Worker(NAME)
    try:
        assert worker.try_kept(crash).signature == "crash: SIGABRT"
        assert worker.try_kept(fine).outcome == "refused"
    finally:
        worker.close()
