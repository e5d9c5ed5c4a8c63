"""What is shown of long work, by a made-up clock."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.execution.progress import Progress
from histodict.execution.watching import Paces, bar_in_a_line


def said(stage, seconds, done=10, total=20):
    """Of a stage with steps of so many seconds."""
    clock = iter(np.arange(done + 2) * seconds)
    paces = Paces(clock=lambda: next(clock))
    for n in range(done + 1):
        paces.hear(Progress(stage, n, total))
    clock = iter([done * seconds])
    return paces.words(stage)


@pytest.mark.parametrize(
    ("stage", "seconds", "words"),
    [
        ("answer", 0.08, "12 images/s, 0:01 left"),
        ("answer", 0.4, "2.5 images/s, 0:04 left"),
        ("rule", 2, "30 images/min, 0:20 left"),
        ("evaluate", 100, "36 trainings/h, 16:40 left"),
        ("train", 1000, "3.6 steps/h, 2:46:40 left"),
    ],
)
def test_words(stage, seconds, words):
    assert said(stage, seconds) == words


def test_words_of_what_is_over_or_has_hardly_begun():
    assert said("answer", 0.4, done=20) == "2.5 images/s"
    assert said("answer", 0.4, done=0) == ""


def test_what_follows_is_reckoned_with():
    now = 0.0
    paces = Paces(dict(train=1.0, rule=2.0), clock=lambda: now)
    for done in range(11):
        now = float(done)
        paces.hear(Progress("train", done, 20))
    assert paces.words("train") == "1.0 steps/s, 0:10 left, 0:50 with all that follows"
    for done in range(21):
        now = 20.0 + done
        paces.hear(Progress("rule", done, 40))
    assert paces.words("rule") == "1.0 images/s, 0:20 left"


def test_a_bar_ends_with_its_count(capsys):
    show = bar_in_a_line()
    for done in range(3):
        show(Progress("answer", done, 2))
    shown = capsys.readouterr().err
    assert shown.startswith("\rAnswering") and shown.endswith("[" + "#" * 30 + "] 2/2\n")
