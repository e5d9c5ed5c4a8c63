"""The pool of work that benchmarks share: kept, gone on with, and honest on what went wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

kept = pytest.importorskip("benchmarks.kept_pieces", reason="the benchmarks are not here")


@dataclass(frozen=True)
class Square:
    """Leaves a line in a file whenever it is worked on; a negative number cannot be done."""

    number: int
    log: Path
    of: str = "square"

    @property
    def name(self) -> str:
        return f"{self.of}/{self.number}"

    @property
    def cost(self) -> float:
        return abs(self.number)

    def work(self) -> dict[str, object]:
        with self.log.open("a") as log:
            log.write(f"{self.number}\n")
        if self.number < 0:
            raise ValueError("it is negative")
        return {"square": self.number**2}


def worked(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_finished_is_found_and_not_done_again(tmp_path, jobs):
    log, folder = tmp_path / "log", tmp_path / "out"
    first = [Square(n, log) for n in (1, 3, 2)]
    done = kept.do_all(first, folder, jobs)
    assert done.found == {f"square/{n}": {"square": n * n} for n in (1, 3, 2)}
    assert (done.missing, done.failures, done.tell()) == ([], {}, 0)
    assert sorted(worked(log)) == ["1", "2", "3"]
    more = kept.do_all([*first, Square(4, log)], folder, jobs)
    assert more.found["square/4"] == {"square": 16} and len(more.found) == 4
    assert sorted(worked(log)) == ["1", "2", "3", "4"]


def test_the_longest_is_begun_first(tmp_path):
    log = tmp_path / "log"
    kept.do_all([Square(n, log) for n in (1, 3, 2)], tmp_path / "out", 1)
    assert worked(log) == ["3", "2", "1"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_is_named_stops_no_other_and_is_the_exit_status(tmp_path, jobs, capsys):
    log, folder = tmp_path / "log", tmp_path / "out"
    pieces = [Square(n, log) for n in (-9, 1, 2)]
    done = kept.do_all(pieces, folder, jobs)
    assert set(done.found) == {"square/1", "square/2"}
    assert done.missing == ["square/-9"]
    assert done.failures == {"square/-9": "ValueError: it is negative"}
    assert done.tell() == 1
    output = capsys.readouterr()
    assert "square/-9: failed: ValueError: it is negative" in output.err
    assert "1 of 3 pieces of work are missing" in output.out
    kept.do_all(pieces, folder, jobs)
    assert worked(log).count("-9") == 2  # tried again, and nothing else
    assert len(worked(log)) == 4


def test_tables_alone_do_no_work(tmp_path, capsys):
    log, folder = tmp_path / "log", tmp_path / "out"
    kept.do_all([Square(1, log)], folder, 1)
    found = kept.find_all([Square(1, log), Square(5, log)], folder)
    assert (list(found.found), found.missing) == (["square/1"], ["square/5"])
    assert found.tell() == 0  # not there is not gone wrong
    assert "1 of 2" in capsys.readouterr().out
    assert worked(log) == ["1"]


def test_other_settings_under_the_same_name_or_half_a_file_are_done_anew(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "out"
    piece = Square(3, log)
    kept.do_all([piece], folder, 1)
    (file,) = folder.glob("*.json")
    other = json.loads(file.read_text()) | {"piece": "another"}
    for text in (json.dumps(other), file.read_text()[:10]):
        file.write_text(text)
        assert kept.find_all([piece], folder).missing == ["square/3"]
        assert kept.do_all([piece], folder, 1).found == {"square/3": {"square": 9}}
    assert worked(log) == ["3", "3", "3"]


def test_two_of_one_name_are_refused(tmp_path):
    pieces = [Square(1, tmp_path / "log"), Square(1, tmp_path / "log")]
    with pytest.raises(ValueError, match="square/1"):
        kept.find_all(pieces, tmp_path)


# --- tables of planted answers ------------------------------------------------------------------


def planted(right: float, seed: int, n_repeats: int = 2) -> dict[int, dict[str, object]]:
    """Answers of two folds by patient, of which a share is right; by place of the split."""
    rng = np.random.default_rng(seed)
    facts = {}
    for place in range(2 * n_repeats):
        patients = [f"patient {place % 2}-{n}" for n in range(20) for _ in range(10)]
        truth = [("benign", "malignant")[n % 2] for n in range(200)]
        correct = rng.random(200) < right
        other = {"benign": "malignant", "malignant": "benign"}
        labels = [t if ok else other[t] for t, ok in zip(truth, correct, strict=True)]
        facts[place] = {
            "repeat": place // 2,
            "classes": ["benign", "malignant"],
            "truth": truth,
            "patients": patients,
            "labels": labels,
            "scores": [[1.0 if label == "malignant" else -1.0] for label in labels],
        }
    return facts


def numbers(shown: str) -> list[float]:
    plain = shown.replace("*", "").replace("\N{MINUS SIGN}", "-")
    for sign in "()":
        plain = plain.replace(sign, "")
    return [float(word) for word in plain.split() if word != "to"]


def test_a_planted_mean_lies_in_its_interval_and_folds_are_one_repeat():
    facts = list(planted(0.8, 0).values())
    made = kept.repeats(facts, "labels")
    assert [len(repeat.labels) for repeat in made] == [400, 400]
    for metric, kind in ((kept.metrics.balanced_accuracy, "labels"), (kept.area(facts), "scores")):
        value, low, high = numbers(kept.mean_shown(metric, facts, kind))
        assert low < 0.8 < high and low <= value <= high and high - low < 0.1


def test_a_planted_difference_is_found_and_none_where_there_is_none():
    metric = kept.metrics.balanced_accuracy
    better, worse = planted(0.9, 1), planted(0.7, 2)
    shown = kept.difference_shown(metric, better, worse)
    value, low, high = numbers(shown)
    assert low < 0.2 < high and shown.startswith("**+")
    assert numbers(kept.difference_shown(metric, worse, better)) == pytest.approx(
        [-value, -high, -low], abs=0.002
    )
    assert not kept.difference_shown(metric, planted(0.8, 3), planted(0.8, 4)).startswith("*")


def test_only_splits_that_both_have_are_compared():
    metric = kept.metrics.balanced_accuracy
    whole = planted(0.9, 1)
    part = {place: whole[place] for place in (0, 1)}
    assert numbers(kept.difference_shown(metric, whole, part)) == [0, 0, 0]
    assert kept.difference_shown(metric, whole, {}) == kept.NOTHING
    assert kept.mean_shown(metric, []) == kept.NOTHING


def test_an_image_of_glass_lies_on_the_border():
    (fact, *_) = planted(1.0, 0).values()
    fact["scores"] = [[float("nan")], *fact["scores"][1:]]
    (repeat,) = kept.repeats([fact], "scores")
    assert repeat.predictions[0] == 0
