"""Reports of progress, remaining time and progress bars."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from histodict.utils.progress import Progress, TimeEstimator, cumulative_shares, progress_bar


def test_cumulative_shares_follow_the_work_of_each_step():
    assert cumulative_shares([1, 3]) == [0, 0.25, 1]
    assert cumulative_shares([0, 0]) == [0, 0.5, 1]  # no step has a known size
    assert cumulative_shares([]) == [0]


def test_fraction_counts_steps_unless_work_is_stated():
    assert Progress("train", 1, 4).fraction == 0.25
    assert Progress("train", 1, 4, work=0.5).fraction == 0.5
    assert Progress("train", 0, 0).fraction == pytest.approx(0)


# --- remaining time, with a simulated clock
# --------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def estimate(seconds, n_done, work=None, weights=None):
    """Return the estimator after n_done of len(seconds) steps of a stage."""
    clock = Clock()
    estimator = TimeEstimator(weights or {"train": 1}, clock=clock)
    for done in range(n_done + 1):
        share = None if work is None else float(np.sum(work[:done]) / np.sum(work))
        estimator.update(Progress("train", done, len(seconds), work=share))
        clock.now += seconds[done] if done < n_done else 0
    return estimator, clock


def test_remaining_time_of_steady_steps():
    assert estimate([2.0] * 100, 20)[0].seconds_left() == pytest.approx(160, abs=1)


def test_few_long_steps_give_an_estimate():
    assert estimate([600.0] * 10, 4)[0].seconds_left() == pytest.approx(3600, abs=1)


def test_remaining_time_of_steps_of_known_size():
    sizes = np.random.default_rng(1).lognormal(0, 1.5, 50)
    left = estimate(100 * sizes, 20, work=sizes)[0].seconds_left()
    assert left == pytest.approx(100 * sizes[20:].sum(), abs=1)


def test_first_step_is_ignored():
    """The first step includes the loading of libraries."""
    assert estimate([30.0] + [1.0] * 99, 20)[0].seconds_left() == pytest.approx(80, abs=1)


def test_steps_of_an_earlier_run_are_ignored():
    clock = Clock()
    estimator = TimeEstimator({"evaluate": 1}, clock=clock)
    for done in range(60, 71):
        estimator.update(Progress("evaluate", done, 100))
        clock.now += done < 70
    assert estimator.seconds_left() == pytest.approx(30)


def test_no_estimate_from_one_step_or_from_other_stages():
    assert TimeEstimator({"train": 1}).seconds_left() is None
    assert estimate([1.0] * 3, 1)[0].seconds_left() is None
    assert estimate([1.0] * 10, 5, weights={"decision": 1})[0].seconds_left() is None


def test_estimate_of_a_restarted_stage_starts_again():
    estimator, clock = estimate([1.0] * 20, 10)
    for done in range(11):
        estimator.update(Progress("train", done, 20))
        clock.now += 3 * (done < 10)
    assert estimator.seconds_left() == pytest.approx(30)


@pytest.mark.parametrize("true", [(10, 30, 20), (10, 60, 20), (5, 30, 40)])
def test_later_stages_are_included(true):
    """The weights are approximate; their errors matter less towards the end."""
    weights, clock, wrong = dict(patches=1.0, train=3.0, predict=2.0), Clock(), {}
    estimator = TimeEstimator(weights, clock=clock)
    for stage, seconds in zip(weights, true, strict=True):
        begun = clock.now
        for done in range(51):
            clock.now = begun + seconds * done / 50
            estimator.update(Progress(stage, done, 50))
            left, truth = estimator.seconds_left(), sum(true) - clock.now
            if left is not None and truth > 10:
                wrong[clock.now] = abs(left / truth - 1)
    if true == (10, 30, 20):
        assert max(wrong.values()) < 0.15  # remaining times are rounded up to whole seconds
    late = [error for now, error in wrong.items() if now > sum(true[:2]) + 1]
    assert late and max(late) < 0.2


# --- bars -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "seconds", "expected"),
    [
        ("predict", 0.08, ["Predicting", "10/20", "12 images/s", "00:01"]),
        ("decision", 2, ["Fitting the decision rule", "30 images/min", "00:20"]),
        ("evaluate", 100, ["36 trainings/h", "16:40"]),
        ("train", 1000, ["3.6 steps/h", "2:46:40"]),
    ],
)
def test_bar_shows_count_rate_and_remaining_time(stage, seconds, expected, monkeypatch):
    clock, output = Clock(), io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, get_time=clock)
    with progress_bar(console=console) as callback:
        for done in range(11):
            callback(Progress(stage, done, 20))
            clock.now += seconds
    assert [text for text in expected if text not in output.getvalue()] == []
    assert "in total" not in output.getvalue()


def test_bar_shows_the_time_of_later_stages():
    clock, output = Clock(), io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, get_time=clock)
    with progress_bar(dict(train=1.0, decision=2.0), console=console) as callback:
        for done in range(11):
            callback(Progress("train", done, 20))
            clock.now += done < 10
    assert "0:00:50 in total" in output.getvalue()


def test_file_output_gets_the_last_state_or_nothing(capsys):
    for transient in (False, True):
        with progress_bar(transient=transient) as callback:
            for done in range(3):
                callback(Progress("predict", done, 2))
        out, err = capsys.readouterr()
        assert out == ""
        if transient:
            assert err == ""
        else:
            (line,) = err.splitlines()
            assert line.startswith("Predicting") and "2/2" in line and "\r" not in err


def test_bar_ends_when_the_work_fails(capsys):
    with pytest.raises(RuntimeError), progress_bar() as callback:
        callback(Progress("predict", 1, 2))
        raise RuntimeError
    assert "1/2" in capsys.readouterr().err
