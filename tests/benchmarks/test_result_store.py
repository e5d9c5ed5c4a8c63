"""Tests of the pool of benchmark tasks: storage, resumption and failures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.optional_modules import import_lazily

result_store = import_lazily("benchmarks.result_store", "the benchmarks are not here")


@dataclass(frozen=True)
class Square:
    """Appends a line to a file when it is computed; negative numbers fail."""

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


def computed(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("jobs", [1, 2])
def test_finished_results_are_loaded(tmp_path, jobs):
    log, folder = tmp_path / "log", tmp_path / "out"
    first = [Square(n, log) for n in (1, 3, 2)]
    done = result_store.run_all(first, folder, jobs)
    assert done.found == {f"square/{n}": {"square": n * n} for n in (1, 3, 2)}
    assert (done.missing, done.failures, done.report_status()) == ([], {}, 0)
    assert sorted(computed(log)) == ["1", "2", "3"]
    more = result_store.run_all([*first, Square(4, log)], folder, jobs)
    assert more.found["square/4"] == {"square": 16} and len(more.found) == 4
    assert sorted(computed(log)) == ["1", "2", "3", "4"]


def test_longest_task_is_started_first(tmp_path):
    log = tmp_path / "log"
    result_store.run_all([Square(n, log) for n in (1, 3, 2)], tmp_path / "out", 1)
    assert computed(log) == ["3", "2", "1"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_failure_is_reported_and_does_not_stop_others(tmp_path, jobs, capsys):
    log, folder = tmp_path / "log", tmp_path / "out"
    pieces = [Square(n, log) for n in (-9, 1, 2)]
    done = result_store.run_all(pieces, folder, jobs)
    assert set(done.found) == {"square/1", "square/2"}
    assert done.missing == ["square/-9"]
    assert done.failures == {"square/-9": "ValueError: it is negative"}
    assert done.report_status() == 1
    output = capsys.readouterr()
    assert "square/-9: failed: ValueError: it is negative" in output.err
    assert "1 of 3 results are missing" in output.out
    result_store.run_all(pieces, folder, jobs)
    assert computed(log).count("-9") == 2  # only this one is tried again
    assert len(computed(log)) == 4


def test_loading_results_computes_nothing(tmp_path, capsys):
    log, folder = tmp_path / "log", tmp_path / "out"
    result_store.run_all([Square(1, log)], folder, 1)
    found = result_store.load_all([Square(1, log), Square(5, log)], folder)
    assert (list(found.found), found.missing) == (["square/1"], ["square/5"])
    assert found.report_status() == 0  # a missing result is not a failure
    assert "1 of 2" in capsys.readouterr().out
    assert computed(log) == ["1"]


def test_changed_settings_or_incomplete_files_are_computed_again(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "out"
    piece = Square(3, log)
    result_store.run_all([piece], folder, 1)
    (file,) = folder.glob("*.json")
    other = json.loads(file.read_text()) | {"piece": "another"}
    for text in (json.dumps(other), file.read_text()[:10]):
        file.write_text(text)
        assert result_store.load_all([piece], folder).missing == ["square/3"]
        assert result_store.run_all([piece], folder, 1).found == {"square/3": {"square": 9}}
    assert computed(log) == ["3", "3", "3"]


def test_duplicate_names_are_refused(tmp_path):
    pieces = [Square(1, tmp_path / "log"), Square(1, tmp_path / "log")]
    with pytest.raises(ValueError, match="square/1"):
        result_store.load_all(pieces, tmp_path)


# --- tables of planted results ------------------------------------------------------------------


def planted(right: float, seed: int, n_repeats: int = 2) -> dict[int, dict[str, object]]:
    """Return results of two folds by patient with this accuracy, by index of the split."""
    rng = np.random.default_rng(seed)
    results = {}
    for place in range(2 * n_repeats):
        patients = [f"patient {place % 2}-{n}" for n in range(20) for _ in range(10)]
        truth = [("benign", "malignant")[n % 2] for n in range(200)]
        correct = rng.random(200) < right
        other = {"benign": "malignant", "malignant": "benign"}
        labels = [t if ok else other[t] for t, ok in zip(truth, correct, strict=True)]
        results[place] = {
            "repeat": place // 2,
            "classes": ["benign", "malignant"],
            "truth": truth,
            "patients": patients,
            "labels": labels,
            "scores": [[1.0 if label == "malignant" else -1.0] for label in labels],
        }
    return results


def numbers(text: str) -> list[float]:
    plain = text.replace("*", "").replace("\N{MINUS SIGN}", "-")
    for sign in "()":
        plain = plain.replace(sign, "")
    return [float(word) for word in plain.split() if word != "to"]


def test_planted_mean_is_in_its_interval_and_folds_form_one_repeat():
    results = list(planted(0.8, 0).values())
    made = result_store.repeats(results, "labels")
    assert [len(repeat.labels) for repeat in made] == [400, 400]
    for metric, kind in (
        (result_store.metrics.balanced_accuracy, "labels"),
        (result_store.area(results), "scores"),
    ):
        value, low, high = numbers(result_store.mean_shown(metric, results, kind))
        assert low < 0.8 < high and low <= value <= high and high - low < 0.1


def test_planted_difference_is_found_and_none_without_one():
    metric = result_store.metrics.balanced_accuracy
    better, worse = planted(0.9, 1), planted(0.7, 2)
    text = result_store.difference_shown(metric, better, worse)
    value, low, high = numbers(text)
    assert low < 0.2 < high and text.startswith("**+")
    assert numbers(result_store.difference_shown(metric, worse, better)) == pytest.approx(
        [-value, -high, -low], abs=0.002
    )
    assert not result_store.difference_shown(metric, planted(0.8, 3), planted(0.8, 4)).startswith(
        "*"
    )


def test_only_common_splits_are_compared():
    metric = result_store.metrics.balanced_accuracy
    complete = planted(0.9, 1)
    part = {place: complete[place] for place in (0, 1)}
    assert numbers(result_store.difference_shown(metric, complete, part)) == [0, 0, 0]
    assert result_store.difference_shown(metric, complete, {}) == result_store.NOTHING
    assert result_store.mean_shown(metric, []) == result_store.NOTHING


def test_background_image_has_score_zero():
    (result, *_) = planted(1.0, 0).values()
    result["scores"] = [[float("nan")], *result["scores"][1:]]
    (repeat,) = result_store.repeats([result], "scores")
    assert repeat.predictions[0] == 0
