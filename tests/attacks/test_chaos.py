"""A few kills of the chaos bench, and that it notices what it looks for."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from attacks import chaos, disturbances, scenarios
from attacks.same_files import differences

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_a_few_kills_cost_nothing(monkeypatch):
    # Among other tests a process may wait long for a core; `make chaos` is alone, and counts.
    monkeypatch.setattr(disturbances, "_LEAVE_SECONDS", 60.0)
    bench = chaos.chaos(["predict"], kills=2, seed=2)
    assert bench.finds == []
    assert sum(count.total() for count in bench.counts.values()) >= 2


SLEEPER = """
import os, subprocess, sys, time
out = sys.argv[1]
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(out + "/result.txt", "a").write("x")
time.sleep(0.5)
"""


def test_who_is_left_behind_and_what_is_unequal_are_found(tmp_path, monkeypatch):
    bad = scenarios.Scenario("bad", ("OUT",), ("-c", SLEEPER))
    monkeypatch.setitem(scenarios.SCENARIOS, "bad", bad)
    monkeypatch.setattr(disturbances, "_LEAVE_SECONDS", 0.3)
    monkeypatch.setattr(chaos, "write_inputs", lambda folder, names: folder.mkdir() or folder)
    bench = chaos.Chaos(tmp_path, ["bad"], 0)
    bench.trial(0, "bad", "SIGKILL")
    assert len(bench.finds) == 1 and "left behind" in bench.finds[0]
    quiet = replace(bad, program=("-c", SLEEPER.replace("subprocess.Popen", "list")))
    monkeypatch.setitem(scenarios.SCENARIOS, "bad", quiet)
    bench.trial(1, "bad", "two writers")
    assert len(bench.finds) == 2 and "unequal: result.txt" in bench.finds[1]


def test_only_the_time_of_day_may_differ(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, seconds, label in ((one, 1.5, "a"), (two, 2.25, "a")):
        folder.mkdir()
        (folder / "timing.csv").write_text(f"{label},{seconds}\n")
        (folder / f".{seconds}.partial.csv").write_text("left")
    assert differences(one, two) == ["timing.csv"]
    assert differences(one, two, ["timing.csv"]) == []
    (two / "timing.csv").write_text("b,1.5\n")
    (two / "more.csv").touch()
    assert differences(one, two, ["timing.csv"]) == ["more.csv", "timing.csv"]
