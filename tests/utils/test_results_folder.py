"""Tests of a results folder that several runs fill: results are merged if settings agree."""

from __future__ import annotations

import json

import pytest

from histodict.utils.results_folder import ResultsFolder

SETTINGS, FINGERPRINT = {"model": "m"}, {"file": []}


def content(name):
    return {"row": {"path": name, "key": name}, "regions": [], "files": {}}


def open_results(folder, settings=SETTINGS):
    run = ResultsFolder(folder, settings, "table")
    run.begin([], {})
    return run


def test_results_of_a_concurrent_run_are_in_the_table(tmp_path, recwarn):
    one, two = open_results(tmp_path), open_results(tmp_path)
    one.store("a", content("a"), FINGERPRINT)
    two.store("b", content("b"), FINGERPRINT)
    assert [stored["row"]["path"] for stored in two.previous_results({"b"})] == ["a"]
    assert not recwarn


def test_results_with_other_settings_are_refused_at_the_end(tmp_path):
    one, two = open_results(tmp_path), open_results(tmp_path, {"model": "other"})
    one.store("a", content("a"), FINGERPRINT)
    with pytest.raises(ValueError, match="of another model; choose another"):
        two.previous_results(set())
    with pytest.raises(ValueError, match=r"another run \(mpp was not set and is now 1\); choose"):
        open_results(tmp_path, SETTINGS | {"mpp": 1})


NO_DIGEST = json.dumps(
    content("a") | {"settings": SETTINGS, "options": {}, "fingerprint": FINGERPRINT}
)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{" * 10_000, '{"sha256": "', NO_DIGEST])
def test_damaged_file_is_reported_and_skipped(tmp_path, text):
    open_results(tmp_path).store("a", content("a"), FINGERPRINT)
    (tmp_path / "done" / "a.json").write_text(text)
    run = open_results(tmp_path)
    with pytest.warns(UserWarning, match=r"a\.json: the record is damaged"):
        assert run.load_finished("a", FINGERPRINT) is None
    with pytest.warns(UserWarning, match=r"a\.json: the record is damaged"):
        assert run.previous_results(set()) == []
