"""What is told of long work, and what the steps of it weigh."""

from __future__ import annotations

import pytest

from histodict.execution.progress import Progress, shares


def test_a_step_weighs_what_it_takes():
    assert shares([1, 3]) == [0, 0.25, 1]
    assert shares([0, 0]) == [0, 0.5, 1]  # nothing is known of them
    assert shares([]) == [0]


def test_work_is_steps_unless_it_is_said():
    assert Progress("train", 1, 4).share == 0.25
    assert Progress("train", 1, 4, work=0.5).share == 0.5
    assert Progress("train", 0, 0).share == pytest.approx(0)
