"""A folder that several runs fill: nothing is lost, and nothing of another kind is mixed in."""

from __future__ import annotations

import json

import pytest

from histodict.utils.results_folder import ResultsFolder

SETTINGS, STAMP = {"model": "m"}, {"file": []}


def content(name):
    return {"row": {"path": name, "key": name}, "regions": [], "files": {}}


def begun(folder, settings=SETTINGS):
    run = ResultsFolder(folder, settings, "table")
    run.begin([], {})
    return run


def test_what_another_run_finished_meanwhile_is_in_the_table(tmp_path, recwarn):
    one, two = begun(tmp_path), begun(tmp_path)
    one.store("a", content("a"), STAMP)
    two.store("b", content("b"), STAMP)
    assert [stored["row"]["path"] for stored in two.previous_results({"b"})] == ["a"]
    assert not recwarn


def test_what_another_run_makes_otherwise_is_refused_also_at_the_end(tmp_path):
    one, two = begun(tmp_path), begun(tmp_path, {"model": "other"})
    one.store("a", content("a"), STAMP)
    with pytest.raises(ValueError, match="model was m, is other"):
        two.previous_results(set())


NO_DIGEST = json.dumps(content("a") | {"settings": SETTINGS, "options": {}, "stamp": STAMP})


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{" * 10_000, '{"sha256": "', NO_DIGEST])
def test_a_damaged_file_is_named_and_stops_nobody(tmp_path, text):
    begun(tmp_path).store("a", content("a"), STAMP)
    (tmp_path / "done" / "a.json").write_text(text)
    run = begun(tmp_path)
    with pytest.warns(UserWarning, match=r"a\.json: is damaged"):
        assert run.load_finished("a", STAMP) is None
    with pytest.warns(UserWarning, match=r"a\.json: is damaged"):
        assert run.previous_results(set()) == []
