"""What is said of the time left is true: work by a made-up clock, whose end is known."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.execution.pace import Forecast, Pace
from histodict.execution.progress import Progress


def errors(seconds, share=None, began=0.0):
    """Of the time left, relative, after each step; NaN where nothing is said."""
    n, times = len(seconds), began + np.cumsum(seconds)
    share = np.arange(1, n + 1) / n if share is None else np.cumsum(share) / np.sum(share)
    pace = Pace()
    pace.hear(began, Progress("answer", 0, n, work=0.0))
    found = []
    for done in range(1, n):
        now = times[done - 1]
        pace.hear(now, Progress("answer", done, n, work=float(share[done - 1])))
        left = pace.seconds_left(now)
        found.append(np.nan if left is None else left / (times[-1] - now) - 1)
    return np.array(found)


def test_steady_work_is_known_after_a_tenth():
    assert np.abs(errors([2.0] * 100)[10:]).max() < 1e-9


def test_images_that_differ_are_known_within_a_fifth():
    """What is left differs by chance, too: most of the time, and not of the last steps."""
    rng = np.random.default_rng(0)
    wrong = [np.abs(errors(rng.lognormal(0, 0.4, 400))[40:360]) for _ in range(20)]
    assert np.mean(np.concatenate(wrong) < 0.2) > 0.9


@pytest.mark.parametrize("factor", [0.5, 1.5, 3.0])
def test_another_rate_is_known_a_tenth_after_it_began(factor):
    assert np.abs(errors([1.0] * 50 + [factor] * 50)[61:]).max() < 0.2


def test_steps_that_differ_and_say_so_are_as_good_as_steady_ones():
    sizes = np.random.default_rng(1).lognormal(0, 1.5, 50)
    assert np.abs(errors(sizes, share=sizes)[10:]).max() < 1e-6


def test_what_is_loaded_in_the_first_step_does_not_count():
    assert np.abs(errors([30.0] + [0.2] * 99)[10:]).max() < 0.2


def test_results_that_come_two_at_a_time():
    assert np.abs(errors([1.9, 0.1] * 50)[10:90]).max() < 0.2


def test_what_was_done_before_took_no_time_now():
    pace = Pace()
    for done in range(60, 71):
        pace.hear(done - 60, Progress("evaluate", done, 100))
    assert pace.seconds_left(10) == pytest.approx(30) and pace.steps_per_second == pytest.approx(1)
    pace = Pace()
    for done in range(3):  # one after another
        pace.hear(0, Progress("answer", done, 4, work=0.0))
    for done in range(2, 5):
        pace.hear(done - 2, Progress("answer", done, 4, work=(done - 2) / 2))
    assert pace.steps_per_second == pytest.approx(1)


def test_time_goes_on_between_steps_and_never_back():
    pace = Pace()
    for done in range(11):
        pace.hear(done, Progress("answer", done, 20))
    assert [pace.seconds_left(10 + waited) for waited in (0, 0.5, 99)] == [10, 9.5, 0]


def test_a_stage_may_begin_anew():
    pace = Pace()
    for begin in (0, 1000):
        for done in range(11):
            pace.hear(begin + done, Progress("train", done, 20))
    assert pace.seconds_left(1010) == pytest.approx(10)


def test_nothing_is_said_before_anything_is_known():
    pace = Pace()
    assert pace.seconds_left(0) is None and pace.steps_per_second is None
    pace.hear(0, Progress("answer", 0, 3))
    assert pace.seconds_left(1) is None and pace.steps_per_second is None


def test_many_steps_are_thinned_and_stay_true():
    found = errors([0.01] * 5000)
    assert np.abs(found[500:]).max() < 0.05


@pytest.mark.parametrize("true", [(10, 30, 20), (10, 60, 20), (5, 30, 40)])
def test_stages_that_follow_are_reckoned_with(true):
    """Weights are about right; the longer the work has gone on, the less they matter."""
    weights = dict(patches=1.0, train=3.0, answer=2.0)
    forecast, now, wrong = Forecast(weights), 0.0, {}
    for stage, seconds in zip(weights, true, strict=True):
        for done in range(51):
            at = now + seconds * done / 50
            forecast.hear(at, Progress(stage, done, 50))
            left, truth = forecast.seconds_left(at), sum(true) - at
            if left is not None and truth > 1:
                wrong[at] = abs(left / truth - 1)
        now += seconds
    if true == (10, 30, 20):
        assert max(wrong.values()) < 1e-6
    assert all(error < 0.2 for at, error in wrong.items() if at > sum(true[:2]) + true[2] / 10)


def test_a_stage_that_ends_early_is_over():
    forecast = Forecast(dict(train=1.0, answer=1.0))
    for now in range(11):
        forecast.hear(now, Progress("train", now, 100))
    assert forecast.seconds_left(10) == pytest.approx(190)
    forecast.hear(10, Progress("answer", 0, 10))
    assert forecast.seconds_left(12) == pytest.approx(8)  # as long as the other one
    for done in range(6):
        forecast.hear(10 + done, Progress("answer", done, 10))
    assert forecast.seconds_left(15) == pytest.approx(5)
    forecast.hear(15, Progress("another", 0, 1))
    assert forecast.seconds_left(15) == pytest.approx(5)
